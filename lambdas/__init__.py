"""One folder a function: ``handler.py`` reads the event, calls the library, answers."""

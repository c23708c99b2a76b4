"""The ingest function: messages of queues, streams, buses and HTTP requests into topics."""

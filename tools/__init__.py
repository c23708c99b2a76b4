"""Programs for developers of this repository; the library does not need them."""

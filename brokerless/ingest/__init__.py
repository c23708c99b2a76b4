"""Messages from outside the library: batches of queues and streams, HTTP requests, and positions of sources."""

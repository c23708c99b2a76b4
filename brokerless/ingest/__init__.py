"""What comes from outside: batches of queues and streams, HTTP requests, and their positions."""

"""Sending messages: the producer, its buffer, and how rows are spread over partitions."""

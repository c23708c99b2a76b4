"""The Lambda functions, one folder each: ``handler.py`` parses the event, calls the library and returns the result.

Traces are Lambda's own (active tracing: cold starts, durations, errors; each line of the log has the trace's id). The
X-Ray SDK would add segments within a call, and 340 of 565 ms to every cold start, because it imports botocore.
"""

"""What runs on AWS beside the pipelines: environments of functions, the stream controller, metrics to CloudWatch."""

"""The parts of a deployment on AWS: environments of functions, the stream controller, metrics to CloudWatch."""

"""Running brokerless on one machine: S3 servers on the loopback interface."""

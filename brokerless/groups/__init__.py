"""Consumer groups without a coordinator: members share a topic's partitions through small objects in the store."""

"""The custom resource that creates topics."""

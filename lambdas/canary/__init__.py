"""The canary: each minute one message through the whole pipeline."""

"""Whole queries with checkpoints on S3: the service, its requests and delay, and the stores' settings."""

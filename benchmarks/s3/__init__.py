"""Whole queries with checkpoints on S3: the service, its requests, a delay before it, and the stores' settings."""

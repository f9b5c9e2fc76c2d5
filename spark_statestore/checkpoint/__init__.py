"""Checkpoints: storage, locations, streams, metadata, shared state and retention."""

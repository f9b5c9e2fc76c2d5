"""Checkpoints that exist, and how long they are kept."""

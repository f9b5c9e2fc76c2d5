"""Bytes of checkpoints: changelog messages, metadata objects and checksums, without I/O."""

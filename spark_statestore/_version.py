"""The version of the package; the jar carries the same one."""

__version__ = "0.1.0"

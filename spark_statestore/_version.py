"""The version of the package, which the jar carries as well, and those of Spark that it supports."""

__version__ = "0.1.0"

SUPPORTED_SPARK = ("4.0", "4.1", "4.2", "4.3")
"""Minor versions of Spark that this release supports, oldest first; of 4.0 the releases since 4.0.1."""


def minor_of(version: str) -> str:
    """Return the minor version, such as 4.3, of a version such as 4.3.0."""
    return ".".join(version.split(".")[:2])

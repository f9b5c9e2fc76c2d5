"""Spark's own test suites, from Maven's repository, with the libraries that they need."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Final

from tests.support.services.service import ServiceUnavailableError, fetched, maven_jars

VERSION: Final = "4.2.0"
"""Version of the suites: the newest one that Maven Central has."""

# As Spark's parent POM has them.
_LIBRARIES: Final = (
    "org.scalatest:scalatest_2.13:3.2.19",
    "org.scalatestplus:scalacheck-1-18_2.13:3.2.19.0",
    "org.scalatestplus:mockito-5-18_2.13:3.2.19.0",
    "org.mockito:mockito-core:5.23.0",
)

_MODULES: Final = ("common-utils", "core", "catalyst", "sql", "sql-api", "tags")


def fetch() -> Path:
    """Return a directory with the libraries in ``lib`` and the suites, unpacked, in ``classes``."""
    if shutil.which("java") is None:
        raise ServiceUnavailableError("java is not installed")

    def resolve(directory: Path) -> None:
        lib = directory / "lib"
        maven_jars(lib, *_LIBRARIES, transitive=True)
        # PySpark's own is the one to test.
        for jar in lib.glob("scala-*.jar"):
            jar.unlink()
        maven_jars(lib, *(f"org.apache.spark:spark-{name}_2.13:{VERSION}:tests" for name in _MODULES))
        suites = lib / f"spark-sql_2.13-{VERSION}-tests.jar"
        # Some suites copy a checkpoint from beside their classes, which must be files for it.
        with zipfile.ZipFile(suites) as archive:
            archive.extractall(directory / "classes")
        suites.unlink()

    return fetched(f"spark-suites-{VERSION}", resolve)

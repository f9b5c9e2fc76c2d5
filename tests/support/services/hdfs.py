"""HDFS: Hadoop's cluster for tests, with one data node, from Maven's repository."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.services.service import (
    PYSPARK_JARS,
    Service,
    ServiceUnavailableError,
    fetched,
    free_port,
    maven_jars,
    running,
)

_JUNIT: Final = "5.13.4"


def hadoop_version() -> str:
    """Return the version of the Hadoop client that PySpark brings."""
    (jar,) = PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def fetch() -> Path:
    """Return the directory of the jars that the cluster needs besides PySpark's."""
    if shutil.which("java") is None:
        raise ServiceUnavailableError("java is not installed")
    version = hadoop_version()
    dependencies = (
        f"org.apache.hadoop:hadoop-client-minicluster:{version}",
        f"org.junit.jupiter:junit-jupiter-api:{_JUNIT}",
    )
    return fetched(f"hdfs-{version}", lambda directory: maven_jars(directory, *dependencies))


@contextlib.contextmanager
def hdfs() -> Iterator[Service]:
    """Start a name node and a data node that serve WebHDFS, with an empty data directory."""
    home = fetch()
    with tempfile.TemporaryDirectory(prefix="hdfs-") as scratch:
        address = f"127.0.0.1:{(port := free_port())}"
        started = Path(scratch, "site.xml")
        command = [
            *("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={scratch}"),
            *("-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{home}/*:{PYSPARK_JARS}/*"),
            *("org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"),
            # It writes its configuration once both nodes are active.
            *("-httpport", str(port), "-writeConfig", str(started)),
        ]
        with running("HDFS", command, started.exists, {"JDK_JAVA_OPTIONS": ""}, directory=Path(scratch)):
            environment = {"FSSPEC_WEBHDFS_USER": getpass.getuser()}
            yield Service(
                "hdfs",
                "webhdfs",
                f"http://{address}",
                environment,
                lambda name: f"webhdfs://{address}/{name}",
            )

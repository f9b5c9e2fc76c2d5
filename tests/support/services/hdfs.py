"""HDFS: Hadoop's cluster for tests, with one data node, from Maven's repository."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from tests.support.services.service import (
    Service,
    ServiceUnavailableError,
    fetched,
    free_port,
    run_client,
    running,
)

_JARS: Final = Path(pyspark.__file__).parent / "jars"

_JUNIT: Final = "5.13.4"

_IVY: Final = """\
<ivy-module version="2.0">
  <info organisation="tests" module="hdfs"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{hadoop}" conf="default->master" transitive="false"/>
    <dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="{junit}" conf="default->master" transitive="false"/>
  </dependencies>
</ivy-module>
"""


def hadoop_version() -> str:
    """Return the version of the Hadoop client that PySpark brings."""
    (jar,) = _JARS.glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def fetch() -> Path:
    """Return the directory of the jars that the cluster needs besides PySpark's."""
    if shutil.which("java") is None:
        raise ServiceUnavailableError("java is not installed")
    return fetched(f"hdfs-{hadoop_version()}", _resolve)


def _resolve(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "ivy.xml").write_text(_IVY.format(hadoop=hadoop_version(), junit=_JUNIT))
        # PySpark brings Ivy for spark-submit --packages.
        run_client(
            [
                *("java", "-cp", f"{_JARS}/*", "org.apache.ivy.Main", "-warn"),
                *("-cache", f"{scratch}/cache", "-ivy", f"{scratch}/ivy.xml"),
                *("-retrieve", f"{directory}/[artifact]-[revision].[ext]"),
            ]
        )


@contextlib.contextmanager
def hdfs() -> Iterator[Service]:
    """Start a name node and a data node that serve WebHDFS, with an empty data directory."""
    home = fetch()
    with tempfile.TemporaryDirectory(prefix="hdfs-") as scratch:
        address = f"127.0.0.1:{(port := free_port())}"
        started = Path(scratch, "site.xml")
        command = [
            *("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={scratch}"),
            *("-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{home}/*:{_JARS}/*"),
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

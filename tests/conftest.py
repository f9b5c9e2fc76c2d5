"""What all tests share: the build, one Spark session, and Hypothesis' profiles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.class_archive import SHORT_LIVED
from tests.effort import EFFORT
from tests.sessions import local_builder

ROOT = Path(__file__).resolve().parent.parent
TEST_JAR = ROOT / "jvm-shim" / "target" / "spark-statestore-tests.jar"

# Spark's Python workers would otherwise run the system's interpreter.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED)

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=100 * EFFORT)
# For trying whether the tests notice a fault: the first failure is enough.
settings.register_profile(
    "faults", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], database=None
)
# For mutation testing, which runs every test thousands of times.
settings.register_profile(
    "mutation",
    settings.get_profile("faults"),
    max_examples=10,
    stateful_step_count=15,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave soak tests out unless they are asked for by their marker; begin with the files that take long."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    # Two workers end at about the same time if what is left last is short.
    items.sort(key=lambda item: item.path not in slow)
    if "soak" not in config.getoption("-m"):
        chosen = [item for item in items if item.get_closest_marker("soak") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures that tests have recorded, also of those that passed."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            # Of one test there are several reports, each with all that was recorded until then.
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "figures":
                        terminalreporter.section(report.nodeid)
                        terminalreporter.line(value)


@pytest.fixture(scope="session")
def built() -> Path:
    """The jar with the test harness, built from the sources as they are."""
    subprocess.run([sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"], check=True)
    return TEST_JAR


@pytest.fixture(scope="session")
def spark(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with two cores that has the provider, and the harness on its class path."""
    import spark_statestore
    from tests.benchmarks.contest import UNFORKED_FILES

    builder = (
        local_builder("tests", memory="2g")
        .config("spark.jars", str(built))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "5s")
    )
    session = spark_statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Hadoop would start programs for each file that Spark makes or renames; the programs of tests have it so.
    for name, value in UNFORKED_FILES.items():
        session.sparkContext._jsc.hadoopConfiguration().set(name, value)
    yield session
    session.stop()

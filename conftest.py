"""Shared test infrastructure: the jar build, one Spark session, and Hypothesis profiles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.class_archive import SHORT_LIVED
from tests.support.effort import EFFORT
from tests.support.paths import ROOT, TEST_JAR
from tests.support.sessions import local_builder
from tests.support.spark_versions import is_since

pytest.register_assert_rewrite("tests.spark.golden")

from tests.spark import golden

# Spark's Python workers would otherwise run the system's interpreter.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED)
# Recorded rows have timestamps, which PySpark returns in the local time zone.
os.environ["TZ"] = "UTC"
time.tzset()

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=100 * EFFORT)
# For mutation testing by hand: the first failure is enough.
settings.register_profile(
    "faults", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], database=None
)
# For automatic mutation testing, which runs every test thousands of times.
settings.register_profile(
    "mutation",
    settings.get_profile("faults"),
    max_examples=10,
    stateful_step_count=15,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["first", "rest", "spark", "brief", "all"],
        default="all",
        help="first: what `make test` runs; rest: what `make test-all` runs beyond it; "
        "spark: what `make test-spark` runs; brief: that without what is marked `oldest`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Ignore a fault of an older Spark that would fail tests at random."""
    if not is_since("4.2"):
        # PySpark leaves the sockets of its collected results to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def is_first_tier(item: pytest.Item) -> bool:
    """Return whether `make test` runs a test: a quick one without Spark, or one of the few with it.

    The marker `first` on a module includes its quick tests; on a test or a parameter it includes that one.
    """
    if any(marker.name == "first" for marker in item.own_markers):
        return True
    if item.get_closest_marker("slow") is not None:
        return False
    return item.path.is_relative_to(ROOT / "tests" / "unit") or item.get_closest_marker("first") is not None


def is_spark_tier(item: pytest.Item) -> bool:
    """Return whether `make test-spark` runs a test: those marked `spark`.

    What they test differs by Spark's version. The marker on a module includes all of its tests; on a test or
    a parameter it includes that one.
    """
    return item.get_closest_marker("spark") is not None


def is_in_tier(item: pytest.Item, tier: str) -> bool:
    """Return whether a tier includes a test."""
    match tier:
        case "first":
            return is_first_tier(item)
        case "rest":
            return not is_first_tier(item)
        case "spark":
            return is_spark_tier(item)
        case "brief":
            return is_spark_tier(item) and item.get_closest_marker("oldest") is None
        case _:
            return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a tier; long files come first.

    Tests with an opt-in marker run only if that marker is named.
    """
    tier = config.getoption("--tier")
    opt_in = ("kafka", "lake", "soak", "storage", "suites", "yarn")
    unnamed = [marker for marker in opt_in if marker not in config.getoption("-m")]
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    # Two workers end at about the same time if the last files are short.
    items.sort(key=lambda item: item.path not in slow)
    chosen = [
        item for item in items if is_in_tier(item, tier) and not any(map(item.get_closest_marker, unnamed))
    ]
    if golden.RECORDS:
        chosen = [item for item in chosen if "recordings" in getattr(item, "fixturenames", ())]
    left_out = set(items).difference(chosen)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = chosen


FIRST_TIER_SECONDS = 20
"""A file of the first tier that takes longer fails the run: some of its tests belong to the second.

In a run of several processes it fails only if it takes longer alone, too: the machine may have stalled.
"""

FIRST_TIER_SECONDS_WITH_SPARK = 40
"""The same for files below tests/spark or tests/system, whose first queries compile code in each session."""

FIRST_TIER_TOTAL_SECONDS = 400
"""Seconds of all files together on the machine that those limits are for.

On a slower one each file may take longer.
"""

# Variable by which a run of several processes tells that of one file how slow the machine is.
_SCALE: Final = "FIRST_TIER_SCALE"

_seconds: Counter[str] = Counter()

_too_slow: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up each file's seconds, without what is set up for the session."""
    if report.when != "setup":
        _seconds[report.nodeid.partition("::")[0]] += report.duration


def _is_too_slow(file: str, config: pytest.Config) -> bool:
    if _seconds[file] <= _limit_of(file):
        return False
    if not config.pluginmanager.has_plugin("dsession"):
        return True
    alone = [sys.executable, "-m", "pytest", "-q", "--tier", "first", "-m", config.getoption("-m"), file]
    # The machine may still be slow.
    slow = {**os.environ, _SCALE: str(_scale())}
    return subprocess.run(alone, cwd=ROOT, env=slow, stdout=subprocess.DEVNULL, check=False).returncode != 0


def _limit_of(file: str) -> float:
    seconds = FIRST_TIER_SECONDS if file.startswith("tests/unit/") else FIRST_TIER_SECONDS_WITH_SPARK
    return seconds * _scale()


def _scale() -> float:
    """Return how much slower than the machine of the limits this one is, at least 1."""
    return max(float(os.environ.get(_SCALE, "1")), _seconds.total() / FIRST_TIER_TOTAL_SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the first tier's run if one of its files is too slow."""
    config = session.config
    if hasattr(config, "workerinput") or session.exitstatus != 0 or config.getoption("--tier") != "first":
        return
    _too_slow.extend(file for file in list(_seconds) if _is_too_slow(file, config))
    if _too_slow:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the slowest files, and the figures that tests have recorded, also of those that passed."""
    terminalreporter.section("slowest files")
    for file, seconds in _seconds.most_common(10):
        terminalreporter.line(f"{seconds:7.1f} s  {file}")
    for file in _too_slow:
        terminalreporter.line(
            f"{file} took more than {_limit_of(file):.0f} s: mark its longest tests as slow, which moves "
            "them to the second tier",
            red=True,
        )
    for reports in terminalreporter.stats.values():
        for report in reports:
            # A test has several reports, each with all properties recorded until then.
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "figures":
                        terminalreporter.section(report.nodeid)
                        terminalreporter.line(value)


@pytest.fixture(scope="session")
def built() -> Path:
    """Build the jar with the test harness from the current sources."""
    subprocess.run([sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"], check=True)
    return TEST_JAR


@pytest.fixture(scope="session")
def spark(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a local session on two cores with the provider, and the harness on its class path."""
    import spark_statestore
    from benchmarks.stores import UNFORKED_FILES

    builder = (
        local_builder("tests", memory="2g")
        .config("spark.jars", str(built))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "5s")
        # Spark 4.0 deadlocks for as long if all stores are unloaded during maintenance.
        .config("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10s")
    )
    session = spark_statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Hadoop otherwise forks a program for each file that Spark creates or renames; the test programs set this
    # too.
    for name, value in UNFORKED_FILES.items():
        session.sparkContext._jsc.hadoopConfiguration().set(name, value)
    yield session
    session.stop()

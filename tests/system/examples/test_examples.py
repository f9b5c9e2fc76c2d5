"""The small examples run unchanged, print the expected results, and resume."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
# The latter is tested with a broker, in tests/system/kafka.
NOT_SMALL = {"flights_demo.py", "kafka_sessions.py"}

OUTPUT = {
    "sessions.py": [
        "ann: 09:00 to 10:15, 3 clicks",
        "bob: 09:10 to 09:40, 1 clicks",
        "bob: 10:30 to 11:00, 1 clicks",
    ],
    "pandas_state.py": [
        "batch 0: attic, 2 readings, at most 21.0",
        "batch 0: cellar, 1 readings, at most 8.0",
        "batch 1: attic, 3 readings, at most 21.0",
        "batch 1: cellar, 2 readings, at most 8.0",
        "batch 2: cellar, 3 readings, at most 9.5",
    ],
    "transform_with_state.py": [
        "batch 0: attic: north 19.5, south 21.0",
        "batch 0: cellar: door 8.0",
        "batch 1: attic: north 20.0, south 21.0",
        "batch 1: cellar: door 7.5",
        "batch 2: cellar: door 7.0",
        "batch 3: attic: silent for half an hour, after north 20.0, south 21.0",
    ],
    "operator_state.py": [
        "driver 1: batches 0, 1; killed in batch 2, before the state's checkpoint",
        "driver 2: batches 2, 3; killed in batch 4, after the state's checkpoint, before Spark's commit",
        "driver 3: batches 4, 5, 6; ended",
        "limits: ann 32, bob 80, eve 84",
        "orders above the limit: 21",
        "events taken: 42, of them twice: 0",
        "operator state: the result equals the answer",
    ],
    "upgrade_from_savepoint.py": [
        "version-1, batch 0: ann 35, bob 50",
        "a canonical savepoint of batch 0",
        "version-2, batch 1: ann 75, bob 50, eve 10",
        "savepoints left: 0",
    ],
    "roll_back.py": [
        "deployment 1: attic 20.0, cellar 8.0",
        "deployment 2, in Fahrenheit by mistake: attic 55.6, cellar 30.8",
        "to be moved: 2 batches, 6 files",
        "deployment 3: attic 22.0, cellar 10.0",
    ],
    "correct_state.py": [
        "wrong: ann 30, bob 5000, test-1 1, test-2 1",
        "batch 0: 1 customer corrected",
        "batch 0: 2 customers deleted",
        "after the next day: ann 70, bob 75, eve 10",
        "the result equals that of a query without the wrong input",
    ],
    "erase_key.py": [
        "two days: ann 35, bob 50, eve 10",
        "checkpoint: found in the state of the batches [0, 1]",
        "savepoint: found in the state of the batches [1]",
        "erased from the batches [0, 1] and 1 savepoint",
        "checkpoint: absent",
        "savepoint: absent",
        "three days: bob 75, eve 25",
        "from the savepoint: bob 75, eve 25",
    ],
    "rescale.py": [
        "4 partitions: 300 users, 300 visits",
        "7 partitions: 300 users, 500 visits",
        "200 users came on both days",
    ],
    "move_in.py": [
        "batches 0 to 3 with RocksDBStateStoreProvider",
        "converted 968 rows after batch 3, compared with checksums",
        "batches 4 to 7 with CheckpointStateStoreProvider",
        "247,813 duties of aircraft: the result equals the batch answer",
    ],
    "move_out.py": [
        "batches 0 to 3 with CheckpointStateStoreProvider",
        "converted 968 rows after batch 3, compared with checksums",
        "batches 4 to 7 with RocksDBStateStoreProvider",
        "247,813 duties of aircraft: the result equals the batch answer",
    ],
    "start_with_history.py": [
        "167,164 flights of 26 weeks: 16 carriers in the state",
        "336,776 flights: the result equals the batch answer",
    ],
    "change_a_query.py": [
        "batch 0",
        "operator 0, default: 16 keys of operator 0, default",
        "    key.carrier = key.carrier",
        "    key.country = US",
        "    value.count = value.count",
        "    value.max   = null",
        "336,776 flights: the result equals the batch answer",
    ],
    "memory_storage.py": [
        "run 1: 1000 numbers counted",
        "run 2: 2000 numbers counted",
        "checkpoints of state in files: 0",
    ],
}

# Output of the first run, and of a second one with the same directory.
OUTPUT_TWICE = {
    "word_count.py": (["the: 3", "brown: 1", "dog: 1"], ["the: 6", "brown: 2", "dog: 2"]),
    "deduplicate.py": (["5 delivered, 3 kept"], ["10 delivered, 3 kept"]),
    "foreach_batch.py": (["ann 70", "bob 75"], ["ann 140", "bob 150"]),
}

# It reads the checkpoint of word_count.py after two runs, without Spark.
READER = "read_state.py"
STATE = [
    "state: key struct<word: string>, value struct<count: int64>, partition_id int32",
    "pandas: 9 words, the longest one is brown",
    "duckdb: the 6, brown 2, dog 2",
    "in pieces: 22 words were counted",
    "batch 1 changed brown: 1 to 2",
    "batch 1 changed dog: 1 to 2",
]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]


PROGRAM = Path(__file__).parent / "programs" / "run_examples.py"

# A kill of the driver needs drivers of its own.
ALONE = {"operator_state.py"}

# Left to make soak: they take half of the time. Others also keep operator state, convert, and write state,
# and the notebook rolls a query back.
LONG = {"operator_state.py", "move_out.py", "change_a_query.py", "roll_back.py"}


def lines_of(
    runs: list[tuple[str, Path, list[str]]], temporary: Path, path: Path | None = None
) -> list[list[str]]:
    """Run examples in one process, and return the lines that each prints."""
    temporary.mkdir()
    calls = [[str(EXAMPLES / example), str(directory), arguments] for example, directory, arguments in runs]
    python_path = os.pathsep.join(map(str, [*([path] if path else []), ROOT]))
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": python_path}
    result = run([sys.executable, PROGRAM, json.dumps(calls)], env=environment, timeout=500)
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"lines"')]
    assert [report["error"] for report in reports] == [""] * len(runs)
    assert list(temporary.iterdir()) == [], "the examples left files behind"
    return [report["lines"] for report in reports]


@pytest.fixture(scope="module")
def printed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[str]]]:
    """Return what each run of each example printed, all in one process."""
    # In one order: Spark keeps the settings of the first session of a JVM, and with them the local directory
    # of an example that has removed it since.
    chosen = {
        item.callspec.params.get("example") for item in request.session.items if hasattr(item, "callspec")
    }
    skipped = LONG - chosen
    names = [*(name for name in OUTPUT if name not in ALONE | skipped), *OUTPUT_TWICE, *OUTPUT_TWICE]
    directories = {name: tmp_path_factory.mktemp("example") for name in {*names, *ALONE}}
    temporary = tmp_path_factory.mktemp("temporary")
    runs = [(name, directories[name], ["work"] if name in OUTPUT_TWICE else []) for name in names]
    lines_by_name: dict[str, list[list[str]]] = {}
    for name, lines in zip(names, lines_of(runs, temporary / "together"), strict=True):
        lines_by_name.setdefault(name, []).append(lines)
    for name in ALONE - skipped:
        lines_by_name[name] = lines_of([(name, directories[name], [])], temporary / name)
    directory = directories["word_count.py"]
    runs = [(READER, directory, ["work/checkpoint"])]
    lines_by_name[READER] = lines_of(runs, temporary / READER, without_spark(directory))
    return lines_by_name


def test_every_small_example_is_tested():
    small = {path.name for path in EXAMPLES.glob("*.py")} - NOT_SMALL
    assert small == {*OUTPUT, *OUTPUT_TWICE, READER}


def test_readme_lists_every_example():
    table = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert [name for name in names if f"| `{name}` |" not in table] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=[pytest.mark.soak] * (name in LONG)) for name in OUTPUT]
)
def test_example_prints_its_result(printed: dict[str, list[list[str]]], example: str):
    assert printed[example] == [OUTPUT[example]]


@pytest.mark.parametrize("example", OUTPUT_TWICE)
def test_example_resumes_with_the_same_directory(printed: dict[str, list[list[str]]], example: str):
    assert printed[example] == list(OUTPUT_TWICE[example])


def test_state_of_an_example_is_read_without_spark(printed: dict[str, list[list[str]]]):
    assert printed[READER] == [STATE]


def without_spark(directory: Path) -> Path:
    """Create a directory that makes imports of PySpark fail."""
    without = directory / "without"
    without.mkdir()
    for name in ("pyspark", "py4j"):
        (without / f"{name}.py").write_text(f"raise ImportError('{name} is not for this test')\n")
    return without

"""Tests that a message with a quoted message has one full stop between two sentences."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_statestore
from spark_statestore import errors
from spark_statestore.errors import StateStoreError
from spark_statestore.storage import CheckpointName
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.paths import ROOT
from tests.support.trees import files_below
from tests.unit.query.stored_query import StoredQuery
from tests.unit.store.stores import commit, open_store

TWO_STOPS = re.compile(r"(?<![./])\.[.;:](?=\s|$)")
KINDS = [getattr(errors, name) for name in errors.__all__]
SHIM = ROOT / "jvm-shim/src/main/scala"


def refuse() -> None:
    raise OSError("The service has refused this request. Ask your administrator.")


@pytest.fixture
def fs(tmp_path: Path) -> FaultInjectingFileSystem:
    """A query's checkpoint on a file system whose calls can be refused."""
    file_system = FaultInjectingFileSystem()
    query = StoredQuery(tmp_path / "checkpoint")
    query.run(ann=1, carl=2)
    query.run(ann=3)
    for path in files_below(tmp_path):
        file_system.pipe_file(
            file_system._strip_protocol(file_system.url(path)), (tmp_path / path).read_bytes()
        )
    return file_system


_targets = itertools.count()

CALLS: dict[str, Callable[[str], Any]] = {
    "read_state": spark_statestore.read_state,
    "verify": spark_statestore.verify,
    "gc": lambda url: spark_statestore.gc(url, stopped=True, older_than=0),
    "savepoint": lambda url: spark_statestore.savepoint(url, f"{url}-savepoints-{next(_targets)}"),
    "pointer": lambda url: spark_statestore.savepoint(url, f"{url}-pointers-{next(_targets)}", "pointer"),
    "list_savepoints": spark_statestore.list_savepoints,
    "clone": lambda url: spark_statestore.clone(url, f"{url}-clone-{next(_targets)}"),
    "repair": lambda url: spark_statestore.repair(url, dry_run=True),
    "commit": lambda url: commit(
        open_store(f"{url}-store-{next(_targets)}"), CheckpointName(1), {b"k": b"v" * 100_000}
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_message_has_one_full_stop_for_each_refused_call(fs: FaultInjectingFileSystem, name: str) -> None:
    url = fs.url("checkpoint")
    fs.inject()
    CALLS[name](url)
    quoted = 0
    for at in range(1, len(fs.calls) + 1):
        fs.inject(Fault("run", at, function=refuse))
        messages = []
        try:
            result = CALLS[name](url)
        except (StateStoreError, OSError) as error:
            messages.append(str(error))
        else:
            messages += [problem.message for problem in getattr(result, "problems", ())]
            messages += [problem.message for problem in getattr(result, "skipped", ())]
        for message in messages:
            quoted += "Ask your administrator" in message
            assert not TWO_STOPS.search(message), message
    assert quoted


@given(
    st.sampled_from(KINDS),
    st.text(alphabet=st.sampled_from("ab /."))
    .map(lambda text: text.rstrip(". /") + "x")
    .filter(lambda text: not TWO_STOPS.search(text)),
    st.sampled_from([". Try again.", ".", "; nothing was changed.", ": see there."]),
)
def test_error_ends_a_quoted_sentence_once(kind: type[StateStoreError], text: str, rest: str) -> None:
    assert str(kind(f"it failed: {kind(text + '.')}{rest}")).endswith(f"{text}{rest}")


@pytest.mark.parametrize(
    "message", ["../a is not ./b.", "as in a... b", "s3://b/.. is no directory", "read ...", "1.5 and a.b."]
)
def test_error_keeps_dots_of_paths_and_ellipses(message: str) -> None:
    assert str(StateStoreError(message)) == message


def test_jar_quotes_messages_without_a_second_full_stop() -> None:
    sources = list(SHIM.rglob("*.scala"))
    assert sources
    for path in sources:
        assert not re.search(r"\$\{\w+\.getMessage\}[.;]", path.read_text()), path

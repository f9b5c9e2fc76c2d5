"""Two sessions run one query with one checkpoint location by mistake: one of them goes on, and nothing is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.spark.counting import Program, wait_until

KEYS = 40

SPARK_SAYS = "Multiple streaming "
WE_SAY = "two queries run with one checkpointLocation"

both_formats = pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])


class Session(Program):
    """One of the two, see `tests.spark.programs.two_queries`."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.gates = directory / "gates"
        super().__init__("two_queries", who=name, input=str(directory / "input"), gates=str(self.gates))

    def ask(self, do: str, **order: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do} | order) + "\n")
        self.process.stdin.flush()
        return self.next(do)

    def shut(self) -> None:
        """Let its next batch stop before it changes state."""
        (self.gates / f"{self.name}-waiting").unlink(missing_ok=True)
        (self.gates / f"{self.name}-stop").touch()

    def wait_at_gate(self) -> None:
        assert wait_until((self.gates / f"{self.name}-waiting").exists, 60), "no batch has come"

    def open(self) -> None:
        (self.gates / f"{self.name}-stop").unlink()


class Place:
    """What both work on, and what the result must be."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "input"
        self.checkpoint = directory / "checkpoint"
        self.fed = 0

    def clear(self) -> None:
        for path in (self.input, self.checkpoint, self.directory / "gates"):
            shutil.rmtree(path, ignore_errors=True)
        self.input.mkdir()
        (self.directory / "gates").mkdir()
        self.fed = 0

    def feed(self) -> None:
        lines = "".join(json.dumps({"k": k, "v": k + self.fed}) + "\n" for k in range(self.fed, KEYS))
        (self.directory / "written").write_text(lines)
        (self.directory / "written").rename(self.input / f"{self.fed}.json")
        self.fed += 1

    def expected(self) -> list[list[int]]:
        rows = {}
        for number in range(self.fed):
            for k in range(number, KEYS):
                n, v = rows.get(k, (0, 0))
                rows[k] = n + 1, v + k + number
        return [[k, n, v] for k, (n, v) in sorted(rows.items())]

    def check(self, goes_on: Session, other: Session, checkpoint_format: int) -> None:
        """The one that goes on is exact, and so is whoever starts from what they have left."""
        self.feed()
        assert goes_on.ask("reach", batch=self.fed - 1) == self.fed - 1
        assert goes_on.ask("rows") == self.expected()
        assert goes_on.ask("stop") is True
        assert spark_statestore.verify(str(self.checkpoint)).ok
        self.start(other, checkpoint_format)
        self.feed()
        assert other.ask("reach", batch=self.fed - 1) == self.fed - 1
        assert other.ask("rows") == self.expected()
        assert other.ask("stop") is True

    def start(self, session: Session, checkpoint_format: int) -> str:
        return session.ask("start", checkpoint=str(self.checkpoint), format=checkpoint_format)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def sessions(built: Path, place: Place) -> Iterator[tuple[Session, Session]]:
    with Session("first", place.directory) as first, Session("second", place.directory) as second:
        first.next("ready")
        second.next("ready")
        yield first, second


def meet_in_a_batch(place: Place, sessions: tuple[Session, Session], checkpoint_format: int) -> None:
    """The second one starts while the first one is in its second batch, of which it runs the same again."""
    first, second = sessions
    place.clear()
    place.feed()
    place.start(first, checkpoint_format)
    first.ask("reach", batch=0)
    first.shut()
    place.feed()
    first.wait_at_gate()
    second.shut()
    place.start(second, checkpoint_format)
    second.wait_at_gate()


@pytest.mark.slow
@both_formats
def test_the_second_query_is_told_when_the_first_one_finishes_their_batch(
    place: Place, sessions: tuple[Session, Session], checkpoint_format: int
) -> None:
    first, second = sessions
    meet_in_a_batch(place, sessions, checkpoint_format)
    first.open()
    assert first.ask("reach", batch=1) == 1
    assert first.ask("rows") == place.expected()
    second.open()
    told = second.ask("fail")
    if checkpoint_format == 1:
        assert WE_SAY in told
        assert "version 2" in told
        assert str(place.checkpoint / "commits") in told
    else:
        assert SPARK_SAYS in told
    place.check(first, second, checkpoint_format)


@pytest.mark.soak
@both_formats
def test_the_first_query_is_told_when_the_second_one_finishes_their_batch(
    place: Place, sessions: tuple[Session, Session], checkpoint_format: int
) -> None:
    first, second = sessions
    meet_in_a_batch(place, sessions, checkpoint_format)
    second.open()
    assert second.ask("reach", batch=1) == 1
    first.open()
    told = first.ask("fail")
    assert (WE_SAY if checkpoint_format == 1 else SPARK_SAYS) in told
    place.check(second, first, checkpoint_format)


@pytest.mark.soak
@both_formats
def test_of_two_idle_queries_one_is_told_when_there_is_something_to_do(
    place: Place, sessions: tuple[Session, Session], checkpoint_format: int
) -> None:
    first, second = sessions
    place.clear()
    place.feed()
    place.start(first, checkpoint_format)
    first.ask("reach", batch=0)
    place.start(second, checkpoint_format)
    for _ in range(20):
        place.feed()
        if wait_until(lambda: (place.checkpoint / "commits" / str(place.fed - 1)).exists(), 30):
            states = {session: session.ask("reach", batch=place.fed - 1) for session in sessions}
            lost = [session for session, state in states.items() if state != place.fed - 1]
            if lost:
                break
    (loser,) = lost
    (winner,) = {first, second} - {loser}
    told = loser.ask("fail")
    assert SPARK_SAYS in told or WE_SAY in told
    place.check(winner, loser, checkpoint_format)


@pytest.mark.soak
def test_in_one_session_the_second_start_ends_the_first_run(
    place: Place, sessions: tuple[Session, Session]
) -> None:
    """Spark's own doing (spark.sql.streaming.stopActiveRunOnRestart)."""
    first, second = sessions
    place.clear()
    place.feed()
    runs = [place.start(first, 1)]
    first.ask("reach", batch=0)
    first.shut()
    place.feed()
    first.wait_at_gate()
    runs.append(place.start(first, 1))
    first.open()
    assert len(set(runs)) == 2
    place.check(first, second, 1)

"""Two sessions run one query with one checkpoint location: one of them continues, and nothing is damaged."""

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

SPARKS_MESSAGE = "Multiple streaming "
OUR_MESSAGE = "two queries run with one checkpointLocation"

both_formats = pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])


class Session(Program):
    """One of the two, see `tests.spark.programs.two_queries`."""

    def __init__(self, name: str, directory: Path, commit: str) -> None:
        self.name = name
        self.commit = commit
        self.barriers = directory / "barriers"
        super().__init__(
            "two_queries",
            session=name,
            input=str(directory / "input"),
            barriers=str(self.barriers),
            commit=commit,
        )

    def ask_for_conflict(self, checkpoint_format: int) -> str:
        """Wait until its query fails as the other's batch is in the commit log; return the messages."""
        message: str = self.ask("fail")
        # Tasks publish only what the commit log, which does not name attempts in v1, does not have yet.
        is_ours = checkpoint_format == 1 and self.commit == "task"
        assert (OUR_MESSAGE if is_ours else SPARKS_MESSAGE) in message
        return message if is_ours else ""

    def ask(self, do: str, **order: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do} | order) + "\n")
        self.process.stdin.flush()
        return self.next(do)

    def block(self) -> None:
        """Block its next batch before it changes state."""
        (self.barriers / f"{self.name}-waiting").unlink(missing_ok=True)
        (self.barriers / f"{self.name}-stop").touch()

    def wait_until_blocked(self) -> None:
        assert wait_until((self.barriers / f"{self.name}-waiting").exists, 60), "no batch has come"

    def unblock(self) -> None:
        (self.barriers / f"{self.name}-stop").unlink()


class Place:
    """Shared input and checkpoint of both, with the expected result."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "input"
        self.checkpoint = directory / "checkpoint"
        self.fed = 0

    def clear(self) -> None:
        for path in (self.input, self.checkpoint, self.directory / "barriers"):
            shutil.rmtree(path, ignore_errors=True)
        self.input.mkdir()
        (self.directory / "barriers").mkdir()
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

    def check(self, survivor: Session, successor: Session, checkpoint_format: int) -> None:
        """Check that the continuing query is exact, and so is a new one on the checkpoint that both leave."""
        self.feed()
        assert survivor.ask("reach", batch=self.fed - 1) == self.fed - 1
        assert survivor.ask("rows") == self.expected()
        assert survivor.ask("stop") is True
        assert spark_statestore.verify(str(self.checkpoint)).ok
        self.start(successor, checkpoint_format)
        self.feed()
        assert successor.ask("reach", batch=self.fed - 1) == self.fed - 1
        assert successor.ask("rows") == self.expected()
        assert successor.ask("stop") is True

    def start(self, session: Session, checkpoint_format: int) -> str:
        return session.ask("start", checkpoint=str(self.checkpoint), format=checkpoint_format)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module", params=[pytest.param("task", marks=pytest.mark.soak), "batch"])
def sessions(built: Path, place: Place, request: pytest.FixtureRequest) -> Iterator[tuple[Session, Session]]:
    where = place.directory, request.param
    with Session("first", *where) as first, Session("second", *where) as second:
        first.next("ready")
        second.next("ready")
        yield first, second


def meet_in_a_batch(place: Place, sessions: tuple[Session, Session], checkpoint_format: int) -> None:
    """Start the second one while the first one is in its second batch, so that both run the same batch."""
    first, second = sessions
    place.clear()
    place.feed()
    place.start(first, checkpoint_format)
    first.ask("reach", batch=0)
    first.block()
    place.feed()
    first.wait_until_blocked()
    second.block()
    place.start(second, checkpoint_format)
    second.wait_until_blocked()


@pytest.mark.slow
@both_formats
@pytest.mark.parametrize("first_to_commit", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_query_fails_if_the_other_commits_the_batch(
    place: Place, sessions: tuple[Session, Session], first_to_commit: int, checkpoint_format: int
) -> None:
    meet_in_a_batch(place, sessions, checkpoint_format)
    winner, loser = sessions[first_to_commit], sessions[1 - first_to_commit]
    winner.unblock()
    assert winner.ask("reach", batch=1) == 1
    assert winner.ask("rows") == place.expected()
    loser.unblock()
    if message := loser.ask_for_conflict(checkpoint_format):
        assert "version 2" in message
        assert str(place.checkpoint / "commits") in message
    place.check(winner, loser, checkpoint_format)

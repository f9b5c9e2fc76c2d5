"""A request that hangs is given up once, and may then change nothing."""

from __future__ import annotations

import time

import pytest

from spark_statestore.checkpoint.files.work import Work, got_on, require_wanted
from tests.checkpoint.working import working


def later(seconds: float) -> float:
    return time.monotonic() + seconds


def test_it_is_given_up_when_storage_took_too_long() -> None:
    work, told = Work(5.0), []
    assert not work.give_up_if_hung(later(4.0), lambda: told.append("early"))
    assert work.give_up_if_hung(later(6.0), lambda: told.append("late"))
    assert not work.give_up_if_hung(later(60.0), lambda: told.append("again"))
    assert told == ["late"]
    with pytest.raises(ConnectionAbortedError):
        work.pause()


def test_who_waits_for_something_else_is_not_given_up() -> None:
    work = Work(5.0)
    work.pause()
    assert not work.give_up_if_hung(later(1000.0), lambda: None)
    work.get_on()
    assert work.give_up_if_hung(later(6.0), lambda: None)


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    work = Work(5.0)
    work.forgive(100.0)
    assert not work.give_up_if_hung(later(104.0), lambda: None)
    assert work.give_up_if_hung(later(106.0), lambda: None)


def test_who_gets_on_is_not_given_up() -> None:
    work = Work(0.05)
    with working(work):
        time.sleep(0.06)
        got_on()
    assert not work.give_up_if_hung(time.monotonic(), lambda: None)
    got_on()
    require_wanted()


def test_what_it_holds_is_released_once_it_is_given_up() -> None:
    work, released = Work(1.0), []
    work.release_on_give_up(lambda: released.append(1))
    work.give_up_if_hung(later(2.0), lambda: None)
    assert released == [1]
    with pytest.raises(ConnectionAbortedError):
        work.release_on_give_up(lambda: None)


def test_it_is_unwanted_once_it_is_given_up_or_its_asker_has_gone() -> None:
    present = [True]
    work = Work(1.0, lambda: present[0])
    with working(work):
        require_wanted()
        present[0] = False
        with pytest.raises(ConnectionAbortedError):
            require_wanted()
        present[0] = True
        work.give_up_if_hung(later(2.0), lambda: None)
        with pytest.raises(ConnectionAbortedError):
            require_wanted()

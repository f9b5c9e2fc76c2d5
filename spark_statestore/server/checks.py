"""What each request must say, and in which form: checked before anything is done, since much of it ends up in paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_statestore.errors import ProtocolError
from spark_statestore.state.handles.owner import is_attempt

__all__ = ["check_request"]

_ID: Final = re.compile(r"[0-9A-Za-z]{1,64}")
_LARGEST: Final = (1 << 63) - 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _ID.fullmatch(value) is not None)


def _is_list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _is_options(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(text) for text in value.values())


def _is_range(value: Any) -> bool:
    return _is_list(_is_count)(value) and len(value) == 2


_Fields = Mapping[str, Callable[[Any], bool]]

_STORE: Final[_Fields] = {
    "instance": _is_text,
    "root": _is_text,
    "operator": _is_number,
    "partition": _is_number,
    "name": _is_text,
    "options": _is_options,
}
_MAYBE_OF_A_STORE: Final[_Fields] = {"commits": lambda value: value is None or _is_text(value)}

_OF_A_VERSION: Final[_Fields] = {"version": _is_count, "attempt": is_attempt, "idInPath": _is_flag}
_STATES: Final[_Fields] = {"states": _is_list(lambda value: isinstance(value, dict))}

# What every request of a kind has; and what it may have.
_FIELDS: Final[Mapping[str, tuple[_Fields, _Fields]]] = {
    "load": (
        {"version": _is_count},
        {
            "id": _is_id,
            "from": _is_count,
            "fromId": _is_id,
            "asStored": _is_flag,
            "objects": _is_list(_is_text),
            "kept": _is_range,
        },
    ),
    "lineage": ({"version": _is_count, "oldest": _is_count, "state": _is_text}, {"id": _is_id}),
    "changes": ({**_OF_A_VERSION, "state": _is_text}, {}),
    "commit": (
        {**_OF_A_VERSION, **_STATES, "hasParent": _is_flag, "hasBase": _is_flag},
        {"parentAttempt": lambda value: value is None or is_attempt(value), "oldestBase": _is_number},
    ),
    "materialise": ({"version": _is_count, **_STATES}, {}),
    "cleanup": ({**_OF_A_VERSION, "retainFrom": _is_count, "mostVersions": _is_number}, {}),
}


def check_request(request: Mapping[str, Any]) -> None:
    """Check a request.

    Raises
    ------
    ProtocolError
        If there is no such request, or something in it is missing or is not what it must be.
    """
    op = request.get("op")
    if not isinstance(op, str) or op not in _FIELDS:
        raise ProtocolError(f"there is no request {op!r:.40}")
    store = request.get("store")
    if not isinstance(store, dict):
        raise ProtocolError(f"the request {op!r} does not say of which store")
    _check(op, store, _STORE, _MAYBE_OF_A_STORE)
    _check(op, request, *_FIELDS[op])
    if op == "cleanup" and request["retainFrom"] > request["version"]:
        raise ProtocolError(
            f"the request 'cleanup' is to discard the newest version, {request['version']}: it retains from "
            f"{request['retainFrom']} on"
        )


def _check(op: str, node: Mapping[str, Any], required: _Fields, optional: _Fields) -> None:
    for name in required:
        if name not in node:
            raise ProtocolError(f"the request {op!r} lacks {name!r}")
    for name, fits in (*required.items(), *optional.items()):
        if name in node and not fits(node[name]):
            raise ProtocolError(
                f"the request {op!r} has {node[name]!r:.80} as {name!r}, which that cannot be"
            )

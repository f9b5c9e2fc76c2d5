"""A StatefulProcessor whose output does not depend on PySpark's version.

It is a module because Spark's Python workers import it.
"""

from __future__ import annotations

from typing import Any

from tests.spark.processors import Interpreter


class PlainInterpreter(Interpreter):
    """Outputs numbers as Python's, and keys as tuples.

    PySpark 4.0 has some of numpy, and not always a Row.
    """

    def _output(self, key: Any, event: str, content: Any, times: Any) -> Any:
        return super()._output(_plain(key), event, content, times)

    def _content(self, times: Any) -> dict[str, Any]:
        timers = sorted(self._handle.listTimers()) if self._timers else []
        return {
            "one": _plain(self.single.get()) if self.single.exists() else "nothing",
            "many": [_plain(value) for value in self.many.get()],
            "named": sorted(repr((_plain(key), _plain(value))) for key, value in self.named.iterator()),
            "keys": sorted(repr(_plain(key)) for key in self.named.keys()),  # noqa: SIM118 - a map state is no mapping
            "timers": timers if self._timers == "event" else len(timers),
        }


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(value.item() if hasattr(value, "item") else value for value in row)

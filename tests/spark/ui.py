"""A query in a program of its own, its pages in Spark's UI, and its metrics, over HTTP."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import spark_statestore
from tests.spark.counting import Program

PREFIX = "plugin_org_apache_spark_sql_statestore_StateStorePlugin_"
"""How the names of the plugin's metrics begin, behind the application's id."""

WITH_METRICS = {
    "spark.plugins": spark_statestore.PLUGIN_CLASS,
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}
"""Settings for an endpoint with the metrics of the driver, in the format of Prometheus."""


class Observed:
    """A query that has counted its input, see `tests.spark.programs.observe`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        counted = program.next("counted")
        self.url = counted["url"]
        self.progress: list[dict[str, Any]] = counted["progress"]
        """The progress of each batch with input."""

    def order(self, command: str) -> None:
        """Have the query fail or stop."""
        assert self.program.process.stdin is not None
        self.program.process.stdin.write(f"{command}\n")
        self.program.process.stdin.flush()
        self.program.next("ended")

    def get(self, path: str, **headers: str) -> str:
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def status(self, path: str, **headers: str) -> int:
        try:
            self.get(path, **headers)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def metrics(self, **headers: str) -> dict[str, int]:
        """Return the plugin's metrics by their names behind `PREFIX`; every line must be in the format."""
        values = {}
        for line in self.get("/metrics/prometheus/", **headers).splitlines():
            match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{type="(\w+)"\} (\S+)', line)
            assert match, line
            if PREFIX in match[1]:
                values[match[1].partition(PREFIX)[2]] = int(match[3])
        return values


@contextmanager
def observed(directory: Path, **arguments: Any) -> Iterator[Observed]:
    """Run the query until its input is counted."""
    with Program("observe", directory=str(directory), **({"query": "counts"} | arguments)) as program:
        yield Observed(program)


def cells(page: str, metric: str) -> list[int]:
    """Return the exact numbers of a metric in a page, from the top."""
    return [int(n) for n in re.findall(rf'<td data-metric="{metric}" sorttable_customkey="(-?\d+)">', page)]

"""Fetch services into the cache without starting them: those named, or all.

python -m tests.support.services.fetch [SERVICE]...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.support.services.azurite import fetch as fetch_azurite
from tests.support.services.hdfs import fetch as fetch_hdfs
from tests.support.services.kafka import connector as fetch_kafka_connector
from tests.support.services.kafka import fetch as fetch_kafka
from tests.support.services.lake import delta as fetch_delta
from tests.support.services.lake import iceberg as fetch_iceberg
from tests.support.services.minio import fetch as fetch_minio
from tests.support.services.service import ServiceUnavailableError
from tests.support.services.spark_suites import fetch as fetch_spark_suites
from tests.support.services.yarn import fetch as fetch_yarn

_FETCHES: Final[Mapping[str, Callable[[], object]]] = {
    "minio": fetch_minio,
    "azurite": fetch_azurite,
    "hdfs": fetch_hdfs,
    "kafka": fetch_kafka,
    "kafka-connector": fetch_kafka_connector,
    "delta": fetch_delta,
    "iceberg": fetch_iceberg,
    "spark-suites": fetch_spark_suites,
    "yarn": fetch_yarn,
}


def main(names: list[str]) -> None:
    """Fetch services, and print where each is and how long it took."""
    for name in names or _FETCHES:
        start = time.monotonic()
        try:
            print(f"{name}: {_FETCHES[name]()}, {time.monotonic() - start:.1f} s", flush=True)
        except ServiceUnavailableError as error:
            print(f"{name} cannot be fetched: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

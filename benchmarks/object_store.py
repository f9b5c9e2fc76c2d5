"""Calls on S3 through obstore and s3fs, side by side, against MinIO on this machine.

    python -m benchmarks.object_store [ROUNDS]

Prints the best of the rounds, each in a process of its own: calls in a second, processor time of a call in this process,
and for one stream of 200 MB the most memory that it took.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

CASES = {
    "20 KB, 1 thread": (20_000, 1, 200),
    "20 KB, 16 threads": (20_000, 16, 1600),
    "1 MB, 16 threads": (1_000_000, 16, 200),
}
STREAM_MIB = 200


def measure(driver: str, url: str) -> dict[str, tuple[float, float]]:
    """Return the figures of one driver."""
    from spark_statestore.files import drivers, open_file_system

    drivers._is_installed = lambda module: module in (driver, "botocore")
    files, path = open_file_system(f"{url}/{driver}-{os.getpid()}")
    files.create(f"{path}/first", b"")
    figures: dict[str, tuple[float, float]] = {}
    for case, (size, threads, calls) in CASES.items():
        data = os.urandom(size)
        with ThreadPoolExecutor(threads) as pool:
            start, spent = time.perf_counter(), time.process_time()
            list(
                pool.map(
                    lambda n, case=case, data=data: files.create(f"{path}/{case}/{n}", data), range(calls)
                )
            )
            seconds, processor = time.perf_counter() - start, time.process_time() - spent
        figures[case] = calls / seconds, processor / calls * 1000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part, start = os.urandom(1 << 20), time.perf_counter()
    output = files.open_output(f"{path}/stream")
    for _ in range(STREAM_MIB):
        output.write(part)
    output.close()
    written = STREAM_MIB / (time.perf_counter() - start)
    figures["stream"] = written, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return figures


def main(rounds: int) -> None:
    """Print a table."""
    from tests.support.services import minio

    with minio() as service:
        url, environment = service.new_container(), os.environ | service.environment
        found: dict[str, list[dict[str, tuple[float, float]]]] = {"obstore": [], "s3fs": []}
        for _ in range(rounds):
            for driver, measured in found.items():
                command = [sys.executable, "-m", "benchmarks.object_store", driver, url]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                measured.append(json.loads(done.stdout))
    for case in (*CASES, "stream"):
        unit = ("MiB/s", "MiB of memory") if case == "stream" else ("PUT/s", "ms of processor time each")
        for driver, measured in found.items():
            rate, cost = max(one[case][0] for one in measured), min(one[case][1] for one in measured)
            print(f"{case:20} {driver:8} {rate:8.1f} {unit[0]}, {cost:6.2f} {unit[1]}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 3)

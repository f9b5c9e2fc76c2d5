"""Run examples one after the other in one process, and so with one JVM, and report what each prints.

The only argument is a JSON list of runs: the path of an example, the directory to run it in, and its
arguments.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback


def run(example: str, directory: str, arguments: list[str]) -> None:
    printed, error = io.StringIO(), ""
    os.chdir(directory)
    sys.argv = [example, *arguments]
    # As Python does for a program.
    sys.path[0] = os.path.dirname(example)
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(example, run_name="__main__")
        except Exception:  # noqa: BLE001 - reported, and the other examples still run
            error = traceback.format_exc()
    print(json.dumps({"lines": printed.getvalue().splitlines(), "error": error}), flush=True)


if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        run(*arguments)

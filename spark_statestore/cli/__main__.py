"""Run the command: ``spark-statestore``, or ``python -m spark_statestore.cli``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process."""
    try:
        from spark_statestore.cli.app import app
    except ImportError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"the command spark-statestore needs {error.name}, which is not installed: "
            "pip install 'spark-statestore[cli]'\n"
        )
        sys.exit(2)
    app(prog_name="spark-statestore")


if __name__ == "__main__":
    main()

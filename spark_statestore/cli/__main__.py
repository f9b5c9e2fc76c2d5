"""Run the command: ``spark-statestore``, or ``python -m spark_statestore.cli``."""

from __future__ import annotations

from spark_statestore.cli.app import app


def main() -> None:
    """Run the command line of this process."""
    app(prog_name="spark-statestore")


if __name__ == "__main__":
    main()

"""``python -m tests.mutants``: change one line at a time, and check that the tests named for it fail."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.runner import Copy, Outcome, Result

KINDS = ("python", "scala")


def mutants_of(kinds: Sequence[str]) -> list[Mutant]:
    """Return the mutants of some kinds."""
    return [mutant for kind in kinds for mutant in importlib.import_module(f"tests.mutants.{kind}").MUTANTS]


def as_markdown(results: Mapping[Mutant, Result]) -> str:
    """Return a table of the results."""
    lines = [
        "| mutant | file | guarantee | result | seconds | test that fails |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {mutant.name} | `{mutant.path}` | {mutant.guarantee} | {result.outcome} | {result.seconds:.0f} | "
        f"{result.failed} |"
        for mutant, result in results.items()
    ]
    killed = sum(result.outcome.is_killed for result in results.values())
    return "\n".join([f"{killed} of {len(results)} mutants are killed.", "", *lines, ""])


def run(chosen: Sequence[Mutant], copy: Copy, results_file: str | None) -> bool:
    """Run mutants and return True if all are killed."""
    before: dict[tuple[str, ...], Result] = {}
    for tests in dict.fromkeys(mutant.tests for mutant in chosen):
        before[tests] = copy.test(tests)
        passed = before[tests].outcome is Outcome.SURVIVED
        print(
            f"{'passed' if passed else 'FAILED':22} {before[tests].seconds:6.1f} s  {' '.join(tests)}",
            flush=True,
        )
        if not passed:
            print(before[tests].output, flush=True)
    results: dict[Mutant, Result] = {}
    for mutant in chosen:
        if before[mutant.tests].outcome is Outcome.SURVIVED:
            result = copy.test_mutant(mutant)
        else:
            result = Result(Outcome.BROKEN_BEFORE, 0)
        results[mutant] = result
        print(f"{result.outcome:22} {result.seconds:6.1f} s  {mutant.name}", flush=True)
        if result.outcome in (Outcome.NOT_COMPILED, Outcome.NOT_RUN):
            print(result.output, flush=True)
        if results_file:
            Path(results_file).parent.mkdir(parents=True, exist_ok=True)
            Path(results_file).write_text(as_markdown(results))
    print(as_markdown(results).partition("\n")[0])
    return all(result.outcome.is_killed for result in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these mutants")
    parser.add_argument("--kind", choices=KINDS, help="run the mutants of one language")
    parser.add_argument("--results", metavar="FILE", help="write a table in Markdown")
    arguments = parser.parse_args()
    chosen = mutants_of([arguments.kind] if arguments.kind else KINDS)
    if arguments.only:
        if unknown := set(arguments.only) - {mutant.name for mutant in chosen}:
            parser.error(f"there are no mutants {', '.join(sorted(unknown))}")
        chosen = [mutant for mutant in chosen if mutant.name in arguments.only]
    # So that the tests are stopped, and the copy is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        sys.exit(not run(chosen, Copy(Path(directory)), arguments.results))


if __name__ == "__main__":
    main()

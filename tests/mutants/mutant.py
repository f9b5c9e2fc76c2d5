"""A mutant is a change of one line of the product that breaks a guarantee, with the tests that fail then.

The modules `python` and `scala` beside this one each have a tuple of them, `MUTANTS`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change of one line.

    Parameters
    ----------
    name
        Unique among all mutants, for the command line and the table of results.
    path
        The file that it changes, relative to the checkout.
    old
        What it replaces. It occurs exactly once in the file, with neighbouring lines where that needs them.
    new
        The replacement, which differs from `old` in one line.
    tests
        Arguments for pytest that select the tests to fail: files or node ids, `-k` and its expression.
    guarantee
        What a user would lose.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    guarantee: str

"""What can become of a file: every way in which bytes are not those that were written, one at a time."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.figures import count

__all__ = ["Damage", "cuts", "damaged", "flips", "others"]


@dataclass(frozen=True)
class Damage:
    """A file that is damaged.

    Attributes
    ----------
    path
        The file.
    what
        What happened to it.
    data
        What it holds then; None if it is not there.
    """

    path: Path
    what: str
    data: bytes | None

    @property
    def kind(self) -> str:
        """What happened, in a word or two."""
        kinds = ("flipped", "missing", "in its place")
        return next((kind for kind in kinds if kind in self.what), "cut, emptied or longer")

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def flips(path: Path, *, stride: int = 1, bits: int = 1) -> Iterator[Damage]:
    """Every byte with a bit flipped, another one in each; or with so many of its bits, one after the other."""
    data = path.read_bytes()
    for position in range(0, len(data), stride):
        for bit in range(bits):
            changed = bytearray(data)
            changed[position] ^= 1 << (position + bit) % 8
            yield Damage(path, f"bit {(position + bit) % 8} of byte {position} flipped", bytes(changed))


def cuts(path: Path, *, stride: int = 1) -> Iterator[Damage]:
    """Every shorter length, the empty file among them; and some longer ones."""
    data = path.read_bytes()
    for length in range(0, len(data), stride):
        yield Damage(path, f"cut to {length} of {len(data)} bytes", data[:length])
    yield Damage(path, "the last byte cut off", data[:-1])
    yield Damage(path, "the end written twice", data + data[-1:])
    yield Damage(path, "written twice", data + data)
    yield Damage(path, "zeros in its place", bytes(len(data)))


def others(path: Path, files: list[Path]) -> Iterator[Damage]:
    """The file missing, and each of several other files in its place."""
    yield Damage(path, "missing", None)
    data = path.read_bytes()
    for other in files:
        if (content := other.read_bytes()) != data:
            yield Damage(path, f"{other} in its place", content)


@contextlib.contextmanager
def damaged(damage: Damage) -> Iterator[None]:
    """The file is damaged within, and afterwards as it was."""
    count(f"damage: {damage.kind}")
    kept = damage.path.with_name(f".{damage.path.name}.kept")
    shutil.copy2(damage.path, kept)
    try:
        if damage.data is None:
            damage.path.unlink()
        else:
            damage.path.write_bytes(damage.data)
        yield
    except BaseException as error:
        error.add_note(str(damage))
        raise
    finally:
        kept.replace(damage.path)

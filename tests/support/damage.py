"""Single faults of a file: every way in which its bytes can differ from those that were written."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.figures import count

__all__ = ["Damage", "cuts", "damaged", "flips", "replacements"]


@dataclass(frozen=True)
class Damage:
    """A fault of one file: its description, and the resulting bytes, or None if the file is missing."""

    path: Path
    description: str
    data: bytes | None

    @property
    def kind(self) -> str:
        """Return the kind of the fault, in a word or two."""
        kinds = ("flipped", "missing", "in its place")
        return next((kind for kind in kinds if kind in self.description), "cut, emptied or longer")

    def __str__(self) -> str:
        return f"{self.path}: {self.description}"


def flips(path: Path, *, stride: int = 1, bits: int = 1) -> Iterator[Damage]:
    """Yield the file with a flipped bit in each byte: another bit each time, or several in turn."""
    data = path.read_bytes()
    for position in range(0, len(data), stride):
        for bit in range(bits):
            changed = bytearray(data)
            changed[position] ^= 1 << (position + bit) % 8
            yield Damage(path, f"bit {(position + bit) % 8} of byte {position} flipped", bytes(changed))


def cuts(path: Path, *, stride: int = 1) -> Iterator[Damage]:
    """Yield every shorter length, the empty file included, and some longer ones."""
    data = path.read_bytes()
    for length in range(0, len(data), stride):
        yield Damage(path, f"cut to {length} of {len(data)} bytes", data[:length])
    yield Damage(path, "the last byte cut off", data[:-1])
    yield Damage(path, "the end written twice", data + data[-1:])
    yield Damage(path, "written twice", data + data)
    yield Damage(path, "zeros in its place", bytes(len(data)))


def replacements(path: Path, files: list[Path]) -> Iterator[Damage]:
    """Yield the missing file, and each of several other files in its place."""
    yield Damage(path, "missing", None)
    data = path.read_bytes()
    for file in files:
        if (content := file.read_bytes()) != data:
            yield Damage(path, f"{file} in its place", content)


@contextlib.contextmanager
def damaged(damage: Damage) -> Iterator[None]:
    """Damage the file for the duration of the block, then restore it."""
    count(f"damage: {damage.kind}")
    backup = damage.path.with_name(f".{damage.path.name}.kept")
    shutil.copy2(damage.path, backup)
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
        backup.replace(damage.path)

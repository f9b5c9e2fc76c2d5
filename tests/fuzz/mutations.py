"""Random and targeted mutations of bytes, reproducible by seed."""

from __future__ import annotations

import random
import struct

__all__ = ["damaged"]

# Boundary values of lengths, counts and offsets; each is used with its neighbours.
NUMBERS = [0, *(2**bits for bits in (0, 1, 3, 7, 8, 15, 16, 31, 32, 40, 62, 63))]
PIECES = [b"..", b"/", b"../../../etc/passwd", b"/etc/passwd", b"\0", b"null", b"-1", b"1e999", b"[[[[", b'"']
FORMS = ["<B", "<H", "<I", "<i", "<Q", "<q"]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to six mutations."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(8):
            case 0 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(found):
                found[at] = chance.randrange(256)
            case 2 | 3:
                form = chance.choice(FORMS)
                size = struct.calcsize(form)
                number = chance.choice(NUMBERS) * chance.choice((1, 1, -1)) + chance.randrange(-1, 2)
                put = struct.pack(f"<{form[1].upper()}", number % (1 << (8 * size)))
                at -= at % chance.choice((1, size))
                found[at : at + size] = put
            case 4:
                del found[at : at + chance.choice((1, 4, 8, 64, len(found)))]
            case 5:
                found[at:at] = found[max(0, at - chance.choice((1, 8, 64))) : at]
            case 6:
                piece = chance.choice(PIECES)
                found[at : at + chance.choice((0, len(piece)))] = piece
            case _:
                other = chance.randrange(len(found) + 1)
                size = chance.choice((1, 4, 8, 16))
                found[at : at + size], found[other : other + size] = (
                    found[other : other + size],
                    found[at : at + size],
                )
    return bytes(found)

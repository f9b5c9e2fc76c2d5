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
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(result) + 1)
        match chance.randrange(8):
            case 0 if at < len(result):
                result[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(result):
                result[at] = chance.randrange(256)
            case 2 | 3:
                form = chance.choice(FORMS)
                size = struct.calcsize(form)
                number = chance.choice(NUMBERS) * chance.choice((1, 1, -1)) + chance.randrange(-1, 2)
                put = struct.pack(f"<{form[1].upper()}", number % (1 << (8 * size)))
                at -= at % chance.choice((1, size))
                result[at : at + size] = put
            case 4:
                del result[at : at + chance.choice((1, 4, 8, 64, len(result)))]
            case 5:
                result[at:at] = result[max(0, at - chance.choice((1, 8, 64))) : at]
            case 6:
                piece = chance.choice(PIECES)
                result[at : at + chance.choice((0, len(piece)))] = piece
            case _:
                target = chance.randrange(len(result) + 1)
                size = chance.choice((1, 4, 8, 16))
                result[at : at + size], result[target : target + size] = (
                    result[target : target + size],
                    result[at : at + size],
                )
    return bytes(result)

"""Garbage, and what is valid but for some edits. All from a `random.Random`, so that a seed gives the same again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

# Where ranges end, in any width: an edit writes the low bytes of one.
EDGES = (
    0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x100, 0xFFF, 0x1000, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
    0xFFFFFFFF, 1 << 32, (1 << 40) - 1, 1 << 40, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 4096,
)  # fmt: skip


def garbage(rng: Random, most: int = 256) -> bytes:
    """Up to `most` bytes, short ones more often."""
    return rng.randbytes(int(most ** rng.random()))


def number(rng: Random, bits: int = 64) -> int:
    """An unsigned number of so many bits: an edge, near one, a small one, or any."""
    chosen = rng.random()
    if chosen < 0.4:
        found = rng.choice(EDGES)
    elif chosen < 0.6:
        found = rng.choice(EDGES) + rng.randint(-2, 2)
    elif chosen < 0.8:
        found = rng.randrange(64)
    else:
        found = rng.getrandbits(bits)
    return found % (1 << bits)


def signed(rng: Random, bits: int = 64) -> int:
    """As `number`, signed."""
    found = number(rng, bits)
    return found - (1 << bits) if found >> (bits - 1) else found


def mutated(rng: Random, data: bytes, words: Sequence[bytes] = (), edits: int = 4) -> bytes:
    """`data` after 1 to `edits` edits. `words`: what may be put in."""
    found = bytearray(data)
    for _ in range(rng.randint(1, edits)):
        _edit(rng, found, words)
    return bytes(found)


def _edit(rng: Random, data: bytearray, words: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    until = min(len(data), at + int(64 ** rng.random()))
    match rng.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at % len(data)] = rng.randrange(256)
        case 2:
            del data[at:until]
        case 3:
            data[at:at] = data[at:until] * rng.choice((1, 2, 50))
        case 4:
            del data[at:]
        case 5:
            data[at:at] = garbage(rng, 64)
        case 6:
            width = rng.choice((1, 2, 4, 8))
            data[at : at + width] = struct.pack("<Q", number(rng))[:width]
        case _ if words:
            data[at : rng.choice((at, until))] = rng.choice(words)

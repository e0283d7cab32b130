"""Bytes and plain values, changed at random."""

import random
import struct
from typing import Any

#: Numbers at the ends of what bytes, words and floats hold.
NUMBERS = (0, 1, 2, 7, 60, 127, 128, 255, 256, 511, 32_767, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
_ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "abc",
    b"x",
    1.5,
    float("nan"),
    float("inf"),
    -1,
    10**30,
    [],
    {},
    [1],
    (),
)


def mutated_bytes(draw: random.Random, content: bytes) -> bytes:
    """The content with one to four changes: bits, numbers, parts that are gone, doubled, moved or blank."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        if not data:
            break
        at, kind = draw.randrange(len(data)), draw.randrange(10)
        size = draw.choice((1, 2, 4, 8, draw.randrange(1, 200)))
        if kind < 3:
            data[at] ^= 1 << draw.randrange(8)
        elif kind < 4:
            data[at] = draw.randrange(256)
        elif kind < 7:
            code = draw.choice("BHIQ")
            number = draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(code))
            data[at : at + struct.calcsize(code)] = struct.pack(f"<{code}", number)
        elif kind < 8:
            del data[at : at + size]
        elif kind < 9:
            data[at:at] = data[at : at + size] if draw.random() < 0.5 else bytes(size)
        else:
            other = draw.randrange(len(data))
            data[at : at + size] = data[other : other + size]
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.05 else data)


def odd_value(draw: random.Random) -> Any:
    """A value that is rarely expected."""
    return draw.choice((*_ODD_VALUES, *NUMBERS))

"""What lossless compression saves on artifacts: ``python tests/bench/compression.py ARTIFACT ...``.

Byte planes put the first bytes of all values together, then the second ones, and so on: signs and
exponents compress, mantissas hardly do. A delta is the exclusive or with the artifact before it in the
arguments, where both have the same size. Needs the package ``zstandard``, which the program does not.
"""

from __future__ import annotations

import itertools
import struct
import sys
import time
from pathlib import Path

import numpy as np
import zstandard

LEVELS = (1, 3)


def body(path: Path) -> bytes:
    """The values of a safetensors file."""
    content = path.read_bytes()
    return content[8 + struct.unpack("<Q", content[:8])[0] :]


def planes(values: bytes, width: int) -> bytes:
    """The bytes by their place in a value."""
    rest = len(values) % width
    whole = np.frombuffer(values[: len(values) - rest], np.uint8)
    return whole.reshape(-1, width).T.tobytes() + values[len(values) - rest :]


def bfloat16(values: bytes) -> bytes:
    """The values as they would leave with ``wire = "bfloat16"``; a few integers count as floats here."""
    wide = np.frombuffer(values[: len(values) // 4 * 4], np.uint32).astype(np.uint64)
    return (((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16) & 0xFFFF).astype(np.uint16).tobytes()


def measure(label: str, parts: list[bytes]) -> None:
    """Print the saving of all parts together, and how many MB a second of process time it packs and unpacks."""
    size = sum(map(len, parts))
    for level in LEVELS:
        began_s = time.process_time()
        small = [zstandard.compress(part, level) for part in parts]
        compressed_s = time.process_time()
        for part in small:
            zstandard.decompress(part)
        ended_s = time.process_time()
        saved = 1 - sum(map(len, small)) / size
        there, back = (size / 1e6 / seconds for seconds in (compressed_s - began_s, ended_s - compressed_s))
        print(f"{label}, zstandard {level}: saves {saved:.1%} of {size / 1e6:.1f} MB; {there:.0f} and {back:.0f} MB/s")


def main(paths: list[Path]) -> None:
    """Measure all forms of these artifacts."""
    bodies = [body(path) for path in paths]
    measure("float32", bodies)
    measure("float32 in byte planes", [planes(each, 4) for each in bodies])
    narrow = [bfloat16(each) for each in bodies]
    measure("bfloat16 in byte planes", [planes(each, 2) for each in narrow])
    pairs = [(one, two) for one, two in itertools.pairwise(bodies) if len(one) == len(two)]
    if pairs:
        deltas = [np.bitwise_xor(*(np.frombuffer(each, np.uint8) for each in pair)).tobytes() for pair in pairs]
        measure("float32 less the artifact before, in byte planes", [planes(delta, 4) for delta in deltas])


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])

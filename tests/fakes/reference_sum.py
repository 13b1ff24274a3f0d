"""A secure sum in whole numbers of Python, written from proto/README.md and the RFCs alone.

``python tests/fakes/reference_sum.py`` writes ``proto/vectors/secure_sum.json``; a test compares the file with it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "proto" / "vectors" / "secure_sum.json"
PRIME = 2**255 - 19
BASE = (9).to_bytes(32, "little")


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748, section 5."""
    scalar = int.from_bytes(private, "little") & ~7 & ~(1 << 255) | 1 << 254
    u = (int.from_bytes(public, "little") & ((1 << 255) - 1)) % PRIME
    x2, z2, x3, z3, swapped = 1, 0, u, 1, 0
    for bit in reversed(range(255)):
        if swapped ^ (swapped := scalar >> bit & 1):
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a % PRIME, c * b % PRIME, a * a % PRIME, b * b % PRIME
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, (aa - bb) * (aa + 121665 * (aa - bb)) % PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def hkdf(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256."""
    extracted, block, output = hmac.digest(salt, key, "sha256"), b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        output += block
    return output[:length]


def chacha20(key: bytes, length: int) -> bytes:
    """RFC 8439, section 2.4, with the nonce 0 and the counter from 0."""
    stream = b""
    while len(stream) < length:
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), len(stream) // 64, 0, 0, 0]
        state = list(start)
        for _ in range(10):
            for first in range(4):
                _quarter(state, first, 4 + first, 8 + first, 12 + first)
            for first in range(4):
                _quarter(state, first, 4 + (first + 1) % 4, 8 + (first + 2) % 4, 12 + (first + 3) % 4)
        stream += struct.pack("<16I", *(one + other & 0xFFFFFFFF for one, other in zip(start, state, strict=True)))
    return stream[:length]


def _quarter(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for target, term, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[target] = state[target] + state[term] & 0xFFFFFFFF
        word = state[mixed] ^ state[target]
        state[mixed] = (word << turn | word >> 32 - turn) & 0xFFFFFFFF


def words(seed: bytes, count: int, bits: int) -> list[int]:
    size = bits // 8
    stream = chacha20(seed, count * size)
    return [int.from_bytes(stream[first : first + size], "little") for first in range(0, len(stream), size)]


def info(context: dict[str, Any], one: str, other: str) -> bytes:
    texts = [text.encode() for text in (context["stage"], *sorted((one, other)))]
    return (
        b"mhfl secure sum 1\0"
        + context["round"].to_bytes(8, "big")
        + b"".join(bytes([len(text)]) + text for text in texts)
    )


def pair_seed(context: dict[str, Any], one: str, other: str, private: bytes, public: bytes) -> bytes:
    salt = bytes.fromhex(context["federation"] + context["amendment"])
    return hkdf(x25519(private, public), salt, info(context, one, other), 32)


def commit(seed: bytes) -> str:
    return hashlib.sha256(b"mhfl/sum-opening/v1\0" + seed).hexdigest()


def mask(bits: int, site: str, units: list[int], own: bytes, seeds: dict[str, bytes]) -> list[int]:
    masked = [unit + word for unit, word in zip(units, words(own, len(units), bits), strict=True)]
    for other, seed in seeds.items():
        sign = 1 if site < other else -1
        masked = [value + sign * word for value, word in zip(masked, words(seed, len(units), bits), strict=True)]
    return [value % 2**bits for value in masked]


def example(sites: list[str], contributors: list[str], *, bits: int, fraction_bits: int, clip: float) -> dict[str, Any]:
    """One sum: what each site sends, what the contributors open, and what it amounts to."""
    federation = hashlib.sha256(b"a federation").hexdigest()
    context = {"federation": federation, "amendment": federation, "round": 3, "stage": "aggregate"}
    members: dict[str, Any] = {}
    for site in sites:
        private, own = (hashlib.sha256(f"{part} of {site}".encode()).digest() for part in ("key", "seed"))
        values = [clip * (hashlib.sha256(f"{site} {n}".encode()).digest()[0] - 128) / 96 for n in range(5)]
        limited = [min(max(value, -clip), clip) for value in values]
        members[site] = {
            "private_key": private.hex(),
            "public_key": x25519(private, BASE).hex(),
            "own_seed": own.hex(),
            "values": values,
            "clipped": sum(abs(value) > clip for value in values),
            "units": [round(value * (2**fraction_bits / clip)) for value in limited],
            "pair_seeds": {},
        }
    for one, other in combinations(sites, 2):
        keys = bytes.fromhex(members[one]["private_key"]), bytes.fromhex(members[other]["public_key"])
        members[one]["pair_seeds"][other] = pair_seed(context, one, other, *keys).hex()
        members[other]["pair_seeds"][one] = members[one]["pair_seeds"][other]
    for site, member in members.items():
        seeds = {other: bytes.fromhex(seed) for other, seed in member["pair_seeds"].items()}
        own = bytes.fromhex(member["own_seed"])
        masked = mask(bits, site, member["units"], own, seeds)
        artifact = b"".join(word.to_bytes(bits // 8, "little") for word in masked)
        commitments = {name: commit(seed) for name, seed in {**seeds, site: own}.items()}
        document = {"artifact": hashlib.sha256(artifact).hexdigest(), "commitments": commitments}
        statement = json.dumps(document, sort_keys=True, separators=(",", ":"))
        member |= {"masked": artifact.hex(), "statement": statement}
        member |= {"digest": hashlib.sha256(statement.encode()).hexdigest()}
    units = [sum(column) for column in zip(*(members[site]["units"] for site in contributors), strict=True)]
    return {
        "context": context,
        "bits": bits,
        "fraction_bits": fraction_bits,
        "clip": clip,
        "members": members,
        "contributors": contributors,
        "units": units,
        "mean": [unit / (2**fraction_bits / clip) / len(contributors) for unit in units],
    }


TENSORS = [
    {"name": "network.weight", "dtype": "F32", "shape": [2, 3], "values": [0.25, -0.125, 65.5, -0.03125, 0.0, -70.0]},
    {"name": "Network.bias", "dtype": "F64", "shape": [2], "values": [0.1, -0.3]},
    {"name": "network.batches", "dtype": "I64", "shape": [], "values": [1_000_000_000]},
    {"name": "network.grown", "dtype": "I32", "shape": [2], "values": [-1_000_000_000, 12]},
    {"name": "network.frozen", "dtype": "BOOL", "shape": [2], "values": [1, 0]},
]


def artifact(members: int, clip: float, *, samples: int | None = None, whole: bool = False) -> dict[str, Any]:
    """An artifact as words, in the ring of a sum with so many members; ``samples``: it is weighted with them."""
    largest, weighted = 1 << 20, samples is not None
    bits, bound = (64 if weighted or whole else 32), members * (largest if weighted else 1)
    fraction_bits = max(f for f in range(min(52, bits - 2) + 1) if bound * 2**f < 2 ** (bits - 1))
    whole_max = (2 ** (bits - 1) - 1) // bound
    tensors = [tensor for tensor in TENSORS if not (whole and tensor["dtype"].startswith("F"))]
    words: list[int] = []
    for tensor in sorted(tensors, key=lambda tensor: tensor["name"]):
        if tensor["dtype"].startswith("F"):
            limited = [min(max(value, -clip), clip) for value in tensor["values"]]
            words += [round(value * (2**fraction_bits / clip)) for value in limited]
        else:
            words += [min(max(value, -whole_max), whole_max) for value in tensor["values"]]
    if samples is not None:
        weight = min(max(samples, 1), largest)
        words = [*(word * weight for word in words), weight]
    return {
        "members": members,
        "clip": clip,
        "samples": samples,
        "whole": whole,
        "bits": bits,
        "fraction_bits": fraction_bits,
        "whole_max": str(whole_max),
        "tensors": tensors,
        "words": b"".join((word % 2**bits).to_bytes(bits // 8, "little") for word in words).hex(),
    }


def vectors() -> dict[str, Any]:
    """The content of the file."""
    names = ["africa", "asia", "europe", "oceania"]
    context = {"federation": "11" * 32, "amendment": "22" * 32, "round": 2**53, "stage": "train.1"}
    return {
        "members_min": [
            {"members": n, "colluders": t, "members_min": max(3, t + 2, (n + t) // 2 + 1)}
            for n, t in ((3, 0), (3, 1), (4, 0), (4, 1), (5, 1), (6, 1), (6, 2), (7, 3), (64, 1), (64, 20))
        ],
        "info": [
            {"context": context, "sites": [one, other], "info": info(context, one, other).hex()}
            for one, other in (("africa", "asia"), ("b", "a"), ("a", "a-b"), ("s10", "s9"))
        ],
        "artifacts": [
            artifact(4, 64.0),
            artifact(64, 0.3),
            artifact(3, 64.0, samples=321),
            artifact(5, 0.3, samples=1 << 21),
            artifact(3, 64.0, whole=True),
        ],
        "sums": [
            example(names, names, bits=32, fraction_bits=24, clip=1.0),
            example(names, ["africa", "europe", "oceania"], bits=32, fraction_bits=20, clip=0.3),
            example(names, ["asia", "europe", "oceania"], bits=64, fraction_bits=36, clip=8.0),
        ],
    }


def text() -> str:
    return json.dumps(vectors(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")

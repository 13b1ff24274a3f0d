"""Secure sums from file to file, in bounded memory: a plain artifact to a masked one, masked ones to their total.

All files are safetensors, named by their digests. The plain one is what a worker has written. Its words are those of
its tensors, in the order of their names, each flattened: a floating value in units of the ring, another one as a whole
number within ``Ring.whole_max``; both times the weight, where the ring is weighted, and then one more word has the
weight itself. The masked file has one tensor, ``MASKED``: I32 or I64, ``(words)``. The total has the names and shapes
of the plain file: sums of values, F64, and of whole numbers, I64; and ``WEIGHT``, I64 ``()``, the sum of the weights,
or the number of contributors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from peer.core import limits
from peer.core.artifacts import DTYPES, TensorSpec
from peer.core.ring import WEIGHT_MAX, Ring
from peer.core.roster import Sha256, SiteName
from peer.files import write_artifact_parts
from peer.site.sums.masking import CHUNK_BYTES, WORD_TYPES, Words, decode, encode, input_masks, quantise, sum_masks

MASKED, WEIGHT = "masked", "weight"
MASKED_TYPES = {32: "I32", 64: "I64"}
"""Bits of a ring -> the element type of a masked file."""
FLOATING = ("F64", "F32", "F16", "BF16")
NUMPY_TYPES: Mapping[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1",
}  # fmt: skip
"""Element type -> that of an array; numpy has no bfloat16, which is the upper half of a float32."""
LENGTH_BYTES = 8
METADATA = "__metadata__"
ALIGNMENT = 8
"""A header's length is a multiple of it."""


@dataclass(frozen=True, slots=True)
class MaskedFile:
    """A masked artifact on disk; of the values, ``clipped`` were beyond the ring's bounds."""

    sha256: Sha256
    bytes: int
    clipped: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, whose data begins at this byte."""

    spec: TensorSpec
    offset: int

    @property
    def count(self) -> int:
        """The number of its values."""
        return math.prod(self.spec.shape)

    @property
    def floating(self) -> bool:
        return self.spec.dtype in FLOATING


def mask_file(
    plain: Path,
    folder: Path,
    *,
    ring: Ring,
    weight: int,
    site: SiteName,
    own_seed: bytes,
    pair_seeds: Mapping[SiteName, bytes],
) -> MaskedFile:
    """Write the masked artifact of a plain one into a folder, durably, under its digest.

    Args:
        plain: this site's artifact.
        folder: where the masked one shall be.
        ring: of the sum.
        weight: taken as within 1 and ``WEIGHT_MAX``; only a weighted ring counts it.
        site: this one.
        own_seed: 32 bytes.
        pair_seeds: by each other member whose key is used, 32 bytes.

    Another input under the same seeds would tell the difference of both: the caller masks once for a sum.

    Raises:
        ValueError: the plain file is damaged, a value is not finite, or the masked file would be too large to send.
        OSError: a file cannot be read or written.
    """
    tensors = _read_plain(plain)
    _refuse_damaged(plain)
    count = _count_words(tensors, ring)
    header = _encode_header([TensorSpec(MASKED, MASKED_TYPES[ring.bits], (count,))])
    if (size := len(header) + count * ring.bits // 8) > limits.ARTIFACT_BYTES_MAX:
        raise ValueError(
            f"the masked artifact would have {size} bytes, an artifact at most {limits.ARTIFACT_BYTES_MAX}"
        )
    factor = min(max(weight, 1), WEIGHT_MAX) if ring.weighted else 1
    masks, clipped = input_masks(site, own_seed, pair_seeds), 0

    def parts() -> Iterator[bytes | memoryview]:
        nonlocal clipped
        yield header
        with plain.open("rb") as file:
            for tensor in tensors:
                for units, beyond in _read_units(file, tensor, ring):
                    words = encode(ring, units * factor)
                    masks.add_to(words)
                    clipped += beyond
                    yield words.data.cast("B")
        if ring.weighted:
            words = encode(ring, np.array([factor]))
            masks.add_to(words)
            yield words.data.cast("B")

    digest, size = write_artifact_parts(folder, parts())
    return MaskedFile(Sha256(digest), size, clipped)


def add_masked(
    masked: Sequence[Path],
    plain: Path,
    folder: Path,
    *,
    ring: Ring,
    own_seeds: Iterable[bytes],
    left_seeds: Mapping[tuple[SiteName, SiteName], bytes],
) -> tuple[Sha256, int]:
    """Write the total of the contributors' masked artifacts into a folder, durably, under its digest.

    A sum beyond what the contributors can add up to is refused: some masks have not cancelled, so that it is noise.

    Args:
        masked: of all contributors, this site among them, in any order.
        plain: this site's artifact, of which only the names and shapes are read.
        folder: where the total shall be.
        ring: of the sum.
        own_seeds: of all contributors.
        left_seeds: by contributor and by a member that is none, the seed of their pair, if the contributor has used it.

    Returns:
        The digest, and the size in bytes.

    Raises:
        ValueError: nothing was given, a file is damaged, the lengths differ, or the sum is noise.
        OSError: a file cannot be read or written.
    """
    if not masked:
        raise ValueError("there is nothing to sum")
    tensors = _read_plain(plain)
    due = TensorSpec(MASKED, MASKED_TYPES[ring.bits], (_count_words(tensors, ring),))
    starts = [_masked_start(path, due) for path in masked]
    masks = sum_masks(own_seeds, left_seeds)

    def parts() -> Iterator[bytes | memoryview]:
        specs = [TensorSpec(each.spec.name, "F64" if each.floating else "I64", each.spec.shape) for each in tensors]
        yield _encode_header([*specs, TensorSpec(WEIGHT, "I64", ())])
        largest = {True: 0, False: 0}
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in masked]
            for file, start in zip(files, starts, strict=True):
                file.seek(start)

            def next_sums(count: int) -> NDArray[np.int64]:
                total: Words = np.zeros(count, WORD_TYPES[ring.bits])
                for file in files:
                    np.add(total, np.frombuffer(_read(file, total.nbytes), total.dtype), out=total)
                masks.add_to(total)
                return decode(ring, total)

            for tensor in tensors:
                for count in _pieces(tensor.count):
                    sums = next_sums(count)
                    largest[tensor.floating] = max(largest[tensor.floating], int(sums.max()), -int(sums.min()))
                    yield (sums / ring.scale if tensor.floating else sums).data.cast("B")
            weight = int(next_sums(1)[0]) if ring.weighted else len(masked)
        _refuse_noise(ring, len(masked), weight, largest_units=largest[True], largest_whole=largest[False])
        yield np.array([weight], "<i8").data.cast("B")

    digest, size = write_artifact_parts(folder, parts())
    return Sha256(digest), size


def _read_tensors(path: Path) -> list[StoredTensor]:
    """Read the header of a safetensors file; the tensors are in the order of their names.

    Raises:
        ValueError: it is none, or of unknown types.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > min(limits.SAFETENSORS_HEADER_BYTES_MAX, size - LENGTH_BYTES):
            raise ValueError(f"{path.name}: its header of {length} bytes is longer than the file, or than permitted")
        header = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != METADATA}
        tensors = [_stored(name, entry, LENGTH_BYTES + length) for name, entry in sorted(entries.items())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name}: its header is not that of a safetensors file: {error}") from error
    if any(tensor.offset + tensor.count * DTYPES[tensor.spec.dtype] > size for tensor in tensors):
        raise ValueError(f"{path.name}: it ends before its last tensor")
    return tensors


def _stored(name: str, entry: Mapping[str, Any], data: int) -> StoredTensor:
    """Read a tensor's entry in a header; the data begins at a byte of the file."""
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    tensor = StoredTensor(TensorSpec(name, dtype, shape), data + begin)
    if begin < 0 or any(side < 0 for side in shape) or end - begin != tensor.count * DTYPES[dtype]:
        raise ValueError(f"tensor {name!r} has {end - begin} bytes")
    return tensor


def _read_plain(path: Path) -> list[StoredTensor]:
    tensors = _read_tensors(path)
    if any(tensor.spec.name == WEIGHT for tensor in tensors):
        raise ValueError(f"a tensor of the model is called {WEIGHT!r}, as the one with the weight of a sum")
    return tensors


def _masked_start(path: Path, due: TensorSpec) -> int:
    """Return the byte at which the words of a masked file begin; it must have the tensor that is due, and no other."""
    tensors = _read_tensors(path)
    if [tensor.spec for tensor in tensors] != [due]:
        has = ", ".join(f"{each.spec.name} {each.spec.dtype} {list(each.spec.shape)}" for each in tensors)
        raise ValueError(
            f"{path.name} does not add up: it has {has}, and {due.name} {due.dtype} {list(due.shape)} is due"
        )
    _refuse_damaged(path)
    return tensors[0].offset


def _refuse_damaged(path: Path) -> None:
    """Raise ``ValueError`` if a file does not have the digest that it is named after."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != path.stem:
            raise ValueError(f"{path.name} is damaged: it does not have its digest")


def _refuse_noise(ring: Ring, contributors: int, weight: int, *, largest_units: int, largest_whole: int) -> None:
    """Raise ``ValueError`` if no contributors within the ring's bounds can have added up to these sums."""
    weight_max = contributors * (WEIGHT_MAX if ring.weighted else 1)
    if not contributors <= weight <= weight_max:
        raise ValueError(f"the masks did not cancel: the weights of {contributors} members add up to {weight}")
    if largest_units > weight << ring.fraction_bits or largest_whole > weight * ring.whole_max:
        raise ValueError(f"the masks did not cancel: a sum is larger than {contributors} members can have added up to")


def _count_words(tensors: Sequence[StoredTensor], ring: Ring) -> int:
    return sum(tensor.count for tensor in tensors) + ring.weighted


def _encode_header(specs: Sequence[TensorSpec]) -> bytes:
    """Encode the length and the header of a file whose tensors' data is in this order."""
    entries, end = {}, 0
    for spec in specs:
        begin, end = end, end + math.prod(spec.shape) * DTYPES[spec.dtype]
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def _read_units(file: BinaryIO, tensor: StoredTensor, ring: Ring) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield a tensor in pieces as units or whole numbers, each with the number of values that were clipped."""
    file.seek(tensor.offset)
    for count in _pieces(tensor.count):
        content = _read(file, count * DTYPES[tensor.spec.dtype])
        values = np.frombuffer(content, NUMPY_TYPES[tensor.spec.dtype])
        if tensor.spec.dtype == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        if tensor.floating:
            try:
                yield quantise(ring, values)
            except ValueError as error:
                raise ValueError(f"tensor {tensor.spec.name!r}: {error}") from error
        else:
            whole = values.astype(np.int64)
            limited = np.clip(whole, -ring.whole_max, ring.whole_max)
            yield limited, int(np.count_nonzero(limited != whole))


def _pieces(count: int) -> Iterator[int]:
    """Divide a number of values into pieces that are in memory one after the other."""
    size = CHUNK_BYTES // WORD_TYPES[64].itemsize
    for first in range(0, count, size):
        yield min(size, count - first)


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise ValueError("a file ended while it was read")
    return content

"""The safetensors header of an artifact: read to sign a manifest, and checked against a received one.

Neither needs torch, or reads the values of the tensors.

The manifest limits a header's length and nesting, and no header above the limits is parsed: a short text of empty lists
takes thirty times its length in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer.core import limits
from peer.core.artifacts import TensorSpec
from peer.core.json_codec import from_json
from peer.core.messages import Manifest
from peer.net.transport.bounds import WireError, at_most, json_object, tensor_bytes

LENGTH_BYTES = 8  # the format begins with the header's length, little-endian
METADATA_BYTES_MAX = 64 << 10  # `__metadata__`, which nothing here reads, and padding
ENTRY_BYTES_MAX = 160  # keys, type and offsets of one tensor, with spaces
DIMENSION_BYTES_MAX = 24  # a number of 16 digits, comma and spaces
ESCAPE_BYTES_MAX = 12  # of a character as JSON: two surrogates, `\ud83d\ude00`
STRUCTURE = b"[{,:"
ENTRY_STRUCTURE_MAX = 12  # such characters in one tensor's entry beside its shape's commas
METADATA_STRUCTURE_MAX = 4096
_parsing = threading.Lock()  # several headers at once would add up


def read_tensors(path: Path) -> tuple[TensorSpec, ...]:
    """Read the list of tensors of this site's own artifact, sorted by name. Raises ``WireError`` if there is none."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            at_most("safetensors header", length, limits.SAFETENSORS_HEADER_BYTES_MAX, "bytes")
            header = _parse(file.read(length))
        header.pop("__metadata__", None)
        return tuple(
            from_json(TensorSpec, {"name": name, "dtype": entry["dtype"], "shape": entry["shape"]})
            for name, entry in sorted(header.items())
        )
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"the header of {path.name} cannot be read: {error}") from error


def check_safetensors_header(path: Path, manifest: Manifest) -> None:
    """Refuse a file whose tensors are not exactly the manifest's. Raises ``WireError`` naming the first difference.

    Names, types and shapes must agree. The tensors must lie end to end up to the file's last byte, so that the file
    carries nothing else.
    """
    size = path.stat().st_size
    if size != manifest.artifact.bytes:
        raise WireError(f"the file has {size} bytes, the manifest says {manifest.artifact.bytes}")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        at_most("safetensors header", length, min(_length_max(manifest.tensors), size - LENGTH_BYTES), "bytes")
        with _parsing:
            header = _parse(_bounded(file.read(length), manifest.tensors))
            _compare(header, manifest.tensors, size=size, length=length)


def _length_max(tensors: Sequence[TensorSpec]) -> int:
    """Return the upper bound on a header's length for the manifest's tensors, in bytes."""
    entries = sum(
        ENTRY_BYTES_MAX + ESCAPE_BYTES_MAX * len(tensor.name) + DIMENSION_BYTES_MAX * len(tensor.shape)
        for tensor in tensors
    )
    return min(limits.SAFETENSORS_HEADER_BYTES_MAX, METADATA_BYTES_MAX + entries)


def _bounded(encoded: bytes, tensors: Sequence[TensorSpec]) -> bytes:
    """Raise ``WireError`` if a header has more structure than these tensors need; return it."""
    structure = sum(ENTRY_STRUCTURE_MAX + len(tensor.shape) + _structure(tensor.name.encode()) for tensor in tensors)
    at_most("safetensors header", _structure(encoded), METADATA_STRUCTURE_MAX + structure, "lists, objects and values")
    return encoded


def _parse(encoded: bytes) -> dict[str, Any]:
    try:
        return json_object("safetensors header", encoded.decode(), bytes_max=limits.SAFETENSORS_HEADER_BYTES_MAX)
    except UnicodeDecodeError:
        raise WireError("safetensors header is not UTF-8") from None


def _structure(encoded: bytes) -> int:
    """Count the characters that begin or separate values, including those within texts."""
    return sum(encoded.count(character) for character in STRUCTURE)


def _compare(header: dict[str, Any], tensors: Sequence[TensorSpec], *, size: int, length: int) -> None:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise WireError("safetensors header: __metadata__ is not an object of texts")
    expected = {tensor.name: tensor for tensor in tensors}
    if header.keys() != expected.keys():
        name = sorted(header.keys() ^ expected.keys())[0]
        where = "the manifest" if name in header else "the file"
        raise WireError(f"tensor {name[: limits.TENSOR_NAME_BYTES_MAX]!r} is missing in {where}")
    spans = [_span(tensor, header[name]) for name, tensor in expected.items()]
    end = 0
    for begin, after in sorted(spans):
        if begin != end:
            raise WireError(f"safetensors header: a tensor begins at byte {begin}, the one before ends at {end}")
        end = after
    if LENGTH_BYTES + length + end != size:
        raise WireError(f"safetensors header: the tensors end at byte {LENGTH_BYTES + length + end} of {size}")


def _span(tensor: TensorSpec, entry: Any) -> tuple[int, int]:
    """Check a tensor's header entry; return the offsets at which its bytes begin and end."""
    if not isinstance(entry, Mapping) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"tensor {tensor.name!r}: its header entry is not dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise WireError(f"tensor {tensor.name!r}: shape and data_offsets must be lists of whole numbers")
    if entry["dtype"] != tensor.dtype or tuple(shape) != tensor.shape:
        raise WireError(
            f"tensor {tensor.name!r} is {str(entry['dtype'])[:16]} {shape[: limits.TENSOR_DIMS_MAX]} in the file, "
            f"{tensor.dtype} {list(tensor.shape)} in the manifest"
        )
    begin, end = offsets
    expected = tensor_bytes(tensor)
    if end - begin != expected:
        raise WireError(f"tensor {tensor.name!r} occupies {end - begin} bytes, its shape needs {expected}")
    return begin, end


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)

"""A safetensors file is accepted only if its header is the manifest's."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

from peer.core import limits
from peer.core.artifacts import Artifact, TensorSpec
from peer.core.messages import Manifest
from peer.net.transport.bounds import WireError
from peer.net.transport.header import check_safetensors_header, read_tensors

TENSORS = (TensorSpec("a", "F32", (2, 3)), TensorSpec("b", "U8", (4,)), TensorSpec("none", "F16", (0, 5)))
ENTRIES = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "U8", "shape": [4], "data_offsets": [24, 28]},
    "none": {"dtype": "F16", "shape": [0, 5], "data_offsets": [28, 28]},
}


def check(path, tensors=TENSORS, *, size=None):
    """Check a file against a manifest with these tensors, by default of the file's size."""
    artifact = Artifact("model", "europe", "ab" * 32, path.stat().st_size if size is None else size, 0, {})
    check_safetensors_header(path, Manifest("fe" * 32, 1, "fedskd", "europe", 3, artifact, tensors))


def written(folder, header, *, data=bytes(28), length=None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "file"
    path.write_bytes(struct.pack("<Q", len(encoded) if length is None else length) + encoded + data)
    return path


def test_what_the_format_s_own_library_writes_is_accepted(tmp_path):
    path = tmp_path / "file"
    arrays = {"b": np.ones(4, np.uint8), "a": np.zeros((2, 3), np.float32), "none": np.zeros((0, 5), np.float16)}
    save_file(arrays, path, metadata={"format": "pt"})
    check(path)
    assert read_tensors(path) == TENSORS


def with_b(**changes):
    """The header with other facts of one tensor."""
    return {**ENTRIES, "b": {**ENTRIES["b"], **changes}}


FAULTS = {
    "not there": ({"a": ENTRIES["a"], "none": ENTRIES["none"]}, "tensor 'b' is missing in the file"),
    "one more": ({**ENTRIES, "c": ENTRIES["b"]}, "tensor 'c' is missing in the manifest"),
    "dtype": (with_b(dtype="I8"), r"tensor 'b' is I8 \[4\] in the file, U8 \[4\]"),
    "shape": ({**ENTRIES, "a": {**ENTRIES["a"], "shape": [3, 2]}}, r"tensor 'a' is F32 \[3, 2\] in the file"),
    "shape of booleans": (with_b(shape=[True]), "lists of whole numbers"),
    "shape negative": (with_b(shape=[-4]), "lists of whole numbers"),
    "offsets": (with_b(data_offsets=[24]), "lists of whole numbers"),
    "offset type": (with_b(data_offsets=[24, 28.0]), "lists of whole numbers"),
    "too short": (with_b(data_offsets=[24, 27]), "'b' occupies 3 bytes, its shape needs 4"),
    "overlap": (with_b(data_offsets=[20, 24]), "begins at byte 20, the one before ends at 24"),
    "gap": (with_b(data_offsets=[25, 29]), "begins at byte 25, the one before ends at 24"),
    "extra key": (with_b(code="x"), "entry is not dtype, shape and data_offsets"),
    "entry": ({**ENTRIES, "b": [1]}, "entry is not dtype, shape and data_offsets"),
    "metadata": ({**ENTRIES, "__metadata__": {"a": 1}}, "__metadata__ is not an object of texts"),
    "list": ([1], "safetensors header is not a JSON object"),
    "not JSON": (b"{", "safetensors header is not JSON"),
    "not UTF-8": (b'{"\xff":1}', "safetensors header is not UTF-8"),
    "twice": (b'{"a":1,"a":2}', "the same key twice"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_header_that_differs_is_refused(tmp_path, fault):
    header, reason = FAULTS[fault]
    path = written(tmp_path, header)
    with pytest.raises(WireError, match=reason):
        check(path)


def test_bytes_behind_the_last_tensor_are_refused(tmp_path):
    path = written(tmp_path, ENTRIES, data=bytes(29))
    size = path.stat().st_size
    with pytest.raises(WireError, match=f"the tensors end at byte {size - 1} of {size}"):
        check(path, size=size)


def test_a_file_of_another_size_is_refused(tmp_path):
    path = written(tmp_path, ENTRIES)
    size = path.stat().st_size
    check(path, size=size)
    with pytest.raises(WireError, match=f"the file has {size} bytes, the manifest says {size + 1}"):
        check(path, size=size + 1)
    path.write_bytes(b"\x01")  # shorter than the length of a header
    with pytest.raises(WireError, match="safetensors header"):
        check(path, size=1)


@pytest.mark.parametrize("length", [10_000, limits.SAFETENSORS_HEADER_BYTES_MAX + 1, (1 << 64) - 1])
def test_a_header_longer_than_the_file_is_not_read(tmp_path, length):
    path = written(tmp_path, ENTRIES, length=length)
    with pytest.raises(WireError, match=f"safetensors header has {length} bytes, over the limit of"):
        check(path)


EMPTY_LISTS = b'{"a":[' + b"[]," * 1_390_000 + b"[]]}"
LONG_NAME = "[" * (limits.TENSOR_NAME_BYTES_MAX - 2)


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        (1, EMPTY_LISTS),
        (limits.TENSORS_MAX, EMPTY_LISTS),
        (limits.TENSORS_MAX, b"{" + b'"a":{},' * 400_000 + b'"a":{}}'),
        (1, b'{"__metadata__":{"format":"' + b"x" * 3_000_000 + b'"}}'),
    ],
    ids=["empty lists", "empty lists, many tensors", "objects, many tensors", "metadata"],
)
def test_a_header_that_no_manifest_allows_is_refused_before_it_is_parsed(tmp_path, tensors, header):
    path = written(tmp_path, header)
    manifest = tuple(TensorSpec(f"t{number}", "F32", (1,)) for number in range(tensors))
    tracemalloc.start()
    with pytest.raises(WireError, match=r"safetensors header has .* over the limit of"):
        check(path, manifest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("name", [LONG_NAME, "é" * 126, "😀" * 60, '"' * 200, ":,{" * 80])
@pytest.mark.parametrize("indent", [None, 1])
def test_long_and_strange_names_of_a_manifest_are_allowed(tmp_path, name, indent):
    """A writer may escape every character, and may put spaces between them."""
    shape = (1,) * limits.TENSOR_DIMS_MAX
    names = [f"{number}{name}" for number in range(50)]
    header = {
        each: {"dtype": "F32", "shape": [*shape], "data_offsets": [4 * number, 4 * number + 4]}
        for number, each in enumerate(names)
    }
    path = written(tmp_path, json.dumps(header, indent=indent).encode(), data=bytes(200))
    manifest = tuple(TensorSpec(each, "F32", shape) for each in names)
    check(path, manifest)


@pytest.mark.parametrize("fault", ["shape", "entry", "list", "not JSON", "not UTF-8", "twice", "no file", "long"])
def test_the_list_of_an_own_artifact_that_cannot_be_read_is_not_signed(tmp_path, fault):
    header = with_b(shape=[1.5]) if fault == "shape" else FAULTS.get(fault, [ENTRIES])[0]
    path = written(tmp_path, header, length=1 << 62 if fault == "long" else None)
    if fault == "no file":
        path.unlink()
    with pytest.raises(WireError, match=r"the header of file cannot be read: .+"):
        read_tensors(path)

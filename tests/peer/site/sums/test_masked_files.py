"""Masked artifacts from file to file: the total has the bits of the whole numbers, in little memory; damage shows."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from fakes import reference_sum
from fakes.memory_sums import mask
from peer.core import limits
from peer.core.ring import WEIGHT_MAX, Ring
from peer.core.roster import SiteName
from peer.files import artifact_path
from peer.site.sums import masked_files, masking
from peer.site.sums.masked_files import MaskedFile, add_masked, mask_file
from peer.train.tensors import DTYPE_NAMES

State = Mapping[str, Tensor]

VECTORS = json.loads(reference_sum.PATH.read_text("utf-8"))["artifacts"]


def ring_of(sites: int, *, clip: float = 4.0, weighted: bool = False, whole: bool = False) -> Ring:
    return Ring.of(members=sites, clip=clip, weighted=weighted, whole=whole)


def mixed(seed: int) -> State:
    """Tensors of every kind, whose order by size is not that of their names."""
    draw = torch.Generator().manual_seed(seed)
    floats = torch.randn(7, 5, generator=draw)
    return {
        "z.weight": floats,
        "a.bias": floats[0].bfloat16(),
        "half": floats[1].half(),
        "double": floats[2].double() / 3,
        "empty": torch.zeros(0, 3),
        "scale": floats[3, 0].clone(),
        "seen": torch.randint(-9, 10**6, (), generator=draw),
        "bytes": torch.randint(0, 256, (4,), generator=draw, dtype=torch.uint8),
        "small": torch.randint(-128, 128, (2, 2), generator=draw, dtype=torch.int8),
        "on": torch.rand(3, generator=draw) < 0.5,
        "counts": torch.randint(-5, 5, (3,), generator=draw, dtype=torch.int32),
    }


def write(folder: Path, state: State) -> Path:
    content = safetensors.torch.save(dict(state))
    path = artifact_path(folder, hashlib.sha256(content).hexdigest())
    path.write_bytes(content)
    return path


@dataclass
class Federation:
    """Sites that share seeds, and the files that they mask."""

    folder: Path
    ring: Ring
    names: Sequence[SiteName]
    seeds: Mapping[frozenset[str], bytes]
    own: dict[SiteName, bytes]
    weights: Mapping[SiteName, int]

    def mask(self, name: SiteName, plain: Path) -> tuple[Path, MaskedFile]:
        pairs = {other: self.seeds[frozenset((name, other))] for other in self.names if other != name}
        masked = mask_file(
            plain,
            self.folder,
            ring=self.ring,
            weight=self.weights[name],
            site=name,
            own_seed=self.own[name],
            pair_seeds=pairs,
        )
        return artifact_path(self.folder, masked.sha256), masked

    def add(self, masked: Mapping[SiteName, Path], plain: Path, **changed: Any) -> State:
        left = {(i, d): self.seeds[frozenset((i, d))] for i in masked for d in {*self.names} - masked.keys()}
        seeds = {"own_seeds": [self.own[name] for name in masked], "left_seeds": left} | changed
        digest, size = add_masked([*masked.values()], plain, self.folder, ring=self.ring, **seeds)
        content = artifact_path(self.folder, digest).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, size)
        return safetensors.torch.load(content)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['members']}-{vector['samples']}")
def test_an_artifact_becomes_the_words_of_the_specification(tmp_path: Path, vector: dict[str, Any]) -> None:
    ring = Ring.of(
        members=vector["members"],
        clip=vector["clip"],
        weighted=vector["samples"] is not None,
        whole=vector["whole"],
    )
    assert (ring.bits, ring.fraction_bits) == (vector["bits"], vector["fraction_bits"])
    assert ring.whole_max == int(vector["whole_max"])
    types = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    plain = {
        tensor["name"]: torch.tensor(tensor["values"], dtype=types[tensor["dtype"]]).reshape(tensor["shape"])
        for tensor in vector["tensors"]
    }
    seed = b"s" * 32
    masked = mask_file(
        write(tmp_path, plain),
        tmp_path,
        ring=ring,
        weight=vector["samples"] or 1,
        site=SiteName("asia"),
        own_seed=seed,
        pair_seeds={},
    )
    words = safetensors.torch.load_file(artifact_path(tmp_path, masked.sha256))["masked"].tolist()
    masks = reference_sum.words(seed, len(words), ring.bits)
    content = [
        ((word - added) % 2**ring.bits).to_bytes(ring.bits // 8, "little")
        for word, added in zip(words, masks, strict=True)
    ]
    assert b"".join(content).hex() == vector["words"]


def federation(folder: Path, sites: int, *, ring: Ring | None = None) -> Federation:
    rng = random.Random(sites)
    names = [SiteName(f"s{number}") for number in range(sites)]
    seeds = {frozenset(pair): rng.randbytes(32) for pair in itertools.combinations(names, 2)}
    own = {name: rng.randbytes(32) for name in names}
    weights = {name: rng.choice((1, rng.randrange(1, 5000), WEIGHT_MAX)) for name in names}
    return Federation(folder, ring or ring_of(sites), names, seeds, own, weights)


def plain_sum(ring: Ring, states: Sequence[State], weights: Sequence[int]) -> State:
    """The total in Python's whole numbers."""
    total: dict[str, Tensor] = {}
    for name, first in states[0].items():
        columns = []
        for state, weight in zip(states, weights, strict=True):
            factor = min(max(weight, 1), WEIGHT_MAX) if ring.weighted else 1
            values = state[name].double().flatten().tolist() if first.is_floating_point() else None
            if values is not None:
                limited = [min(max(value, -ring.clip), ring.clip) for value in values]
                columns.append([round(value * (1 << ring.fraction_bits) / ring.clip) * factor for value in limited])
            else:
                columns.append([int(value) * factor for value in state[name].flatten().tolist()])
        sums = [sum(column) for column in zip(*columns, strict=True)]
        if first.is_floating_point():
            values = [value * ring.clip / (1 << ring.fraction_bits) for value in sums]
            total[name] = torch.tensor(values, dtype=torch.float64).reshape(first.shape)
        else:
            total[name] = torch.tensor(sums, dtype=torch.int64).reshape(first.shape)
    weight = sum(min(max(weight, 1), WEIGHT_MAX) for weight in weights) if ring.weighted else len(states)
    return {**total, "weight": torch.tensor(weight)}


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
@pytest.mark.parametrize("sites", [3, 4, 7, 16])
def test_the_total_has_the_bits_of_whole_numbers_whoever_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: int, weighted: bool
) -> None:
    for module in (masked_files, masking):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64)  # tensors end within chunks
    together = federation(tmp_path, sites, ring=ring_of(sites, weighted=weighted))
    states = {name: mixed(number) for number, name in enumerate(together.names)}
    plain = {name: write(tmp_path, state) for name, state in states.items()}
    masked = {}
    for name in together.names:
        masked[name], file = together.mask(name, plain[name])
        assert (file.bytes, file.clipped) == (masked[name].stat().st_size, 0)
        (words,) = safetensors.torch.load_file(masked[name]).items()
        count = sum(tensor.numel() for tensor in states[name].values()) + weighted
        assert (words[0], words[1].dtype, len(words[1])) == ("masked", torch.int64 if weighted else torch.int32, count)
    rng = random.Random(sites)
    for present in (together.names, sorted(rng.sample(together.names, max(2, sites // 2 + 1)))):
        some = {name: masked[name] for name in present}
        due = plain_sum(together.ring, [states[name] for name in some], [together.weights[name] for name in some])
        assert_equal(together.add(some, plain[together.names[0]]), due)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_words_are_those_of_the_masks_in_memory(tmp_path: Path) -> None:
    """In the order of names, which is not that of a safetensors file."""
    together = federation(tmp_path, 3)
    name, state = together.names[1], {"b": torch.tensor([1.5, -9.0]), "a": torch.tensor([3], dtype=torch.int32)}
    path, file = together.mask(name, write(tmp_path, state))
    units, _ = masking.quantise(together.ring, state["b"].numpy())
    pairs = {other: together.seeds[frozenset((name, other))] for other in together.names if other != name}
    words = masking.encode(together.ring, np.concatenate([np.array([3]), units]))
    expected = mask(words, name, together.own[name], pairs)
    assert path.read_bytes().endswith(expected.tobytes())
    assert file.clipped == 1


def test_whole_numbers_of_sums_are_exact(tmp_path: Path) -> None:
    together = federation(tmp_path, 5, ring=ring_of(5, whole=True))
    states = [{"table": torch.tensor([(1 << 52) + k, -k]), "count": torch.tensor(k)} for k in range(5)]
    masked = {}
    for name, state in zip(together.names, states, strict=True):
        masked[name], file = together.mask(name, write(tmp_path, state))
        assert file.clipped == 0
    total = together.add(masked, write(tmp_path, states[0]))
    assert {name: value.tolist() for name, value in total.items()} == {
        "table": [(5 << 52) + 10, -10], "count": 10, "weight": 5,
    }  # fmt: skip
    largest = torch.tensor([together.ring.whole_max, together.ring.whole_max + 1, -(1 << 63)])
    assert together.mask(together.names[0], write(tmp_path, {"table": largest}))[1].clipped == 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (masked_files, masking):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 14)
    together = federation(tmp_path, 4)
    plain = {
        name: write(tmp_path, {"w": torch.full((1 << 20,), float(number))})
        for number, name in enumerate(together.names)
    }
    tracemalloc.start()
    try:
        masked = {name: together.mask(name, path)[0] for name, path in plain.items()}
        seeds = [together.own[name] for name in masked]
        digest, size = add_masked(
            [*masked.values()], plain[together.names[0]], tmp_path, ring=together.ring, own_seeds=seeds, left_seeds={}
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 8 << 20
    assert peak < 1 << 20
    total = safetensors.torch.load_file(artifact_path(tmp_path, digest))
    assert torch.equal(total["w"], torch.full((1 << 20,), 6.0, dtype=torch.float64))


@pytest.mark.parametrize("wrong", ["own", "left", "missing"])
@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
def test_with_one_wrong_seed_the_sum_is_noise_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, weighted: bool
) -> None:
    together = federation(tmp_path, 4, ring=ring_of(4, weighted=weighted))
    plain = write(tmp_path, {"w": torch.zeros(1000)})
    masked = {name: together.mask(name, plain)[0] for name in together.names[:3]}
    assert not together.add(masked, plain)["w"].any()
    seeds = [together.own[name] for name in masked]
    changed: dict[str, Any] = {"own_seeds": [*seeds[:2], bytes(32)]}
    if wrong == "left":
        last = together.names[3]
        left = {(name, last): together.seeds[frozenset((name, last))] for name in masked}
        changed = {"left_seeds": left | {(together.names[0], last): bytes(32)}}
    elif wrong == "missing":
        changed = {"own_seeds": seeds[:2]}
    files = {*tmp_path.iterdir()}
    with pytest.raises(ValueError, match="the masks did not cancel"):
        together.add(masked, plain, **changed)
    assert {*tmp_path.iterdir()} == files
    monkeypatch.setattr(masked_files, "_refuse_noise", lambda *args, **more: None)
    noise = together.add(masked, plain, **changed)["w"].numpy()
    assert np.abs(noise).max() > 8
    assert len(np.unique(noise)) > 990


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    together = federation(tmp_path, 3)
    plain = write(tmp_path, {"a": torch.zeros(4), "b": torch.tensor([0, value])})
    with pytest.raises(ValueError, match="tensor 'b': a value is infinite or no number"):
        together.mask(together.names[0], plain)
    assert [*tmp_path.iterdir()] == [plain]


def test_a_masked_artifact_that_nobody_would_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = federation(tmp_path, 3, ring=ring_of(3, weighted=True))
    plain = write(tmp_path, {"w": torch.zeros(1000)})
    size = together.mask(together.names[0], plain)[1].bytes
    assert size > 8 * 1001
    monkeypatch.setattr(limits, "ARTIFACT_BYTES_MAX", size - 1)
    with pytest.raises(ValueError, match=f"would have {size} bytes, an artifact at most {size - 1}"):
        together.mask(together.names[0], plain)


def test_inputs_of_other_lengths_do_not_add_up(tmp_path: Path) -> None:
    together = federation(tmp_path, 3)
    plain = write(tmp_path, {"w": torch.zeros(4)})
    masked = {name: together.mask(name, plain)[0] for name in together.names}
    masked[together.names[2]] = together.mask(together.names[2], write(tmp_path, {"w": torch.zeros(5)}))[0]
    with pytest.raises(ValueError, match=r"does not add up: it has masked I32 \[5\], and masked I32 \[4\] is due"):
        together.add(masked, plain)
    masked[together.names[2]] = plain
    with pytest.raises(ValueError, match=r"does not add up: it has w F32 \[4\]"):
        together.add(masked, plain)
    with pytest.raises(ValueError, match="nothing to sum"):
        together.add({}, plain)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    together = federation(tmp_path, 3)
    plain = write(tmp_path, {"w": torch.zeros(4)})
    masked = {name: together.mask(name, plain)[0] for name in together.names}
    damaged = masked[together.names[1]]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="is damaged: it does not have its digest"):
        together.add(masked, plain)
    damaged.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="it ends before its last tensor"):
        together.add(masked, plain)
    plain.write_bytes(plain.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="is damaged"):
        together.mask(together.names[0], plain)
    damaged.unlink()
    with pytest.raises(FileNotFoundError):
        together.add(masked, plain)


def refuse(path: Path) -> None:
    """Try to mask a file that cannot be masked."""
    mask_file(path, path.parent, ring=ring_of(3), weight=1, site=SiteName("a"), own_seed=bytes(32), pair_seeds={})


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"w": {"dtype": "F8", "shape": [1], "data_offsets": [0, 1]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "data_offsets": [0, 4]}}).encode(),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="its header is not that of a safetensors file"):
        refuse(path)
    path.write_bytes((1 << 60).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="longer than the file"):
        refuse(path)


def test_a_tensor_with_the_name_of_the_weight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a tensor of the model is called 'weight'"):
        refuse(write(tmp_path, {"weight": torch.zeros(1)}))

"""Pretrained weights: files of every kind, read without running code, and how they fit a network."""

import hashlib
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import models
from models import Network
from peer.train.errors import UnusableConfigurationError
from peer.train.weights import fit_base, fit_weights, load_weights, read_weights


def network(classes: int = 2, **limits: Any) -> Network:
    sizes = {"spatial_dims": 1, "in_channels": 2, "classes": classes}
    return models.build({"name": "resnet5", **sizes, "hyper": {"width": 4}, **limits})


def read(path: Path) -> dict[str, Tensor]:
    return read_weights(path, digest(path), key="[model] weights")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Evil:
    """What a pickle can hold: a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("container", [None, "state_dict", "model"])
def test_files_of_every_kind_hold_the_same_tensors(tmp_path: Path, suffix: str, container: str | None) -> None:
    state = network().state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state if container is None else {container: state, "epoch": 3}, path)
    read_state = read(path)
    assert read_state.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in read_state.items())


def test_tensors_in_several_containers_are_found(tmp_path: Path) -> None:
    state = network().state_dict()
    torch.save({"epoch": 1, "model": {"network_weights": state, "step": 2}}, tmp_path / "a.pt")
    assert read(tmp_path / "a.pt").keys() == state.keys()


@pytest.mark.parametrize(
    "tensor", [torch.empty(1 << 40, device="meta"), torch.eye(3).to_sparse()], ids=["without values", "sparse"]
)
def test_a_tensor_that_is_no_plain_array_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"weight": tensor}, tmp_path / "a.pt")
    with pytest.raises(UnusableConfigurationError, match=r"tensor 'weight' is no plain array of numbers"):
        read(tmp_path / "a.pt")


def test_the_weights_of_a_bundle_are_read_and_nothing_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "inference.json").write_text('{"network_def": {"_target_": "os.abort"}}')
    torch.save(network().state_dict(), tmp_path / "models" / "model.pt")
    state = read_weights(tmp_path, digest(tmp_path / "models" / "model.pt"), key="[model] weights")
    assert state.keys() == network().state_dict().keys()
    (tmp_path / "models" / "model.pt").unlink()
    with pytest.raises(UnusableConfigurationError, match="is no MONAI bundle with weights"):
        read_weights(tmp_path, "ab" * 32, key="[model] weights")


def test_a_file_with_code_is_refused_and_the_code_does_not_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "trace"
    torch.save({"weight": torch.zeros(2), "hook": Evil(trace)}, path)
    with pytest.raises(UnusableConfigurationError, match=r"evil.pt cannot be read as tensors alone"):
        read(path)
    assert not trace.exists()
    with path.open("wb") as file:
        pickle.dump({"weight": Evil(trace)}, file)
    with pytest.raises(UnusableConfigurationError, match=r"cannot be read as tensors alone"):
        read(path)
    assert not trace.exists()


def test_another_file_than_the_named_one_is_refused_with_both_digests(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(network().state_dict(), path)
    with pytest.raises(
        UnusableConfigurationError, match=rf"\[model\] weights: .*has SHA-256 {digest(path)}, not {'0' * 64}"
    ):
        read_weights(path, "0" * 64, key="[model] weights")
    with pytest.raises(UnusableConfigurationError, match="cannot be read: No such file"):
        read_weights(tmp_path / "absent.pt", "0" * 64, key="[model] weights")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("weights.h5", {"a": torch.zeros(1)}, "ends in none of .safetensors, .pt"),
        ("weights.pt", {"epoch": 3}, "it holds no named tensors"),
        ("weights.pt", [torch.zeros(1)], "it holds a list, not named tensors"),
        ("weights.pt", {"a": torch.zeros(1).expand(1 << 40)}, "4398046511104 bytes, of which the file stores 4"),
        ("weights.pt", {"a": torch.tensor([float("nan")])}, "tensor 'a' holds a NaN or an infinity"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, content: Any, message: str) -> None:
    torch.save(content, tmp_path / name)
    with pytest.raises(UnusableConfigurationError, match=message):
        read(tmp_path / name)


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "small.pt", "w", 8) as small:
        for entry in plain.infolist():
            small.writestr(entry.filename, plain.read(entry))
    assert (tmp_path / "small.pt").stat().st_size < 10_000
    with pytest.raises(UnusableConfigurationError, match="it is compressed"):
        read(tmp_path / "small.pt")


@pytest.mark.parametrize(
    "prefix",
    ["", "module.", "backbone.", "_orig_mod.", "module.model.", "model._orig_mod.module.", "student.backbone."],
)
def test_what_fits_is_loaded_and_the_rest_is_named(prefix: str) -> None:
    pretrained, own = network(classes=5), network(classes=2)
    state = {f"{prefix}{name}": value for name, value in pretrained.state_dict().items()}
    del state[f"{prefix}layer1.0.conv1.weight"]
    state["projector.weight"] = torch.zeros(3)
    random = own.state_dict()["layer1.0.conv1.weight"].clone()
    fit = load_weights(own, state)
    loaded = own.state_dict()
    for name, value in pretrained.state_dict().items():
        if name.startswith("fc.") or name == "layer1.0.conv1.weight":
            continue
        assert torch.equal(loaded[name], value), name
    assert torch.equal(loaded["layer1.0.conv1.weight"], random)
    assert fit.reshaped["fc.bias"] == ((5,), (2,))
    assert set(fit.random) == {"layer1.0.conv1.weight", "fc.weight", "fc.bias"}
    assert fit.unused == ("projector.weight",)
    text = fit.describe()
    assert "of another shape: fc.weight is [5, " in text
    assert "random: layer1.0.conv1.weight, fc.weight, fc.bias" in text
    assert "unused in the file: projector.weight" in text


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_a_wrapper_of_inner_layers_is_taken_off(tmp_path: Path, wrapper: str, suffix: str) -> None:
    own = network()
    wrapped = {name.replace("layer1.", f"layer1.{wrapper}."): value for name, value in own.state_dict().items()}
    save = torch.save if suffix == ".pt" else safetensors.torch.save_file
    save(wrapped, tmp_path / f"a{suffix}")
    assert not load_weights(network(), read(tmp_path / f"a{suffix}")).random
    save({**wrapped, "layer1.0.conv1.weight": torch.zeros(1)}, tmp_path / f"b{suffix}")
    with pytest.raises(UnusableConfigurationError, match="names differ in wrappers alone"):
        read(tmp_path / f"b{suffix}")


def test_a_tensor_of_another_type_is_named() -> None:
    own = network()
    state = {**own.state_dict(), "fc.bias": own.state_dict()["fc.bias"].to(torch.int8)}
    assert "of another type: fc.bias" in load_weights(own, state).describe()


def test_a_file_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"none of the file's 1 tensors fits \(it has encoder.weight"):
        load_weights(network(), {"encoder.weight": torch.zeros(3)})


def test_a_frozen_layer_must_be_in_the_file() -> None:
    own = network(frozen=["layer1"], base="ab" * 32)
    state = dict(network().state_dict())
    del state["layer1.0.conv1.weight"]
    with pytest.raises(ValueError, match=r"would stay random: layer1.0.conv1.weight; freeze only what the file fills"):
        load_weights(own, state)
    with pytest.raises(ValueError, match=r"its base does not hold layer1.0.conv1.weight"):
        fit_base(own, state)


def test_a_base_fills_what_is_frozen_and_nothing_else() -> None:
    own = network(adapters={"layers": ["layer1"], "rank": 2, "alpha": 4}, base="ab" * 32)
    head = own.head.state_dict()
    head = {name: value.clone() for name, value in head.items()}
    pretrained = network()
    own.load_state_dict(fit_base(own, pretrained.state_dict()), strict=False)
    assert all(torch.equal(value, head[name]) for name, value in own.head.state_dict().items())
    original = own.state_dict()["layer1.0.conv1.parametrizations.weight.original"]
    assert torch.equal(original, pretrained.state_dict()["layer1.0.conv1.weight"])
    assert not fit_weights(own, pretrained.state_dict()).unused

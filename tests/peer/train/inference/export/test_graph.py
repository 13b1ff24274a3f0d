"""Networks as graphs: equal numbers for every batch in ``.pt2`` and ONNX, or a named error."""

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import models
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.export import graph
from peer.train.inference.export.predictor import Predictor, Shares
from peer.train.settings import TaskSettings

pytestmark = pytest.mark.e2e

CARD = {"site": "alpha", "checks": []}
KINDS: dict[str, dict[str, Any]] = {
    "resnet5": {"spatial_dims": 3, "side": 16, "width": 2},
    "rnn": {"spatial_dims": 1, "side": 24, "width": 4},
    "transformer": {"spatial_dims": 1, "side": 24, "width": 4},
    "unet": {"spatial_dims": 2, "side": 16, "width": 4, "depth": 2},
    "dynunet": {"spatial_dims": 3, "side": 9, "width": 4, "depth": 2},
    "res_unet": {"spatial_dims": 2, "side": 16, "width": 32, "depth": 1, "norm": "group"},
}
"""A network of each kind of operator: convolutions and pooling in 3-D, recurrence, attention,
skips, instance norm, group norm. All of ``models.MODELS`` take minutes.
"""


def make_module(name: str, **hyper: Any) -> tuple[Shares, Tensor]:
    """A module with probabilities, and an image for it."""
    dims, side = hyper.pop("spatial_dims"), hyper.pop("side")
    torch.manual_seed(0)
    network = models.create_model(name, spatial_dims=dims, in_channels=2, classes=3, **hyper)
    return Shares(Predictor(network), TaskSettings("classification", 2, 1, 2)).eval(), torch.randn(2, *[side] * dims)


def expect_equal(run: graph.Run, module: nn.Module, image: Tensor) -> None:
    """Batches of one and of three, of which none is the traced one."""
    batch = torch.stack([image * 2, image + 1, image.flip(-1)])
    for images in (batch, batch[:1]):
        with torch.no_grad():
            assert torch.allclose(run(images), module(images), atol=1e-5)


def expect_no_place(content: bytes) -> None:
    """The file does not contain the program's path on this machine."""
    for module in (graph, torch):
        assert str(Path(str(module.__file__)).parent).encode() not in content


@pytest.mark.parametrize("name", ["resnet5", "transformer"])
def test_a_network_is_a_pt2_file(name: str) -> None:
    module, image = make_module(name, **KINDS[name])
    content = graph.to_pt2(graph.trace(module, image, free_space=False, name=name), CARD)
    run, card = graph.run_pt2(content)
    expect_equal(run, module, image)
    assert json.loads(card) == CARD
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        expect_no_place(b"".join(map(archive.read, archive.namelist())))


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("rnn", "dynunet")), "unet", "res_unet"]
)
def test_a_network_is_an_onnx_file(name: str) -> None:
    module, image = make_module(name, **KINDS[name])
    program = graph.trace(module, image, free_space=False, name=name)
    content = graph.add_card(graph.to_onnx(program, output=graph.PROBABILITIES, name=name), CARD)
    run, card = graph.run_onnx(content)
    expect_equal(run, module, image)
    expect_no_place(content)
    assert json.loads(card) == CARD
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    (input_value,), (output,) = model.graph.input, model.graph.output
    assert (input_value.name, output.name) == ("image", "probabilities")
    assert input_value.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert {entry.key: entry.value for entry in model.metadata_props}["site"] == "alpha"
    assert model.opset_import[0].version == graph.OPSET


@pytest.mark.nightly
def test_super_resolution_takes_images_of_any_size() -> None:
    torch.manual_seed(0)
    network = models.create_model("srcnn", spatial_dims=2, in_channels=1, classes=1, width=4, scale=2)
    module, image = Shares(Predictor(network), TaskSettings("super_resolution", 2, 1, 1)).eval(), torch.rand(1, 8, 8)
    program = graph.trace(module, image, free_space=True, name="srcnn")
    runs = [graph.run_pt2(graph.to_pt2(program, {}))[0]]
    runs.append(graph.run_onnx(graph.to_onnx(program, output="enlarged", name="srcnn"))[0])
    for run in runs:
        expect_equal(run, module, torch.rand(1, 11, 6))


def test_a_network_that_branches_on_a_value_is_named() -> None:
    class Undecided(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return image**2 if image.sum() > 0 else image

    with pytest.raises(
        UnusableConfigurationError, match=r"my_net cannot be exported to a graph: .*; export it as a bundle"
    ) as raised:
        graph.trace(Undecided(), torch.ones(1, 4), free_space=False, name="my_net", remedy="export it as a bundle")
    assert "\n" not in str(raised.value)


def test_an_operator_that_onnx_lacks_is_named() -> None:
    class Special(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return torch.special.airy_ai(image)

    program = graph.trace(Special(), torch.ones(1, 4), free_space=False, name="my_net")
    with pytest.raises(UnusableConfigurationError, match=r"my_net cannot be exported to onnx: .*; export it as pt2$"):
        graph.to_onnx(program, output="x", name="my_net")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = graph.trace(nn.ReLU(), torch.ones(1, 4), free_space=False, name="relu")
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "onnxscript", raising=False)
    with pytest.raises(UnusableConfigurationError, match=r"onnxscript, not .* here; run `pip install '.*\[export\]'"):
        graph.to_onnx(program, output="y", name="relu")


@pytest.mark.parametrize("absolute", [True, False])
def test_weights_outside_an_onnx_file_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(16))
    outside = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value=str(tmp_path / "secret") if absolute else "secret")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "xy"]
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"])]
    onnx_graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [outside])
    versions = {"opset_imports": [onnx.helper.make_opsetid("", graph.OPSET)], "ir_version": 9}
    with pytest.raises(Exception, match=r"External data path|model_path must not be empty"):
        graph.run_onnx(onnx.helper.make_model(onnx_graph, **versions).SerializeToString())

"""Taps on networks that know nothing of them: two of MONAI's and small ones of our own."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

from models import Tapped, build, create_model, layer_names

DENSENET = {
    "name": "monai.networks.nets.DenseNet",
    "spatial_dims": 2,
    "in_channels": 3,
    "classes": 5,
    "hyper": {"init_features": 8, "growth_rate": 4, "block_config": [2, 2]},
    "features": ["features.denseblock1", "features.denseblock2"],
    "head": "class_layers.out",
}
UNET = {
    "name": "monai.networks.nets.BasicUNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "classes": 2,
    "hyper": {"features": [4, 4, 8, 8, 16, 4]},
    "features": ["conv_0", "down_1", "down_2", "down_3", "down_4"],
    "head": "final_conv",
}


class Small(nn.Module):
    """Two stages and a linear head, with one thing to go wrong."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.stage1 = nn.Conv1d(1, 2, 3, padding=1)
        self.stage2 = nn.Conv1d(2, 4, 3, padding=1, stride=2)
        self.act = nn.ReLU(inplace=fault == "in place")
        self.pair = nn.LSTM(4, 4, batch_first=True)
        self.bilinear = nn.Bilinear(4, 4, 3)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor] | list[Tensor]:
        x = self.act(self.stage2(self.stage1(x)))
        if self.fault == "twice":
            self.stage1(x[:, :1])
        x = self.pair(x.mT)[0].mean(1)
        if self.fault == "two inputs":
            return self.bilinear(x, x)
        x = self.fc(x)
        if self.fault == "not last":
            return x.softmax(1)
        if self.fault == "dict":
            return {"out": x}
        return [x] if self.fault == "list" else x.view(x.shape) if self.fault == "view" else x


def small(fault: str = "", *, features: tuple[str, ...] = ("stage1", "stage2"), head: str = "fc", classes: int = 3):
    sizes = {"spatial_dims": 1, "in_channels": 1, "classes": classes}
    return Tapped(Small(fault), features=features, head=head, name="small", **sizes)


@pytest.fixture(params=[DENSENET, UNET], ids=["DenseNet", "BasicUNet"])
def spec(request) -> dict:
    return request.param


@pytest.fixture
def model(spec) -> Tapped:
    torch.manual_seed(0)
    return build(spec)


def sample(spec: dict, batch: int = 2) -> Tensor:
    shape = (batch, spec["in_channels"], *(32,) * spec["spatial_dims"])
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_the_prediction_is_the_networks_own_and_the_head_makes_it(model, spec):
    model.eval()
    output = model(sample(spec))
    assert torch.equal(output.prediction, model.network(sample(spec)))
    assert torch.equal(model.head(output.penultimate), output.prediction)
    assert model.head is model.network.get_submodule(spec["head"])


def test_taps_are_what_the_named_layers_give(model, spec):
    model.eval()
    outputs_seen = []
    for layer in spec["features"]:
        model.network.get_submodule(layer).register_forward_hook(lambda *call: outputs_seen.append(call[2]))
    output = model(sample(spec))
    assert len(output.taps) == len(spec["features"])
    assert all(tap is value for tap, value in zip(output.taps, outputs_seen, strict=True))
    sizes = [tap.shape[2] for tap in output.taps]
    assert sizes == sorted(sizes, reverse=True)


def test_the_bottleneck_is_the_penultimate_vector_or_the_deepest_tap():
    densenet, unet = build(DENSENET)(sample(DENSENET)), build(UNET)(sample(UNET))
    assert densenet.bottleneck is densenet.penultimate
    assert densenet.penultimate.shape == (2, 16)
    assert unet.bottleneck is unet.taps[-1]
    assert unet.bottleneck.shape == (2, 16, 2, 2, 2)
    assert unet.penultimate.shape == (2, 4, 32, 32, 32)


def test_gradients_flow_through_taps_and_prediction(model, spec):
    output = model(sample(spec))
    for feature in (*output.taps, output.prediction):
        model.zero_grad()
        feature.square().sum().backward(retain_graph=True)
        assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_the_spec_and_the_state_make_the_same_network_again(model, spec):
    assert model.spec == spec
    with torch.device("meta"):
        again = build(model.spec)
        again(torch.empty(1, spec["in_channels"], *(32,) * spec["spatial_dims"]))
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(again.eval()(sample(spec)).prediction, model.eval()(sample(spec)).prediction)


def test_copies_are_independent(model, spec):
    model.eval()
    expected = model(sample(spec))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        output = copied(sample(spec))
        assert all(torch.equal(tap, other) for tap, other in zip(output.taps, expected.taps, strict=True))
        with torch.no_grad():
            for p in copied.parameters():
                p.zero_()
        assert copied.head is not model.head
        assert torch.equal(model(sample(spec)).prediction, expected.prediction)


def test_the_state_holds_each_tensor_once_under_the_networks_own_names(model):
    own = model.network.state_dict()
    assert [key.removeprefix("network.") for key in model.state_dict()] == list(own)


@pytest.mark.parametrize("fault", ["", "dict"])
def test_no_hook_outlives_the_forward_pass(fault):
    model = small(fault)
    try:
        model(torch.zeros(2, 1, 8))
    except ValueError:
        assert fault
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_no_hook_outlives_a_network_that_raises():
    model = small()
    model.network.fc = nn.Linear(7, 3)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.zeros(2, 1, 8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_threads_in_one_network_each_see_their_own_features():
    both_inside = threading.Barrier(2, timeout=30)

    class Meeting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            both_inside.wait()
            return x

    network = nn.Sequential(nn.Identity(), Meeting(), nn.Flatten(), nn.Linear(4, 2))
    model = Tapped(network, features=["0"], head="3", spatial_dims=1, in_channels=1, classes=2)
    outputs = {}

    def run(value: float) -> None:
        outputs[value] = model(torch.full((1, 1, 4), value))

    threads = [threading.Thread(target=run, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value, output in outputs.items():
        assert torch.equal(output.taps[0], torch.full((1, 1, 4), value))
        assert torch.equal(model.head(output.penultimate), output.prediction)
    assert len(outputs) == 2


@pytest.mark.parametrize("fault", ["", "list", "view"])
def test_networks_that_return_a_list_of_one_or_a_view(fault):
    output = small(fault)(torch.zeros(2, 1, 8))
    assert output.prediction.shape == (2, 3)


def test_inference_mode():
    with torch.inference_mode():
        assert small()(torch.zeros(2, 1, 8)).prediction.shape == (2, 3)


def test_without_features_there_are_no_taps():
    output = small(features=())(torch.zeros(2, 1, 8))
    assert output.taps == ()
    assert output.bottleneck is output.penultimate


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        ("not last", {}, "the prediction of small is not what its head 'fc' returns"),
        ("", {"head": "stage2"}, "the prediction of small is not what its head 'stage2' returns"),
        ("", {"classes": 4}, r"small predicts \(2, 3\), which is not 4 classes in dimension 1"),
        ("dict", {}, "small must return one tensor, not dict"),
        ("twice", {}, "layer 'stage1' ran 2 times in one forward pass"),
        ("", {"features": ["bilinear"]}, "layer 'bilinear' ran 0 times"),
        ("", {"features": ["pair"]}, "layer 'pair' must take and give one tensor, not tuple"),
        ("two inputs", {"head": "bilinear"}, "layer 'bilinear' must take and give one tensor, not tuple"),
        ("in place", {}, "the tensor at layer 'stage2' is overwritten in place later on"),
    ],
)
def test_what_cannot_be_tapped_is_named(fault, options, message):
    model = small(fault, **options)
    with pytest.raises(ValueError, match=message):
        model(torch.zeros(2, 1, 8))


def test_a_head_that_overwrites_its_input_is_named():
    network = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Sequential(nn.LeakyReLU(inplace=True), nn.Conv1d(2, 2, 1)))
    model = Tapped(network, features=[], head="1", spatial_dims=1, in_channels=1, classes=2)
    with pytest.raises(ValueError, match="head '1' overwrites its own input in place; name the last layer inside it"):
        model(torch.randn(2, 1, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "fcc"}, r"Small has no layer 'fcc'; did you mean 'fc'.*`mhfl-peer models --layers` lists all 6"),
        ({"features": ["zebra"]}, "Small has no layer 'zebra'; at its top are stage1, stage2, act, pair, bilinear, fc"),
        ({"features": ["stage1", "stage1"]}, r"features \['stage1', 'stage1'\] name a layer twice"),
    ],
)
def test_layers_that_do_not_exist_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_layer_names_are_those_that_taps_accept():
    network = build(UNET).network
    assert layer_names(network)[:2] == ["conv_0", "conv_0.conv_0"]
    assert all(network.get_submodule(layer) for layer in layer_names(network))


def test_a_network_that_is_not_from_a_registry_is_named_by_its_class():
    model = Tapped(Small(), features=[], head="fc", spatial_dims=1, in_channels=1, classes=3)
    assert model.spec["name"] == f"{Small.__module__}:Small"


def test_create_model_taps_too():
    taps = {"features": ["model.0", "model.1.submodule.0"], "head": "model.2"}
    sizes = {"spatial_dims": 2, "in_channels": 1, "classes": 2}
    model = create_model("monai.networks.nets.UNet", **sizes, channels=[4, 8, 16], strides=[2, 2], **taps)
    output = model(torch.zeros(2, 1, 16, 16))
    assert [tuple(tap.shape[1:]) for tap in output.taps] == [(4, 8, 8), (8, 4, 4)]
    assert output.prediction.shape == (2, 2, 16, 16)

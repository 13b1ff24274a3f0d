"""What of a network learns: frozen layers, adapters, their names, and the merged network."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from models import Network, remote_spec_problem
from models.learning import base_tensors, name_in_file
from models.registry import merge_adapters

SIZES = {"spatial_dims": 1, "in_channels": 2, "classes": 3}
BASE = "ab" * 32


def build(**limits: Any) -> Network:
    torch.manual_seed(0)
    return models.build({"name": "resnet5", **SIZES, "hyper": {"width": 4}, **limits})


def tapped(**limits: Any) -> Network:
    spec = {"name": f"{__name__}:Foreign", **SIZES, "hyper": {}, "features": ["body"], "head": "fc"}
    return models.build({**spec, **limits})


class Foreign(nn.Module):
    """A body with batch statistics, and a head."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(in_channels, 4, 3), nn.BatchNorm1d(4))
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(self.body(x).mean(2))
        return result


def train_a_step(network: Network) -> dict[str, Tensor]:
    """The state before a step that moves all that learns."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(learning, lr=0.1)
    for _ in range(2):  # an adapter's second factor moves once the first one is not zero
        optimiser.zero_grad()
        network(torch.randn(4, 2, 24)).prediction.square().sum().backward()
        optimiser.step()
    return before


@pytest.mark.parametrize("make", [build, tapped])
def test_frozen_layers_keep_their_weights_and_their_statistics(make: Any) -> None:
    layer = "layer1" if make is build else "body"
    network = make(frozen=[layer], base=BASE)
    prefix = f"{network.layer_prefix}{layer}."
    assert {name for name in network.state_dict() if name.startswith(prefix)} == network.frozen_tensors
    assert base_tensors(network) == network.frozen_tensors
    before = train_a_step(network)
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not moved & network.frozen_tensors
    assert all(name in moved for name in before if name.startswith(f"{network.head_name}."))


@pytest.mark.parametrize("make", [build, tapped])
def test_with_adapters_they_and_the_head_alone_learn_from_the_pretrained_start(make: Any) -> None:
    layer = "layer1" if make is build else "body"
    limits = {"adapters": {"layers": [layer], "rank": 2, "alpha": 4.0}}
    network, plain = make(**limits), make()
    sources = {name: name_in_file(network, name) for name in network.state_dict()}
    state = plain.state_dict()
    values = {name: state[network.layer_prefix + key] for name, key in sources.items() if key is not None}
    network.load_state_dict(values, strict=False)
    x = torch.randn(2, 2, 24)
    assert torch.equal(network.eval()(x).prediction, plain.eval()(x).prediction)
    before = train_a_step(network)
    after = network.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    head = f"{network.head_name}."
    adapters = {name for name, key in sources.items() if key is None}
    assert adapters
    assert all(name.startswith(network.layer_prefix + layer) for name in adapters)
    assert moved == adapters | {name for name in after if name.startswith(head)}
    assert network.frozen_tensors == after.keys() - moved
    copied = copy.deepcopy(network)
    assert torch.equal(copied.eval()(x).prediction, network.eval()(x).prediction)
    merged = merge_adapters(network)
    assert merged.spec == plain.spec
    assert merged.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(merged.eval()(x).prediction, network.eval()(x).prediction)
    assert all(parameter.requires_grad for parameter in merged.parameters())
    assert network.frozen_tensors, "the merged network is a copy"


def test_a_spec_with_limits_rebuilds_the_same_network() -> None:
    network = build(adapters={"layers": ["layer1"], "rank": 2, "alpha": 4}, base=BASE)
    with torch.device("meta"):
        again = models.build(network.spec)
    assert again.spec == network.spec
    assert again.state_dict().keys() == network.state_dict().keys()
    assert base_tensors(again) == base_tensors(network)
    assert base_tensors(build(frozen=["layer1"])) == frozenset(), "without a base, all tensors are sent"


def test_a_rank_above_a_layers_own_is_lowered() -> None:
    network = build(adapters={"layers": ["layer1"], "rank": 1000, "alpha": 16})
    state = network.state_dict()
    for name in (name for name in state if name.endswith(".down")):
        outputs, rank = state[name.removesuffix("down") + "up"].shape
        assert rank == min(outputs, state[name].shape[1]) < 1000


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"frozen": ["layr1"]}, "there is no layer 'layr1'; did you mean 'layer1'"),
        ({"frozen": ["fc"]}, "layer 'fc' holds or is in the head 'fc', which has to learn"),
        ({"adapters": {"layers": ["fc"], "rank": 1, "alpha": 1}}, "layer 'fc' has no linear or convolution layer"),
        ({"adapters": {"layers": ["layer1"], "rank": 0, "alpha": 1}}, "adapters.rank must be from 1 to 1024, not 0"),
        ({"adapters": {"layers": ["layer1"], "rank": 1}}, "adapters must have layers, rank and alpha"),
        ({"adapters": {"layers": ["layer1"], "rank": 1, "alpha": 0}}, "adapters.alpha must be above 0"),
        ({"frozen": []}, "frozen must be a list of layer names"),
        ({"base": BASE}, "base is for a network with frozen layers or adapters"),
        ({"frozen": ["layer1"], "base": "AB"}, "base must be a SHA-256 in hex"),
        (
            {"frozen": ["layer1"], "adapters": {"layers": ["layer1"], "rank": 1, "alpha": 1}},
            "adapters freeze all but the head; leave out frozen",
        ),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**limits)


def test_the_layers_of_a_spec_from_another_site_are_bounded() -> None:
    spec = build(adapters={"layers": ["layer1"], "rank": 2, "alpha": 4}, base=BASE).spec
    assert remote_spec_problem(spec) is None
    many = {**spec, "adapters": {**spec["adapters"], "layers": ["layer1"] * 17}}
    assert "at most 16 layers in a spec from another site, not 17" in str(remote_spec_problem(many))
    long = {**spec, "adapters": {**spec["adapters"], "layers": ["l" * 300]}}
    assert "at most 256 characters in a spec from another site" in str(remote_spec_problem(long))

"""One battery over every network of the registry, and the two ways to make one."""

from __future__ import annotations

import copy
import inspect
import json

import pytest
import torch

from models import MODELS, build, create_model
from models.network import Network
from models.spec import HYPER

# Small enough for a test; the battery is about structure.
SMALL = {"resnet10": {"width": 4}, "resnet18": {"width": 4}, "resnet34": {"width": 4}}
ODD = {1: (37,), 2: (19, 23), 3: (9, 11, 13)}


@pytest.fixture(params=MODELS)
def name(request) -> str:
    return request.param


@pytest.fixture(params=[1, 2, 3], ids="{}-D".format)
def dims(request) -> int:
    return request.param


@pytest.fixture
def model(name, dims) -> Network:
    torch.manual_seed(0)
    return create_model(name, spatial_dims=dims, in_channels=2, classes=3, **SMALL[name])


def test_one_sample_of_an_odd_size(model, dims):
    model.eval()
    with torch.no_grad():
        output = model(torch.randn(1, 2, *ODD[dims]))
    assert output.prediction.shape[:2] == (1, 3)
    assert output.prediction.isfinite().all()


def test_the_smallest_input(model, dims):
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 2, *(1,) * dims)).prediction.isfinite().all()


def test_taps_come_shallow_to_deep(model, dims):
    output = model(torch.randn(2, 2, *(33,) * dims))
    grids = [tuple(tap.shape[2:]) for tap in output.taps]
    assert len(grids) >= 2
    assert all(tap.ndim == dims + 2 and tap.shape[0] == 2 for tap in output.taps)
    assert grids == sorted(grids, reverse=True)
    assert grids[0] > grids[-1]


def test_the_head_of_the_penultimate_feature_is_the_prediction(model, dims):
    output = model.eval()(torch.randn(2, 2, *ODD[dims]))
    assert torch.equal(model.head(output.penultimate), output.prediction)
    assert {id(p) for p in model.head.parameters()} == {
        id(p) for key, p in model.named_parameters() if key.startswith(model.head_name + ".")
    }


def test_the_shape_of_the_feature_is_known_beforehand(model, dims):
    model.train()
    model.head.eval()
    state = copy.deepcopy(model.state_dict())
    shape = model.feature_shape(ODD[dims])
    assert model.training
    assert not model.head.training
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert shape == model.eval()(torch.randn(1, 2, *ODD[dims])).penultimate.shape[1:]


def test_a_gradient_reaches_every_parameter(model, dims):
    output = model(torch.randn(4, 2, *(33,) * dims))
    output.prediction.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_gradients_flow_through_every_tap_and_through_the_penultimate(model, dims):
    output = model(torch.randn(4, 2, *(33,) * dims))
    for feature in (*output.taps, output.penultimate, output.bottleneck):
        gradients = torch.autograd.grad(
            feature.square().sum(), list(model.parameters()), retain_graph=True, allow_unused=True
        )
        assert any(gradient is not None and gradient.any() for gradient in gradients)


def test_the_spec_and_the_state_make_the_same_network_again(model, dims):
    spec = json.loads(json.dumps(model.spec))
    assert spec == model.spec
    with torch.device("meta"):
        again = build(spec)
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(model.state_dict(), assign=True)
    assert again.spec == spec
    x = torch.randn(2, 2, *ODD[dims])
    assert torch.equal(again.eval()(x).prediction, model.eval()(x).prediction)


def test_the_same_seed_gives_the_same_weights(model, name, dims):
    torch.manual_seed(0)
    again = create_model(name, spatial_dims=dims, in_channels=2, classes=3, **SMALL[name])
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())


def test_an_input_that_does_not_fit_is_named(model, name, dims):
    for shape in [(2, 3, *ODD[dims]), (2, *ODD[dims]), (0, 2, *ODD[dims])]:
        with pytest.raises(ValueError, match=rf"{name} takes a non-empty \(b, 2, \*space\) with {dims} spatial"):
            model(torch.zeros(shape))


def test_the_torch_free_table_agrees_with_the_constructors():
    fixed = {"spatial_dims", "in_channels", "classes"}
    for model_name, constructor in MODELS.items():
        free = {p.name for p in inspect.signature(constructor).parameters.values() if p.name not in ("name", "blocks")}
        assert free - fixed == HYPER[model_name]
    assert MODELS.keys() == HYPER.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet01"}, "unknown model 'resnet01'; did you mean .*'resnet10'"),
        ({"name": "zebra"}, "unknown model 'zebra'; there are resnet10, .* and any module:Class"),
        ({"widht": 8}, "resnet10 has no hyper-parameter 'widht'; did you mean 'width'.*max_pool, stem_stride, width"),
        ({"name_": 1}, "resnet10 has no hyper-parameter 'name_'"),
        ({"blocks": [1]}, "resnet10 has no hyper-parameter 'blocks'"),
        ({"features": ["layer1"], "head": "fc"}, "resnet10 has its own taps and head; leave out features and head"),
        ({"spatial_dims": 4}, "model spec 'resnet10': spatial_dims must be 1, 2 or 3, not 4"),
        ({"classes": 0}, "classes must be a whole number from 1 on, not 0"),
        ({"name": "monai.networks.nets.DenseNet121"}, "DenseNet121 needs head.* end in .*class_layers.out"),
    ],
)
def test_what_there_is_not_is_named(changes, message):
    arguments = {"name": "resnet10", "spatial_dims": 2, "in_channels": 1, "classes": 2, **changes}
    with pytest.raises(ValueError, match=message):
        create_model(**arguments)


def test_a_spec_with_a_wrong_key_is_named():
    with pytest.raises(ValueError, match="model spec 'resnet10': key 'hyper' is missing"):
        build({"name": "resnet10", "spatial_dims": 2, "in_channels": 1, "classes": 2})

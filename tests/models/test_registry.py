"""One battery over every network of the registry in every dimension, and the two ways to make one."""

import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import MODELS, build, create_model, remote_spec_problem
from models.network import Network
from models.spec import ENTRY_POINTS, HYPER, OF_ROWS, ONE_DIMENSIONAL, WIDTH_MULTIPLES

# Small enough for a test; the battery is about structure.
SMALL = {
    name: {"width": math.lcm(4, WIDTH_MULTIPLES.get(name, 1))} if "width" in HYPER[name] else {} for name in MODELS
}
for name, hyper in SMALL.items():
    hyper |= {"depth": 2} if "depth" in HYPER[name] else {"scale": 2} if "scale" in HYPER[name] else {}
ODD = {1: (37,), 2: (19, 23), 3: (9, 11, 13)}
EVEN = {1: (64,), 2: (32, 32), 3: (12, 12, 12)}
ONE_STAGE_OR_ONE_GRID = {"resnet5", "rnn", "srresnet18", "srresnet12", "srresnet6", "srcnn", "bicubic", *OF_ROWS}
DENSE = {"unet", "unet_plus_plus", "res_unet", "dynunet", "fcn8s", "messenger_segmentation"}
SUPER_RESOLUTION = {name for name in MODELS if "scale" in HYPER[name]}
CASES = [(name, dims) for name in MODELS for dims in ((1,) if name in ONE_DIMENSIONAL else (1, 2, 3))]


PARAMETERS = [
    pytest.param(
        case,
        marks=() if case[1] == 2 or case[0] in ONE_DIMENSIONAL else pytest.mark.nightly,
        id="{}-{}-D".format(*case),
    )
    for case in CASES
]


WITH_NORM = [name for name in MODELS if "norm" in HYPER[name]]
IN_GROUPS = pytest.mark.parametrize(
    ("name", "dims"),
    [
        pytest.param(*each.values[0], marks=each.marks, id=each.id)
        for each in PARAMETERS
        if each.values[0][0] in WITH_NORM
    ],
)
"""Each network that has a batch norm, by default."""


@pytest.fixture(params=PARAMETERS)
def case(request) -> tuple[str, int]:
    return request.param


@pytest.fixture
def name(case) -> str:
    return case[0]


@pytest.fixture
def dims(case) -> int:
    return case[1]


@pytest.fixture
def model(name, dims) -> Network:
    return small(name, dims)


def small(name: str, dims: int, **hyper) -> Network:
    torch.manual_seed(0)
    return create_model(name, spatial_dims=dims, in_channels=2, classes=3, **{**SMALL[name], **hyper})


def sample(model: Network, batch: int, space: tuple[int, ...]) -> torch.Tensor:
    """A batch of about this size; larger where the network demands it."""
    sides = [math.ceil(max(side, model.smallest) / model.multiple) * model.multiple for side in space]
    return torch.randn(batch, 2, *sides, generator=torch.Generator().manual_seed(1))


def test_one_sample_of_an_odd_size(model, name, dims):
    x = sample(model, 1, ODD[dims])
    with torch.no_grad():
        output = model.eval()(x)
    space = x.shape[2:]
    expected = space if name in DENSE else [2 * side for side in space] if name in SUPER_RESOLUTION else ()
    assert output.prediction.shape == (1, 3, *expected)
    assert output.prediction.isfinite().all()


def test_the_smallest_input(model, dims):
    smallest = math.lcm(model.smallest, model.multiple)
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 2, *(smallest,) * dims)).prediction.isfinite().all()


def test_taps_come_shallow_to_deep(model, name, dims):
    output = model(sample(model, 2, EVEN[dims]))
    grids = [tuple(tap.shape[2:]) for tap in output.taps]
    assert all(tap.ndim == dims + 2 and tap.shape[0] == 2 for tap in output.taps)
    assert grids == sorted(grids, reverse=True)
    assert name in ONE_STAGE_OR_ONE_GRID or grids[0] > grids[-1]


def test_where_other_methods_attach(model, name, dims):
    output = model(x := sample(model, 2, EVEN[dims]))
    if name in SUPER_RESOLUTION:
        assert output.penultimate.shape[2:] == output.prediction.shape[2:]
    elif name == "messenger_segmentation":
        assert output.penultimate is output.bottleneck is output.taps[-1]
    elif name in DENSE:
        assert output.bottleneck is output.taps[-1]
        assert output.penultimate.shape[2:] == x.shape[2:]
        assert set(model.head.kernel_size) == {1}
    else:
        assert output.bottleneck is output.penultimate
        assert output.penultimate.ndim == 2


def test_the_head_of_the_penultimate_feature_is_the_prediction(model, dims):
    output = model.eval()(sample(model, 2, ODD[dims]))
    assert torch.equal(model.head(output.penultimate), output.prediction)
    assert {id(p) for p in model.head.parameters()} == {
        id(p) for key, p in model.named_parameters() if key.startswith(model.head_name + ".")
    }


def test_a_gradient_reaches_every_parameter(model, dims):
    output = model(sample(model, 4, EVEN[dims]))
    output.prediction.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_gradients_flow_through_every_tap_and_through_the_penultimate(model, name, dims):
    output = model(sample(model, 2, ODD[dims]))
    features = (*output.taps, output.penultimate, output.bottleneck)
    for feature in features if name not in ("linear", "bicubic") else ():  # whose penultimate feature is the input
        parameters, options = list(model.parameters()), {"retain_graph": True, "allow_unused": True}
        gradients = torch.autograd.grad(feature.square().sum(), parameters, **options)
        assert any(gradient is not None and gradient.any() for gradient in gradients)


def test_the_spec_and_the_state_make_the_same_network_again(model, dims):
    spec = json.loads(json.dumps(model.spec))
    assert spec == model.spec
    assert remote_spec_problem(spec) is None
    with torch.device("meta"):
        again = build(spec)
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(model.state_dict(), assign=True)
    assert again.spec == spec
    x = sample(model, 2, ODD[dims])
    assert torch.equal(again.eval()(x).prediction, model.eval()(x).prediction)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_weights(name):
    state, again = small(name, 1).state_dict(), small(name, 1).state_dict()
    assert all(torch.equal(again[key], value) for key, value in state.items())


@pytest.mark.parametrize("name", MODELS)
def test_an_input_that_does_not_fit_is_named(name):
    model = small(name, 1)
    for shape in [(2, 3, 37), (2, 37), (2, 2, 37, 37), (0, 2, 37)]:
        with pytest.raises(ValueError, match=rf"{name} takes a non-empty \(b, 2, \*space\) with 1 spatial dim"):
            model(torch.zeros(shape))


@pytest.mark.parametrize(
    ("name", "hyper"), [*((name, {}) for name in MODELS), *((name, {"norm": "group"}) for name in WITH_NORM)]
)
def test_half_precision(name, hyper):
    dims = 1 if name in ONE_DIMENSIONAL else 2
    model = small(name, dims, **hyper)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(sample(model, 2, EVEN[dims]))
    output.prediction.float().square().mean().backward()
    assert all(p.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_side_that_is_too_short_or_no_multiple_is_refused(name):
    model = small(name, 1).eval()
    smallest, multiple = model.smallest, model.multiple
    if smallest > 1:
        with pytest.raises(ValueError, match=rf"{name} takes sides of at least {smallest}, not \({smallest - 1},\)"):
            model(torch.zeros(1, 2, smallest - 1))
        model.smallest = 1
        too_small = r"Kernel size can't be greater|[Oo]utput size|Expected more than 1 spatial element"
        with pytest.raises((RuntimeError, ValueError), match=too_small):
            model(torch.zeros(1, 2, smallest - 1))
    if multiple > 1:
        with pytest.raises(ValueError, match=rf"{name} takes sides that are multiples of {multiple}, not \(17,\)"):
            model(torch.zeros(1, 2, 17))


@pytest.mark.parametrize("name", MODELS)
def test_one_sample_that_leaves_batch_norm_one_value_is_refused_and_no_other(name):
    model, side = small(name, 1), small(name, 1).lone_side
    if side == 0:
        assert not any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules())
        return
    shorter = sample(model, 1, (int(min(side, 64)),))
    with pytest.raises(ValueError, match=rf"{name} cannot train on one sample of .*a batch of at least 2"):
        model(shorter)
    if math.isfinite(side):
        model(sample(model, 1, (side + 1,)))
    model.lone_side = 0
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        model(shorter)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_with_batch_norm_can_have_group_norm(name):
    assert any(isinstance(module, _BatchNorm) for module in small(name, 1).modules()) == (name in WITH_NORM)


@IN_GROUPS
def test_group_norm_replaces_each_batch_norm_and_nothing_else(name, dims):
    batch, group = small(name, dims), small(name, dims, norm="group")
    layers, replaced = dict(batch.named_modules()), dict(group.named_modules())
    assert list(layers) == list(replaced)
    for path, layer in layers.items():
        same = type(replaced[path]) is type(layer)
        assert same != isinstance(layer, _BatchNorm), path
        assert same or replaced[path].num_channels == layer.num_features, path
    assert not list(group.buffers())
    weights = dict(batch.named_parameters())
    assert weights.keys() == group.state_dict().keys()
    assert all(torch.equal(weights[key], value) for key, value in group.state_dict().items())


@IN_GROUPS
def test_group_norm_is_in_the_spec_and_batch_norm_is_not(name, dims):
    group = small(name, dims, norm="group")
    assert group.spec["hyper"] == {**small(name, dims).spec["hyper"], "norm": "group"}
    assert small(name, dims, norm="batch").spec == small(name, dims).spec
    assert remote_spec_problem(group.spec) is None
    with torch.device("meta"):
        again = build(json.loads(json.dumps(group.spec)))
    assert again.spec == group.spec
    again.load_state_dict(group.state_dict(), assign=True)
    x = sample(group, 1, ODD[dims])
    assert torch.equal(again.eval()(x).prediction, group.eval()(x).prediction)


@IN_GROUPS
def test_with_group_norm_one_sample_trains_of_any_size(name, dims):
    # Of the four values that a smaller width leaves in a cell, one after a rectifier has next to no gradient.
    model = small(name, dims, norm="group", width=4 * SMALL[name]["width"])
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.ones_(layer.bias)  # or the one rectified unit of a gate may be dead for all of these samples
    smallest = (math.lcm(model.smallest, model.multiple),) * dims
    model(sample(model, 1, smallest)).prediction.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad()
    for one in sample(model, 4, EVEN[dims]).split(1):
        model(one).prediction.square().sum().backward()
    assert [key for key, p in model.named_parameters() if not p.grad.any()] == []


@IN_GROUPS
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_with_group_norm_alone_a_sample_in_training_is_independent_of_the_others(name, dims, norm):
    model = small(name, dims, norm=norm).train()
    x = sample(model, 3, EVEN[dims]).requires_grad_()
    output = model(x)
    sum(feature[0].square().sum() for feature in (output.prediction, *output.taps)).backward()
    assert x.grad[0].any()
    assert x.grad[1:].any() == (norm == "batch")


@pytest.mark.parametrize("name", ["resnet10", "unet", "vgg11", "tcn", "srresnet6"])
def test_a_width_too_small_for_group_norm_is_named(name):
    small(name, 1, width=1)
    with pytest.raises(ValueError, match=f"{name}: a group norm of one channel .* take a larger width"):
        small(name, 1, width=1, norm="group")


@pytest.mark.parametrize("name", sorted(MODELS.keys() - set(WITH_NORM)))
def test_a_network_without_batch_norm_has_no_choice_of_norm(name):
    with pytest.raises(ValueError, match=f"{name} has no hyper-parameter 'norm'"):
        small(name, 1, norm="group")


@pytest.mark.parametrize("name", [name for name in MODELS if "projection" in HYPER[name]])
def test_a_projection_gives_every_classifier_a_head_of_the_same_shape(name):
    model = small(name, 1, projection=512)
    output = model(sample(model, 2, EVEN[1]))
    assert output.penultimate.shape == (2, 512)
    shapes = {key: tuple(value.shape) for key, value in model.head.state_dict().items()}
    assert shapes == {"weight": (3, 512), "bias": (3,)}
    features = (output.taps[-1] if output.taps else sample(model, 2, EVEN[1])).mean(2)
    torch.testing.assert_close(output.prediction, model.head(model.projection(features)))


def test_the_torch_free_tables_agree_with_the_constructors():
    for model_name, constructor in MODELS.items():
        assert constructor.keywords["name"] == model_name
        assert HYPER[model_name] <= inspect.signature(constructor).parameters.keys() - constructor.keywords.keys()
        assert small(model_name, 1).spec["hyper"].keys() == HYPER[model_name] - {"norm", "side"}  # in place of scale
    assert list(MODELS) == list(HYPER)
    assert WIDTH_MULTIPLES.keys() | ONE_DIMENSIONAL <= HYPER.keys()


@pytest.mark.parametrize("name", WIDTH_MULTIPLES)
def test_widths_that_cannot_be_divided_are_named(name):
    multiple = WIDTH_MULTIPLES[name]
    with pytest.raises(ValueError, match=f"{name}: width must be a multiple of {multiple}, not {multiple + 1}"):
        small(name, 1, width=multiple + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet01"}, "unknown model 'resnet01'; did you mean .*'resnet101'"),
        ({"name": "zebra"}, "unknown model 'zebra'; there are resnet10, .* and any module:Class"),
        ({"widht": 8}, "resnet10 has no hyper-parameter 'widht'; did you mean 'width'.*max_pool, norm, projection, st"),
        ({"name_": 1}, "resnet10 has no hyper-parameter 'name_'"),
        ({"blocks": [1]}, "resnet10 has no hyper-parameter 'blocks'"),
        ({"projection": True}, "resnet10: projection must be a whole number from 1 on, not True"),
        ({"stem_stride": 3}, "resnet10: stem_stride must be 1 or 2, not 3"),
        ({"norm": "instance"}, 'resnet10: norm must be "batch" or "group", not \'instance\''),
        ({"stem_stride": True}, "stem_stride must be 1 or 2, not True"),
        ({"features": ["layer1"], "head": "fc"}, "resnet10 has its own taps and head; leave out features and head"),
        ({"spatial_dims": 4}, "model spec 'resnet10': spatial_dims must be 1, 2 or 3, not 4"),
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


EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "plugin"


@pytest.fixture
def example(distribution, monkeypatch):
    """Installs the example's network."""

    def install() -> None:
        monkeypatch.syspath_prepend(EXAMPLE)
        networks = {"two_convolutions": "mhfl_example.network:TwoConvolutions", "other": "models.resnet:resnet5"}
        distribution("mhfl-example", "1.0", ENTRY_POINTS, **networks)

    return install


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_network_of_a_package_travels_with_its_package(example, dims):
    example()
    network = create_model("two_convolutions", spatial_dims=dims, in_channels=2, classes=3, width=4)
    assert network.spec["package"] == "mhfl-example==1.0"
    assert remote_spec_problem(network.spec) is None
    again = build(json.loads(json.dumps(network.spec)))
    assert again.spec == network.spec
    again.load_state_dict(network.state_dict())
    output = network(torch.randn(2, 2, *EVEN[dims]))
    assert torch.equal(network.head(output.penultimate), output.prediction)


def test_a_network_of_a_package_is_refused_where_it_is_not_the_same_one(example, distribution):
    sizes = {"spatial_dims": 2, "in_channels": 1, "classes": 2}
    with pytest.raises(ValueError, match="unknown model 'two_convolutions'"):
        create_model("two_convolutions", **sizes)
    example()
    spec = create_model("two_convolutions", **sizes).spec
    with pytest.raises(ValueError, match=r"comes with mhfl-example==2.0, which is not installed here"):
        build({**spec, "package": "mhfl-example==2.0"})
    with pytest.raises(ValueError, match="two_convolutions has its own taps and head; leave out head"):
        create_model("two_convolutions", **sizes, head="fc")
    with pytest.raises(ValueError, match=r"mhfl-example==1.0 makes no models.Network with the name 'other'"):
        create_model("other", **sizes)
    distribution("other", "2.0", ENTRY_POINTS, two_convolutions="mhfl_example.network:TwoConvolutions")
    with pytest.raises(ValueError, match=r"comes with mhfl-example==1.0 and other==2.0; uninstall all but one"):
        create_model("two_convolutions", **sizes)


def test_a_network_of_a_package_for_another_version_of_the_interface_is_refused(example, tmp_path):
    example()
    points = tmp_path / "mhfl-example-1.0/mhfl_example-1.0.dist-info/entry_points.txt"
    points.write_text(f"{points.read_text()}[mhfl_peer.interface]\n2 = mhfl_example\n3 = mhfl_example\n")
    with pytest.raises(ValueError, match="mhfl-example is for version 2 and 3 of the interface, and this program has"):
        create_model("two_convolutions", spatial_dims=2, in_channels=1, classes=2)

"""Networks by dotted name and by module:Class, and what their constructors may be given."""

import pytest
import torch
from torch.nn.modules.batchnorm import _NormBase

from models import build, create_model
from models.foreign import _monai_class, _parameters, foreign_network
from models.spec import MONAI_PREFIX, REMOTE_MONAI, spec_problem

SIZES = {"spatial_dims": 2, "in_channels": 3, "classes": 4}
# What these cannot be built without; sizes as small as they go.
NEEDED = {
    "AttentionUnet": {"channels": [4, 8], "strides": [2]},
    "EfficientNetBN": {"model_name": "efficientnet-b0"},
    "ResNet": {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 8, 16, 32]},
    "UNet": {"channels": [4, 8], "strides": [2]},
}

HOSPITAL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, channels, n_classes, depth=1):
        super().__init__()
        self.stages = nn.Sequential(*[nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth)])
        self.head = nn.Linear(channels, n_classes)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))

class Derived(Net):
    def __init__(self, *args, bias=True, **kwargs):
        super().__init__(*args, **kwargs)

class Anything(nn.Identity):
    def __init__(self, **kwargs):
        super().__init__()
        self.given = kwargs

def function():
    return nn.Identity()
"""


@pytest.fixture
def hospital(tmp_path, monkeypatch) -> str:
    (tmp_path / "hospital_nets.py").write_text(HOSPITAL)
    monkeypatch.syspath_prepend(tmp_path)
    return "hospital_nets"


def test_a_class_of_an_installed_package_takes_part(hospital):
    taps = {"features": ["stages.0", "stages.1"], "head": "head"}
    model = create_model(f"{hospital}:Net", **SIZES, depth=2, **taps)
    output = model(torch.randn(2, 3, 8, 8))
    assert [tap.shape for tap in output.taps] == [(2, 3, 8, 8)] * 2
    assert output.prediction.shape == (2, 4)
    assert model.spec == {"name": "hospital_nets:Net", **SIZES, "hyper": {"depth": 2}, **taps}
    assert build(model.spec).load_state_dict(model.state_dict())


def test_arguments_that_a_constructor_hands_to_its_base_count(hospital):
    net = foreign_network(f"{hospital}:Derived", **SIZES, hyper={"depth": 3})
    assert len(net.stages) == 3
    anything = foreign_network(f"{hospital}:Anything", **SIZES, hyper={"x": 1})
    assert anything.given == {"x": 1}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in NEEDED else pytest.mark.nightly) for name in REMOTE_MONAI]
)
def test_every_network_that_a_remote_spec_may_name(name):
    parameters, _ = _parameters(_monai_class(name))
    assert REMOTE_MONAI[name] <= parameters.keys()
    with torch.device("meta"):
        net = foreign_network(MONAI_PREFIX + name, **{**SIZES, "in_channels": 2}, hyper=NEEDED.get(name, {})).eval()
        prediction = net(torch.empty(1, 2, 64, 64))
    assert (prediction[0] if isinstance(prediction, list) else prediction).shape[:2] == (1, 4)
    # A tensor under two names could not be written as safetensors.
    assert len(list(net.named_parameters())) == len(list(net.named_parameters(remove_duplicate=False)))


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("monai.networks.nets.DenseNet121", {"pretrained": True}, "DenseNet121 may not be given 'pretrained'"),
        ("monai.networks.nets.EfficientNetBN", {"progress": True}, "may not be given 'progress'"),
        ("monai.networks.nets.ResNet", {"shortcut_type": "A"}, "may not be given 'shortcut_type'"),
        ("monai.networks.nets.UNet", {"chanels": [4]}, "may not be given 'chanels'; did you mean 'channels'"),
        ("monai.networks.nets.UNet", {"channels": [4, 8]}, r"UNet also needs strides \(Sequence\[int\]\), in"),
        ("monai.networks.nets.UNet", {}, r"needs channels \(Sequence\[int\]\) and strides \(Sequence\[int\]\)"),
        ("monai.networks.nets.UNet", {"out_channels": 3}, "gets out_channels = 4 from the federation; take .* = 3 out"),
        ("monai.networks.nets.SegResNet", {"blocks_down": 0}, "SegResNet refuses"),
        ("monai.networks.nets.Unett", {}, "has no network class 'Unett'; did you mean .*'Unet'"),
        ("monai.networks.nets.resnet18", {}, "has no network class 'resnet18'"),
        ("monai.networks.nets.torch", {}, "has no network class 'torch'"),
        ("no_such_package.nets:Net", {}, "cannot import no_such_package.nets: .*is its package installed here"),
        ("hospital_nets:Nett", {}, "hospital_nets has no torch.nn.Module class 'Nett'; did you mean 'Net'"),
        ("hospital_nets:function", {}, "has no torch.nn.Module class 'function'"),
        ("hospital_nets:Net", {"deep": 2}, "hospital_nets:Net may not be given 'deep'; did you mean 'depth'"),
        ("hospital_nets:Anything", {"weights": "x"}, "may not be given 'weights'"),
    ],
)
@pytest.mark.usefixtures("hospital")
def test_what_cannot_be_built_is_named(name, hyper, message):
    with pytest.raises(ValueError, match=message):
        foreign_network(name, **SIZES, hyper=hyper)


def test_weights_are_never_downloaded(monkeypatch):
    # EfficientNetBN downloads by default.
    urls = []
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda url, **options: urls.append(url))
    monkeypatch.setattr(torch.utils.model_zoo, "load_url", lambda url, **options: urls.append(url))
    with torch.device("meta"):
        foreign_network("monai.networks.nets.EfficientNetBN", **SIZES, hyper=NEEDED["EfficientNetBN"])
    assert urls == []


def _coupled(name: str, hyper: dict) -> bool:
    """Whether a norm of MONAI's network takes or keeps statistics of more samples than one."""
    with torch.device("meta"):
        network = foreign_network(MONAI_PREFIX + name, **SIZES, hyper={**NEEDED.get(name, {}), **hyper})
    return any(isinstance(module, _NormBase) and module.track_running_stats for module in network.modules())


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("BasicUNet", {}),
        ("BasicUNetPlusPlus", {}),
        ("UNet", {}),
        ("SegResNet", {}),
        ("DenseNet121", {"norm": "instance"}),
        ("EfficientNetBN", {"norm": "instance"}),
        ("HighResNet", {"norm_type": "instance"}),
    ],
)
def test_monai_networks_without_batch_norm_are_spelt_as_the_page_says(name, hyper):
    assert not _coupled(name, hyper)
    assert hyper.keys() <= REMOTE_MONAI[name]
    assert _coupled(name, dict.fromkeys(hyper or ["norm"], "batch"))


@pytest.mark.parametrize("name", ["ResNet", "SEResNet50", "SEResNext50", "AttentionUnet"])
def test_monai_networks_that_keep_batch_norm(name):
    assert _coupled(name, {})


def test_a_table_in_a_parameter_is_refused():
    hyper = {"norm": ["group", {"num_groups": 8}]}
    spec = {"name": f"{MONAI_PREFIX}UNet", **SIZES, "hyper": hyper, "head": "model"}
    assert "'norm' must be a JSON scalar or a list of them" in spec_problem(spec)


def test_a_network_that_needs_a_package_names_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transformer(torch.nn.Module):
        def __init__(self, in_channels: int, out_channels: int) -> None:
            raise ImportError(
                "from x import y (No module named 'einops').\nFor details, please visit: https://monai.io"
            )

    monkeypatch.setattr("models.foreign._class", lambda name: Transformer)
    with pytest.raises(
        ValueError, match=r"^p:T needs the Python package einops, not installed here; run `pip install ei"
    ):
        foreign_network("p:T", spatial_dims=2, in_channels=1, classes=2, hyper={})

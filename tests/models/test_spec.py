"""Which specs are specs, and which of them another site may send."""

import math

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

import models
from models.spec import (
    ENTRY_POINTS,
    FORBIDDEN,
    HYPER,
    ONE_DIMENSIONAL,
    REMOTE_MONAI,
    hyper_problem,
    remote_spec_problem,
    spec_problem,
)

RESNET = {"name": "resnet10", "spatial_dims": 3, "in_channels": 4, "classes": 2, "hyper": {"width": 62}}
UNET = {
    "name": "monai.networks.nets.UNet",
    "spatial_dims": 2,
    "in_channels": 3,
    "classes": 2,
    "hyper": {"channels": [16, 32, 64], "strides": [2, 2], "kernel_size": [[3, 3], [3, 3]], "norm": "BATCH"},
    "features": ["model.0", "model.1.submodule.0"],
    "head": "model.2",
}
OWN = {**RESNET, "name": "hospital.nets:Net", "hyper": {"depth": 3, "note": None}, "head": "fc"}


@pytest.mark.parametrize("spec", [RESNET, {**RESNET, "hyper": {}}, UNET])
def test_what_another_site_may_send(spec):
    assert spec_problem(spec) is None
    assert remote_spec_problem(spec) is None


def test_a_class_of_another_package_needs_this_sites_word():
    assert "hospital.nets:Net" in remote_spec_problem(OWN)
    problem = remote_spec_problem(OWN, allow=["other.nets:Net"])
    assert "did you mean 'other.nets:Net'?" in problem
    assert problem.endswith("if its package is installed here and you trust it, add it to allow_models in site.toml")
    assert "allow_models" not in remote_spec_problem({**OWN, "name": "monai.networks.nets.Transchex"})
    assert remote_spec_problem(OWN, allow=["hospital.nets:Net"]) is None
    assert "may not set 'weights'" in remote_spec_problem({**OWN, "hyper": {"weights": "/x"}}, allow=[OWN["name"]])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nane": "x"}, "unknown key 'nane'; did you mean 'name'?"),
        ({"name": 3}, "name must be text, not 3"),
        ({"spatial_dims": 4}, "spatial_dims must be 1, 2 or 3, not 4"),
        ({"spatial_dims": True}, "spatial_dims must be a whole number from 1 on, not True"),
        ({"in_channels": 0}, "in_channels must be a whole number from 1 on, not 0"),
        ({"classes": 2.0}, "classes must be a whole number from 1 on, not 2.0"),
        ({"hyper": [1]}, "hyper must be a table"),
        ({"hyper": {3: 1}}, "hyper must be a table"),
        ({"features": "fc"}, "features must be a list of layer names, not 'fc'"),
        ({"features": [1]}, "features must be a list of layer names"),
        ({"head": ["fc"]}, r"head must be a layer name, not \['fc'\]"),
        ({"hyper": {"width": {"a": 1}}}, "'width' must be a JSON scalar or a list of them, not 'dict'"),
        ({"hyper": {"width": [[[1]]]}}, "'width' must be a JSON scalar or a list of them, not 'list'"),
        ({"hyper": {"width": b"1"}}, "not 'bytes'"),
        ({"hyper": {"width": math.inf}}, "'width' must be finite, not inf"),
    ],
)
def test_what_is_no_spec_is_named(change, problem):
    for judge in (spec_problem, remote_spec_problem):
        with pytest.raises(ValueError, match=problem):
            raise ValueError(judge({**RESNET, **change}))


def test_a_series_network_takes_one_dimension():
    rnn = {**RESNET, "name": "rnn"}
    for judge in (spec_problem, remote_spec_problem):
        assert judge({**rnn, "spatial_dims": 1}) is None
        assert judge(rnn) == "rnn takes time series alone, so spatial_dims must be 1, not 3"


@pytest.mark.parametrize(
    ("name", "hyper", "problem"),
    [
        ("resnet10", {"width": 62, "projection": None, "stem_stride": 1, "max_pool": False}, None),
        ("resnet10", {"projection": 512}, None),
        ("resnet10", {"projection": 0}, "projection must be a whole number from 1 on, not 0"),
        ("resnet10", {"norm": "group"}, None),
        ("resnet10", {"norm": "instance"}, 'norm must be "batch" or "group", not \'instance\''),
        ("unet", {"norm": ["group"]}, 'norm must be "batch" or "group", not [\'group\']'),
        ("resnet10", {"width": None}, "width must be a whole number from 1 on, not None"),
        ("resnext14", {"width": 24}, "width must be a multiple of 16, not 24"),
        ("unet", {"depth": 0}, "depth must be 1, 2, 3, 4, 5 or 6, not 0"),
        ("srcnn", {"scale": 2.0}, "scale must be 2, 4 or 8, not 2.0"),
        ("resnet10", {"max_pool": 0}, "max_pool must be true or false, not 0"),
    ],
)
def test_what_a_hyper_parameter_may_be(name, hyper, problem):
    assert hyper_problem(name, hyper) == problem


def test_a_missing_key_is_named():
    assert spec_problem({key: RESNET[key] for key in RESNET if key != "classes"}) == "key 'classes' is missing"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({**RESNET, "name": "resnet9"}, "'resnet9' is not one that another site may name here; did you mean 'resnet"),
        ({**RESNET, "name": "os:system"}, "'os:system' is not one that another site may name"),
        ({**RESNET, "name": "monai.networks.nets.Transchex"}, "is not one that another site may name"),
        ({**RESNET, "name": "UNet"}, "is not one that another site may name"),
        ({**RESNET, "name": "x" * 10_000}, "xxx"),
        ({**RESNET, "hyper": {"widht": 8}}, "may not set 'widht'; did you mean 'width'?"),
        ({**RESNET, "name": "dynunet", "hyper": {"norm": "group"}}, "dynunet from another site may not set 'norm'"),
        ({**RESNET, "hyper": {"name": "x"}}, "may not set 'name'"),
        ({**RESNET, "hyper": {"width": 4097}}, "width may be at most 4096 in a spec from another site, not 4097"),
        ({**RESNET, "hyper": {"width": -(10**300)}}, "width may be at most 4096"),
        ({**RESNET, "name": "unet", "hyper": {"depth": 65}}, "depth may be at most 64"),
        ({**RESNET, "in_channels": 10**6}, "in_channels may be at most 4096"),
        ({**RESNET, "classes": 10**6}, "classes may be at most 4096"),
        ({**RESNET, "head": "fc"}, "has its own taps and head"),
        ({**UNET, "hyper": {"pretrained": True}}, "may not set 'pretrained'"),
        ({**UNET, "hyper": {"channels": [8] * 17}}, "channels may have at most 16 values"),
        ({**UNET, "hyper": {"channels": [8, 5000]}}, "channels may be at most 4096"),
        ({**UNET, "hyper": {"num_res_units": 65}}, "num_res_units may be at most 64"),
        (
            {**UNET, "name": "monai.networks.nets.DenseNet", "hyper": {"block_config": [64] * 5}},
            "block_config may add up to 256 in a spec from another site, not 320",
        ),
        ({**UNET, "hyper": {"norm": "x" * 257}}, "norm may have at most 256 characters"),
        ({**UNET, "features": ["a"] * 17}, "features may name at most 16 layers"),
        ({**UNET, "features": ["a" * 257]}, "a layer name may have at most 256 characters"),
        ({**UNET, "head": ""}, "needs head"),
        ({key: UNET[key] for key in UNET if key != "head"}, "needs head, the name of its last layer"),
    ],
)
def test_what_another_site_may_not_send_is_named(spec, problem):
    assert problem in remote_spec_problem(spec)
    assert len(remote_spec_problem(spec)) < 400


def test_no_remote_network_may_set_a_forbidden_argument():
    assert not any(arguments & FORBIDDEN for arguments in REMOTE_MONAI.values())


PACKAGED = {**RESNET, "name": "small_net", "hyper": {"width": 8}, "package": "some-nets==1.0"}


def test_a_network_of_a_package_may_be_named_where_the_package_is_installed(distribution):
    problem = remote_spec_problem(PACKAGED)
    assert problem == (
        "model 'small_net' comes with some-nets==1.0, which is not installed here; if you trust that package, "
        "get it from its authors, and install that file"
    )
    distribution("some-nets", "1.1", ENTRY_POINTS, small_net="models.resnet:resnet5")
    assert "which is not installed here (some-nets==1.1 is); if you trust" in remote_spec_problem(PACKAGED)
    distribution("some-nets", "1.0", ENTRY_POINTS, small_net="models.resnet:resnet5")
    assert remote_spec_problem(PACKAGED) is None
    assert "may not set 'weights'" in remote_spec_problem({**PACKAGED, "hyper": {"weights": "/x"}})
    assert "width may be at most 4096" in remote_spec_problem({**PACKAGED, "hyper": {"width": 4097}})
    assert "has its own taps and head" in remote_spec_problem({**PACKAGED, "head": "fc"})
    without = {key: value for key, value in PACKAGED.items() if key != "package"}
    assert "is not one that another site may name here" in remote_spec_problem(without)


@pytest.mark.parametrize(
    "package", ["some-nets", "some-nets==1.0; rm", "-r evil==1", "$(evil)==1", 1, "a" * 99 + "==1"]
)
def test_a_package_is_a_distribution_and_a_version(package):
    for judge in (spec_problem, remote_spec_problem):
        assert judge({**PACKAGED, "package": package}).startswith("package must be DISTRIBUTION==VERSION, not ")


@pytest.mark.parametrize("name", ["resnet10", "monai.networks.nets.UNet", "hospital.nets:Net"])
def test_a_network_that_comes_with_no_package_names_none(name):
    assert "comes with no package of networks" in spec_problem({**PACKAGED, "name": name})


def test_a_network_has_batch_norm_if_it_can_have_group_norm():
    """So the settings of a federation with noise tell without building one."""
    have_batch_norm = {}
    for name in HYPER:
        with torch.device("meta"):
            network = models.create_model(
                name, spatial_dims=1 if name in ONE_DIMENSIONAL else 2, in_channels=3, classes=3
            )
        have_batch_norm[name] = any(isinstance(module, _BatchNorm) for module in network.modules())
    assert have_batch_norm == {name: "norm" in keys for name, keys in HYPER.items()}

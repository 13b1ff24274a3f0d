"""The networks by name, and two ways to build one: by name and hyper-parameters, or from a spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from models import messenger, resnet, superres, tabular, unet, vgg
from models.densely import DenseNet
from models.dynunet import DynUNet
from models.foreign import foreign_network, is_foreign
from models.learning import limit_learning, merged_state
from models.mobile import MobileNetV1, MobileNetV2, ShuffleNetV2, SqueezeNet
from models.network import Network
from models.spec import (
    HYPER,
    LEARNING_KEYS,
    PACKAGE_KEY,
    installed_model,
    interface_problem,
    package_problem,
    spec_problem,
    suggestion,
)
from models.tap import Tapped, layer_names
from models.timeseries import RNN, TCN, Transformer

CONVOLUTIONS: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}

MODELS: dict[str, Callable[..., Network]] = {
    "resnet10": resnet.resnet10,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet17": resnet.resnet17,
    "resnet11": resnet.resnet11,
    "resnet8": resnet.resnet8,
    "resnet5": resnet.resnet5,
    "se_resnet18": resnet.se_resnet18,
    "resnext14": resnet.resnext14,
    "densenet50": partial(DenseNet, name="densenet50"),
    "mobilenet_v1": partial(MobileNetV1, name="mobilenet_v1"),
    "mobilenet_v2": partial(MobileNetV2, name="mobilenet_v2"),
    "shufflenet_v2": partial(ShuffleNetV2, name="shufflenet_v2"),
    "squeezenet": partial(SqueezeNet, name="squeezenet"),
    "vgg11": vgg.vgg11,
    "vgg16": vgg.vgg16,
    "vgg19": vgg.vgg19,
    "tcn": partial(TCN, name="tcn"),
    "transformer": partial(Transformer, name="transformer"),
    "rnn": partial(RNN, name="rnn"),
    "linear": partial(tabular.Linear, name="linear"),
    "mlp": partial(tabular.MLP, name="mlp"),
    "tabular_resnet": partial(tabular.TabularResNet, name="tabular_resnet"),
    "ft_transformer": partial(tabular.FTTransformer, name="ft_transformer"),
    "unet": unet.unet,
    "unet_plus_plus": partial(unet.UNetPlusPlus, name="unet_plus_plus"),
    "res_unet": unet.res_unet,
    "dynunet": partial(DynUNet, name="dynunet"),
    "fcn8s": partial(vgg.FCN, name="fcn8s"),
    "srresnet18": superres.srresnet18,
    "srresnet12": superres.srresnet12,
    "srresnet6": superres.srresnet6,
    "srcnn": partial(superres.SRCNN, name="srcnn"),
    "bicubic": partial(superres.Bicubic, name="bicubic"),
    "messenger_classification": messenger.messenger_classification,
    "messenger_segmentation": partial(messenger.DenseMessenger, name="messenger_segmentation"),
    "messenger_time_series": messenger.messenger_time_series,
    "messenger_tabular": partial(tabular.RowMessenger, name="messenger_tabular"),
}


def create_model(
    name: str,
    *,
    spatial_dims: int,
    in_channels: int,
    classes: int,
    features: Sequence[str] | None = None,
    head: str | None = None,
    **hyper: Any,
) -> Network:
    """Build the network of this name, with fresh weights from torch's global generator.

    Args:
        name: one of ``MODELS``; ``monai.networks.nets.NAME``; or ``module:Class`` of a package
            installed here.
        spatial_dims: 1, 2 or 3.
        in_channels: of the input.
        classes: channels of the prediction; for super-resolution, the channels of the image.
        features: of a third-party network, the layers to tap, shallow to deep.
        head: of a third-party network, its last layer.
        hyper: the network's own hyper-parameters, JSON scalars and lists. One with the name
            ``features`` (of MONAI's BasicUNet) needs :func:`build`.
    Returns:
        A network whose forward pass returns :class:`models.network.Output` and whose ``spec``
        rebuilds it.
    Raises:
        ValueError: a name, hyper-parameter, layer or value does not exist; the message has close
            ones.
    Example:
        >>> create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=4).spec["hyper"]
        {'width': 4, 'stem_stride': 2, 'max_pool': True, 'projection': None}
    """
    spec: dict[str, Any] = {
        "name": name,
        "spatial_dims": spatial_dims,
        "in_channels": in_channels,
        "classes": classes,
        "hyper": hyper,
    }
    if features is not None:
        spec["features"] = features
    if head is not None:
        spec["head"] = head
    return build(spec)


def build(spec: Mapping[str, Any]) -> Network:
    """Build the network of a spec (:mod:`models.spec`), with fresh weights; inside ``torch.device("meta")`` there.

    Args:
        spec: ``{"name", "spatial_dims", "in_channels", "classes", "hyper"}``, for a third-party
            network with ``"features"`` and ``"head"``. Call ``remote_spec_problem`` first for a
            spec from another site.
    Returns:
        A network with an equal ``spec``, all defaults filled in.
    Raises:
        ValueError: as :func:`create_model`, or the spec has a missing or an unknown key.
    Example:
        >>> import torch
        >>> spec = {"name": "resnet10", "spatial_dims": 3, "in_channels": 4, "classes": 2, "hyper": {"width": 8}}
        >>> with torch.device("meta"):
        ...     network = build(spec)
        >>> sum(parameter.numel() for parameter in network.parameters())
        235698
    """
    problem = spec_problem(spec)
    if problem is not None:
        raise ValueError(f"model spec {spec.get('name', '')!r}: {problem}")
    if limits := {key: spec[key] for key in LEARNING_KEYS if key in spec}:
        network = _build({key: value for key, value in spec.items() if key not in LEARNING_KEYS})
        limit_learning(network, json.loads(json.dumps(limits)))
        return network
    return _build(spec)


def merge_adapters(network: Network) -> Network:
    """Build a network that predicts alike, with adapters merged into the weights and nothing frozen.

    Returns the network itself if nothing is frozen or adapted.
    """
    if not network.spec.keys() & LEARNING_KEYS:
        return network
    merged = _build({key: value for key, value in network.spec.items() if key not in LEARNING_KEYS})
    merged.load_state_dict(merged_state(network))
    return merged


def describe_head(network: Network) -> dict[str, Any] | None:
    """Return a spec's ``head_layer`` for a network whose head is one plain layer; else None.

    A plain layer is linear, or a convolution of one cell.
    """
    head = network.head
    if next(head.buffers(), None) is not None:
        return None
    if type(head) is nn.Linear:
        return {"type": "linear", "features": head.in_features, "bias": head.bias is not None}
    if type(head) is CONVOLUTIONS[network.spec["spatial_dims"]] and head.weight[0, 0].numel() == head.groups == 1:
        plain = (*head.stride, *head.dilation) == (1,) * (2 * network.spec["spatial_dims"])
        if plain and not any(head.padding):
            return {"type": "conv", "features": head.in_channels, "bias": head.bias is not None}
    return None


def build_head(spec: Mapping[str, Any]) -> nn.Module:
    """Build the head that a spec's ``head_layer`` describes, with fresh weights; the body's class is not needed.

    Example:
        >>> layer = {"type": "linear", "features": 4, "bias": True}
        >>> build_head({"spatial_dims": 2, "classes": 3, "head_layer": layer})
        Linear(in_features=4, out_features=3, bias=True)
    """
    layer = spec["head_layer"]
    if layer["type"] == "linear":
        return nn.Linear(layer["features"], spec["classes"], bias=layer["bias"])
    convolution = CONVOLUTIONS[spec["spatial_dims"]]
    return convolution(layer["features"], spec["classes"], 1, bias=layer["bias"])


def _build(spec: Mapping[str, Any]) -> Network:
    """Build the network of a spec, all of it trainable."""
    name, hyper = spec["name"], spec["hyper"]
    sizes = {key: spec[key] for key in ("spatial_dims", "in_channels", "classes")}
    if name in MODELS:
        return _build_own(name, sizes, hyper, taps=[key for key in ("features", "head") if key in spec])
    if not is_foreign(name):
        return _build_installed(name, sizes, hyper, spec)
    inner = foreign_network(name, **sizes, hyper=hyper)
    if "head" not in spec:
        raise ValueError(
            f"{name} needs head, the name of its last layer, and for FedSKD features; its layers end in "
            f"{', '.join(layer_names(inner)[-5:])}; `mhfl-peer models --layers {name}` proposes both"
        )
    return Tapped(inner, features=spec.get("features", []), head=spec["head"], **sizes, name=name, hyper=hyper)


def _build_installed(name: str, sizes: Mapping[str, int], hyper: Mapping[str, Any], spec: Mapping[str, Any]) -> Network:
    """Build the network of an installed package; its spec names the package for receivers."""
    installed = installed_model(name)
    if PACKAGE_KEY in spec and (problem := package_problem(name, spec[PACKAGE_KEY])) is not None:
        raise ValueError(problem)
    if not installed:
        raise ValueError(
            f"unknown model {name!r}{suggestion(name, MODELS)}; there are {', '.join(MODELS)}, any "
            "monai.networks.nets.NAME and any module:Class"
        )
    if PACKAGE_KEY not in spec and len(installed) > 1:
        raise ValueError(f"{name} comes with {' and '.join(sorted(installed))}; uninstall all but one")
    if taps := [key for key in ("features", "head") if key in spec]:
        raise ValueError(f"{name} has its own taps and head; leave out {' and '.join(taps)}")
    package = spec.get(PACKAGE_KEY, next(iter(installed)))
    distribution = installed[package].dist
    if distribution is not None and (problem := interface_problem(distribution)) is not None:
        raise ValueError(problem)
    network = installed[package].load()(**sizes, **hyper)
    if not isinstance(network, Network) or network.spec["name"] != name:
        raise ValueError(f"{package} makes no models.Network with the name {name!r}")
    network.spec = {**network.spec, PACKAGE_KEY: package}
    return network


def _build_own(name: str, sizes: Mapping[str, int], hyper: Mapping[str, Any], *, taps: Sequence[str]) -> Network:
    if taps:
        raise ValueError(f"{name} has its own taps and head; leave out {' and '.join(taps)}")
    known = sorted(HYPER[name])
    for key in hyper:
        if key not in known:
            raise ValueError(
                f"{name} has no hyper-parameter {key!r}{suggestion(key, known)}; it has {', '.join(known)}"
            )
    return MODELS[name](**sizes, **hyper)

"""The rules of model specs. This module imports no torch, so that the daemon can check a received spec.

A spec is ``{"name", "spatial_dims", "in_channels", "classes", "hyper"}`` of JSON values; a third-party
network adds ``"features"`` (the layers to tap, shallow to deep) and ``"head"`` (its last layer). A
partly trained one has the keys of ``LEARNING_KEYS``. A spec never holds code.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

# The hyper-parameters of each network in models.MODELS. A name means the same in all networks:
# width is the channels of the first stage, projection the features that the head takes (None: those
# of the last stage), norm the kind of its norms, depth a U-Net's halvings of the grid, scale
# super-resolution's enlargement, side the sides of the large image, whatever the small one's.
_CLASSIFIER = frozenset({"width", "projection"})
_WITH_NORM = _CLASSIFIER | {"norm"}
_RESNET = _WITH_NORM | {"stem_stride", "max_pool"}
_UNET = frozenset({"width", "norm", "depth"})
_SUPER_RESOLUTION = frozenset({"width", "scale"})
HYPER: dict[str, frozenset[str]] = {
    "resnet10": _RESNET,
    "resnet18": _RESNET,
    "resnet34": _RESNET,
    "resnet50": _RESNET,
    "resnet101": _RESNET,
    "resnet17": _RESNET,
    "resnet11": _RESNET,
    "resnet8": _RESNET,
    "resnet5": _RESNET,
    "se_resnet18": _RESNET,
    "resnext14": _RESNET,
    "densenet50": _WITH_NORM,
    "mobilenet_v1": _WITH_NORM,
    "mobilenet_v2": _WITH_NORM,
    "shufflenet_v2": _WITH_NORM,
    "squeezenet": _WITH_NORM,
    "vgg11": _WITH_NORM,
    "vgg16": _WITH_NORM,
    "vgg19": _WITH_NORM,
    "tcn": _WITH_NORM,
    "transformer": _WITH_NORM,
    "rnn": _WITH_NORM,
    "linear": frozenset({"projection"}),
    "mlp": _CLASSIFIER,
    "tabular_resnet": _CLASSIFIER,
    "ft_transformer": _CLASSIFIER,
    "unet": _UNET,
    "unet_plus_plus": _UNET,
    "res_unet": _UNET,
    "dynunet": _UNET - {"norm"},
    "fcn8s": frozenset({"width", "norm"}),
    "srresnet18": _SUPER_RESOLUTION | {"norm"},
    "srresnet12": _SUPER_RESOLUTION | {"norm"},
    "srresnet6": _SUPER_RESOLUTION | {"norm"},
    "srcnn": _SUPER_RESOLUTION | {"side"},
    "bicubic": frozenset({"scale", "side"}),
    "messenger_classification": frozenset({"width", "norm"}),
    "messenger_segmentation": frozenset({"width"}),
    "messenger_time_series": frozenset({"width", "norm"}),
    "messenger_tabular": frozenset({"width"}),
}

# Networks of rows of a table and of time series only; all others take one, two and three dimensions.
OF_ROWS = frozenset({"linear", "mlp", "tabular_resnet", "ft_transformer", "messenger_tabular"})
ONE_DIMENSIONAL = OF_ROWS | {"tcn", "transformer", "rnn", "messenger_time_series"}

# Divisors of the width: heads, groups, halves and quarters of it have to be whole.
WIDTH_MULTIPLES = {
    "resnext14": 16,
    "densenet50": 2,
    "mobilenet_v2": 4,
    "shufflenet_v2": 2,
    "transformer": 4,
    "ft_transformer": 4,
    "rnn": 2,
    "fcn8s": 2,
    "srcnn": 2,
}
CHOICES: dict[str, Sequence[bool | int | str]] = {
    "norm": ("batch", "group"),
    "depth": range(1, 7),  # the deepest U-Nets of the field have 7 levels
    "scale": (2, 4, 8),
    "stem_stride": (1, 2),
    "max_pool": (True, False),
}

MONAI_PREFIX = "monai.networks.nets."
MODULE_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)

# The arguments of MONAI networks that a spec from another site may set: sizes and switches. No
# argument that downloads, names a path, or leaves the network without its head.
_DENSENET = frozenset({"init_features", "growth_rate", "block_config", "bn_size", "act", "norm", "dropout_prob"})
_SENET = frozenset({"layers", "groups", "reduction", "dropout_prob", "inplanes", "downsample_kernel_size", "input_3x3"})
_BASIC_UNET = frozenset({"features", "act", "norm", "bias", "dropout", "upsample"})
_ATTENTION_UNET = frozenset({"channels", "strides", "kernel_size", "up_kernel_size", "dropout"})
REMOTE_MONAI: dict[str, frozenset[str]] = {
    "AttentionUnet": _ATTENTION_UNET,
    "BasicUNet": _BASIC_UNET,
    "BasicUNetPlusPlus": _BASIC_UNET,
    "DenseNet": _DENSENET,
    "DenseNet121": _DENSENET,
    "DenseNet169": _DENSENET,
    "DenseNet201": _DENSENET,
    "EfficientNetBN": frozenset({"model_name", "norm", "adv_prop"}),
    "HighResNet": frozenset({"norm_type", "acti_type", "dropout_prob", "bias"}),
    "ResNet": frozenset(
        {
            "block",
            "layers",
            "block_inplanes",
            "conv1_t_size",
            "conv1_t_stride",
            "no_max_pool",
            "widen_factor",
            "bias_downsample",
            "act",
            "norm",
        }
    ),
    "SEResNet50": _SENET,
    "SEResNext50": _SENET,
    "SegResNet": frozenset(
        {"init_filters", "dropout_prob", "act", "norm", "num_groups", "blocks_down", "blocks_up", "upsample_mode"}
    ),
    "UNet": _ATTENTION_UNET | {"num_res_units", "act", "norm", "bias", "adn_ordering"},
    "VNet": frozenset({"act", "dropout_prob_down", "dropout_prob_up", "dropout_dim", "bias"}),
}

# Arguments that download or name a file; and MONAI's shortcut A, whose identity path passes no
# gradient.
FORBIDDEN = frozenset(
    {
        "pretrained",
        "progress",
        "pretrained_url",
        "pretrained_state_dict_key",
        "weights",
        "path_or_repo_id",
        "filename",
        "shortcut_type",
    }
)

# Bounds on a spec from another site. They limit the build on the meta device, which allocates
# nothing, to seconds. The parameter count taken there decides whether the model is too large.
SIZE_MAX = 4096  # channels, classes, kernel sizes, factors: eight times the widest stage of a ResNet-34
LAYERS_MAX = 64  # of one stage: DenseNet-201 has 48
LAYERS_TOTAL_MAX = 256  # of all stages: DenseNet-201 has 98
LIST_MAX = 16  # values in a list, layers tapped: the deepest U-Nets have 7 levels
TEXT_MAX = 256  # characters: a nested U-Net's layer name has some 100
LAYER_COUNTS = frozenset({"layers", "block_config", "blocks_down", "blocks_up", "num_res_units", "depth"})

KEYS = ("name", "spatial_dims", "in_channels", "classes", "hyper")
TAP_KEYS = ("features", "head")
PACKAGE_KEY = "package"
LEARNING_KEYS = frozenset({"frozen", "adapters", "base"})
"""Partial training: the frozen layers, or the adapters on frozen ones; and the SHA-256 of the weights file
with all frozen tensors, which artifacts then leave out."""
HEAD_KEY = "head_layer"
"""The one layer of a head that is sent alone, so that receivers need not know the body's class."""
HEAD_KEYS = frozenset({"type", "features", "bias"})
HEAD_TYPES = ("linear", "conv")
ADAPTER_KEYS = frozenset({"layers", "rank", "alpha"})
HEAD_FEATURES_MAX = 1 << 20  # the flattened grid of a network that does not pool
RANK_MAX = 1024  # a sixteenth of the widest layer of large vision transformers would be enough
DIGEST = re.compile(r"[0-9a-f]{64}")

ALL_KEYS = (*KEYS, *TAP_KEYS, PACKAGE_KEY, *sorted(LEARNING_KEYS), HEAD_KEY)

ENTRY_POINTS = "mhfl_peer.models"
"""The group in which an installed package names its networks: ``name = "module:factory"``, like the factories
in ``models.MODELS``. An operator who installs the package lets other sites name its networks here."""
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}==[A-Za-z0-9][A-Za-z0-9._+!-]{0,31}", re.ASCII)

INTERFACE = 1
"""The version of the interface between this program and installed packages, which deploy/plugins.md describes."""
INTERFACE_ENTRY_POINTS = "mhfl_peer.interface"
"""The group in which an installed package names the versions that it fits: ``1 = "module"``."""


def named_interfaces(distribution: importlib.metadata.Distribution) -> list[str]:
    """Return the versions of the interface that an installed package names; none if it is older than they are."""
    return sorted(point.name for point in distribution.entry_points if point.group == INTERFACE_ENTRY_POINTS)


def interface_problem(distribution: importlib.metadata.Distribution) -> str | None:
    """Return why a package's methods and networks do not fit this program; None if they do, or name no version."""
    named = named_interfaces(distribution)
    if not named or str(INTERFACE) in named:
        return None
    versions = " and ".join(named)
    return f"{distribution.name} is for version {versions} of the interface, and this program has {INTERFACE}"


def installed_model(name: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Find the network of this name in installed packages, by package: ``DISTRIBUTION==VERSION``."""
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)
    return {f"{point.dist.name}=={point.dist.version}": point for point in entry_points if point.dist is not None}


def suggestion(wrong: str, known: Collection[str]) -> str:
    """Return ``; did you mean 'a' or 'b'?`` for the known names close to a wrong one; empty without any."""
    close = difflib.get_close_matches(wrong, sorted(known), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def spec_problem(spec: Mapping[str, Any]) -> str | None:
    """Return why this is not a spec (a missing or unknown key, a value of the wrong type), or None."""
    for key in spec:
        if key not in ALL_KEYS:
            return f"unknown key {key!r}{suggestion(str(key), ALL_KEYS)}"
    missing = [key for key in KEYS if key not in spec]
    if missing:
        return f"key {missing[0]!r} is missing"
    if not isinstance(spec["name"], str):
        return f"name must be text, not {spec['name']!r}"
    for key in ("spatial_dims", "in_channels", "classes"):
        if type(spec[key]) is not int or spec[key] < 1:
            return f"{key} must be a whole number from 1 on, not {spec[key]!r}"
    if spec["spatial_dims"] > 3:
        return f"spatial_dims must be 1, 2 or 3, not {spec['spatial_dims']}"
    if spec["name"] in ONE_DIMENSIONAL and spec["spatial_dims"] != 1:
        kind = "rows of a table" if spec["name"] in OF_ROWS else "time series"
        return f"{spec['name']} takes {kind} alone, so spatial_dims must be 1, not {spec['spatial_dims']}"
    if not isinstance(spec["hyper"], Mapping) or not all(isinstance(key, str) for key in spec["hyper"]):
        return "hyper must be a table of hyper-parameters by name"
    features = spec.get("features", [])
    if not isinstance(features, list | tuple) or not all(isinstance(layer, str) for layer in features):
        return f"features must be a list of layer names, not {features!r}"
    if not isinstance(spec.get("head", ""), str):
        return f"head must be a layer name, not {spec['head']!r}"
    if PACKAGE_KEY in spec:
        package = spec[PACKAGE_KEY]
        if not isinstance(package, str) or PACKAGE.fullmatch(package) is None:
            return f"package must be DISTRIBUTION==VERSION, not {_short(package)}"
        if spec["name"] in HYPER or "." in spec["name"] or ":" in spec["name"]:
            return f"{_short(spec['name'])} comes with no package of networks"
    if (problem := _learning_problem(spec) or _head_problem(spec)) is not None:
        return problem
    return next(_value_problems(spec["hyper"]), None)


def _learning_problem(spec: Mapping[str, Any]) -> str | None:
    """Return the problem of the keys of partial training, or None."""
    if "frozen" in spec and not _are_layers(spec["frozen"]):
        return f"frozen must be a list of layer names, not {_short(spec['frozen'])}"
    if "adapters" in spec:
        adapters = spec["adapters"]
        if not isinstance(adapters, Mapping) or adapters.keys() != ADAPTER_KEYS:
            return f"adapters must have layers, rank and alpha, not {_short(adapters)}"
        if not _are_layers(adapters["layers"]):
            return f"adapters.layers must be a list of layer names, not {_short(adapters['layers'])}"
        rank, alpha = adapters["rank"], adapters["alpha"]
        if type(rank) is not int or not 1 <= rank <= RANK_MAX:
            return f"adapters.rank must be from 1 to {RANK_MAX}, not {_short(rank)}"
        if type(alpha) not in (int, float) or not 0 < alpha <= SIZE_MAX:
            return f"adapters.alpha must be above 0 and at most {SIZE_MAX}, not {_short(alpha)}"
        if "frozen" in spec:
            return "adapters freeze all but the head; leave out frozen"
    if "base" in spec:
        if not isinstance(spec["base"], str) or DIGEST.fullmatch(spec["base"]) is None:
            return f"base must be a SHA-256 in hex, not {_short(spec['base'])}"
        if not spec.keys() & {"frozen", "adapters"}:
            return "base is for a network with frozen layers or adapters"
    return None


def _head_problem(spec: Mapping[str, Any]) -> str | None:
    """Return the problem of a described head, or None."""
    if HEAD_KEY not in spec:
        return None
    layer = spec[HEAD_KEY]
    if not isinstance(layer, Mapping) or layer.keys() != HEAD_KEYS or layer["type"] not in HEAD_TYPES:
        return f"{HEAD_KEY} must have type ({' or '.join(HEAD_TYPES)}), features and bias, not {_short(layer)}"
    if type(layer["features"]) is not int or not 1 <= layer["features"] <= HEAD_FEATURES_MAX:
        return f"{HEAD_KEY}.features must be from 1 to {HEAD_FEATURES_MAX}, not {_short(layer['features'])}"
    if type(layer["bias"]) is not bool:
        return f"{HEAD_KEY}.bias must be true or false, not {_short(layer['bias'])}"
    return None if spec.get("head") else f"{HEAD_KEY} needs head, the layer's name"


def _are_layers(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(layer, str) and layer for layer in value)


def hyper_problem(name: str, hyper: Mapping[str, Any]) -> str | None:
    """Return the problem of a hyper-parameter's value for this network of ``models.MODELS``, or None."""
    for key, value in hyper.items():
        if key in CHOICES:
            choices = CHOICES[key]
            if type(value) is not type(choices[0]) or value not in choices:
                *some, last = map(json.dumps, choices)
                return f"{key} must be {', '.join(some)} or {last}, not {value!r}"
        elif key in ("projection", "side") and value is None:
            continue
        elif type(value) is not int or value < 1:
            return f"{key} must be a whole number from 1 on, not {value!r}"
        elif key == "width" and value % WIDTH_MULTIPLES.get(name, 1):
            return f"width must be a multiple of {WIDTH_MULTIPLES[name]}, not {value}"
    return None


def remote_spec_problem(spec: Mapping[str, Any], *, allow: Collection[str] = (), head_only: bool = False) -> str | None:
    """Return why a spec received from another site may not be built here, for the operator; None if it may.

    It may name a network of ``models.MODELS``, one of ``REMOTE_MONAI`` with the arguments listed
    there, one of a package that is installed here in the same version, or a ``module:Class`` that
    is in ``allow`` (this site's own list). Every value must be a JSON scalar or a list of them,
    within bounds. The function changes and imports nothing, so that any received value is safe.

    Args:
        allow: the classes of ``allow_models`` in site.toml.
        head_only: only the head is built: a spec that describes its one layer may then name any
            network.
    """
    problem = spec_problem(spec)
    if problem is not None:
        return problem
    name, hyper = spec["name"], spec["hyper"]
    if HEAD_KEY in spec:
        if not head_only:
            return f"{HEAD_KEY} describes a head, and this is a whole network"
        return next(_bound_problems({**spec, "hyper": {}}), None)
    monai = name.removeprefix(MONAI_PREFIX)
    if name in HYPER:
        permitted: Collection[str] = HYPER[name]
    elif name.startswith(MONAI_PREFIX) and monai in REMOTE_MONAI:
        permitted = REMOTE_MONAI[monai]
    elif PACKAGE_KEY in spec:
        if (problem := package_problem(name, spec[PACKAGE_KEY])) is not None:
            return problem
        permitted = hyper.keys() - FORBIDDEN
    elif name in allow:
        permitted = hyper.keys() - FORBIDDEN
    else:
        known = [*HYPER, *(MONAI_PREFIX + network for network in REMOTE_MONAI), *allow]
        refused = f"model {_short(name)} is not one that another site may name here{suggestion(name[:TEXT_MAX], known)}"
        if MODULE_CLASS.fullmatch(name) is None:
            return refused
        return f"{refused}; if its package is installed here and you trust it, add it to allow_models in site.toml"
    for argument in hyper:
        if argument not in permitted:
            return (
                f"{name} from another site may not set {_short(argument)}{suggestion(argument[:TEXT_MAX], permitted)}"
            )
    own_taps = name in HYPER or PACKAGE_KEY in spec
    if own_taps and any(key in spec for key in TAP_KEYS):
        return f"{_short(name)} has its own taps and head; features and head are for networks from elsewhere"
    if not own_taps and not spec.get("head"):
        return f"{name} needs head, the name of its last layer"
    return next(_bound_problems(spec), None)


def package_problem(name: str, package: str) -> str | None:
    """Return why this package does not provide the network here, and what to install; None if it does."""
    if package in (installed := installed_model(name)):
        return None
    instead = f" ({', '.join(sorted(installed))} is)" if installed else ""
    return (
        f"model {_short(name)} comes with {package}, which is not installed here{instead}; if you trust that package, "
        "get it from its authors, and install that file"
    )


def _value_problems(hyper: Mapping[str, Any]) -> Iterator[str]:
    for argument, value in hyper.items():
        for item in _leaves(value, depth=0):
            if not isinstance(item, bool | int | float | str | None):
                yield f"{_short(argument)} must be a JSON scalar or a list of them, not {_short(type(value).__name__)}"
            elif isinstance(item, float) and not math.isfinite(item):
                yield f"{_short(argument)} must be finite, not {item}"


def _bound_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    sizes = {"in_channels": spec["in_channels"], "classes": spec["classes"], **spec["hyper"]}
    for argument, value in sizes.items():
        bound = LAYERS_MAX if argument in LAYER_COUNTS else SIZE_MAX
        for item in _leaves(value, depth=0):
            if isinstance(item, int | float) and abs(item) > bound:
                yield f"{argument} may be at most {bound} in a spec from another site, not {_short(item)}"
            elif isinstance(item, str) and len(item) > TEXT_MAX:
                yield f"{argument} may have at most {TEXT_MAX} characters in a spec from another site"
        if argument in LAYER_COUNTS and isinstance(value, list | tuple):
            total = sum(item for item in _leaves(value, depth=0) if isinstance(item, int | float))
            if total > LAYERS_TOTAL_MAX:
                yield f"{argument} may add up to {LAYERS_TOTAL_MAX} in a spec from another site, not {total}"
        if any(len(values) > LIST_MAX for values in _lists(value)):
            yield f"{argument} may have at most {LIST_MAX} values in a spec from another site"
    features = spec.get("features", [])
    if len(features) > LIST_MAX:
        yield f"features may name at most {LIST_MAX} layers in a spec from another site, not {len(features)}"
    learning = (*spec.get("frozen", ()), *spec.get("adapters", {}).get("layers", ()))
    if len(learning) > LIST_MAX:
        yield f"frozen and adapters may name at most {LIST_MAX} layers in a spec from another site, not {len(learning)}"
    for layer in (*features, spec.get("head", ""), *learning):
        if len(layer) > TEXT_MAX:
            yield f"a layer name may have at most {TEXT_MAX} characters in a spec from another site"


def _leaves(value: Any, *, depth: int) -> Iterator[Any]:
    """Yield the scalars in nested lists; of deeper ones the list itself, as a forbidden value."""
    if isinstance(value, list | tuple) and depth < 2:
        for item in value:
            yield from _leaves(item, depth=depth + 1)
    else:
        yield value


def _lists(value: Any) -> Iterator[list[Any] | tuple[Any, ...]]:
    if isinstance(value, list | tuple):
        yield value
        for item in value:
            yield from _lists(item)


def _short(value: object) -> str:
    """Format a received value for a message, cut to a line."""
    return repr(value)[:80]

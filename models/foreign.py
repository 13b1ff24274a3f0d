"""Third-party networks: MONAI's by dotted name, any installed class by ``module:Class``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from models.lean_monai import load_monai
from models.spec import FORBIDDEN, MODULE_CLASS, MONAI_PREFIX, suggestion

# Constructors' names of the sizes that a federation fixes; the first that a constructor has is set.
DIMENSIONS = ("spatial_dims", "dimensions")
CHANNELS = ("in_channels", "n_input_channels", "channels")
CLASSES = ("out_channels", "num_classes", "classes", "n_classes")


NO_MODULE = re.compile(r"No module named '(\w+)")
MISSING = re.compile(r"missing [0-9]+ required (?:positional|keyword-only) arguments?: (?P<names>.*)")
"""Python's message about missing arguments."""


class MissingArgumentsError(ValueError):
    """A network needs arguments that nobody gave.

    Attributes:
        arguments: by name, their type as the constructor writes it, or nothing.
    """

    def __init__(self, network: str, arguments: Mapping[str, str]) -> None:
        named = " and ".join(f"{name} ({kind})" if kind else name for name, kind in arguments.items())
        super().__init__(f"{network} also needs {named}, in [model.parameters]")
        self.arguments = dict(arguments)


def is_foreign(name: str) -> bool:
    """Return whether this module can build a network of the name's form."""
    return name.startswith(MONAI_PREFIX) or MODULE_CLASS.fullmatch(name) is not None


def foreign_network(
    name: str, *, spatial_dims: int, in_channels: int, classes: int, hyper: Mapping[str, Any]
) -> nn.Module:
    """Build ``monai.networks.nets.NAME`` or ``module:Class``, never with downloaded weights.

    Imports the module: for a spec from another site, call :func:`models.spec.remote_spec_problem`
    first. Raise ``ValueError`` if the class does not exist, takes no such argument, or refuses the
    values; ``MissingArgumentsError`` if it needs more of them.
    """
    kind, arguments = foreign_call(
        name, spatial_dims=spatial_dims, in_channels=in_channels, classes=classes, hyper=hyper
    )
    try:
        return kind(**arguments)
    except ImportError as error:  # MONAI puts the error's traceback and advice into its text
        module = NO_MODULE.search(str(error))
        if module:
            needed = f"the Python package {module[1]}, not installed here; run `pip install {module[1]}`"
            raise ValueError(f"{name} needs {needed}") from error
        raise ValueError(f"{name} needs a Python package: {error}") from error
    except Exception as error:  # a foreign constructor may raise anything
        if missing := _missing_arguments(kind, error):
            raise MissingArgumentsError(name, missing) from error
        raise ValueError(f"{name} refuses {arguments}: {error}") from error


def foreign_call(
    name: str, *, spatial_dims: int, in_channels: int, classes: int, hyper: Mapping[str, Any]
) -> tuple[type[nn.Module], dict[str, Any]]:
    """Return the class and its constructor's arguments; raises as :func:`foreign_network`."""
    kind = _monai_class(name.removeprefix(MONAI_PREFIX)) if name.startswith(MONAI_PREFIX) else _class(name)
    parameters, takes_any = _parameters(kind)
    arguments = dict(hyper)
    for names, value in ((DIMENSIONS, spatial_dims), (CHANNELS, in_channels), (CLASSES, classes)):
        own = next((alias for alias in names if alias in parameters), None)
        if own is not None:
            arguments.setdefault(own, value)
            if arguments[own] != value:
                raise ValueError(f"{name} gets {own} = {value} from the federation; take {own} = {hyper[own]!r} out")
    permitted = parameters.keys() - FORBIDDEN if name.startswith(MONAI_PREFIX) else parameters.keys()
    for argument in arguments:
        if argument not in permitted and not (takes_any and argument not in FORBIDDEN):
            raise ValueError(f"{name} may not be given {argument!r}{suggestion(argument, permitted)}")
    if name.startswith(MONAI_PREFIX) and "pretrained" in parameters:
        arguments["pretrained"] = False
    return kind, arguments


def _monai_class(network: str) -> type[nn.Module]:
    load_monai()
    from monai.networks import nets

    kind = getattr(nets, network, None)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        known = [key for key, value in vars(nets).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(f"monai.networks.nets has no network class {network!r}{suggestion(network, known)}")
    return kind


def _class(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{name}: cannot import {module_name}: {error}; is its package installed here?") from error
    kind = getattr(module, class_name, None)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(f"{module_name} has no torch.nn.Module class {class_name!r}{suggestion(class_name, known)}")
    return kind


def _parameters(kind: type[nn.Module]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the constructor's parameters, with those its ``**kwargs`` reach; and whether it takes any."""
    named: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base is nn.Module:
            break
        if "__init__" not in vars(base):
            continue
        _, *own = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in own:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                named.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            return named, False
    return named, True


def _missing_arguments(kind: type[nn.Module], error: Exception) -> dict[str, str]:
    """Return the constructor's arguments whose lack made the call fail, with their types."""
    match = MISSING.search(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return {}
    parameters, _ = _parameters(kind)
    names = [name for name in re.findall(r"'(\w+)'", match["names"]) if name in parameters]
    kinds = {name: parameters[name].annotation for name in names}
    return {
        name: ""
        if kind is inspect.Parameter.empty
        else kind
        if isinstance(kind, str)
        else inspect.formatannotation(kind)
        for name, kind in kinds.items()
    }

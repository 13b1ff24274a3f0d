"""Networks, independent of federation: own ones by name, and any other with its layers tapped.

Names are imported on first use, so that a program can import ``models.spec`` without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.footprint import describe
    from models.network import Network, Output, head_width
    from models.registry import MODELS, build, create_model
    from models.spec import REMOTE_MONAI, remote_spec_problem
    from models.tap import Tapped, layer_names

__all__ = [
    "MODELS",
    "Network",
    "Output",
    "REMOTE_MONAI",
    "Tapped",
    "build",
    "create_model",
    "describe",
    "head_width",
    "layer_names",
    "remote_spec_problem",
]

_HOMES = {
    "MODELS": "registry",
    "Network": "network",
    "Output": "network",
    "REMOTE_MONAI": "spec",
    "Tapped": "tap",
    "build": "registry",
    "create_model": "registry",
    "describe": "footprint",
    "head_width": "network",
    "layer_names": "tap",
    "remote_spec_problem": "spec",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"models.{_HOMES[name]}"), name)

"""Train without PyTorch's compiler, whose import takes almost as long as that of PyTorch.

An optimiser of PyTorch asks ``torch._dynamo`` only to leave its code alone. Nothing here is compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"


class _UnloadedCompiler(ModuleType):
    """Do for an optimiser what the compiler does while it compiles nothing; load the compiler for all else."""

    def graph_break(self, *_: object) -> None:
        pass

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who lists modules asks for __file__ and the like
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


def leave_compiler_unloaded() -> None:
    """Let optimisers work without PyTorch's compiler; whoever uses the compiler afterwards loads it as ever."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = torch._dynamo = _UnloadedCompiler(COMPILER)

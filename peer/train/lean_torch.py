"""Train without PyTorch's compiler, whose import takes almost as long as that of PyTorch.

An optimiser of PyTorch asks ``torch._dynamo`` only to leave its code alone. Nothing here is compiled.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"
_loading = threading.RLock()


class _UnloadedCompiler(ModuleType):
    """Do for an optimiser what the compiler does while it compiles nothing; load the compiler for all else."""

    def graph_break(self, *_: object) -> None:
        pass

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who lists modules asks for __file__ and the like
            raise AttributeError(name)
        with _loading:
            if sys.modules.get(COMPILER) is self:
                del sys.modules[COMPILER]
            return getattr(importlib.import_module(COMPILER), name)


class _LoadedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of the compiler that is loaded: the import of one, which loads them all, loads it once."""

    def find_spec(self, name: str, _: Sequence[str] | None, __: ModuleType | None = None) -> ModuleSpec | None:
        is_loaded = name.startswith(f"{COMPILER}.") and name in sys.modules
        return importlib.util.spec_from_loader(name, self) if is_loaded else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, _: ModuleType) -> None:
        pass


def leave_compiler_unloaded() -> None:
    """Let optimisers work without PyTorch's compiler; whoever uses the compiler afterwards loads it as ever."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = torch._dynamo = _UnloadedCompiler(COMPILER)
        sys.meta_path.insert(0, _LoadedModules())

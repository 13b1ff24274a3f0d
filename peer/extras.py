"""Optional Python packages: a command that lacks one fails before its work begins."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from peer.errors import ConfigError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "data": ("scipy",),
    "research": ("joblib", "matplotlib", "pandas", "scipy", "sklearn"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "scalars": ("alembic", "mlflow", "sqlalchemy", "tensorboard"),
}
"""The modules that commands need from each extra, as pyproject.toml lists them."""

SOURCE = Path(__file__).resolve().parents[1]
NO_MODULE = re.compile(r"No module named '(\w+)")
DISTRIBUTIONS = {"PIL": "pillow"}
"""Module -> package name for pip, where the two differ and no extra contains the module."""


def require_extra(extra: str, needed_by: str, modules: Iterable[str] | None = None) -> None:
    """Raise an error unless the modules of an extra are installed. Imports none of them.

    Args:
        modules: the required modules of the extra; default: all.

    Raises:
        ConfigError: a module is missing; the error names the packages and the command to install them.
    """
    missing = [module for module in modules or EXTRAS[extra] if not _is_installed(module)]
    if missing:
        packages = "package" if len(missing) == 1 else "packages"
        raise ConfigError(
            f"{needed_by} needs the Python {packages} {', '.join(missing)}, not installed here", _remedy(missing[0])
        )


def missing_package(error: ImportError, needed_by: str) -> ConfigError:
    """Build the error for a module that could not be imported, with the package to install."""
    origin: BaseException | None = error
    while origin is not None and not getattr(origin, "name", None):  # MONAI wraps the error with the module's name
        origin = origin.__cause__ or origin.__context__
    module = str(getattr(origin, "name", "")).partition(".")[0]
    if not module and (named := NO_MODULE.search(str(error))):  # MONAI puts the error's traceback into a text
        module, origin = named[1], None
    if not module:
        return ConfigError(f"{needed_by} needs a Python package: {error}", "install it into this environment")
    reason = f": {origin}" if origin is not None else ", not installed here"
    return ConfigError(f"{needed_by} needs the Python package {module}{reason}", _remedy(module))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _remedy(module: str) -> str:
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return f"run `pip install {DISTRIBUTIONS.get(module, module)}`" if extra is None else install_remedy(extra)


def install_remedy(extra: str) -> str:
    """Return the command that installs an extra from this checkout, or from an unpacked distribution."""
    # Nobody owns the name mhfl-peer in a package index: whoever registers it there must get no code into hospitals.
    if (SOURCE / "pyproject.toml").exists():
        return f"run `pip install '{SOURCE}[{extra}]'`"
    return f"run `pip install '.[{extra}]'` in a checkout or an unpacked source distribution"

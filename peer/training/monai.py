"""MONAI, loaded without the libraries that it looks for on behalf of parts of it that are not used here."""

from __future__ import annotations

import importlib
import sys

LEFT_OUT = ("matplotlib", "mlflow", "scipy.signal", "sklearn", "tensorboard")
"""Where they are installed, they are two thirds of the time that ``import monai`` takes."""


def load() -> None:
    """Import MONAI, unless it is here already; what it did without can be imported by others afterwards."""
    if "monai" in sys.modules:
        return
    absent = [name for name in LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: an import of it fails, and may
    try:
        importlib.import_module("monai")
    finally:
        for name in absent:
            del sys.modules[name]

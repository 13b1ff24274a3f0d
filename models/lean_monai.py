"""Import MONAI without optional libraries that this program does not use."""

from __future__ import annotations

import importlib
import sys

LEFT_OUT = ("jsonschema", "matplotlib", "mlflow", "pandas", "scipy.signal", "sklearn", "tensorboard")
"""If installed, their import takes three quarters of the time of ``import monai``."""


def load_monai() -> None:
    """Import MONAI, which takes seconds; other modules can import the libraries left out afterwards."""
    if "monai" in sys.modules:
        return
    absent = [name for name in LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None makes an import fail
    try:
        importlib.import_module("monai")
    finally:
        for name in absent:
            del sys.modules[name]

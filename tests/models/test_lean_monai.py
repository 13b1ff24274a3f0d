"""MONAI comes without libraries that cost more than itself, and they can be had all the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib, json, sys
from peer.train import trainer
from models.lean_monai import LEFT_OUT, load_monai
loaded = [name for name in LEFT_OUT if name in sys.modules]
load_monai()
importlib.import_module("scipy.signal")
print(json.dumps([loaded, "monai" in sys.modules, "scipy.signal" in sys.modules]))
"""


@pytest.mark.nightly
def test_what_monai_did_without_can_be_imported_afterwards() -> None:
    root = Path(__file__).parents[2]
    finished = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == [[], True, True]

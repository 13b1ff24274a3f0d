"""The committed protobuf modules are what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_generated_modules_are_fresh(root: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed; `make lint` checks this, too")
    command = [sys.executable, "proto/compile.py", "--check"]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr

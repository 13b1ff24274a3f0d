"""Generated files that are committed are up to date with their sources."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_generated_modules_are_fresh(root: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed; `make lint` checks this, too")
    command = [sys.executable, "proto/compile.py", "--check"]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("script", ["deploy/reference.py", "deploy/picture.py"])
def test_generated_pages_are_fresh(root: Path, script: str) -> None:
    finished = subprocess.run([sys.executable, script, "--check"], cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr

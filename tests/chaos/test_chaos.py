"""A minute of trouble for real daemons; ``make chaos SECONDS=600`` makes more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]


def test_what_breaks_for_a_minute_loses_nothing() -> None:
    program = Path(__file__).with_name("run.py")
    command = [sys.executable, str(program), "--seconds", "60", "--sites", "3", "--seed", "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "1 passed, 0 failed" in finished.stdout

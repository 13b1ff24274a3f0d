"""Generated files that are committed are up to date with their sources."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_generated_modules_are_fresh(root: Path) -> None:
    command = [sys.executable, "proto/compile.py", "--check"]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("script", ["deploy/reference.py", "deploy/picture.py"])
def test_generated_pages_are_fresh(root: Path, script: str) -> None:
    finished = subprocess.run([sys.executable, script, "--check"], cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_every_picture_of_a_page_can_be_drawn_anew(root: Path) -> None:
    script = (root / "deploy" / "screenshots.py").read_text()
    assert [picture.name for picture in (root / "deploy").glob("*.png") if f'"{picture.stem}"' not in script] == []
    named = re.findall(r'"((?:peer|models)/[a-z_/]+\.(?:py|css))"', script)
    assert [path for path in named if not (root / path).is_file()] == []
    assert len(named) >= 5

"""The wheel holds the three packages and nothing else, and the installed program runs."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

PACKAGES = ("losses", "models", "peer")
BESIDE = ("deploy", "proto", "requirements", "tests")
"""The folders of the sdist beside the packages."""
PLUGIN = Path("deploy/examples/plugin")
"""The example that `mhfl-peer plugin new` copies."""


def pip(*arguments: str | Path) -> None:
    """Run pip; show its output if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_wheel_holds_the_three_packages_and_nothing_else(distributions: Any, files: list[Path]) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    source = {path.as_posix() for path in files if path.parts[0] in PACKAGES and path.suffix != ".md"}
    copied = [path for path in files if path.parts[0] == "deploy" and path.suffix == ".md"]
    copied += [path for path in files if path.is_relative_to(PLUGIN) and path.suffix != ".md"]
    pages = {f"peer/pages/{path.relative_to('deploy').as_posix()}" for path in copied}
    assert len(pages) > 9
    assert shipped == source | pages
    assert {f"{package}/py.typed" for package in PACKAGES} <= shipped
    assert "peer/pb/peer_pb2.pyi" in shipped
    assert licenses


def test_the_sdist_holds_what_the_release_is_built_and_tested_from(distributions: Any, files: list[Path]) -> None:
    with tarfile.open(distributions.sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped >= {path.as_posix() for path in files if path.parts[0] in BESIDE}
    assert shipped >= {path.as_posix() for path in files if path.parts[0] in PACKAGES and path.suffix != ".md"}
    assert shipped >= {"CHANGELOG.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}


def test_the_installed_wheel_runs(distributions: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", target, distributions.wheel)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    where = "import losses, models, peer; print(*(p.__file__ for p in (losses, models, peer)), sep='\\n')"
    imported = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert all(Path(line).is_relative_to(target) for line in imported.stdout.splitlines())
    program = target / "bin" / "mhfl-peer"
    finished = subprocess.run([program, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "Usage: mhfl-peer" in finished.stdout
    finished = subprocess.run([program, "help", "audit"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "The ledger" in finished.stdout, "the wheel has no page of its own"

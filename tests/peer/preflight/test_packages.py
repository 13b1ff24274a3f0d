"""Another distribution's package of our name is named before anything breaks on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.loopback import Loopback
from peer.preflight.packages import packages

ROOT = Path(__file__).parents[3]


def test_ours_alone_are_no_finding() -> None:
    assert list(packages()) == []


@pytest.mark.parametrize("name", ["models", "losses"])
def test_a_foreign_package_is_the_only_finding_and_no_traceback(tmp_path: Path, enrolled: Loopback, name: str) -> None:
    (tmp_path / "elsewhere" / name).mkdir(parents=True)
    (tmp_path / "elsewhere" / name / "__init__.py").touch()
    command = [sys.executable, "-P", "-m", "peer.cli", "--home", str(enrolled.home)]
    done = subprocess.run(
        [*command, "check", "--site", "asia", "--fast", "--json"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'elsewhere'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 16
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["subject"], finding["verdict"]) == (f"package {name}", "failure")
    assert finding["message"].startswith(f"package {name!r} comes from {tmp_path / 'elsewhere'}, not from mhfl-peer in")
    assert "virtual environment" in finding["remedy"]


def test_a_distribution_that_lies_over_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "other_models-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-models\nVersion: 1.0\n")
    (information / "top_level.txt").write_text("models\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = packages()
    assert finding.message.startswith("package 'models' is also that of other-models")

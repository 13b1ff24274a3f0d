"""The figures of a GPU can be run at any time: on a CPU, with small networks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RUN = Path(__file__).parent / "run.py"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_step_of_the_figures_runs_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    subprocess.run([sys.executable, RUN, "--dry", "--out", out], check=True, timeout=500)
    document = json.loads(out.read_text())
    labels = [row["label"] for row in document["rows"]]
    for network in ("ResNet-10", "ResNet-50", "U-Net 32"):
        for precision in ("fp32", "bf16"):
            for kind in ("two plain steps", "an SKD step / two plain steps", "a step of a visit / two plain steps"):
                assert f"{network}, {precision}: {kind}" in labels


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_status_is_77() -> None:
    finished = subprocess.run([sys.executable, RUN], capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 77
    assert "no GPU that this PyTorch can use" in finished.stderr

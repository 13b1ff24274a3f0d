"""All that only a GPU can show: ``python tests/gpu/run.py [--dry] [--out FILE]``.

It runs the tests of this folder, then the figures of ``tests/bench/gpu.py``, and writes these to
FILE as JSON. The exit status is 77 without a GPU that this PyTorch can use, 1 if a test failed or a
target is missed. ``--dry`` runs every step of the figures on the CPU with small networks, to see
that they work; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NO_GPU = 77
"""The status that automake and others take for a test that could not run."""


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and the figures; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, with small networks, without the tests")
    parser.add_argument("--out", type=Path, help="the JSON file for the figures")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(TESTS / "bench"), str(TESTS), str(TESTS.parent)]

    import gpu
    import torch

    if options.dry:
        rows = gpu.rows_on(torch.device("cpu"), gpu.DRY_CASES, positions=gpu.DRY_POSITIONS, repetitions=1)
        failed = 0
    elif not torch.cuda.is_available():
        remedy = "install torch for its CUDA version into .venv (see constraints.txt)"
        print(f"no GPU that this PyTorch can use: {remedy}", file=sys.stderr)
        return NO_GPU
    else:
        rows = gpu.measure(quick=False)
        failed = subprocess.run([sys.executable, "-m", "pytest", "-n0", str(TESTS / "gpu")], check=False).returncode
    measured = []
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        print(f"{row.label:<72} {row.figure:>10.4g} {row.unit:<5} {row.target:>8}  {verdict}".rstrip(), flush=True)
        measured.append(row._asdict())
        if options.out is not None:  # what a machine is taken away from is not lost
            document = {"date": time.strftime("%Y-%m-%d"), "dry": options.dry, "rows": measured}
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed or any(row["met"] is False for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())

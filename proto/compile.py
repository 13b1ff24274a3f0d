"""Regenerate ``peer/pb`` from the ``.proto`` files beside this script; with ``--check``, say whether that is needed.

Run it from anywhere: ``python proto/compile.py``. The virtual path ``-Ipeer/pb=proto`` makes the generated modules
import each other as ``peer.pb``, so nothing has to be rewritten afterwards.
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent
PACKAGE = Path("peer", "pb")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 when ``peer/pb`` is fresh (or was made so), 1 when ``--check`` finds it stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when peer/pb is stale")
    check = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
    target = ROOT / PACKAGE
    committed = {path.name: path.read_bytes() for path in target.iterdir() if "_pb2" in path.name and path.is_file()}
    stale = sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))
    if check:
        for name in stale:
            print(f"{PACKAGE / name} is stale: run python proto/compile.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in fresh:
            (target / name).write_bytes(fresh[name])
        else:
            (target / name).unlink()
        print(f"{PACKAGE / name} {'written' if name in fresh else 'removed'}")
    return 0


def generate(out: Path) -> dict[str, bytes]:
    """The generated files by name, made under ``out``; ``SystemExit`` with protoc's own words when it fails."""
    sources = sorted(path.name for path in PROTO.glob("*.proto"))
    scripts = sysconfig.get_path("scripts")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{PACKAGE}={PROTO}",
        f"-I{importlib.resources.files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--mypy_out=quiet:{out}",
        *(str(PACKAGE / name) for name in sources),
    ]
    environment = {**os.environ, "PATH": os.pathsep.join((scripts, os.environ.get("PATH", "")))}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"protoc failed:\n{finished.stderr}")
    return {path.name: path.read_bytes() for path in (out / PACKAGE).iterdir()}


if __name__ == "__main__":
    sys.exit(main())

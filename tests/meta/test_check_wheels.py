"""deploy/check_wheels.py: downloaded wheels are compared with the digests of constraints-hashes.txt."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONSTRAINTS = "# comment\nNumPy==2.4.6\nsome_package==1.0\ntorch==2.13.0\n"
CONTENT = b"wheel"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HASHES = f"numpy==2.4.6 --hash=sha256:{'ab' * 32} --hash=sha256:{DIGEST}\nsome-package==1.0 --hash=sha256:{DIGEST}\n"


def check(root: Path, folder: Path, wheels: dict[str, bytes]) -> subprocess.CompletedProcess[str]:
    (folder / "wheels").mkdir()
    (folder / "constraints.txt").write_text(CONSTRAINTS)
    (folder / "hashes.txt").write_text(HASHES)
    for name, content in wheels.items():
        (folder / "wheels" / name).write_bytes(content)
    command = [sys.executable, str(root / "deploy" / "check_wheels.py"), "wheels", "constraints.txt", "hashes.txt"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_wheels_with_the_digests_seen_before_pass_and_torch_is_named(root: Path, tmp_path: Path) -> None:
    names = ("numpy-2.4.6-cp311-cp311-linux_x86_64.whl", "some_package-1.0-py3-none-any.whl")
    torch = "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    done = check(root, tmp_path, {**dict.fromkeys(names, CONTENT), torch: b"another build"})
    assert (done.returncode, done.stdout) == (0, f"{torch}: not compared\n")


@pytest.mark.parametrize("name", ["numpy-2.4.6-cp311-cp311-linux_x86_64.whl", "some_package-1.0-py3-none-any.whl"])
def test_other_bytes_under_the_same_name_and_version_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    done = check(root, tmp_path, {name: CONTENT + b"."})
    assert done.returncode == 1
    assert name in done.stderr


def test_the_file_is_made_from_the_reports_of_pip(root: Path, tmp_path: Path) -> None:
    def item(name: str, version: str, digest: str) -> dict[str, object]:
        archive = {"hashes": {"sha256": digest}}
        return {"metadata": {"name": name, "version": version}, "download_info": {"archive_info": archive}}

    (tmp_path / "constraints.txt").write_text(CONSTRAINTS)
    for number, digest in enumerate(("ab" * 32, DIGEST)):
        items = [item("numpy", "2.4.6", digest), item("some.package", "1.0", DIGEST), item("torch", "2.13.0", DIGEST)]
        (tmp_path / f"{number}.json").write_text(json.dumps({"install": [*items, item("other", "1", DIGEST)]}))
    command = [sys.executable, str(root / "deploy" / "check_wheels.py"), "--write", "constraints.txt"]
    done = subprocess.run([*command, "0.json", "1.json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    numpy, package = done.stdout.splitlines()
    assert sorted(numpy.split()) == sorted(HASHES.splitlines()[0].split())
    assert package == HASHES.splitlines()[1]


def test_every_pin_but_torch_has_its_digests(root: Path) -> None:
    def packages(name: str) -> dict[str, str]:
        lines = [line for line in (root / name).read_text().splitlines() if line and not line.startswith("#")]
        pairs = (line.split()[0].split("==") for line in lines)
        return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pairs}

    pins = packages("constraints.txt")
    del pins["torch"]
    assert packages("constraints-hashes.txt") == pins

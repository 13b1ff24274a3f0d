"""`make dist`: one version, the same bytes for the same files, only committed files."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_string
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import peer

pytestmark = pytest.mark.e2e

SECTION = re.compile(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
EPOCH = 1_700_000_000


def test_version_changelog_wheel_and_manifests_are_one(root: Path, distributions: Any) -> None:
    version = peer.__version__
    sections = SECTION.findall((root / "CHANGELOG.md").read_text())
    released = sections[0][0]
    assert version == released or re.fullmatch(r"\d+\.\d+\.\d+\.dev\d+", version), "of the next release"
    assert [date for _, date in sections] == sorted((date for _, date in sections), reverse=True)
    with zipfile.ZipFile(distributions.wheel) as archive:
        metadata = message_from_string(archive.read(f"mhfl_peer-{version}.dist-info/METADATA").decode())
    assert metadata["Version"] == version
    assert distributions.sdist.name == f"mhfl_peer-{version}.tar.gz"
    kustomization = (root / "deploy/kubernetes/europe/kustomization.yaml").read_text()
    assert re.findall(r"newTag: (\S+)", kustomization) == [released]


def test_the_same_files_give_the_same_bytes(build: Callable[[Path], Any], distributions: Any, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "somewhere" / "else")
    finally:
        os.umask(before)
    assert again.wheel.read_bytes() == distributions.wheel.read_bytes()
    assert again.sdist.read_bytes() == distributions.sdist.read_bytes()


def test_modes_times_and_owners_in_the_sdist_are_nobodys(distributions: Any) -> None:
    with tarfile.open(distributions.sdist) as archive:
        entries = archive.getmembers()
    assert {entry.mode for entry in entries} <= {0o644, 0o755}
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {
        (EPOCH, 0, 0, "", "")
    }
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)


def test_a_tree_with_changes_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = Path(shutil.copy(root / "deploy" / "release.py", tmp_path / "deploy"))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    process = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.startswith("not committed, and so not in a release:\n?? deploy/\n")
    assert "--allow-dirty" in process.stderr
    assert not (tmp_path / "dist").exists()


def fake_wheel(folder: Path, name: str, version: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
        archive.writestr(f"{name}/vendor.dist-info/METADATA", "Name: another\n")
    return path


def test_a_bundle_pins_every_wheel_by_its_digest(release: ModuleType, tmp_path: Path) -> None:
    versions = {"click": "8.0", "mhfl_peer": "1.2.3", "torch": "2.0"}
    wheels = [fake_wheel(tmp_path, name, version) for name, version in versions.items()]
    wheels[2] = wheels[2].rename(tmp_path / "torch-2.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    bundle = release.write_bundle(wheels, tmp_path, EPOCH)
    content = bundle.read_bytes()
    assert release.write_bundle(reversed(wheels), tmp_path, EPOCH).read_bytes() == content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        (top,) = {name.partition("/")[0] for name in archive.getnames()}
        names = [name.partition("/")[2] for name in archive.getnames()]
        pins = archive.extractfile(f"{top}/requirements.txt").read().decode().splitlines()  # type: ignore[union-attr]
        script = archive.getmember(f"{top}/install.sh")
    assert re.fullmatch(r"mhfl-peer-1\.2\.3-offline-cp3\d+-linux-x86_64", top)
    assert bundle.name == f"{top}.tar"
    assert names == ["README", "install.sh", "requirements.txt", *(f"wheels/{wheel.name}" for wheel in wheels)]
    expected = [f"{name}=={version}" for name, version in versions.items()]
    assert pins == [f"{pin} --hash=sha256:{release.digest(wheel)}" for pin, wheel in zip(expected, wheels, strict=True)]
    assert script.mode == 0o755


def test_checksums_are_of_the_release_alone(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mhfl_peer-1.tar.gz").write_text("x")
    (tmp_path / "notes").write_text("mine")
    release.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / release.SUMS).read_text().count("\n") == 1


def test_the_sbom_names_what_is_installed_and_no_machine(release: ModuleType, root: Path, tmp_path: Path) -> None:
    environment, wheel = tmp_path / "environment", fake_wheel(tmp_path, "mhfl_peer", "1.2.3")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "click-8.0.dist-info").mkdir()
    (packages / "click-8.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: click\nVersion: 8.0\n")
    first, second = (
        release.write_sbom(environment, wheel, tmp_path, EPOCH, pyproject=root / "pyproject.toml").read_text()
        for _ in range(2)
    )
    document = json.loads(first)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert document["metadata"]["component"]["name"] == "mhfl-peer"
    assert [component["purl"] for component in document["components"]] == ["pkg:pypi/click@8.0"]
    assert str(tmp_path) not in first
    assert first == second
    assert (tmp_path / "mhfl-peer-1.2.3.cdx.json").exists()

"""`make dist`: build a release, with the same bytes for the same commit.

    python deploy/release.py [--out dist] [--allow-dirty] [--no-bundle] [--extras export,scalars] [--index URL]

A release consists of the wheel and the sdist of HEAD, a bundle of wheels that installs without a
network, the CycloneDX SBOM of the bundle's packages, and SHA256SUMS. Needs the extra `release`; pip
downloads the wheels from where its own settings say.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "mhfl-peer"
SUMS = "SHA256SUMS"
RELEASED = "mhfl[-_]peer-*"
EXTRAS = "export,scalars"
"""The bundle's extras: ONNX export, and scalars for TensorBoard and MLflow."""
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

INSTALL = """\
#!/bin/sh
# Install without a network: sh install.sh [FOLDER OF THE NEW ENVIRONMENT]; PYTHON=python{python}
# names another Python.
set -eu
here=$(cd "$(dirname "$0")" && pwd) python=${{PYTHON:-python3}} folder=${{1:-mhfl}}
"$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{python}")' || {{
    echo "these wheels are for Python {python}, and $python is another version: set PYTHON" >&2; exit 1; }}
"$python" -m venv "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check install --no-index --find-links "$here/wheels" \\
    --require-hashes --requirement "$here/requirements.txt"
"$folder/bin/mhfl-peer" --version
"""
README = """\
{name} {version} with all its dependencies, for Python {python} on {platform}; installing needs no network.
Install:  sh install.sh /opt/mhfl     (then /opt/mhfl/bin/mhfl-peer --help)
Verify:   sha256sum --check {sums}    (beside this bundle; each wheel's digest is in requirements.txt)
"""


def main() -> None:
    """Build the release."""
    parser = argparse.ArgumentParser(description="Build a release of HEAD.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the release; default: dist")
    parser.add_argument("--allow-dirty", action="store_true", help="build HEAD although there are uncommitted changes")
    parser.add_argument("--no-bundle", action="store_true", help="build neither the offline bundle nor its SBOM")
    parser.add_argument("--extras", default=EXTRAS, help=f"extras in the bundle; default: {EXTRAS}")
    parser.add_argument("--index", help="another package index, for a special build of torch")
    options = parser.parse_args()
    changes = git("status", "--porcelain")
    if changes and not options.allow_dirty:
        sys.exit(f"not committed, and so not in a release:\n{changes}\ncommit it, or say --allow-dirty to leave it out")
    options.out.mkdir(parents=True, exist_ok=True)
    for path in list_release(options.out):
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="mhfl-release-") as folder:
        epoch = int(git("log", "-1", "--format=%ct"))
        source = unpack_head(Path(folder, "source"))
        wheel, _ = build_distributions(source, options.out, epoch)
        if not options.no_bundle:
            wheels = collect_wheels(wheel, options.extras, Path(folder, "wheels"), index=options.index)
            bundle = write_bundle(wheels, options.out, epoch)
            environment = install(bundle, Path(folder, "installed"))
            write_sbom(environment, wheel, options.out, epoch, pyproject=source / "pyproject.toml")
    write_sums(options.out)
    print((options.out / SUMS).read_text(), end="")


def git(*arguments: str) -> str:
    """Run git in this repository; its output."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def unpack_head(folder: Path) -> Path:
    """Write the files of HEAD to the folder."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", "HEAD"]
    content = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def build_distributions(source: Path, out: Path, epoch: int) -> tuple[Path, Path]:
    """Build wheel and sdist of a source tree with the setuptools of this environment.

    Args:
        source: the tree; setuptools writes into it, and its files get their modes of the release.
        out: the folder for both files.
        epoch: the time of every file in them, in Unix seconds.
    """
    hooks = "import sys; from setuptools.build_meta import *; out = sys.argv[1]; build_sdist(out); build_wheel(out)"
    for path in source.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(dir=out) as folder:
        process = subprocess.run(
            [sys.executable, "-c", hooks, folder], cwd=source, env=environment, umask=0o022, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if process.returncode:
            sys.exit(process.stdout)
        (built_wheel,), (built_sdist,) = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
        with tarfile.open(built_sdist) as archive:
            files = {
                member.name: (archive.extractfile(member).read(), member.mode & 0o111 != 0)  # type: ignore[union-attr]
                for member in archive
                if member.isfile()
            }
        sdist = out / built_sdist.name
        sdist.write_bytes(gzip.compress(pack(files, epoch), mtime=epoch))
        wheel = built_wheel.replace(out / built_wheel.name)
    return wheel, sdist


def pack(files: Mapping[str, tuple[bytes, bool]], epoch: int) -> bytes:
    """A tar archive of files (content, and whether it is executable); its bytes depend on the
    arguments alone.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (data, executable) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def collect_wheels(wheel: Path, extras: str, folder: Path, *, index: str | None) -> list[Path]:
    """Download the dependencies of the wheel and its extras, as constraints.txt pins them, for this
    platform.
    """
    folder.mkdir()
    command = [*PIP, "download", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    if index:  # torch alone: an index beside the usual one could serve any package's name
        subprocess.run([*command, "--no-deps", "--index-url", index, "torch"], check=True)
    subprocess.run([*command, "--find-links", str(folder), f"{wheel}[{extras}]"], check=True)
    hashes = [ROOT / "constraints.txt", ROOT / "constraints-hashes.txt"]
    subprocess.run([sys.executable, str(ROOT / "deploy" / "check_wheels.py"), folder, *hashes], check=True)
    return sorted(folder.glob("*.whl"))


def write_bundle(wheels: Iterable[Path], out: Path, epoch: int) -> Path:
    """Write the wheels with requirements.txt and an install script as one archive.

    The archive is not compressed, since wheels are.
    """
    wheels = sorted(wheels)
    version, platform = version_of(wheels), platform_of(wheels)
    facts = {"name": NAME, "version": version, "python": PYTHON, "platform": platform, "sums": SUMS}
    top = f"{NAME}-{version}-offline-cp{PYTHON.replace('.', '')}-{platform}"
    files = {f"wheels/{wheel.name}": (wheel.read_bytes(), False) for wheel in wheels}
    files["requirements.txt"] = ("".join(f"{line}\n" for line in requirements(wheels)).encode(), False)
    files["install.sh"] = (INSTALL.format(**facts).encode(), True)
    files["README"] = (README.format(**facts).encode(), False)
    bundle = out / f"{top}.tar"
    bundle.write_bytes(pack({f"{top}/{name}": file for name, file in files.items()}, epoch))
    return bundle


def version_of(wheels: Iterable[Path]) -> str:
    """The version of this project's wheel."""
    (wheel,) = (wheel for wheel in wheels if wheel.name.startswith("mhfl_peer-"))
    return wheel.name.split("-")[1]


def platform_of(wheels: Iterable[Path]) -> str:
    """The platform of the wheels, which torch's wheel names."""
    (torch,) = (wheel for wheel in wheels if wheel.name.startswith("torch-"))
    return "linux-x86_64" if "x86_64" in torch.stem.rpartition("-")[2] else torch.stem.rpartition("-")[2]


def requirements(wheels: Iterable[Path]) -> Iterator[str]:
    """Each wheel's name, version and digest, in pip's form."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (path,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/METADATA"))
            metadata = message_from_string(archive.read(path).decode())
        yield f"{metadata['Name']}=={metadata['Version']} --hash=sha256:{digest(wheel)}"


def install(bundle: Path, folder: Path) -> Path:
    """Install the bundle with its own script; the folder of the environment."""
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    environment = {**os.environ, "PYTHON": sys.executable, "PIP_QUIET": "1"}
    subprocess.run(["sh", top / "install.sh", folder / "environment"], check=True, env=environment)
    python = folder / "environment" / "bin" / "python"
    # pip came from Python, not from the bundle.
    subprocess.run([*PIP, "--python", python, "uninstall", "--yes", "pip"], check=True)
    return folder / "environment"


def write_sbom(environment: Path, wheel: Path, out: Path, epoch: int, *, pyproject: Path) -> Path:
    """Write the CycloneDX document of an environment's packages, with a serial number and time of
    the commit.
    """
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(pyproject)]
    command += ["--mc-type", "application", "--output-reproducible", "--spec-version", "1.6", str(python)]
    document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest(wheel))}"
    document["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    path = out / f"{NAME}-{version_of([wheel])}.cdx.json"
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def write_sums(out: Path) -> None:
    """Write the digest of every file, for ``sha256sum --check``."""
    (out / SUMS).write_text("".join(f"{digest(path)}  {path.name}\n" for path in list_release(out)))


def list_release(out: Path) -> list[Path]:
    """The files of a release in a folder, without the checksums."""
    return sorted(out.glob(RELEASED))


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()

"""``relay init``, ``join`` and ``status``, and ``federation admit --relay``, as people call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.cli import ROOT, refused, run, run_json
from peer.relay.folder import STATUS_FILE, RelayFolder

EXAMPLE = ROOT / "deploy" / "examples" / "federation.toml"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    assert run("federation", "create", EXAMPLE, "--out", tmp_path / "ca").exit_code == 0
    return tmp_path / "ca"


@pytest.fixture
def admit(tmp_path: Path, ca: Path) -> Callable[..., Path]:
    """Make a relay's folder and have the founder certify it; its certificate."""

    def certify(name: str = "gate") -> Path:
        requested = init(tmp_path, ca, name)
        words = ("--ca", ca, requested["request"], "--out", tmp_path / f"{name}.pem", "--relay")
        certified = run_json("federation", "admit", *words, "--fingerprint", requested["fingerprint"])
        assert certified["fingerprint"] == requested["fingerprint"]
        return tmp_path / f"{name}.pem"

    return certify


def init(tmp_path: Path, ca: Path, name: str) -> dict[str, str]:
    words = ("--federation", ca / "federation.toml", "--name", name, "--folder", tmp_path / name)
    document: dict[str, str] = run_json("relay", "init", *words, "--out", tmp_path / f"{name}.csr")
    return document


def test_a_relay_is_certified_and_keeps_its_key(tmp_path: Path, ca: Path, admit: Callable[..., Path]) -> None:
    certificate = admit()
    key = (tmp_path / "gate/site.key").read_bytes()
    joined = run_json("relay", "join", certificate, "--folder", tmp_path / "gate")
    assert joined["days"] > 300
    (tmp_path / "gate.csr").unlink()
    init(tmp_path, ca, "gate")
    assert (tmp_path / "gate/site.key").read_bytes() == key
    assert not (tmp_path / "gate/round.key").exists()


@pytest.mark.parametrize(("name", "reason"), [("europe", "europe is a site"), ("Gate 7", "must be 1 to 32 lower-case")])
def test_a_name_that_cannot_be_a_relay_s_is_refused(tmp_path: Path, ca: Path, name: str, reason: str) -> None:
    words = ("relay", "init", "--federation", ca / "federation.toml", "--name", name, "--folder", tmp_path / "gate")
    error = "ConfigError" if name == "europe" else "UsageError"
    assert reason in refused(error, *words, "--out", tmp_path / "gate.csr")


def test_another_relay_s_certificate_is_refused(tmp_path: Path, admit: Callable[..., Path]) -> None:
    admit()
    other = admit("door")
    assert "the certificate is refused" in refused("BundleError", "relay", "join", other, "--folder", tmp_path / "gate")


def test_a_site_is_not_certified_as_a_relay_nor_a_relay_as_a_site(tmp_path: Path, ca: Path) -> None:
    requested = init(tmp_path, ca, "gate")
    words = ("federation", "admit", "--ca", ca, requested["request"], "--fingerprint", requested["fingerprint"])
    assert "a relay with --relay" in refused("BundleError", *words, "--out", tmp_path / "gate.bundle")
    site = run_json(
        *("--home", tmp_path / "home", "site", "init", "--federation", ca / "federation.toml", "--site", "europe"),
        *("--out", tmp_path / "europe.csr"),
    )
    words = ("federation", "admit", "--ca", ca, tmp_path / "europe.csr", "--fingerprint", site["fingerprint"])
    assert "europe is a site" in refused("BundleError", *words, "--out", tmp_path / "e.pem", "--relay")


def test_a_relay_without_a_certificate_does_not_start(tmp_path: Path, ca: Path) -> None:
    init(tmp_path, ca, "gate")
    assert "cert.pem is missing" in refused("CertificateError", "relay", "start", "--folder", tmp_path / "gate")


def test_relay_toml_is_checked(tmp_path: Path, admit: Callable[..., Path]) -> None:
    admit()
    path = tmp_path / "gate/relay.toml"
    text = path.read_text()
    for change, reason in (
        ('sites = ["eurpe"]', "sites: eurpe is not in the roster"),
        ('networks = ["192.0.2.0/33"]', "networks"),
        ("port = 443", "port: unknown key"),
    ):
        path.write_text(f"{text}{change}\n")
        assert reason in refused("ConfigError", "relay", "status", "--folder", tmp_path / "gate")


def test_status_is_of_the_running_relay(tmp_path: Path, admit: Callable[..., Path]) -> None:
    admit()
    assert "no relay runs in" in refused("DaemonDown", "relay", "status", "--folder", tmp_path / "gate")
    held = {"parked": 4, "carrying": 1, "carried_connections": 7, "carried_bytes": 9}
    document = {"name": "gate", "port": 443, "since": 1.0, "at": 2.0, "sites": {"asia": held}, "refused": {"silent": 3}}
    (tmp_path / "gate" / STATUS_FILE).write_text(json.dumps(document))
    with RelayFolder(tmp_path / "gate").locked():
        assert run_json("relay", "status", "--folder", tmp_path / "gate") == document
        text = run("relay", "status", "--folder", tmp_path / "gate").stdout
    assert "asia" in text
    assert "silent: 3" in text

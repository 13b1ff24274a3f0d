"""``relay init``, ``join`` and ``status``, and ``federation admit --relay``, as people call them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.cli import refused, run, run_json
from fakes.governed import GovernedFederation
from fakes.relay_process import RelayProcess, make_relay
from peer.core.roster import SiteName
from peer.net.relay.folder import STATUS_FILE, RelayFolder
from peer.site.identity import certificates


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


def test_a_relay_gets_no_name_that_an_amendment_gave_to_a_site(
    amended: tuple[GovernedFederation, RelayFolder], tmp_path: Path
) -> None:
    federation, _ = amended
    (tmp_path / "oslo.csr").write_bytes(certificates.signing_request(certificates.new_key(), SiteName("oslo")))
    chain_of(federation, "asia", "--add", "oslo", "--request", tmp_path / "oslo.csr")
    (tmp_path / "oslo.csr").unlink()
    requested = init(tmp_path, federation.ca, "oslo")
    words = ("federation", "admit", "--ca", federation.ca, requested["request"], "--relay")
    words += ("--out", tmp_path / "oslo.pem", "--fingerprint", requested["fingerprint"])
    for site in ((), ("--site", "asia")):
        assert "oslo is a site" in refused("BundleError", "--home", federation.home, *words, *site)
    assert not (tmp_path / "oslo.pem").exists()
    run_json("--home", tmp_path / "elsewhere", *words)  # no chain is at hand there


def test_a_relay_without_a_certificate_does_not_start(tmp_path: Path, ca: Path) -> None:
    init(tmp_path, ca, "gate")
    for command in ("start", "check"):
        problem = refused("CertificateError", "relay", command, "--folder", tmp_path / "gate")
        assert "cert.pem is missing; send the request that `relay init` wrote to the founder" in problem


def test_relay_toml_is_checked(tmp_path: Path, admit: Callable[..., Path]) -> None:
    admit()
    path = tmp_path / "gate/relay.toml"
    text = path.read_text()
    for change, reason in (
        ('networks = ["192.0.2.0/33"]', "networks"),
        ("port = 443", "port: unknown key"),
    ):
        path.write_text(f"{text}{change}\n")
        assert reason in refused("ConfigError", "relay", "status", "--folder", tmp_path / "gate")


@pytest.fixture
def amended(tmp_path: Path) -> tuple[GovernedFederation, RelayFolder]:
    """A federation, and a relay of it that was given no amendment yet."""
    federation = GovernedFederation.create(tmp_path, "asia", "europe")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    return federation, make_relay(federation.ca, tmp_path / "gate", listen=listen)


def chain_of(federation: GovernedFederation, site: str, *changes: object) -> Path:
    """The file of a site's chain, after another amendment of the founder."""
    file = federation.home.parent / f"chain-{site}.json"
    words = ("--home", federation.home, "federation")
    run_json(*words, "amend", "--yes", "--ca", federation.ca, "--site", site, *changes)
    run_json(*words, "show", "--site", site, "--chain", file)
    return file


def test_a_relay_takes_newcomers_and_refuses_who_is_no_member(
    amended: tuple[GovernedFederation, RelayFolder], tmp_path: Path
) -> None:
    federation, relay = amended
    folder = ("--folder", relay.path)
    (tmp_path / "oslo.csr").write_bytes(certificates.signing_request(certificates.new_key(), SiteName("oslo")))
    first = chain_of(federation, "asia", "--add", "oslo", "--request", tmp_path / "oslo.csr").read_bytes()
    (tmp_path / "first.json").write_bytes(first)
    assert run_json("relay", "check", *folder)["sites"] == ["asia", "europe"]
    added = run_json("relay", "amend", tmp_path / "first.json", *folder)
    assert (added["sites"], added["unknown"]) == (["asia", "europe", "oslo"], [])
    assert "no members (yet)" not in run("relay", "check", *folder).stdout
    newer = chain_of(federation, "asia", "--expel", "europe")
    assert run_json("relay", "amend", newer, *folder)["sites"] == ["asia", "oslo"]
    assert "and this relay has 2" in refused("MembershipError", "relay", "amend", tmp_path / "first.json", *folder)
    assert run_json("relay", "check", *folder)["sites"] == ["asia", "oslo"]
    relay.relay_toml.write_text(relay.relay_toml.read_text() + 'sites = ["europe", "lima", "oslo"]\n')
    checked = run_json("relay", "check", *folder)
    assert (checked["sites"], checked["unknown"]) == (["oslo"], ["lima"])
    assert "no members (yet)" in run("relay", "check", *folder).stdout


def test_a_relay_refuses_what_is_no_chain_of_its_federation(
    amended: tuple[GovernedFederation, RelayFolder], tmp_path: Path
) -> None:
    federation, relay = amended
    folder, words = ("--folder", relay.path), ("--home", federation.home, "federation", "show", "--site", "europe")
    assert "has no amendment" in refused("StateError", *words, "--chain", tmp_path / "none.json")
    chains = [
        chain_of(federation, site, "--rounds", rounds, "--instead") for site, rounds in (("asia", 150), ("europe", 200))
    ]
    preferred, other = sorted(chains, key=lambda file: federation.chain(file.stem[6:]).head.digest)
    run("relay", "amend", other, *folder)
    assert run_json("relay", "amend", preferred, *folder)["number"] == 1
    assert "which the sites prefer" in refused("MembershipError", "relay", "amend", other, *folder)
    for content in (b"[]", b"{}", b"\xff", preferred.read_bytes().replace(b"mhfl_chain", b"mhfl_chains")):
        (tmp_path / "wrong.json").write_bytes(content)
        reason = refused("MembershipError", "relay", "amend", tmp_path / "wrong.json", *folder)
        assert "no chain of amendments" in reason
    forged = preferred.read_text().replace(":150", ":151").replace(":200", ":201")
    (tmp_path / "wrong.json").write_text(forged)
    assert "not signed" in refused("MembershipError", "relay", "amend", tmp_path / "wrong.json", *folder)


@pytest.mark.e2e
def test_a_running_relay_follows_within_seconds(
    amended: tuple[GovernedFederation, RelayFolder], tmp_path: Path
) -> None:
    federation, relay = amended
    process = RelayProcess(relay)
    try:
        end_s = time.monotonic() + 60
        for amendment, sites in ((0, ["asia", "europe"]), (1, ["asia"])):
            while relay.status().get("amendment") != amendment:
                assert time.monotonic() < end_s, process.console
                time.sleep(0.1)
            assert sorted(relay.status()["sites"]) == sites
            listen = relay.load()[0].listen
            assert run_json("relay", "check", "--folder", relay.path, "--address", listen)["answers"] == [listen]
            if amendment == 0:
                run_json("relay", "amend", chain_of(federation, "asia", "--expel", "europe"), "--folder", relay.path)
    finally:
        process.stop()


def test_status_is_of_the_running_relay(tmp_path: Path, admit: Callable[..., Path]) -> None:
    admit()
    assert "no relay runs in" in refused("DaemonDown", "relay", "status", "--folder", tmp_path / "gate")
    held = {"parked": 4, "carrying": 1, "carried_connections": 7, "carried_bytes": 9}
    document = {"name": "gate", "port": 443, "since": 1.0, "at": 2.0, "amendment": 3, "sites": {"asia": held}}
    document |= {"refused": {"silent": 3}, "unknown": ["oslo"]}
    (tmp_path / "gate" / STATUS_FILE).write_text(json.dumps(document))
    with RelayFolder(tmp_path / "gate").locked():
        assert run_json("relay", "status", "--folder", tmp_path / "gate") == {**document, "problem": ""}
        text = run("relay", "status", "--folder", tmp_path / "gate").stdout
        (tmp_path / "gate/relay.toml").write_text("liste = 1\n")
        broken = run_json("relay", "status", "--folder", tmp_path / "gate")
        assert "relay.toml: liste: unknown key" in broken.pop("problem")
        assert broken == document
        assert "goes on with what it had" in run("relay", "status", "--folder", tmp_path / "gate").stdout
    assert "liste: unknown key" in refused("ConfigError", "relay", "status", "--folder", tmp_path / "gate")
    assert "asia" in text
    assert "silent: 3" in text
    assert "oslo" in text


def test_where_nothing_answers_for_a_running_relay_is_said_in_words(tmp_path: Path, admit: Callable[..., Path]) -> None:
    gate = tmp_path / "gate"
    run("relay", "join", admit(), "--folder", gate)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    (gate / STATUS_FILE).write_text(json.dumps({"port": port}))
    with RelayFolder(gate).locked():
        problem = refused("PeerUnreachable", "relay", "check", "--folder", gate)
    assert f"gate does not answer at 127.0.0.1:{port}: Connection refused; compare the address" in problem


def test_a_relay_that_does_not_run_is_checked_by_its_files_and_its_port(
    tmp_path: Path, admit: Callable[..., Path]
) -> None:
    folder = ("--folder", tmp_path / "gate")
    certificate = admit()
    assert "cert.pem is missing" in refused("CertificateError", "relay", "check", *folder)
    run("relay", "join", certificate, *folder)
    path = tmp_path / "gate/relay.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f'name = "gate"\nlisten = "127.0.0.1:{port}"\nsites = ["europe"]\n')
        assert f"cannot listen on 127.0.0.1:{port}" in refused("PortInUse", "relay", "check", *folder)
    checked = run_json("relay", "check", *folder)
    assert (checked["running"], checked["answers"], checked["sites"]) == (False, [], ["europe"])
    assert "its port is free" in run("relay", "check", *folder).stdout
    assert "no relay runs" in refused("DaemonDown", "relay", "check", *folder, "--address", "127.0.0.1:1")
    assert "give host:port" in refused("UsageError", "relay", "check", *folder, "--address", "nowhere")

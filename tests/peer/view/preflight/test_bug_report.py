"""A bug report has what a maintainer needs, and neither keys nor data."""

import base64
import contextlib
import io
import json
import re
import zipfile
from typing import Any

import pytest

from fakes.sites import append_rows
from peer.errors import StateError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.view.preflight import bug_report
from peer.view.preflight.finding import Finding

PATIENT = "Doe Jane 1949.nii.gz"
PROXY = '[connect]\nproxy = "http://proxy.clinic.example:3128"\npassword_file = "proxy.txt"\n'
FINDINGS = [Finding("data", "failure", f"/srv/scans/{PATIENT} cannot be read", f"replace {PATIENT}")]


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    """A site whose data, journal and logs name a patient's file, and whose log has a key in it."""
    folder = enrolled.folder("asia")
    (folder.path / "datalist.json").write_text(json.dumps({"training": [{"image": f"/srv/scans/{PATIENT}"}]}))
    left = {"fault": "data", "reason": f"{PATIENT} is damaged"}
    append_rows(folder, ("began", 0, {"generation": 1}), ("left", 1, left))
    folder.logs.mkdir(exist_ok=True)
    line = {"level": "warning", "message": "unreadable", "file": f"/srv/scans/{PATIENT}", "peer": "10.9.8.7:7443"}
    (folder.logs / "daemon.log").write_text(f"{json.dumps(line)}\n")
    (folder.logs / "worker.log").write_text(f"{(folder.pki / 'site.key').read_text()}\nDoe Jane 1949: OSError\n")
    return folder


def collect(folder: SiteFolder, **options: Any) -> dict[str, bytes]:
    return bug_report.collect(folder, lambda: FINDINGS, **{"with_logs": True, **options})


def test_no_key_no_patient_no_path_and_no_address_is_in_any_file(folder: SiteFolder) -> None:
    members = collect(folder)
    content = b"\n".join(members.values())
    key_lines = (folder.pki / "site.key").read_bytes().splitlines()[1:-1]
    round_key = (folder.pki / "round.key").read_bytes().strip()
    secrets = [*key_lines, round_key, round_key.hex().encode(), base64.b64encode(round_key), b"PRIVATE KEY"]
    for word in [*secrets, b"Doe", b"Jane", b"/srv/scans", b"10.9.8.7", str(folder.home).encode()]:
        assert word not in content, word


def test_it_has_versions_settings_status_rows_logs_and_findings(folder: SiteFolder) -> None:
    members = collect(folder)
    assert set(members) == bug_report.MEANINGS.keys() - {"logs/console.log"}
    documents = {name: json.loads(content) for name, content in members.items() if name.endswith(".json")}
    assert documents["versions.json"]["packages"].keys() >= {"click", "grpcio"}
    assert documents["site.json"]["data"]["datalist"] == "<left out>"
    assert "ca_certificate" not in documents["federation.json"]
    assert [site["name"] for site in documents["federation.json"]["site"]] == ["asia", "europe"]
    assert documents["status.json"]["site"] == "asia"
    assert [row["kind"] for row in documents["events.json"]] == ["began", "left"]
    assert documents["check.json"][0]["subject"] == "data"
    assert "pki/site.key" in {entry["name"] for entry in documents["folder.json"]}
    for name in members:
        assert f"{name}: " in members["README.txt"].decode()
    with zipfile.ZipFile(io.BytesIO(bug_report.pack(members))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == members


def test_logs_are_in_it_only_where_wanted(folder: SiteFolder) -> None:
    members = collect(folder, with_logs=False)
    assert not [name for name in members if name.startswith("logs/")]
    assert "--with-logs adds them" in members["README.txt"].decode()


def test_addresses_are_in_it_only_where_wanted(folder: SiteFolder) -> None:
    assert b"10.9.8.7" in collect(folder, with_addresses=True)["logs/daemon.log"]
    assert json.loads(collect(folder)["site.json"])["listen"] == "<left out>"


def test_a_site_that_is_broken_can_still_be_reported(folder: SiteFolder) -> None:
    folder.site_toml.write_text("nonsense = [")
    folder.federation_toml.write_text("nonsense")
    (folder.generation(1) / "journal.db").write_bytes(b"no database" * 100)
    (folder.path / "datalist.json").unlink()
    members = collect(folder)
    for name in ("status.json", "events.json", "ledger.json"):
        assert "error" in json.loads(members[name]), name
    assert b"Jane" not in b"".join(members.values())
    assert "The logs were left out" in members["README.txt"].decode()


def test_a_text_with_a_key_is_left_out(folder: SiteFolder) -> None:
    line = (folder.pki / "site.key").read_text().splitlines()[1]
    members = bug_report.collect(folder, lambda: [Finding("data", "ok", f"key {line}")])
    assert json.loads(members["check.json"])[0]["message"] == "<left out: it has a key>"


def test_the_proxy_and_its_password_stay_secret(folder: SiteFolder) -> None:
    (folder.path / "proxy.txt").write_text("clinic:hunter2hunter\n")
    folder.site_toml.write_text(folder.site_toml.read_text() + PROXY)
    (folder.logs / "daemon.log").write_text('{"message": "proxy.clinic.example refused hunter2hunter"}\n')
    members = collect(folder)
    assert json.loads(members["site.json"])["connect"] == {"proxy": "<left out>", "password_file": "<left out>"}
    for word in (b"clinic", b"hunter2"):
        assert word not in b"".join(members.values())
    shown = json.loads(collect(folder, with_addresses=True)["site.json"])["connect"]
    assert shown == {"proxy": "http://proxy.clinic.example:3128", "password_file": "<left out>"}


def test_a_password_that_is_a_common_word_spoils_no_report(folder: SiteFolder) -> None:
    (folder.path / "proxy.txt").write_text("clinic:training\n")
    folder.site_toml.write_text(folder.site_toml.read_text() + PROXY + 'password = "training"\n')
    (folder.logs / "daemon.log").write_text('{"message": "training began"}\n{"message": "told clinic:training"}\n')
    members = collect(folder, with_addresses=True)
    lines = [json.loads(line)["message"] for line in members["logs/daemon.log"].decode().splitlines()]
    assert lines == ["training began", "<left out: it has a key>"]
    shown = json.loads(members["site.json"])["connect"]
    assert (shown["password_file"], shown["password"]) == ("<left out>", "<left out>")


def test_relays_and_every_address_of_a_peer_stay_secret(folder: SiteFolder) -> None:
    text = re.sub(r"(?m)^\[addresses\]\n(?:\w+ = .*\n)*", "", folder.site_toml.read_text())
    tables = '[connect]\nrelays = ["gate relay.clinic.example:443"]\n'
    tables += '[addresses]\neurope = ["inside.clinic.example:7443", "outside.clinic.example:443"]\n'
    folder.site_toml.write_text(text + tables)
    (folder.logs / "daemon.log").write_text(
        '{"message": "relay.clinic.example, inside.clinic.example and outside.clinic.example are away"}\n'
    )
    members = collect(folder)
    assert json.loads(members["logs/daemon.log"]) == {"message": "<host>, <host> and <host> are away"}
    assert b"clinic" not in b"".join(members.values())


def test_a_secret_that_slips_through_stops_the_report() -> None:
    bug_report.refuse_secrets({"a": b"nothing", "b": b"little"}, [b"secret"])
    with pytest.raises(StateError, match="b would name a key or a sample"):
        bug_report.refuse_secrets({"a": b"nothing", "b": b"a secret here"}, [b"secret"])


def test_only_the_newest_lines_of_a_long_log_are_read(folder: SiteFolder) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder.logs / "worker.log").unlink()
    (folder.logs / "worker.log").write_text("".join(f"line {number}\n" for number in range(9000)))
    lines = collect(folder)["logs/worker.log"].decode().splitlines()
    assert (len(lines), lines[-1]) == (bug_report.LOG_LINES, "line 8999")

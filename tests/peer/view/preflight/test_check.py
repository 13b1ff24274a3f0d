"""The findings of `check`, in their order.

It fails where a start would be refused, and changes nothing.
"""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import TRANSFER, append_rows
from peer.site.config.site_folder import SiteFolder
from peer.site.records.ledger import Ledger
from peer.view.preflight.finding import Finding

RunCheck = Callable[..., dict[str, Finding]]
Edit = Callable[[Path, str, str], None]
BEFORE = ["configuration", "certificate", "CA", "round key", "confinement", "listen", "open files", "data"]
AFTER = ["policy", "disk", "europe", "address"]


def test_a_site_that_would_run_is_told_so(run_check: RunCheck, folder: SiteFolder) -> None:
    before = sorted(path for path in folder.path.rglob("*") if path != folder.lock)
    stages: list[str] = []
    findings = run_check("works", begin=stages.append)
    assert stages[3:5] == [
        "calling the peers, and starting a worker, which reads the data and builds the network",
        "trying a step of each stage",
    ]
    assert list(findings) == [*BEFORE, "worker", "rehearsal", *AFTER]
    warned = {finding.subject for finding in findings.values() if finding.verdict == "warning"}
    assert {finding.verdict for finding in findings.values()} == {"ok", "warning"}
    assert warned == {"europe"}, "which does not run"
    assert sorted(path for path in folder.path.rglob("*") if path != folder.lock) == before


def test_without_a_worker_the_rest_is_looked_at(run_check: RunCheck) -> None:
    assert list(run_check()) == [*BEFORE, *AFTER]


@pytest.mark.parametrize("file", ["site.toml", "federation.toml", "pki/cert.pem", "pki/round.key"])
def test_a_file_that_is_missing_is_the_only_finding(run_check: RunCheck, folder: SiteFolder, file: str) -> None:
    (folder.path / file).unlink()
    (finding,) = run_check().values()
    assert (finding.subject, finding.verdict) == ("configuration", "failure")
    assert file.rpartition("/")[2] in finding.message


def test_a_configuration_that_start_would_refuse_is_no_pass(run_check: RunCheck, folder: SiteFolder) -> None:
    append_rows(folder, ("configured", 0, {"federation": "ab" * 32}))
    finding = run_check()["journal"]
    assert finding.verdict == "failure"
    assert "generation 1 belongs to federation abababababab" in finding.message
    assert "--resume fresh" in finding.remedy


def test_a_folder_that_start_would_refuse_is_no_pass(run_check: RunCheck, folder: SiteFolder) -> None:
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        ledger.intend(**TRANSFER, bytes=1)
    with contextlib.closing(sqlite3.connect(folder.egress_db)) as edited, edited:
        edited.execute("UPDATE ledger SET body = '[]'")
    finding = run_check()["folder"]
    assert finding.verdict == "failure"
    assert "row 1 is neither an intent nor an outcome" in finding.message


def test_artifacts_that_a_start_put_aside_are_a_warning(run_check: RunCheck, folder: SiteFolder) -> None:
    stray = folder.generation(folder.create_generation()) / "stray"
    stray.mkdir()
    assert "strays" not in run_check()
    (stray / f"{'ab' * 32}.safetensors").write_bytes(bytes(1 << 20))
    finding = run_check()["strays"]
    assert (finding.verdict, finding.message) == (
        "warning",
        f"{stray}: 1 artifacts (1.0 MiB) that no row of the journal names",
    )


def test_a_lost_journal_is_no_pass(run_check: RunCheck, folder: SiteFolder) -> None:
    (folder.generation(folder.create_generation()) / "artifacts" / f"{'ab' * 32}.safetensors").touch()
    finding = run_check()["folder"]
    assert finding.verdict == "failure"
    assert "journal.db is missing, but 1 artifacts" in finding.message
    assert "--resume fresh" in finding.remedy


def test_a_folder_that_others_can_write_is_no_pass(run_check: RunCheck, folder: SiteFolder) -> None:
    folder.pki.chmod(0o755)
    finding = run_check()["permissions"]
    assert finding.verdict == "failure"
    assert finding.message == f"other users can enter {folder.pki} (mode 0755)"
    assert finding.remedy == f"run `chmod -R go-rwx {folder.path}`"


def test_data_that_are_wrong_are_not_given_to_a_worker(run_check: RunCheck, folder: SiteFolder) -> None:
    (folder.path / "datalist.json").unlink()
    findings = run_check("works")
    assert findings["data"].verdict == "failure"
    assert "worker" not in findings


def test_a_port_that_somebody_else_holds_is_a_failure(run_check: RunCheck, folder: SiteFolder, taken, enrolled) -> None:
    address = enrolled.federation.addresses[folder.site]
    folder.site_toml.write_text(folder.site_toml.read_text() + f'[metrics]\nlisten = "{address}"\n')
    taken(address)
    findings = run_check()
    for subject, key in (("listen", "`listen`"), ("metrics", "`[metrics] listen`")):
        assert findings[subject].verdict == "failure"
        assert findings[subject].message == f"cannot listen on {address}: Address already in use"
        assert findings[subject].remedy == f"change {key} in site.toml or stop what uses the port"


def test_a_site_that_runs_keeps_its_port_and_is_said_to_run(
    run_check: RunCheck, program: Any, folder: SiteFolder, edit: Edit
) -> None:
    process = program.start_and_wait("asia")
    findings = run_check("works")
    assert (findings["listen"].verdict, findings["listen"].message.partition(" 127")[0]) == ("ok", "the daemon has")
    where = f"runs, as process {process.pid}: round 0 of 3, gathering"
    assert findings["daemon"].message == f"{where}; no step is tried beside it"
    assert not {"worker", "rehearsal"} & findings.keys()
    edit(folder.site_toml, r'(?m)^listen = "(.*):\d+"', r'listen = "\1:9"')
    changed = run_check()["listen"]
    assert (changed.verdict, "site.toml says 127.0.0.1:9" in changed.message) == ("warning", True)
    assert "restart the daemon" in changed.remedy


def test_a_folder_that_something_else_holds_is_named_with_its_process(run_check: RunCheck, folder: SiteFolder) -> None:
    with folder.locked():
        findings = run_check()
    assert findings["daemon"].verdict == "warning"
    assert "is held by process" in findings["daemon"].message
    assert "europe" not in findings, "nobody is called while it is not known who has the port"

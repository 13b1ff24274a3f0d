"""What `check` finds: each fault of a site, a peer or the data is one line with a remedy, and nothing is changed."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peer import enrolment, lifecycle, preflight
from peer.bundle import Bundle
from peer.core.replay import ROUND_KEYS
from peer.daemon import now
from peer.home import SiteFolder
from peer.journal import Journal
from peer.loopback import Loopback
from peer.preflight import Finding


@pytest.fixture
def folder(enrolled: Loopback) -> SiteFolder:
    """Asia's folder, with data; its worker reads none of it."""
    folder = enrolled.folder("asia")
    write_data(folder)
    return folder


def write_data(folder: SiteFolder, **changes: Any) -> None:
    items = [{"image": f"{index}.npz", "label": index % 2, "subject": str(index)} for index in range(6)]
    for item in items:
        (folder.path / str(item["image"])).touch()
    document = {"training": items[:4], "test": items[4:], **changes}
    (folder.path / "datalist.json").write_text(json.dumps(document))


def edit(path: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, path.read_text())
    assert count
    path.write_text(text)


@pytest.fixture
def look(folder: SiteFolder, fake_worker: Callable[..., tuple[str, ...]]) -> Callable[..., dict[str, Finding]]:
    """The findings by subject: ``look()``, or with a worker of some mode ``look("bad data")``."""

    def check(mode: str | None = None) -> dict[str, Finding]:
        found = list(preflight.check(folder, train=mode is not None, worker=fake_worker(mode or "")))
        assert all(bool(finding.remedy) == (finding.verdict != "ok") for finding in found), found
        return {finding.subject: finding for finding in found}

    return check


def test_a_site_that_would_run_is_told_so(look: Callable[..., dict[str, Finding]], folder: SiteFolder) -> None:
    before = sorted(path for path in folder.path.rglob("*") if path != folder.lock)
    found = look("works")
    assert list(found) == ["configuration", "certificate", "disk", "listen", "data", "worker", "europe"]
    assert {finding.verdict for finding in found.values()} <= {"ok", "warning"}
    assert found["data"].message == "4 training samples (2 of class 0, 2 of class 1), 2 for the test"
    assert found["worker"].message == "resnet10 on cpu with 1 threads, 0.0 MiB a model, 0 unreadable samples"
    assert found["europe"].verdict == "warning"
    assert "nothing answers" in found["europe"].message
    assert sorted(path for path in folder.path.rglob("*") if path != folder.lock) == before


@pytest.mark.parametrize("file", ["site.toml", "federation.toml", "pki/cert.pem", "pki/round.key"])
def test_a_file_that_is_missing_is_the_only_finding(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder, file: str
) -> None:
    (folder.path / file).unlink()
    (finding,) = look().values()
    assert (finding.subject, finding.verdict) == ("configuration", "failure")
    assert file.rpartition("/")[2] in finding.message


# --- data and worker -------------------------------------------------------------------------------------------------
def test_a_datalist_that_is_missing_is_named_once(look: Callable[..., dict[str, Finding]], folder: SiteFolder) -> None:
    (folder.path / "datalist.json").unlink()
    found = look("works")
    assert found["data"].verdict == "failure"
    assert found["data"].message.count("datalist.json") == 1
    assert "worker" not in found, "there is nothing to load"


def test_of_many_problems_the_first_is_shown_and_the_others_are_counted(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder
) -> None:
    write_data(folder, training=[{"image": "0.npz", "label": 7}, {"image": "lost.npz", "label": 1}, 3])
    found = look()["data"]
    assert found.message == f"{folder.path}/datalist.json: training[2]: must be an object with 'image' and 'label'"
    assert "2 more with `mhfl-peer data validate`" in found.remedy


def test_data_without_a_test_list_are_worth_a_warning(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder
) -> None:
    write_data(folder, test=[])
    assert look()["data"].verdict == "warning"


@pytest.mark.parametrize(
    ("mode", "reason", "remedy"),
    [("bad data", "no data here", r"\[data\]"), ("nonsense", "worker ended with exit code 4", "see the reason")],
)
def test_a_worker_that_fails_says_why(
    look: Callable[..., dict[str, Finding]], mode: str, reason: str, remedy: str
) -> None:
    found = look(mode)["worker"]
    assert found.verdict == "failure"
    assert reason in found.message
    assert re.search(remedy, found.remedy)


def test_distillation_that_moves_nothing_is_worth_a_warning(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder
) -> None:
    folder.create_generation()
    journal = Journal(folder.generation(1) / "journal.db")
    for round, share in ((1, 0.5), (2, 0.0003), (3, None)):
        metrics = {} if share is None else {"distillation_ratio": share}
        journal.append("committed", round, {**dict.fromkeys(ROUND_KEYS), "metrics": metrics})
    journal.close()
    found = look()["gamma"]
    assert found.verdict == "warning"
    assert "0.03%" in found.message


def test_a_configuration_that_start_would_refuse_is_no_pass(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder
) -> None:
    folder.create_generation()
    journal = Journal(folder.generation(1) / "journal.db")
    journal.append("configured", 0, {"federation": "ab" * 32})
    journal.close()
    found = look()["journal"]
    assert found.verdict == "failure"
    assert "generation 1 belongs to federation abababababab" in found.message
    assert "--resume fresh" in found.remedy


# --- certificate and port --------------------------------------------------------------------------------------------
def test_a_certificate_that_runs_out_is_worth_a_warning(tmp_path: Path, folder: SiteFolder) -> None:
    text = folder.federation_toml.read_text()
    draft = text[text.index('name = "trial"') :]
    authority = enrolment.Authority.create(tmp_path / "ca", draft, "the draft", now=now() - timedelta(days=3600))
    short = SiteFolder(tmp_path / "short", "trial", folder.site)
    request = enrolment.request(short, authority.federation, authority.federation_toml, now=now())
    admitted = authority.admit(request.pem, fingerprint=request.fingerprint, now=now(), days=20)
    enrolment.join(short, Bundle.decode(admitted.bundle), now=now())
    short.site_toml.write_text(folder.site_toml.read_text())
    found = {finding.subject: finding for finding in preflight.check(short, train=False)}
    assert (found["certificate"].verdict, found["CA"].verdict) == ("warning", "warning")
    assert found["certificate"].message == "valid for 19 more days"


@pytest.fixture
def taken(enrolled: Loopback) -> Iterator[Callable[[str], None]]:
    """Listens where a site wants to, and hangs up on whoever calls."""
    servers: list[socketserver.TCPServer] = []

    def take(name: str) -> None:
        port = int(enrolled.federation.addresses[enrolled.folder(name).site].rpartition(":")[2])
        servers.append(Stranger(("127.0.0.1", port), socketserver.BaseRequestHandler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()

    yield take
    for server in servers:
        server.shutdown()
        server.server_close()


class Stranger(socketserver.TCPServer):
    """Some other program."""

    allow_reuse_address = True


def test_a_site_that_takes_no_part_in_the_global_test_is_told_so(enrolled: Loopback, folder: SiteFolder) -> None:
    federation, site, _ = lifecycle.load(folder)
    assert not list(preflight.global_test(federation, site))
    measured = federation.model_copy(update={"global_test": True})
    (finding,) = preflight.global_test(measured, site)
    assert (finding.subject, finding.verdict) == ("global test", "warning")
    allowed = site.model_copy(update={"egress": site.egress.model_copy(update={"evaluate": True})})
    (finding,) = preflight.global_test(measured, allowed)
    assert finding.verdict == "ok"


def test_a_port_that_somebody_else_holds_is_a_failure(
    look: Callable[..., dict[str, Finding]], taken: Callable[[str], None]
) -> None:
    taken("asia")
    found = look()["listen"]
    assert found.verdict == "failure"
    assert "Address already in use" in found.message


# --- peers -----------------------------------------------------------------------------------------------------------
def test_a_peer_that_runs_is_asked_and_takes_nobody_for_present(
    look: Callable[..., dict[str, Finding]], program: Any
) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    found = look()
    assert found["europe"].verdict == "ok"
    assert re.fullmatch(r"answers as mhfl-peer \S+, same federation, clock [+-]0\.\d s", found["europe"].message)
    assert program.status("europe", "gathering")["peers"]["asia"]["state"] == "unknown"


def test_a_site_that_runs_keeps_its_own_port(look: Callable[..., dict[str, Finding]], program: Any) -> None:
    program.start("asia")
    program.status("asia", "gathering")
    found = look()["listen"]
    assert (found.verdict, found.message.partition(" and ")[0]) == ("ok", "the daemon runs")


def test_a_peer_of_another_federation_is_named_with_what_differs(
    look: Callable[..., dict[str, Finding]], program: Any, folder: SiteFolder
) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    edit(folder.federation_toml, "rounds = 3", "rounds = 4")
    found = look()["europe"]
    assert found.verdict == "failure"
    assert "federation digest differs: europe has" in found.message
    assert program.status("europe", "gathering")["refusals"] == []


def test_a_port_that_is_no_peer_is_a_failure(
    look: Callable[..., dict[str, Finding]], taken: Callable[[str], None]
) -> None:
    taken("europe")
    found = look()["europe"]
    assert found.verdict == "failure"
    assert found.message.startswith("not TLS: ")


def test_a_peer_without_an_address_is_worth_a_warning(
    look: Callable[..., dict[str, Finding]], folder: SiteFolder
) -> None:
    edit(folder.federation_toml, r'name = "europe"\naddress = "[^"]*"', 'name = "europe"')
    found = look()["europe"]
    assert found.verdict == "warning"
    assert "[addresses]" in found.remedy

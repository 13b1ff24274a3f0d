"""What a site lacks on its own machine is one line with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from peer import enrolment, lifecycle
from peer.bundle import Bundle
from peer.core.replay import ROUND_KEYS
from peer.daemon import now
from peer.home import SiteFolder
from peer.journal import Journal
from peer.loopback import Loopback
from peer.preflight import premises
from peer.preflight.check import check
from peer.preflight.finding import Finding

Look = Callable[..., dict[str, Finding]]


# --- certificates -----------------------------------------------------------------------------------------------------
def test_a_certificate_that_runs_out_is_worth_a_warning(tmp_path: Path, folder: SiteFolder) -> None:
    text = folder.federation_toml.read_text()
    draft = text[text.index('name = "trial"') :]
    authority = enrolment.Authority.create(tmp_path / "ca", draft, "the draft", now=now() - timedelta(days=3600))
    short = SiteFolder(tmp_path / "short", "trial", folder.site)
    request = enrolment.request(short, authority.federation, authority.federation_toml, now=now())
    admitted = authority.admit(request.pem, fingerprint=request.fingerprint, now=now(), days=20)
    enrolment.join(short, Bundle.decode(admitted.bundle), now=now())
    short.site_toml.write_text(folder.site_toml.read_text())
    found = {finding.subject: finding for finding in check(short, train=False)}
    assert (found["certificate"].verdict, found["CA"].verdict) == ("warning", "warning")
    assert found["certificate"].message == "valid for 19 more days"


# --- data -------------------------------------------------------------------------------------------------------------
def test_a_datalist_that_is_missing_is_named_once(look: Look, folder: SiteFolder) -> None:
    (folder.path / "datalist.json").unlink()
    found = look()
    assert found["data"].verdict == "failure"
    assert found["data"].message.count("datalist.json") == 1


def test_what_the_datalist_holds_is_counted(look: Look) -> None:
    assert look()["data"].message == "4 training samples (2 of class 0, 2 of class 1), 2 for the test"


def test_of_many_problems_the_first_is_shown_and_the_others_are_counted(
    look: Look, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, training=[{"image": "0.npz", "label": 7}, {"image": "lost.npz", "label": 1}, 3])
    found = look()["data"]
    assert found.message == f"{folder.path}/datalist.json: training[2]: must be an object with 'image' and 'label'"
    assert "2 more with `mhfl-peer data validate`" in found.remedy


def test_data_without_a_test_list_are_worth_a_warning(
    look: Look, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, test=[])
    assert look()["data"].verdict == "warning"


# --- disk -------------------------------------------------------------------------------------------------------------
def test_room_is_asked_for_what_several_rounds_keep(enrolled: Loopback, folder: SiteFolder) -> None:
    federation = enrolled.federation
    (small,) = premises.disk(folder, federation, 1000)
    assert small.verdict == "ok"
    (large,) = premises.disk(folder, federation, 1 << 40)
    assert large.verdict == "warning"
    assert large.remedy == "free space: 21 times 1048576.0 MiB are kept of rounds"


def test_a_folder_that_cannot_be_written_is_a_failure(enrolled: Loopback, tmp_path: Path) -> None:
    nowhere = SiteFolder(tmp_path / "nowhere", "trial", enrolled.folder("asia").site)
    (finding,) = premises.disk(nowhere, enrolled.federation, None)
    assert (finding.verdict, finding.remedy) == ("failure", "give this user the folder")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib/mhfl", "nfs4"), ("/var/lib", "ext4"), ("/data/a b/c", "fuse.sshfs"), ("/over/there", "xfs")],
)
def test_the_file_system_is_that_of_the_last_and_deepest_mount(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "30 22 0:40 / /var/lib/mhfl rw - nfs4 server:/export rw\n"
        "31 22 0:41 / /data/a\\040b rw master:2 propagate_from:3 - fuse.sshfs host: rw\n"
        "32 22 0:42 / /over rw - ext4 /dev/vdb rw\n"
        "33 32 0:43 / /over rw - xfs /dev/vdc rw\n"
        "a line that makes no sense\n"
    )
    assert premises.filesystem(Path(path), mounts) == kind
    assert premises.filesystem(Path(path), tmp_path / "missing") == ""


# --- policy -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limit", "size", "verdict"), [(None, 10**12, "ok"), (100, 100, "ok"), (100, None, "ok"), (100, 101, "failure")]
)
def test_a_bound_that_lets_no_artifact_out_is_a_failure(
    folder: SiteFolder, limit: int | None, size: int | None, verdict: str
) -> None:
    federation, site, _ = lifecycle.load(folder)
    site = site.model_copy(update={"egress": site.egress.model_copy(update={"bytes_per_round_max": limit})})
    found = premises.policy(federation, site, size)
    assert found.verdict == verdict
    assert found.message.startswith("a model may leave for every site")
    if verdict == "failure":
        assert found.remedy == "set [egress] bytes_per_round_max in site.toml to at least 101, or leave it out"


def test_a_site_that_takes_no_part_in_the_global_test_is_told_so(folder: SiteFolder) -> None:
    federation, site, _ = lifecycle.load(folder)
    assert not list(premises.global_test(federation, site))
    measured = federation.model_copy(update={"global_test": True})
    (finding,) = premises.global_test(measured, site)
    assert (finding.subject, finding.verdict) == ("global test", "warning")
    allowed = site.model_copy(update={"egress": site.egress.model_copy(update={"evaluate": True})})
    (finding,) = premises.global_test(measured, allowed)
    assert finding.verdict == "ok"


def test_distillation_that_moves_nothing_is_worth_a_warning(look: Look, folder: SiteFolder) -> None:
    folder.create_generation()
    journal = Journal(folder.generation(1) / "journal.db")
    for round, share in ((1, 0.5), (2, 0.0003), (3, None)):
        metrics = {} if share is None else {"distillation_ratio": share}
        journal.append("committed", round, {**dict.fromkeys(ROUND_KEYS), "metrics": metrics})
    journal.close()
    found = look()["gamma"]
    assert found.verdict == "warning"
    assert "0.03%" in found.message

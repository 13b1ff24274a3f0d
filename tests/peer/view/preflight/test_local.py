"""The checks of this machine.

Another distribution's `models` or `losses` is reported before an import fails.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fakes.founder_amendments import amend
from fakes.governed import GovernedFederation
from fakes.sites import append_rows, round_body
from fakes.trained_site import TrainedSite
from peer.core.limits import DESCRIPTORS_RESERVED
from peer.core.roster import Sha256, SiteName
from peer.daemon import startup
from peer.daemon.dispatch import now
from peer.lab.demo.local_federation import LocalFederation, free_ports
from peer.methods.registry import PLANS
from peer.site.config.schema import FederationConfig, NamedParameters, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle
from peer.site.membership.amendment import Newcomer
from peer.site.membership.folder import MembershipFolder
from peer.view.preflight import local
from peer.view.preflight.check import check
from peer.view.preflight.finding import Finding
from peer.view.preflight.local import check_packages

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("name", ["models", "losses"])
def test_a_foreign_package_is_the_only_finding_and_no_traceback(
    tmp_path: Path, enrolled: LocalFederation, name: str
) -> None:
    (tmp_path / "elsewhere" / name).mkdir(parents=True)
    (tmp_path / "elsewhere" / name / "__init__.py").touch()
    command = [sys.executable, "-P", "-m", "peer.cli", "--home", str(enrolled.home), "check", "--site", "asia"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'elsewhere'}{os.pathsep}{ROOT}"}
    done = subprocess.run([*command, "--fast", "--json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 16
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["subject"], finding["verdict"]) == (f"package {name}", "failure")
    assert finding["message"].startswith(f"package {name!r} comes from {tmp_path / 'elsewhere'}, not from mhfl-peer in")
    assert "virtual environment" in finding["remedy"]


def test_a_distribution_that_lies_over_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check_packages()) == []
    information = tmp_path / "other_models-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-models\nVersion: 1.0\n")
    (information / "top_level.txt").write_text("models\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = check_packages()
    assert finding.message.startswith("package 'models' is also that of other-models")


RunCheck = Callable[..., dict[str, Finding]]


def test_a_certificate_that_runs_out_is_worth_a_warning(tmp_path: Path, folder: SiteFolder) -> None:
    text = folder.federation_toml.read_text()
    draft = text[text.index('name = "trial"') :]
    authority = enrolment.Authority.create(tmp_path / "ca", draft, "the draft", now=now() - timedelta(days=3600))
    short = SiteFolder(tmp_path / "short", "trial", folder.site)
    request = enrolment.request(short, authority.federation, authority.federation_toml, now=now())
    admission = authority.admit(request.pem, fingerprint=request.fingerprint, now=now(), days=20)
    enrolment.join(short, Bundle.decode(admission.bundle), now=now())
    short.site_toml.write_text(folder.site_toml.read_text())
    findings = {finding.subject: finding for finding in check(short, train=False)}
    assert (findings["certificate"].verdict, findings["CA"].verdict) == ("warning", "warning")
    assert findings["certificate"].message == "valid for 19 more days"


def test_what_the_datalist_holds_is_counted(run_check: RunCheck) -> None:
    assert run_check()["data"].message == "4 training samples (2 of class 0, 2 of class 1), 2 for the test"


def test_of_many_problems_the_first_is_shown_and_the_others_are_counted(
    run_check: RunCheck, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, training=[{"image": "0.npz", "label": 7}, {"image": "lost.npz", "label": 1}, 3])
    finding = run_check()["data"]
    assert finding.message == f"{folder.path}/datalist.json: training[2]: must be an object with 'image' and 'label'"
    assert "2 more with `mhfl-peer data validate`" in finding.remedy


def test_names_of_classes_that_only_the_datalist_has_are_to_be_compared(
    run_check: RunCheck, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, labels={"0": "benign", "1": "malignant"})
    finding = run_check()["data"]
    assert finding.verdict == "warning"
    assert "compare the classes' numbers with the other sites (0 benign, 1 malignant)" in finding.remedy


def test_names_of_classes_in_another_order_than_the_federation_s_are_a_failure(
    enrolled: LocalFederation, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, labels={"0": "benign", "1": "malignant"})
    federation, site, _ = startup.load(folder)
    task = federation.task.model_copy(update={"class_names": ("malignant", "benign")})
    finding, *_ = local.check_data(federation.model_copy(update={"task": task}), site)
    assert finding.verdict == "failure"
    assert "class 0 is 'benign' in 'labels', and 'malignant' in class_names" in finding.message


def test_copies_in_both_splits_and_lists_that_are_not_used_are_named(
    run_check: RunCheck, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder, validation=[{"image": "0.npz", "label": 0}])
    finding = run_check()["data"]
    assert (finding.verdict, finding.remedy[:34]) == ("warning", "the list 'validation' is not used ")
    (folder.path / "5.npz").write_text("0.npz")
    finding = run_check()["data"]
    assert finding.verdict == "failure"
    assert "images with the same content are in training and in test" in finding.message
    np.savez(folder.path / "0.npz", np.eye(8))
    np.savez_compressed(folder.path / "5.npz", np.eye(8, dtype=np.uint8)[None])
    assert run_check()["data"].message == finding.message


@pytest.mark.parametrize(
    ("labels", "share", "said"),
    [
        ([1, 1], 0.0, "all are of class 1, so that no AUC can be had"),
        ([0, 1], 0.0, ""),
        ([0, 1], 0.2, "of class 0, 1, validation_share = 0.2 holds out nobody"),
        ([0, 1], 0.5, ""),
    ],
)
def test_a_metric_that_cannot_be_had_is_named_before_round_1(
    enrolled: LocalFederation, folder: SiteFolder, write_data: Callable[..., None], labels: list[int], share: float,
    said: str,
) -> None:  # fmt: skip
    write_data(folder, test=[{"image": f"{4 + index}.npz", "label": label} for index, label in enumerate(labels)])
    federation, site, _ = startup.load(folder)
    site = site.model_copy(update={"data": site.data.model_copy(update={"validation_share": share})})
    finding, *_ = local.check_data(federation, site)
    assert finding.verdict == ("warning" if said else "ok")
    assert said in finding.remedy


def test_a_class_without_a_test_sample_is_named(folder: SiteFolder, write_data: Callable[..., None]) -> None:
    write_data(folder)
    listed = json.loads((folder.path / "datalist.json").read_text())
    listed["training"][0]["label"] = 2
    listed["training"].append({**listed["training"][2], "image": "3.npz"})
    (folder.path / "datalist.json").write_text(json.dumps(listed))
    federation, site, _ = startup.load(folder)
    task = federation.task.model_copy(update={"classes": 3})
    finding, *_ = local.check_data(federation.model_copy(update={"task": task}), site)
    assert "add test samples of class 2, or the AUC of the test leaves it out" in finding.remedy


def test_an_image_that_contradicts_itself_is_named(
    run_check: RunCheck, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(folder)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("L", (4, 4)).save(folder.path / "0.png", exif=exif)
    listed = json.loads((folder.path / "datalist.json").read_text())
    listed["training"][0]["image"] = "0.png"
    (folder.path / "datalist.json").write_text(json.dumps(listed))
    finding = run_check()["data"]
    assert finding.verdict == "warning"
    assert "0.png is turned as its EXIF tag 3 says: see that its label map is, too" in finding.remedy


def test_room_is_asked_for_what_several_rounds_keep(enrolled: LocalFederation, folder: SiteFolder) -> None:
    federation = enrolled.federation
    (small,) = local.check_disk(folder, federation, 1000)
    assert small.verdict == "ok"
    (large,) = local.check_disk(folder, federation, shutil.disk_usage(folder.path).free // 10)
    assert large.verdict == "warning"
    assert re.fullmatch(r"free space: 27 times [0-9.]+ [GM]iB are kept of rounds", large.remedy)
    (too_large,) = local.check_disk(folder, federation, 1 << 50)
    assert too_large.verdict == "failure"


def descriptors(soft: int, *place: Any) -> list[Finding]:
    """What the check of open files finds under a limit."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return list(local.check_descriptors(*place))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_too_few_open_files_for_the_roster_are_worth_a_warning_and_for_its_members_a_failure(
    folder: SiteFolder,
) -> None:
    federation, site, _ = startup.load(folder)
    sites = len(federation.site)
    needed = 512 + 3 * sites + DESCRIPTORS_RESERVED
    findings = [
        finding
        for soft in (needed, needed - 1, 3 * sites + DESCRIPTORS_RESERVED + 3)
        for finding in descriptors(soft, folder, federation, site)
    ]
    assert [finding.verdict for finding in findings] == ["ok", "warning", "failure"]
    assert f"raise the limit to {needed} where the daemon starts (LimitNOFILE" in findings[1].remedy
    assert f"may open {needed - 1}, {sites} sites may need {needed}: a start takes 511 conn" in findings[1].message


def test_what_would_keep_a_relay_from_its_start_is_a_failure(
    run_check: RunCheck, folder: SiteFolder, taken: Callable[[str], None], edit: Callable[[Path, str, str], None]
) -> None:
    (port,) = free_ports(1)
    taken(f"127.0.0.1:{port}")
    edit(folder.site_toml, r"\Z", f'[connect]\nrelay_listen = "127.0.0.1:{port}"\n')
    assert run_check()["relay port"].message.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    federation, site, _ = startup.load(folder)
    needed = 512 + 3 * len(federation.site) + DESCRIPTORS_RESERVED
    (enough,) = descriptors(needed + 128, folder, federation, site)
    other, relay = descriptors(needed + 127, folder, federation, site)
    assert {(finding.subject, finding.verdict) for finding in (enough, other)} == {("open files", "ok")}
    assert (relay.subject, relay.verdict) == ("relay", "failure")
    assert relay.remedy.startswith(f"raise the limit to {needed + 128} where")


def test_open_files_are_counted_by_the_members_of_the_chain(
    run_check: RunCheck, folder: SiteFolder, founders_ca: Path
) -> None:
    added = tuple(Newcomer(SiteName(name), Sha256(digit * 64), None) for name, digit in (("oslo", "a"), ("rome", "b")))
    amend(folder, founders_ca, add=added)
    amend(folder, founders_ca, expel=SiteName("rome"), round_key_tag=Sha256("c" * 64))
    sites = len(FederationConfig.load(folder.federation_toml).site)
    assert f" among {sites + 1} sites" in run_check()["open files"].message


def test_sites_of_one_home_with_the_same_port_are_worth_a_warning(
    run_check: RunCheck, folder: SiteFolder, enrolled: LocalFederation
) -> None:
    metrics = '\n[metrics]\nlisten = "127.0.0.1:39464"\n'
    for site in ("asia", "europe"):
        path = enrolled.folder(site).site_toml
        path.write_text(re.sub(r"\n\[metrics\]\n(\S.*\n)*", "\n", path.read_text()) + metrics)
    finding = run_check()["ports"]
    shared = "of the sites of this machine, trial/europe has port 39464, too"
    assert (finding.verdict, finding.message) == ("warning", shared)
    enrolled.folder("europe").site_toml.write_text("broken = [")
    assert "ports" not in run_check()


def test_a_folder_that_cannot_be_written_is_a_failure(enrolled: LocalFederation, tmp_path: Path) -> None:
    nowhere = SiteFolder(tmp_path / "nowhere", "trial", enrolled.folder("asia").site)
    (finding,) = local.check_disk(nowhere, enrolled.federation, None)
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
    assert local.filesystem_type(Path(path), mounts) == kind
    assert local.filesystem_type(Path(path), tmp_path / "missing") == ""


@pytest.mark.parametrize(
    ("limit", "size", "verdict"), [(None, 10**12, "ok"), (100, 100, "ok"), (100, None, "ok"), (100, 101, "failure")]
)
def test_a_bound_that_lets_no_artifact_out_is_a_failure(
    folder: SiteFolder, limit: int | None, size: int | None, verdict: str
) -> None:
    federation, site, _ = startup.load(folder)
    site = site.model_copy(update={"egress": site.egress.model_copy(update={"bytes_per_round_max": limit})})
    finding = local.check_policy(federation, site, size)
    assert finding.verdict == verdict
    assert finding.message.startswith("a model may leave for every site")
    if verdict == "failure":
        assert finding.remedy == "set [egress] bytes_per_round_max in site.toml to at least 101, or leave it out"


def test_newcomers_that_get_nothing_yet_are_named_with_the_command(tmp_path: Path) -> None:
    founded = GovernedFederation.create(tmp_path, "asia", "europe")
    folder = founded.folder("asia")
    for port, name in enumerate(("lima", "oslo"), start=3):
        csr = tmp_path / f"{name}.csr"
        csr.write_bytes(certificates.signing_request(certificates.new_key(), SiteName(name)))
        founded.amend("asia", "--add", f"{name}=127.0.0.1:{port}", "--request", csr)
    federation, site, _ = startup.load(folder)

    def policy(**egress: object) -> Finding:
        changed = site.model_copy(update={"egress": site.egress.model_copy(update=egress)})
        unaccepted = local.find_unaccepted(folder, federation, changed)
        return local.check_policy(federation, changed, 100, unaccepted)

    finding = policy()
    assert (finding.verdict, finding.message) == (
        "warning", "a model may leave for every site; lima, oslo joined later: nothing is sent there yet"
    )  # fmt: skip
    commands = "`mhfl-peer federation accept lima`, `mhfl-peer federation accept oslo`"
    assert finding.remedy == f"run {commands} here, if this site's policy permits it"
    assert "leave it out; run `mhfl-peer federation accept lima`" in policy(bytes_per_round_max=50).remedy
    assert policy(newcomers="accept").verdict == "ok"
    MembershipFolder(folder.membership).accept(SiteName("lima"))
    assert "lima" not in policy().message + policy().remedy
    assert policy(receivers=("*", "oslo")).verdict == "ok"


def test_visits_need_a_model_for_each_host_and_a_return_for_each_visitor(folder: SiteFolder) -> None:
    federation, site, _ = startup.load(folder)
    method = NamedParameters(name="fedvisit", **PLANS["fedvisit"].defaults())
    federation = federation.model_copy(update={"method": method})
    hosts = min(2, len(federation.site) - 1)
    limited = site.model_copy(update={"egress": site.egress.model_copy(update={"bytes_per_round_max": 400 * hosts})})
    unknown = local.check_policy(federation, limited, 100)
    assert unknown.verdict == "warning"
    assert unknown.message.startswith("a model and a return may leave for every site")
    assert "for returns, 1 times the largest model of the others (not known here yet)" in unknown.message
    assert f"to at least {100 * hosts} and 1 times the largest model that `check` shows at the others" in unknown.remedy
    assert local.check_policy(federation, limited, 100, visitor_bytes=300).verdict == "ok"
    larger = local.check_policy(federation, limited, 100, visitor_bytes=301)
    assert larger.verdict == "failure"
    assert f"to at least {401 * hosts}" in larger.remedy
    assert local.largest_received(folder) is None


def test_a_site_that_takes_no_part_in_the_global_test_is_told_so(folder: SiteFolder) -> None:
    federation, site, _ = startup.load(folder)
    assert not list(local.check_global_test(federation, site, 10))
    measured = federation.model_copy(update={"global_test": True})
    (finding,) = local.check_global_test(measured, site, 10)
    assert (finding.subject, finding.verdict) == ("global test", "warning")
    allowed = site.model_copy(update={"egress": site.egress.model_copy(update={"evaluate": True})})
    (finding,) = local.check_global_test(measured, allowed, 10)
    assert finding.verdict == "ok"
    (finding,) = local.check_global_test(measured, allowed, 9)
    assert finding.verdict == "warning"
    assert "9 test samples, fewer than [egress] evaluation_samples_min = 10" in finding.message


def test_distillation_that_moves_nothing_is_worth_a_warning(run_check: RunCheck, folder: SiteFolder) -> None:
    for round, metrics in ((1, {"distillation_ratio": 0.5}), (2, {"distillation_ratio": 0.0003}), (3, {})):
        append_rows(folder, ("committed", round, round_body(metrics=metrics)))
    finding = run_check()["gamma"]
    assert finding.verdict == "warning"
    assert "0.03%" in finding.message


def test_whether_the_kernel_can_confine_the_worker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.landlock, "abi", lambda: 7)
    assert local.check_confinement().verdict == "ok"
    monkeypatch.setattr(local.landlock, "abi", lambda: 0)
    finding = local.check_confinement()
    assert finding.verdict == "warning"
    assert "could read the private key" in finding.message


def test_what_the_environment_sets_is_said(folder: SiteFolder) -> None:
    site = SiteConfig.load(folder.site_toml)
    assert list(local.check_environment(folder, site, {"PATH": "/bin", "MHFL_HOME": ""})) == []

    def message(site: SiteConfig = site, **environ: str) -> str:
        (finding,) = local.check_environment(folder, site, environ)
        assert (finding.subject, finding.verdict) == ("environment", "ok")
        return finding.message

    home = str(folder.home)
    assert message(MHFL_HOME=home, XDG_STATE_HOME="/x").startswith(
        f"MHFL_HOME names the state folder, {home}. A daemon"
    )
    assert f"XDG_STATE_HOME is not used: the state folder is {home}" in message(XDG_STATE_HOME="/elsewhere")
    proxy = {"HTTPS_PROXY": "http://user:secret@proxy:3128", "no_proxy": "localhost"}
    assert 'HTTPS_PROXY, no_proxy not used: [connect] does not say proxy = "environment"' in message(**proxy)
    obeying = site.model_copy(update={"connect": site.connect.model_copy(update={"proxy": "environment"})})
    assert "HTTPS_PROXY, no_proxy used, by [connect]" in message(obeying, **proxy)
    assert "secret" not in message(obeying, **proxy)
    assert "CUDA_VISIBLE_DEVICES=1 limits the GPUs" in message(CUDA_VISIBLE_DEVICES="1")


def test_people_who_left_the_datalist_are_worth_a_warning(tmp_path: Path) -> None:
    site = TrainedSite(tmp_path / "sites")
    config = SiteConfig.load(site.folder.site_toml)
    site.list("p1", "p2")
    site.train(1, ["p1", "p2"])
    assert list(local.check_people(site.folder, config)) == []
    site.list("p1")
    (finding,) = local.check_people(site.folder, config)
    assert (finding.verdict, finding.message) == ("warning", "the datalist changed since round 1: 1 subject fewer")
    assert "mhfl-peer withdraw" in finding.remedy

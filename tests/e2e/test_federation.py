"""One undisturbed federation of three daemons, looked at from every side; then the same one, killed on the way."""

import json
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

from peer.core.rules import Rules
from peer.daemon.dispatch import now
from peer.daemon.startup import load
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import from_base64, verify_manifest
from peer.site.config.rules import make_rules
from peer.site.identity import certificates
from peer.site.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 6


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    """Enrolled, never started."""
    tables = {"top": '[schedule]\nkind = "derangement"\n', "site": '[privacy]\nleak = "every"\n'}
    return found(rounds=ROUNDS, steps=12, checkpoint_s=0.2, **tables)


@pytest.fixture(scope="module")
def calm(enrolled: LocalFederation, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """The same federation after an undisturbed run."""
    home = tmp_path_factory.mktemp("calm") / "sites"
    shutil.copytree(enrolled.home, home)
    with type(enrolled)(home, enrolled.federation) as loopback:
        tools.start(loopback, tools.sites)
        tools.finish_well(loopback)
    return loopback


def rules_of(loopback: LocalFederation, name: str) -> Rules:
    federation, _, own = load(loopback.folder(name))
    return make_rules(federation, own.name, own.round_key, without=frozenset(), stay=False)


def test_every_site_trained_on_the_scheduled_model_in_every_round(calm: LocalFederation, tools: Any) -> None:
    for name in tools.sites:
        rules = rules_of(calm, name)
        records = tools.records(calm, name)
        assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
        for record in records:
            assert [source["site"] for source in record["sources"]] == [rules.turn(record["round"])]
            assert record["missing"] == {}
            assert record["contributors"] == sorted({name, rules.turn(record["round"])})
            assert record["threads"] == 1
        assert 0 <= records[-1]["metrics"]["auc"] <= 1


def test_what_was_sent_is_the_state_at_the_end_of_the_round_before(calm: LocalFederation, tools: Any) -> None:
    for name in tools.sites:
        own = {record["round"]: record["artifact_sha256"] for record in tools.records(calm, name)}
        initial = next(body for kind, _, body in tools.rows(calm, name) if kind == "initialised")["artifact"]["sha256"]
        for receiver in tools.sites:
            for record in tools.records(calm, receiver):
                for source in record["sources"]:
                    if source["site"] == name:
                        before = own[record["round"] - 1] if record["round"] > 1 else initial
                        assert source["sha256"] == before


def test_the_ledger_lists_exactly_what_the_schedule_allows_and_its_chain_holds(calm: LocalFederation, tools) -> None:
    for name in tools.sites:
        rules = rules_of(calm, name)
        ledger = Ledger(calm.folder(name).egress_db, read_only=True)
        sent = {(record["round"], record["peer"], record["outcome"]) for record in ledger.transfers()}
        due = set()
        for round in range(1, ROUNDS + 1):
            order = rules.order(round)
            due |= {
                (round, receiver, "complete")
                for receiver in rules.others
                if order[rules.roster.index(receiver)] == rules.roster.index(rules.site)
            }
        assert sent == due
        assert ledger.verify() == []
        ledger.close()


def leaks_of(loopback: LocalFederation, name: str) -> dict[int, Any]:
    ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
    try:
        return {record["round"]: record.get("leak") for record in ledger.transfers()}
    finally:
        ledger.close()


def test_each_trained_artifact_that_left_has_its_measured_leak(calm: LocalFederation, tools: Any) -> None:
    for name in tools.sites:
        leaks = leaks_of(calm, name)
        assert leaks.pop(1) is None, "nobody has trained it yet"
        assert [leak["artifacts"] for _, leak in sorted(leaks.items())] == list(range(1, ROUNDS))
        assert all(min(leak["members"], leak["others"]) >= 1 for leak in leaks.values())
        highest = json.loads((calm.folder(name).generation(1) / "checkpoints" / "leak.json").read_bytes())
        assert [channel["highest"] for channel in highest["channels"].values()]


def test_receivers_keep_manifests_that_can_be_verified_for_ever(calm: LocalFederation, tools: Any) -> None:
    authority = certificates.pinned_authority(calm.federation.ca_certificate)
    checked = 0
    for name in tools.sites:
        for kind, round, body in tools.rows(calm, name):
            if kind != "received":
                continue
            signed = from_base64(body)
            certificate = certificates.verify_certificate(signed.certificate_der, authority, body["peer"], now())
            manifest = verify_manifest(signed, certificate)
            assert (manifest.origin, manifest.round, manifest.artifact.sha256) == (body["peer"], round, body["sha256"])
            checked += 1
    assert checked == ROUNDS * len(tools.sites)


def test_used_artifacts_are_gone_and_secrets_are_in_no_log(calm: LocalFederation, tools: Any) -> None:
    for name in tools.sites:
        folder = calm.folder(name)
        kept = {path.stem for path in (folder.generation(1) / "artifacts").iterdir()}
        own = {record["artifact_sha256"] for record in tools.records(calm, name)}
        assert kept <= own | {
            body["artifact"]["sha256"] for kind, _, body in tools.rows(calm, name) if kind == "published"
        }
        secret = (folder.pki / "round.key").read_text().strip()
        texts = [path.read_text(errors="replace") for path in folder.logs.iterdir()]
        assert all(secret not in text and "PRIVATE KEY" not in text for text in texts)
        assert (folder.pki / "site.key").stat().st_mode & 0o777 == 0o600


def strike(loopback: LocalFederation, name: str, holds: Callable[[], Any], tools: Any) -> None:
    """``kill -9`` when something holds, and start again at once."""
    tools.wait_until(holds)
    loopback.kill(name)
    loopback.start(name, "--resume", "require")


def test_kill_9_in_exchange_train_and_commit_changes_no_bit(
    calm: LocalFederation, enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any
) -> None:
    wild = copied(enrolled)
    tools.start(wild, tools.sites)

    def phase(name: str, wanted: str, round: int) -> bool:
        status = wild.show(name, "status")
        return status["phase"] == wanted and status["round"] >= round

    strike(wild, "asia", lambda: phase("asia", "train", 2), tools)
    tools.wait_until(lambda: wild.show("europe", "status")["round"] >= 3)
    for name in ("asia", "africa"):  # they hold still, so that europe is found waiting for one of them
        wild.daemons[name].send_signal(signal.SIGSTOP)
    strike(wild, "europe", lambda: phase("europe", "exchange", 3), tools)
    for name in ("asia", "africa"):
        wild.daemons[name].send_signal(signal.SIGCONT)
    committed = len(tools.records(wild, "africa"))
    strike(wild, "africa", lambda: len(tools.records(wild, "africa")) > committed, tools)
    tools.finish_well(wild)
    for name in tools.sites:
        bits = [record["artifact_sha256"] for record in tools.records(calm, name)]
        assert [record["artifact_sha256"] for record in tools.records(wild, name)] == bits
        assert leaks_of(wild, name) == leaks_of(calm, name)
        assert sum(kind == "began" for kind, _, _ in tools.rows(wild, name)) == 2


@pytest.mark.nightly
def test_fresh_begins_a_new_generation_beside_the_old(calm: LocalFederation, copied, tools) -> None:
    again = copied(calm)

    def first() -> dict[str, int]:
        """When each file of the first generation was written; who reads a journal makes files beside it."""
        files = again.folder("asia").generation(1).iterdir()
        return {path.name: path.stat().st_mtime_ns for path in files if not path.name.endswith(("-shm", "-wal"))}

    old = first()
    tools.start(again, tools.sites, "--resume", "fresh", "--stay")
    tools.wait_until(
        lambda: all(again.show(name, "status")["committed"] >= 1 for name in tools.sites),
        what=lambda: "\n".join(again.console(name)[-3000:] for name in tools.sites),
    )
    assert again.show("asia", "status")["generation"] == 2
    assert first() == old
    shown = again.show("asia", "rounds")
    assert {record["generation"] for record in shown} == {1, 2}
    assert (again.folder("asia").generation(2) / "journal.db").exists()

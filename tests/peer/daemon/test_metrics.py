"""What a daemon shows to Prometheus, metric by metric."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client.core import Metric

from fakes.sites import TRANSFER, round_body
from peer.core import events
from peer.core.events import FAULTS
from peer.core.messages import Heartbeat
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rows import OpenedRow
from peer.daemon.dispatch import Daemon
from peer.daemon.metrics import METRICS, METRICS_SHOWN_MAX, Surroundings, families
from peer.site.records.counts import Counts, TransferLabels
from peer.site.records.history import CommittedRound

AROUND = Surroundings(disk_free=5, disk_size=10, expiry_s={"site": 100.0, "ca": 200.0})
Read = Callable[..., dict[tuple[str, ...], float]]


@pytest.fixture
def read(daemon: Daemon) -> Read:
    """The samples of a metric by the values of its labels, with the journal and ledger as they are now."""

    def samples(name: str) -> dict[tuple[str, ...], float]:
        counts = Counts(daemon.folder, daemon.federation.roster)
        assert not counts.read_more()
        return by_labels(families(daemon, counts, AROUND, now_s=time.time()), name)

    return samples


def by_labels(metrics: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    labels = METRICS[name].labels
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in metrics
        for sample in family.samples
        if sample.name == name
    }


async def test_every_metric_of_the_table_is_shown_with_its_labels(daemon: Daemon) -> None:
    """A site in the middle of everything; what is shown and in no table raises already."""
    fill(daemon)
    counts = Counts(daemon.folder, daemon.federation.roster)
    counts.read_more()
    metrics = families(daemon, counts, AROUND, now_s=time.time())
    shown = {sample.name: set(sample.labels) for family in metrics for sample in family.samples}
    assert shown == {name: set(meaning.labels) for name, meaning in METRICS.items()}
    assert [family.type for family in metrics if family.name == "mhfl_site"] == ["info"]


def fill(daemon: Daemon) -> None:
    """Rows, and a state, from which every metric comes."""
    europe = SiteName("europe")
    site, journal = daemon.machine, daemon.journal
    committed = round_body(missing={"europe": "slow"}, sources=[], metrics={"auc": 0.75}, below_quorum=True)
    journal.append("committed", 1, committed)
    for round in (1, 2):
        daemon._recent.add(CommittedRound.of_row(round, committed, time_s=time.time()))
    journal.append("opened", 2, {"sources": []})
    site.memory.apply(OpenedRow(2, sources=()))
    site.memory.samples = {"training": 4, "test": 2, "unreadable": 1}
    site.peers.hear(europe, Heartbeat(1, 2, "train", 0.5, 1, 1, None), 0.0)
    site.phase = Phase.GATHERING
    site.rules = replace(site.rules, pace=replace(site.rules.pace, gather_s=600.0))
    site.progress = events.Progressed(1, 2, 1, "train", 1, 2, {"total": 0.5})
    daemon.service.account(europe).clock_skew_s = -6.0
    daemon.ledger.settle(daemon.ledger.intend(**TRANSFER, bytes=9), bytes=9, outcome="complete")


async def test_exactly_one_phase_is_the_site_s(daemon: Daemon, read: Read) -> None:
    daemon.machine.phase = Phase.ISOLATED
    phases = read("mhfl_phase")
    assert phases.keys() == {(phase,) for phase in (*map(str, Phase), "queued")}
    assert [phase for (phase,), value in phases.items() if value] == ["isolated"]


async def test_it_says_whom_the_site_waits_for_and_for_how_long(daemon: Daemon, read: Read) -> None:
    assert read("mhfl_waiting_seconds") == {}
    daemon.machine.phase = Phase.GATHERING
    assert read("mhfl_waiting_seconds").keys() == {("europe", "hello")}
    assert read("mhfl_waiting_deadline_seconds") == {}, "it waits as long as it takes"


async def test_a_peer_s_words_become_no_labels(daemon: Daemon, read: Read) -> None:
    for phase, shown in (("train", "train"), ('my"phase\n', "other")):
        daemon.machine.peers.hear(SiteName("europe"), Heartbeat(1, 7, phase, 0.25, 0, 0, None), 0.0)
        assert read("mhfl_peer_phase") == {("europe", shown): 1}
    assert read("mhfl_peer_round") == {("europe",): 7}
    assert read("mhfl_peer_progress_ratio") == {("europe",): 0.25}


async def test_a_peer_that_was_never_heard_is_unknown_and_has_no_age(daemon: Daemon, read: Read) -> None:
    assert read("mhfl_peer_state")[("europe", "unknown")] == 1
    assert read("mhfl_peer_heard") == {("europe",): 0}
    assert read("mhfl_peer_last_seen_seconds") == read("mhfl_peer_clock_skew_seconds") == {}


async def test_zero_is_said_before_anything_happens(daemon: Daemon, read: Read) -> None:
    """From nothing to one is no increase to Prometheus."""
    assert read("mhfl_peer_refusals_total") == {("europe",): 0}
    assert read("mhfl_calls_denied_total") == {("europe",): 0, ("unknown",): 0}
    assert read("mhfl_peer_means_compared_total") == {("europe", "true"): 0, ("europe", "false"): 0}
    assert read("mhfl_transfers_total")[TransferLabels("out", "europe", "model", "train", "broken")] == 0
    assert read("mhfl_worker_failures_total") == {(fault,): 0 for fault in FAULTS}


async def test_a_round_shows_who_is_in_it(daemon: Daemon, read: Read) -> None:
    body = round_body(contributors=["asia", "europe"])
    source = {"site": "europe", "round": 1, "sha256": "ab" * 32, "fallback": ""}
    many = {f"dice_{number:03}": 0.5 for number in range(200)}
    daemon.journal.append("committed", 1, {**body, "sources": [source], "metrics": {"auc": math.nan, **many}})
    assert read("mhfl_last_round_contributed") == {("europe",): 1}
    assert read("mhfl_last_round_contributors") == {(): 2}
    assert read("mhfl_last_round_missing") == {(): 0}
    figures = read("mhfl_last_round_metric")
    assert len(figures) == METRICS_SHOWN_MAX
    assert math.isnan(figures[("auc",)])
    daemon.journal.append("committed", 2, {**body, "sources": [], "missing": {"europe": "silent"}, "metrics": {}})
    assert read("mhfl_last_round_contributed") == {("europe",): 0}
    assert read("mhfl_peer_missed_rounds") == {("europe",): 1}
    assert read("mhfl_peer_contributions_missed_total") == {("europe", "silent"): 1}

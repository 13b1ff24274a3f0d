"""A site's Prometheus metrics: every metric with its meaning and its current value.

Names follow Prometheus' conventions (``mhfl_``, base units, ``_total``). A ``peer`` is always a site of the roster, and
no label holds free text, so the roster limits the number of series, whatever others send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from peer import __version__
from peer.core.events import FAULTS
from peer.core.liveness import slow_after_s
from peer.core.phases import QUEUED, Phase
from peer.core.status_document import PEER_STATES, WAIT_WORDS, SiteStatus
from peer.daemon.dispatch import Daemon
from peer.site.records.counts import Counts, TransferLabels, known_or_other


class Meaning(NamedTuple):
    """The text and labels of a metric. ``_total`` makes it a counter, ``_info`` an info."""

    text: str
    labels: tuple[str, ...] = ()


PEER = ("peer",)
WAIT = ("peer", "what")
TRANSFER = ("direction", "peer", "kind", "purpose", "outcome")
METRICS: Mapping[str, Meaning] = {
    "mhfl_build_info": Meaning("The program.", ("version",)),
    "mhfl_site_info": Meaning(
        "The site; of the digest the first 12 digits.", ("site", "federation", "digest", "method")
    ),
    "mhfl_phase": Meaning("1 for the phase that the site is in, 0 for the others.", ("phase",)),
    "mhfl_phase_seconds": Meaning("How long the site has been in its phase."),
    "mhfl_failed": Meaning("1 if training has failed and waits for the operator."),
    "mhfl_generation": Meaning("The generation of the site's state."),
    "mhfl_rounds": Meaning("How many rounds the federation has."),
    "mhfl_round": Meaning("The round in progress, or the last one that is over."),
    "mhfl_round_committed": Meaning("The last round that is committed here."),
    "mhfl_round_elapsed_seconds": Meaning("Since the open round began, or the daemon in it; none between rounds."),
    "mhfl_exchange_deadline_seconds": Meaning("How long a slow peer is waited for at present."),
    "mhfl_time_left_seconds": Meaning("Estimate until the last round is over; none until two rounds are."),
    "mhfl_rounds_committed_total": Meaning("Rounds committed here, in all generations."),
    "mhfl_rounds_skipped_total": Meaning("Rounds that this site jumped over because it was behind."),
    "mhfl_rounds_below_quorum_total": Meaning("Rounds committed with fewer contributors than the quorum."),
    "mhfl_last_round_timestamp_seconds": Meaning("When the last round was committed, in Unix time."),
    "mhfl_last_round_duration_seconds": Meaning("Training time of the last committed round."),
    "mhfl_last_round_contributors": Meaning("Sites, this one included, whose work is in the last committed round."),
    "mhfl_last_round_missing": Meaning("Sites that should have contributed to the last committed round and did not."),
    "mhfl_last_round_contributed": Meaning(
        "1 if the peer contributed to it, 0 if it is missing; none if not due.", PEER
    ),
    "mhfl_last_round_metric": Meaning("Figures of the last committed round, evaluation included.", ("metric",)),
    "mhfl_peer_contributions_total": Meaning("Rounds that the peer contributed to.", PEER),
    "mhfl_peer_contributions_missed_total": Meaning("Rounds that miss the peer's contribution.", ("peer", "reason")),
    "mhfl_peer_missed_rounds": Meaning("In how many of its due rounds in a row the peer has been missing.", PEER),
    "mhfl_peer_state": Meaning("1 for the peer's state as seen from here, 0 for the others.", ("peer", "state")),
    "mhfl_peer_heard": Meaning("1 if the peer was heard within the silence limit.", PEER),
    "mhfl_peer_last_seen_seconds": Meaning("Since the last authenticated byte of the peer.", PEER),
    "mhfl_peer_phase": Meaning("1 for the phase that the peer last told; no other is shown.", ("peer", "phase")),
    "mhfl_peer_round": Meaning("The round that the peer last told.", PEER),
    "mhfl_peer_progress_ratio": Meaning("How much of its stage the peer has done.", PEER),
    "mhfl_peer_clock_skew_seconds": Meaning("The peer's clock minus this one, at its last greeting.", PEER),
    "mhfl_peer_refusals_total": Meaning("What the peer sent or did that was not acceptable.", PEER),
    "mhfl_peer_means_compared_total": Meaning("Means of the peer compared with this site's.", ("peer", "agrees")),
    "mhfl_waiting_seconds": Meaning("How long the site has waited for the peer; none where it does not.", WAIT),
    "mhfl_waiting_deadline_seconds": Meaning("Until the site goes on without the peer.", WAIT),
    "mhfl_calls_denied_total": Meaning("Calls turned away and journalled, by caller.", PEER),
    "mhfl_training_step": Meaning("Steps done of the stage in hand; none while nothing trains.", ("stage",)),
    "mhfl_training_steps": Meaning("Steps of the stage in hand.", ("stage",)),
    "mhfl_training_loss": Meaning("Loss of the stage in hand, by term.", ("stage", "term")),
    "mhfl_samples": Meaning("Samples of this site, by split; unreadable ones are left out.", ("split",)),
    "mhfl_worker_up": Meaning("1 while the training process runs."),
    "mhfl_worker_failures_total": Meaning("Failures of the training process.", ("fault",)),
    "mhfl_transfers_total": Meaning("Transfers of artifacts, figures and exports that ended.", TRANSFER),
    "mhfl_transfer_bytes_total": Meaning("Their bytes; where the outcome is unknown, those that were meant.", TRANSFER),
    "mhfl_transfers_moving": Meaning("Transfers under way.", ("direction",)),
    "mhfl_messages_sent_total": Meaning("Greetings, beats and manifests sent since the daemon began.", PEER),
    "mhfl_message_bytes_sent_total": Meaning("Their bytes.", PEER),
    "mhfl_egress_rows_total": Meaning("Rows of the egress ledger that are there."),
    "mhfl_egress_head_rows": Meaning("Rows of the egress ledger by the number of its last one."),
    "mhfl_certificate_expiry_timestamp_seconds": Meaning("When it expires, in Unix time.", ("certificate",)),
    "mhfl_disk_free_bytes": Meaning("Free space for this user where the site's state lies."),
    "mhfl_disk_size_bytes": Meaning("The size of that file system."),
}
"""Every metric, beside those of the processes: ``process_*`` and, of the training, ``mhfl_worker_process_*``."""

PHASES = (*map(str, Phase), QUEUED)
METRICS_SHOWN_MAX = 100
"""Figures of a round; evaluations of a hundred classes have more, which `rounds` shows."""
DIGEST_SHOWN = 12

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, the values of its labels, its value."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State read from the disk beside journal and ledger."""

    disk_free: int
    disk_size: int
    expiry_s: Mapping[str, float]


def families(daemon: Daemon, counts: Counts, surroundings: Surroundings, *, now_s: float) -> list[Metric]:
    """Build every metric of a running daemon.

    Args:
        daemon: only read; call this in its event loop.
        counts: read up to now.
    """
    status = daemon.status()
    metrics: dict[str, Metric] = {}
    parts = (
        _site(status),
        _rounds(daemon, status, counts, now_s),
        _peers(status, counts),
        _waiting(status),
        _training(status, counts),
        _transfers(daemon, status, counts),
        _surroundings(surroundings),
    )
    for part in parts:
        for name, values, value in part:
            if name not in metrics:
                metrics[name] = _family(name)
            _add(metrics[name], METRICS[name], values, value)
    return list(metrics.values())


def _family(name: str) -> Metric:
    meaning = METRICS[name]
    if name.endswith("_total"):
        return CounterMetricFamily(name, meaning.text, labels=meaning.labels)
    if name.endswith("_info"):
        return InfoMetricFamily(name.removesuffix("_info"), meaning.text)
    return GaugeMetricFamily(name, meaning.text, labels=meaning.labels)


def _add(family: Metric, meaning: Meaning, values: tuple[str, ...], value: float) -> None:
    if isinstance(family, InfoMetricFamily):
        family.add_metric((), dict(zip(meaning.labels, values, strict=True)))
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(values, float(value))


def _site(status: SiteStatus) -> Iterator[Sample]:
    yield "mhfl_build_info", (__version__,), 1
    names = (status["site"], status["federation"], status["digest"][:DIGEST_SHOWN], status["method"])
    yield "mhfl_site_info", names, 1
    for phase in PHASES:
        yield "mhfl_phase", (phase,), phase == status["phase"]
    if status["phase_s"] is not None:
        yield "mhfl_phase_seconds", (), status["phase_s"]
    yield "mhfl_failed", (), bool(status["failure"])
    yield "mhfl_generation", (), status["generation"]


def _rounds(daemon: Daemon, status: SiteStatus, counts: Counts, now_s: float) -> Iterator[Sample]:
    memory, rules = daemon.machine.memory, daemon.machine.rules
    yield "mhfl_rounds", (), status["rounds"]
    yield "mhfl_round", (), status["round"]
    yield "mhfl_round_committed", (), status["committed"]
    if memory.open is not None and counts.opened_s is not None:
        yield "mhfl_round_elapsed_seconds", (), max(0.0, now_s - max(counts.opened_s, daemon.started_s))
    yield "mhfl_exchange_deadline_seconds", (), slow_after_s(memory.waits_s, rules.pace)
    if status["left_s"] is not None:
        yield "mhfl_time_left_seconds", (), status["left_s"]
    for name, count in counts.rounds.items():
        yield f"mhfl_rounds_{name}_total", (), count
    last = counts.last
    if last is None:
        return
    fresh = last.fresh(counts.folder.site)
    yield "mhfl_last_round_timestamp_seconds", (), last.time_s
    yield "mhfl_last_round_duration_seconds", (), last.row.duration_s
    yield "mhfl_last_round_contributors", (), len(last.row.contributors)
    yield "mhfl_last_round_missing", (), len(last.missing)
    for peer in rules.others:
        if peer in fresh or peer in last.missing:
            yield "mhfl_last_round_contributed", (peer,), peer in fresh
    for metric in sorted(last.metrics)[:METRICS_SHOWN_MAX]:
        yield "mhfl_last_round_metric", (metric,), last.metrics[metric]


def _peers(status: SiteStatus, counts: Counts) -> Iterator[Sample]:
    for name, peer in status["peers"].items():
        for state in PEER_STATES:
            yield "mhfl_peer_state", (name, state), state == peer["state"]
        yield "mhfl_peer_heard", (name,), peer["state"] == "heard"
        if peer["phase"] is not None:
            yield "mhfl_peer_phase", (name, known_or_other(peer["phase"], PHASES)), 1
        for metric, value in (
            ("mhfl_peer_round", peer["round"]),
            ("mhfl_peer_progress_ratio", peer["progress"]),
            ("mhfl_peer_last_seen_seconds", peer["last_seen_s"]),
            ("mhfl_peer_clock_skew_seconds", peer["clock_skew_s"]),
        ):
            if value is not None:
                yield metric, (name,), value
        if (spoken := peer["spoken"]) is not None:
            yield "mhfl_messages_sent_total", (name,), spoken["messages"]
            yield "mhfl_message_bytes_sent_total", (name,), spoken["bytes"]
    for metric, by_peer in (
        ("mhfl_peer_contributions_total", counts.contributed),
        ("mhfl_peer_missed_rounds", counts.missed_last),
        ("mhfl_peer_refusals_total", counts.refusals),
        ("mhfl_calls_denied_total", counts.denied),
    ):
        for name, count in by_peer.items():
            yield metric, (name,), count
    for labels, count in counts.missed.items():
        yield "mhfl_peer_contributions_missed_total", labels, count
    for (name, agrees), count in counts.agreed.items():
        yield "mhfl_peer_means_compared_total", (name, str(agrees).lower()), count


def _waiting(status: SiteStatus) -> Iterator[Sample]:
    """Yield the peers that the site waits for, why, and for how long; at most one entry per peer."""
    for wait in status["waiting_for"]:
        labels = (wait["site"], WAIT_WORDS.get(wait["kind"], wait["kind"]))
        yield "mhfl_waiting_seconds", labels, wait["since_s"]
        if wait["deadline_s"] is not None:
            yield "mhfl_waiting_deadline_seconds", labels, wait["deadline_s"]


def _training(status: SiteStatus, counts: Counts) -> Iterator[Sample]:
    if training := status["training"]:
        stage = training["stage"]
        yield "mhfl_training_step", (stage,), training["step"]
        yield "mhfl_training_steps", (stage,), training["steps"]
        for term, loss in training["loss"].items():
            yield "mhfl_training_loss", (stage, term), loss
    for split, count in status["samples"].items():
        yield "mhfl_samples", (split,), count
    yield "mhfl_worker_up", (), status["worker_pid"] is not None
    for fault in FAULTS:
        yield "mhfl_worker_failures_total", (fault,), counts.faults[fault]


def _transfers(daemon: Daemon, status: SiteStatus, counts: Counts) -> Iterator[Sample]:
    rules = daemon.machine.rules
    due: set[TransferLabels] = set()
    if rules.plan.artifact is not None:  # zeros for series that may appear later, or increase() misses the first
        for peer in rules.others:
            due.add(TransferLabels("in", peer, rules.plan.artifact, "train", "complete"))
            due |= {TransferLabels("out", peer, rules.plan.artifact, "train", end) for end in ("complete", "broken")}
    for what in sorted(due | counts.transfers.keys()):
        yield "mhfl_transfers_total", what, counts.transfers[what]
        yield "mhfl_transfer_bytes_total", what, counts.bytes[what]
    for direction in ("in", "out"):
        moving = sum(transfer["direction"] == direction for transfer in status["transfers"])
        yield "mhfl_transfers_moving", (direction,), moving
    yield "mhfl_egress_rows_total", (), counts.ledger_rows
    yield "mhfl_egress_head_rows", (), counts.ledger_seq


def _surroundings(surroundings: Surroundings) -> Iterator[Sample]:
    for certificate, expiry_s in surroundings.expiry_s.items():
        yield "mhfl_certificate_expiry_timestamp_seconds", (certificate,), expiry_s
    yield "mhfl_disk_free_bytes", (), surroundings.disk_free
    yield "mhfl_disk_size_bytes", (), surroundings.disk_size

"""The documents with a site's records that commands print with `--json`: keys, types and meanings.

``DOCUMENTS`` maps a command to the type of its document. Each record is a ``TypedDict`` with a
docstring, and its keys are ``Annotated`` with their meaning: ``typing.get_type_hints(record,
include_extras=True)`` lists them. Times are Unix seconds, and durations end in ``_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from peer.core.leak import LeakFacts
from peer.core.privacy import SpendingFacts
from peer.core.status_document import PeerState, PeerStatus, PeerWait, SiteStatus
from peer.documents.commands import LedgerHead

RouteState = Literal["planned", "waiting", "moving", "arrived", "missing"]
OwnState = Literal["running", "unresponsive", "down", "finished", "new", "unreadable"]


class SourceRecord(TypedDict):
    """An artifact of another site that a round used."""

    site: Annotated[str, "site that sent it"]
    round: Annotated[int, "round of the artifact"]
    sha256: Annotated[str, "digest of its file"]
    fallback: Annotated[bool, "whether it is an older one, used because this round's did not arrive"]


class RoundRecord(TypedDict):
    """A committed round."""

    round: Annotated[int, "its number"]
    generation: Annotated[int, "generation of the site's state"]
    sources: Annotated[list[SourceRecord], "artifacts of other sites that the round used"]
    contributors: Annotated[list[str], "sites whose work is in the result, this one included"]
    missing: Annotated[dict[str, str], "sites that should have contributed and did not, each with the reason"]
    returned: Annotated[
        list[SourceRecord], "where models visit: copies of the own model that came home and were merged"
    ]
    missing_returns: Annotated[
        dict[str, str], "where models visit: sites whose copy of the own model was not merged, each with the reason"
    ]
    cut: Annotated[
        dict[str, str],
        "sites whose contribution the bounds of the average left out (no contributors then) or weighed less, each with "
        "the reason",
    ]
    below_quorum: Annotated[bool, "whether fewer sites contributed than the federation's quorum"]
    skipped: Annotated[list[int], "rounds before this one that the site skipped"]
    artifact_sha256: Annotated[str | None, "digest of the artifact that the site made; null where it made none"]
    aggregate_sha256: Annotated[str | None, "digest of the mean; null where the method does not average"]
    metrics: Annotated[dict[str, float], "losses and steps of training, metrics of the site's own splits"]
    threads: Annotated[int, "threads that trained"]
    duration_s: Annotated[float, "training time"]
    agrees: Annotated[dict[str, bool], "by peer, whether its mean has the same bits"]
    equivocated: Annotated[list[str], "sites that signed two artifacts for the round; `evidence` has the proofs"]
    made_in: Annotated[
        int | None, "with `staleness = 1`, the round whose training the sources hold, 0: the initial models; else null"
    ]


class TransferRecord(TypedDict):
    """An artifact, figures or an export, received or sent."""

    time: Annotated[float, "when it was received, or when this site intended to send it"]
    direction: Annotated[Literal["in", "out"], "as seen from this site"]
    peer: Annotated[str, "the other site, or the receiver of an export"]
    purpose: Annotated[str, "`train`, `handback`, `return`, `evaluate` or `export`"]
    kind: Annotated[str, "kind of artifact, `metrics`, or `opening`: seeds that remove the site's masks from a sum"]
    round: Annotated[int, "its round"]
    sha256: Annotated[str, "digest of the artifact"]
    bytes: Annotated[int, "bytes that were sent; those that were intended where the outcome is `open` or `unknown`"]
    outcome: Annotated[str, "`complete`, `broken`, `open` (no end yet) or `unknown` (a crash ended it)"]
    leak: Annotated[LeakFacts | None, "how much the artifact tells of its people; null if not measured, or received"]
    spent: Annotated[
        SpendingFacts | None, "what had left of a person's privacy with the artifact; null without noise, or received"
    ]
    masked: Annotated[bool | None, "whether it left under masks, for a secure sum; null if received"]


class EventRecord(TypedDict):
    """A row of the journal."""

    seq: Annotated[int, "number of the row in its generation's journal"]
    time: Annotated[float, "when it was written"]
    kind: Annotated[str, "kind of the row"]
    round: Annotated[int, "its round"]
    body: Annotated[dict[str, Any], "keys by the kind of the row; no tensor lists, no manifests, digests of openings"]


class EvaluationCell(TypedDict, total=False):
    """A model on one site's test split: either `metrics` and `counts`, or a `reason`."""

    metrics: Annotated[dict[str, float], "metrics by name"]
    counts: Annotated[dict[str, int], "counts, such as `samples`"]
    reason: Annotated[str, "why there are no metrics"]


class MeanMetric(TypedDict):
    """The unweighted mean of a metric over sites."""

    value: Annotated[float, "the mean"]
    sites: Annotated[int, "number of sites that reported the metric"]


class EvaluationRecord(TypedDict):
    """The site's model of one round on every site's test split (Global Test)."""

    round: Annotated[int, "round after which the model was evaluated"]
    cells: Annotated[dict[str, EvaluationCell], "by site"]
    mean: Annotated[dict[str, MeanMetric], "by metric"]
    global_test: Annotated[
        dict[str, float] | None, "means of the metrics that all sites reported; null if a cell is missing"
    ]


class PlannedRound(TypedDict):
    """The senders and receivers of one round."""

    round: Annotated[int, "its number"]
    order: Annotated[list[str] | None, "the schedule's permutation of the sites; null where there is none"]
    receives_from: Annotated[dict[str, list[str]], "by receiver, the senders"]
    visits: Annotated[list[list[int]] | None, "the order of each visit; null where models do not visit"]
    members: Annotated[list[str], "the sites that take part"]
    made_in: Annotated[
        int | None,
        "with `staleness = 1`, the round whose training the round's artifacts hold, 0: the initial models; else null",
    ]


class PlanDocument(TypedDict):
    """The schedule of the coming rounds."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    schedule: Annotated[str, "kind of the schedule"]
    sites: Annotated[list[str], "all sites"]
    pattern: Annotated[str, "`permutation`, `circulate`, `all_to_all`, `visit` or `none`"]
    artifact: Annotated[str | None, "kind of artifact that sites exchange"]
    rounds: Annotated[list[PlannedRound], "the requested rounds"]


class Route(TypedDict):
    """An artifact's way from one site to another in one round."""

    round: Annotated[int, "the round"]
    sender: Annotated[str, "the site that sends"]
    receiver: Annotated[str, "the site that receives"]
    kind: Annotated[str, "kind of artifact"]
    state: Annotated[
        RouteState,
        "`planned` (nothing is known of it yet), `waiting` (the receiver waits), `moving`, `arrived`, or `missing` "
        "(the receiver went on without)",
    ]
    bytes: Annotated[int | None, "bytes of the artifact; null where no site of this machine knows"]
    share: Annotated[float | None, "how much of a moving artifact has arrived, 0 to 1; null where unknown"]
    reason: Annotated[str, "of a missing one: why the receiver went on without it"]


class RefusalGroup(TypedDict):
    """Equal refusals of one site by another, or equal answers by which one declined the other's calls."""

    by: Annotated[str, "the site that refused"]
    of: Annotated[str, "the site whose message or artifact was refused"]
    reason: Annotated[str, "why, in words"]
    declined: Annotated[bool, "whether `of` declined to send to `by`; else `by` refused what it received"]
    times: Annotated[int, "how many of the newest refusals are equal to this one"]
    first_round: Annotated[int, "the first round of these"]
    last_round: Annotated[int, "the last round of these"]
    old: Annotated[bool, "whether all of them are more than five rounds ago, or the federation has finished"]


class RoomTaken(TypedDict):
    """How much of its room a site has taken: from what it reaches alone to what all data pooled give."""

    metric: Annotated[str, "of `[reference]` in site.toml, on the site's own test data"]
    alone: Annotated[float, "its value when the site trains alone, by `[reference]`"]
    pooled: Annotated[float, "its value with the data of all sites pooled, by `[reference]`"]
    round: Annotated[int, "the newest evaluated round"]
    value: Annotated[float, "the metric after that round"]
    share: Annotated[float | None, "1 where all is taken; null where the room is less than 0.01, or 0.1 dB"]


class OverviewRow(TypedDict):
    """One site of the roster: what it says of itself, or the newest that another site heard of it."""

    site: Annotated[str, "its name"]
    seen_by: Annotated[str, "the site that says this; itself where it lives on this machine"]
    state: Annotated[
        OwnState | PeerState,
        "of a site of this machine `running`, `unresponsive`, `down`, `finished`, `new` or `unreadable`; of another "
        "one as in `peers`",
    ]
    round: Annotated[int | None, "round in progress, or the last one that is over"]
    phase: Annotated[str | None, "what the site does"]
    progress: Annotated[float | None, "how much of its stage is done, 0 to 1"]
    last_seen_s: Annotated[float | None, "since it was last heard; null for a site of this machine"]
    software: Annotated[str | None, "program and version"]
    certificate_days: Annotated[int | None, "whole days until its certificate expires, as far as known"]
    waiting_for: Annotated[list[PeerWait], "whom a site of this machine waits for"]
    refuses: Annotated[dict[str, int], "by site, how many of its messages or artifacts this one refused lately"]
    losses: Annotated[str, "of a site of this machine: how much its rounds went on without by refusals, and of whom"]
    failure: Annotated[str, "why its training has failed; else empty"]
    room: Annotated[RoomTaken | None, "of a site of this machine with `[reference]` and an evaluated round; else null"]


class Attention(TypedDict):
    """Something that an operator should look at."""

    site: Annotated[str, "the site that it is about"]
    urgent: Annotated[bool, "whether the site trains worse or not at all because of it"]
    text: Annotated[str, "what it is, and what to do"]


class FederationOverview(TypedDict):
    """A federation as the sites of this machine know it: the document of `overview`."""

    time: Annotated[float, "when it was read"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    method: Annotated[str, "name of the method"]
    rounds: Annotated[int, "rounds of the federation"]
    verdict: Annotated[str, "how far it is, who needs attention, what comes next"]
    round: Annotated[int, "the round that `routes` are of: the median of the sites of this machine"]
    made_in: Annotated[
        int | None,
        "with `staleness = 1`, the round whose training its artifacts hold, 0: the initial models; else null",
    ]
    sites: Annotated[list[OverviewRow], "every site of the roster"]
    routes: Annotated[list[Route], "who sends to whom in this round"]
    refusals: Annotated[list[RefusalGroup], "who refuses whom, as far as sites of this machine know"]
    attention: Annotated[list[Attention], "what an operator should look at, the urgent first"]


class DashboardServed(TypedDict):
    """The page that ``dashboard`` serves until it ends."""

    link: Annotated[str, "the link with its token"]
    port: Annotated[int, "the port on 127.0.0.1"]
    sites: Annotated[list[str], "the sites that it shows, as federation/site"]


class EgressReported(TypedDict):
    """The page about what left a site, and whether its ledger is whole."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    file: Annotated[str, "the page that was written"]
    transfers: Annotated[int, "number of transfers"]
    bytes: Annotated[int, "bytes of all transfers; an open or unknown one counts in full"]
    rows: Annotated[int, "rows of the ledger"]
    head: Annotated[LedgerHead, "head of the ledger's chain"]
    witnesses: Annotated[list[str], "sites whose witness files were compared"]
    problems: Annotated[list[str], "contradictions; with one, the command exits with 18"]


class BugReportMember(TypedDict):
    """A file of a bug report."""

    name: Annotated[str, "its name"]
    bytes: Annotated[int, "its size"]
    meaning: Annotated[str, "what it is"]


class BugReported(TypedDict):
    """The bug report that was written."""

    site: Annotated[str, "this site"]
    file: Annotated[str, "the zip file"]
    members: Annotated[list[BugReportMember], "what is in it"]


class HealthDocument(TypedDict):
    """Whether the daemon of a site works."""

    site: Annotated[str, "this site"]
    serves: Annotated[bool, "whether its port is open to peers"]
    trains: Annotated[bool, "whether training has not failed for good"]


class ActionDocument(TypedDict):
    """A command of the operator to the daemon, and its effect."""

    site: Annotated[str, "this site"]
    action: Annotated[Literal["pause", "resume", "stop"], "the command"]
    effect: Annotated[str, "what the daemon does now, in words"]


class ListedSite(TypedDict):
    """A site of this machine: an element of `list`."""

    federation: Annotated[str, "name of the federation"]
    site: Annotated[str, "the site"]
    daemon: Annotated[
        Literal["running", "unresponsive", "down", "unreadable"], "as in `status`; `unreadable` where its files are"
    ]
    phase: Annotated[str | None, "what the site does"]
    round: Annotated[int | None, "round in progress, or the last one that is over"]
    rounds: Annotated[int | None, "rounds of the federation"]
    since: Annotated[float | None, "when the phase began, Unix time; null while the daemon is down"]
    address: Annotated[str | None, "where others dial the site by federation.toml; else where it listens"]
    problem: Annotated[str, "why its files cannot be read, its training has failed or it is no member; else empty"]


class SiteOutcome(TypedDict):
    """How `start --all` or `stop --all` went at a site."""

    federation: Annotated[str, "name of the federation"]
    site: Annotated[str, "the site"]
    effect: Annotated[str, "what its daemon does now, in words"]
    exit_code: Annotated[int, "what the command would exit with for this site alone; 0 where it went well"]
    problem: Annotated[str, "what went wrong, or why the site is no member; else empty"]


DOCUMENTS: Mapping[str, Any] = {
    "status": SiteStatus,
    "peers": dict[str, PeerStatus],
    "rounds": list[RoundRecord],
    "transfers": list[TransferRecord],
    "egress": list[TransferRecord],
    "events": list[EventRecord],
    "evaluation": list[EvaluationRecord],
    "plan": PlanDocument,
    "overview": list[FederationOverview],
    "dashboard": DashboardServed,
    "egress report": EgressReported,
    "bugreport": BugReported,
    "list": list[ListedSite],
    "start": list[SiteOutcome],
    "health": HealthDocument,
    "pause": ActionDocument,
    "resume": ActionDocument,
    "stop": ActionDocument,
    "stop --all": list[SiteOutcome],
}
"""By command, the type of the document that `--json` prints: a record, a list of records, or records by name."""

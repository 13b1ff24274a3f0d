"""The document of `status`: its only schema, and what can be read from it; imported by commands that start at once.

``peer.core.status`` fills the part that the state machine knows, and the daemon adds the data of connections and
processes (``SiteStatus``). For a site whose daemon is down, the command fills the same keys from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args

from peer.core.leak import LeakFacts
from peer.core.limits import REFUSAL_ROUNDS_SHOWN
from peer.core.privacy import SpendingFacts
from peer.core.roster import SiteName

PeerState = Literal["heard", "silent", "unknown", "absent"]
PEER_STATES: tuple[PeerState, ...] = get_args(PeerState)
WaitKind = Literal[
    "hello",
    "progress",
    "evaluation",
    "last_round",
    "notice",
    "secure_sum",
    "model",
    "head",
    "proxy",
    "messenger",
    "return",
    "prototype",
    "prediction",
    "sums",
]
WAIT_KINDS: tuple[WaitKind, ...] = get_args(WaitKind)
"""Every kind of wait: six for a peer's messages, then the kinds of artifacts."""
WAIT_WORDS: Mapping[WaitKind, str] = {
    "last_round": "its last round",
    "notice": "its answer to the notice",
    "secure_sum": "its part in the sum",
}
"""Words for people, if they differ from the kind itself."""


class PeerWait(TypedDict):
    """A peer that the site waits for."""

    site: Annotated[str, "the peer"]
    kind: Annotated[WaitKind, "what the site waits for: one word of a closed list"]
    artifact: Annotated[str, "the same for people, with the owner's name where the peer is not the owner"]
    since_s: Annotated[float, "for how long the site has waited"]
    deadline_s: Annotated[float | None, "when the site goes on without it, from now; null where it waits for good"]


class TrainingProgress(TypedDict, total=False):
    """The training stage in hand; empty while nothing trains."""

    stage: Annotated[str, "name of the stage"]
    step: Annotated[int, "optimiser steps that are done"]
    steps: Annotated[int, "optimiser steps of the whole stage"]
    loss: Annotated[dict[str, float], "newest value of every loss term"]


class RefusedEntry(TypedDict):
    """Something that a peer sent or did and that this site refused, or a call of this site that the peer declined."""

    site: Annotated[str, "the peer"]
    round: Annotated[int, "round in which it was refused"]
    reason: Annotated[str, "why, in words"]
    declined: Annotated[bool, "whether the peer declined to send or to answer, for a reason in its own words"]


class PeerContributions(TypedDict):
    """What the newest 50 committed rounds of this generation expected of a peer, and went on without."""

    expected: Annotated[int, "models, copies or other artifacts that the rounds waited for"]
    refused: Annotated[int, "those that the rounds went on without, since this site refused or the peer declined"]
    last_refused: Annotated[int | None, "the last round that went on without one of these; null: no round"]


class LastRound(TypedDict):
    """The newest committed round."""

    round: Annotated[int, "its number"]
    contributors: Annotated[list[str], "sites whose work is in it, this one included"]
    missing: Annotated[dict[str, str], "sites that should have contributed and did not, each with the reason"]
    missing_returns: Annotated[
        dict[str, str], "sites whose copy of this site's model was not merged, each with the reason"
    ]
    duration_s: Annotated[float, "training time"]


class SentMessages(TypedDict):
    """Messages that left for a peer beside artifacts, since the daemon started."""

    messages: Annotated[int, "greetings, heartbeats and manifests"]
    bytes: Annotated[int, "their bytes"]


ArtifactBytes = TypedDict(
    "ArtifactBytes",
    {"in": Annotated[int, "bytes received from the peer"], "out": Annotated[int, "bytes sent to the peer"]},
)
ArtifactBytes.__doc__ = "Bytes of artifacts since the daemon started."


class PeerProgress(TypedDict):
    """A peer as the state machine sees it."""

    state: Annotated[
        PeerState,
        "`heard`, `silent` (for `silence_s`), `unknown` (never heard) or `absent` (named by `start --without`)",
    ]
    round: Annotated[int | None, "round that the peer last told"]
    phase: Annotated[str | None, "phase that the peer last told"]
    progress: Annotated[float | None, "how much of its stage the peer has done, 0 to 1"]
    last_seen_s: Annotated[float | None, "since the last authenticated byte of the peer"]


class PeerStatus(PeerProgress):
    """A peer as the daemon sees it. With the daemon down, `round` and `last_seen_s` are of the newest artifact of the
    peer that arrived, `state` is `unknown`, and all other values are null."""

    spoken: Annotated[SentMessages | None, "messages sent to the peer beside artifacts, since the daemon started"]
    artifact_bytes: Annotated[ArtifactBytes | None, "artifacts received and sent since the daemon started"]
    clock_skew_s: Annotated[float | None, "the peer's clock minus this one, at its last greeting"]
    software: Annotated[str | None, "program and version, as the peer's last greeting states them"]
    protocol: Annotated[int | None, "version of the protocol that both sites speak"]
    features: Annotated[list[str] | None, "what else the peer's program understands"]
    address: Annotated[str | None, "where the daemon calls the peer"]
    route: Annotated[str | None, "how, once the peer answered there: `direct`, or such as `proxy p:3128, relay gate`"]
    problem: Annotated[str | None, "why the daemon's last call to the peer failed, and what to do; else empty"]
    epoch: Annotated[int | None, "number of the newest amendment that the peer stated; 0: federation.toml as it is"]
    called_s: Annotated[float | None, "since the peer's last call reached this site"]


class TransferInProgress(TypedDict):
    """A transfer under way."""

    direction: Annotated[Literal["in", "out"], "as seen from this site"]
    peer: Annotated[str, "the other site"]
    purpose: Annotated[str, "`train`, `handback`, `return` or `evaluate`"]
    kind: Annotated[str, "kind of artifact"]
    round: Annotated[int, "round of the artifact"]
    bytes: Annotated[int, "bytes of the whole transfer"]
    received: Annotated[NotRequired[int], "bytes so far; only of incoming transfers"]


class RelayState(TypedDict):
    """A relay at which the site parks connections."""

    name: Annotated[str, "the relay's name"]
    address: Annotated[str, "where the site dials it"]
    parked: Annotated[int, "connections that wait for a caller"]
    carrying: Annotated[int, "connections that carry a caller now"]
    problem: Annotated[str, "why none is parked; else empty"]


class SiteTraffic(TypedDict):
    """What a relay holds and has carried for a site."""

    parked: Annotated[int, "connections that wait for a caller"]
    carrying: Annotated[int, "connections that carry a caller now"]
    carried_connections: Annotated[int, "callers so far"]
    carried_bytes: Annotated[int, "bytes of callers that are gone, both directions"]


class BestAndNewestRound(TypedDict):
    """The best round on the site's own validation data, and the newest one beside it."""

    metric: Annotated[str, "by which the rounds are compared"]
    round: Annotated[int, "the best round so far: what `predict` and `export` take with `--round best`"]
    value: Annotated[float, "the metric after that round"]
    newest_round: Annotated[int, "the newest round that was evaluated"]
    newest_value: Annotated[float, "the metric after it"]


class MeasuredLeak(LeakFacts):
    """The measured leak of the artifact that was published last."""

    kind: Annotated[str, "kind of artifact"]
    owner: Annotated[str, "the site whose model it is"]


class _Site(TypedDict):
    """What the state machine knows of the site itself."""

    site: Annotated[str, "this site"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    method: Annotated[str, "name of the method"]
    generation: Annotated[int, "generation of the site's state"]
    phase: Annotated[str, "what the site does; with the daemon down `new`, `down` or `finished`"]
    phase_s: Annotated[float | None, "for how long it has been in this phase; null with the daemon down"]
    round: Annotated[int, "round in progress, or the last one that is over"]
    rounds: Annotated[int, "rounds of the federation"]
    committed: Annotated[int, "last committed round"]
    waiting_for: Annotated[list[PeerWait], "peers that the site waits for"]
    training: Annotated[TrainingProgress, "training stage in hand; empty while nothing trains"]
    samples: Annotated[dict[str, int], "samples of this site by split, unreadable ones left out"]
    weights: Annotated[str | None, "what fitted of the file of `[model] weights`; null without one"]
    best_round: Annotated[
        BestAndNewestRound | None, "best and newest round on validation data; null without such data or round"
    ]
    leak: Annotated[
        MeasuredLeak | None, "how much the artifact that was published last tells of its people; null if not measured"
    ]
    spent: Annotated[
        SpendingFacts | None, "what has left of a person's privacy, with the newest artifact; null without noise"
    ]
    refusals: Annotated[list[RefusedEntry], "newest refusals since the daemon started"]
    failure: Annotated[str, "why training has failed and waits for the operator; else empty"]
    departed: Annotated[str, "why this site is no member any more; empty while it is one"]


class MachineStatus(_Site):
    """The part of ``SiteStatus`` that the state machine knows."""

    peers: Annotated[dict[str, PeerProgress], "the other sites by name"]


class SiteStatus(_Site):
    """Where a site is: the document of `status`."""

    peers: Annotated[dict[str, PeerStatus], "the other sites by name"]
    daemon: Annotated[
        Literal["running", "unresponsive", "down"],
        "whether the daemon answered; else its folder was read: `unresponsive` while a process holds it",
    ]
    federation: Annotated[str, "name of the federation"]
    last_round: Annotated[LastRound | None, "newest committed round; null before the first"]
    contributions: Annotated[dict[str, PeerContributions], "by peer, what the rounds expected and went on without"]
    held: Annotated[
        str,
        "what holds the site, and what ends that; empty unless its phase is `held`, or its amendment has not arrived",
    ]
    left_s: Annotated[
        float | None, "estimate until the last round is over; null before two rounds are, and while the site is held"
    ]
    certificate_days: Annotated[int | None, "whole days that the certificate on disk is valid for"]
    datalist: Annotated[str, "how many people of the last trained round the datalist has no more; empty if none"]
    transfers: Annotated[list[TransferInProgress], "transfers under way"]
    listen: Annotated[str, "address and port that peers can call; empty while the port is closed"]
    relays: Annotated[list[RelayState], "relays through which others reach the site"]
    relayed: Annotated[dict[str, SiteTraffic], "by site: what this site carries as its relay; empty where it is none"]
    pid: Annotated[int | None, "process of the daemon, or of what holds the folder"]
    worker_pid: Annotated[int | None, "process of the training worker; null while there is none"]
    started: Annotated[float | None, "when the daemon started, Unix time"]
    software: Annotated[str, "program and version of the daemon; with the daemon down, of this command"]


def is_old_refusal(round: int, status: Mapping[str, Any]) -> bool:
    """Return whether a refusal of a round is history in this `status`, and asks for no attention."""
    is_over = status["committed"] == status["rounds"]
    return bool(is_over or round <= status["round"] - REFUSAL_ROUNDS_SHOWN)


def describe_losses(site: str, contributions: Mapping[str, PeerContributions], *, round: int) -> str:
    """Say how much a site lost by refusals, until when and of whom, by its `status`; empty where it lost nothing."""
    losses = {peer: each for peer, each in contributions.items() if each["refused"]}
    if not losses:
        return ""
    refused, expected = (sum(each[key] for each in contributions.values()) for key in ("refused", "expected"))
    last = max(each["last_refused"] or 0 for each in losses.values())
    by_peer = ", ".join(f"{peer} {each['refused']} of {each['expected']}" for peer, each in losses.items())
    when = "none since" if last < round - 1 else "the last in"
    return f"{site} went on without {refused} of {expected} contributions, {when} round {last}: {by_peer}"


def peer_wait(site: SiteName, kind: WaitKind, since_s: float, deadline_s: float | None) -> PeerWait:
    artifact = WAIT_WORDS.get(kind, kind)
    return {"site": site, "kind": kind, "artifact": artifact, "since_s": round(since_s, 1), "deadline_s": deadline_s}

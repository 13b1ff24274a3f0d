"""The state of a federation at one moment, as one site or several sites of one machine know it.

``FederationOverview`` is the document of `overview`. ``SiteSnapshot`` is what one site knows, from
its daemon and its folder, and ``overview`` combines the snapshots of all sites of a machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.core.metrics import METRICS, ROOM_MIN, SPLITS
from peer.core.status_document import SiteStatus, describe_losses, is_old_refusal
from peer.documents.records import (
    Attention,
    FederationOverview,
    OverviewRow,
    OwnState,
    PlannedRound,
    RefusalGroup,
    RoomTaken,
    Route,
    RouteState,
)
from peer.quantities import duration

BEST_SPLITS = ("global_test", "test", "validation")
"""The splits of ``SPLITS``, the most telling first."""
ROUTE_STATES: tuple[RouteState, ...] = ("planned", "moving", "arrived", "missing", "waiting")
"""In the order in which what one end says is replaced by what the other end says."""
DOWN_STATES: Mapping[str, OwnState] = {"finished": "finished", "new": "new"}
"""The phases of a site whose daemon is down that need no attention."""
PHASE_REMARKS: Mapping[str, str] = {
    "isolated": "no other site answers it; look at its network",
    "paused": "an operator paused it; `mhfl-peer resume` lets it go on",
    "gathering": "it waits for sites that have not answered yet; start them, or name them in `start --without`",
}


class SentTotal(TypedDict):
    """What left a site for one receiver, from the egress ledger."""

    receiver: str
    kind: str
    purpose: str
    transfers: int
    complete: int
    bytes: int
    last: float


class Curve(TypedDict):
    """A number of each round: ``points`` are pairs of a round and a value."""

    tag: str
    points: list[tuple[int, float]]


class RoundStory(TypedDict):
    """A round in sentences."""

    round: int
    state: str
    sentences: list[tuple[float, str]]


class SiteSnapshot(TypedDict):
    """All that a page shows of one site of this machine."""

    status: SiteStatus
    plan: list[PlannedRound]
    artifact: str | None
    links: list[Route]
    certificates: dict[str, int]
    refusals: list[RefusalGroup]
    sent: list[SentTotal]
    curves: list[Curve]
    stories: list[RoundStory]
    room: RoomTaken | None
    folder_bytes: int
    free_bytes: int


def group_refusals(status: SiteStatus) -> list[RefusalGroup]:
    """Return the refusals of a site, equal ones once with their number; the newest last."""
    groups: dict[tuple[str, str, bool], RefusalGroup] = {}
    for entry in status["refusals"]:
        declined = entry.get("declined", False)  # an older daemon does not say
        key = entry["site"], entry["reason"], declined
        former = groups.pop(key, None)  # so that the group moves to the end
        last = max(entry["round"], former["last_round"] if former else entry["round"])
        groups[key] = {
            "by": status["site"],
            "of": entry["site"],
            "reason": entry["reason"],
            "declined": declined,
            "times": 1 + (former["times"] if former else 0),
            "first_round": min(entry["round"], former["first_round"] if former else entry["round"]),
            "last_round": last,
            "old": is_old_refusal(last, status),
        }
    return list(groups.values())


def room_taken(metric: str, *, alone: float, pooled: float, round: int, value: float) -> RoomTaken:
    """Return the share of the room that a value has taken; none of a room that is too small to divide by."""
    higher = METRICS[metric].higher_is_better
    has_room = (pooled - alone if higher else alone - pooled) >= ROOM_MIN[METRICS[metric].unit]
    share = (value - alone) / (pooled - alone) if has_room else None
    return {"metric": metric, "alone": alone, "pooled": pooled, "round": round, "value": value, "share": share}


def overview(
    snapshots: Sequence[SiteSnapshot], *, time_s: float, problems: Mapping[str, str] = MappingProxyType({})
) -> FederationOverview:
    """Return the federation, from the snapshots of one or several of its sites.

    Args:
        problems: by site of this machine, why nothing can be read of it.
    """
    own = {snapshot["status"]["site"]: snapshot for snapshot in snapshots}
    statuses = [snapshot["status"] for snapshot in snapshots]
    names = sorted({*own, *(peer for status in statuses for peer in status["peers"])})
    alive = [status["round"] for status in statuses if status["daemon"] == "running"]
    round = statistics.median_low(alive or [status["round"] for status in statuses])
    attention = [item for snapshot in snapshots for item in _attention(snapshot, own.keys() | problems.keys())]
    attention += [{"site": site, "urgent": True, "text": text} for site, text in problems.items()]
    return {
        "time": time_s,
        "federation": statuses[0]["federation"],
        "digest": statuses[0]["digest"],
        "method": statuses[0]["method"],
        "rounds": statuses[0]["rounds"],
        "verdict": write_verdict(snapshots, round=round, rounds=statuses[0]["rounds"], attention=attention),
        "round": round,
        "made_in": next(
            (planned.get("made_in") for each in snapshots for planned in each["plan"] if planned["round"] == round),
            None,
        ),
        "sites": [
            _own_row(own[name])
            if name in own
            else _unreadable_row(name, problems[name])
            if name in problems
            else _peer_row(name, snapshots)
            for name in names
        ],
        "routes": routes(snapshots, round),
        "refusals": [group for snapshot in snapshots for group in snapshot["refusals"]],
        "attention": sorted(attention, key=lambda item: not item["urgent"]),
    }


@dataclass(frozen=True, slots=True)
class Quality:
    """The main metric of this machine's sites on one split.

    Attributes:
        first: by site, the first round with a value, and the value.
        last: by site, the same of the newest round.
    """

    metric: str
    split: str
    first: dict[str, tuple[int, float]]
    last: dict[str, tuple[int, float]]

    def text(self, value: float) -> str:
        unit = METRICS[self.metric].unit
        return f"{value:.1f} {unit}" if unit else f"{value:.3f}"

    def mean(self, values: dict[str, tuple[int, float]]) -> str:
        return self.text(statistics.fmean(value for _, value in values.values()))


def read_quality(sites: Sequence[SiteSnapshot]) -> Quality | None:
    """Return the main metric on the most telling split that every site of this machine has measured, or None."""
    for split in BEST_SPLITS:
        for metric in METRICS:
            points = {
                site["status"]["site"]: curve["points"]
                for site in sites
                for curve in site["curves"]
                if curve["tag"] == f"{split}/{metric}" and curve["points"]
            }
            if len(points) == len(sites):
                first, last = ({site: line[end] for site, line in points.items()} for end in (0, -1))
                return Quality(metric, split, first, last)
    return None


def write_verdict(sites: Sequence[SiteSnapshot], *, round: int, rounds: int, attention: Sequence[Attention]) -> str:
    """Return the verdict in a few sentences.

    Args:
        sites: of this machine; without their curves, nothing is said of the gain.
        round: the round of the federation, of ``rounds``.
    """
    left_s = max((site["status"]["left_s"] or 0.0 for site in sites), default=0.0)
    finished = is_finished(sites)
    sentences = [
        f"Finished: {rounds} of {rounds} rounds"
        if finished
        else f"{f'Round {round}' if round else 'Before round 1'} of {rounds}"
        + (f", about {duration(left_s)} left" if left_s else "")
    ]
    if urgent := sorted({item["site"] for item in attention if item["urgent"]}):
        sentences.append(f"{', '.join(urgent)} {'needs' if len(urgent) == 1 else 'need'} attention")
    if (quality := read_quality(sites)) is not None:
        sentences.append(_describe_gain(quality, sites))
    if finished:
        sentences.append("Next: `mhfl-peer predict` or `mhfl-peer export`")
    return ". ".join(sentences) + "."


def is_finished(sites: Sequence[SiteSnapshot]) -> bool:
    return all(site["status"]["committed"] == site["status"]["rounds"] for site in sites)


def _describe_gain(quality: Quality, sites: Sequence[SiteSnapshot]) -> str:
    rounds = [max(round for round, _ in values.values()) for values in (quality.first, quality.last)]
    subject = f"{METRICS[quality.metric].title} on {SPLITS[quality.split]}"
    gain = f"{quality.mean(quality.last)}{'' if len(sites) == 1 else ' on average'} after round {rounds[1]}"
    if rounds[0] < rounds[1]:
        gain += f", {quality.mean(quality.first)} after round {rounds[0]}"
    if len(sites) == 1:
        return f"{subject}: {gain}"
    worst = min(quality.last, key=lambda site: quality.last[site][1])
    samples = next(site["status"]["samples"] for site in sites if site["status"]["site"] == worst).get(quality.split)
    few = f" on {samples} samples" if samples is not None else ""
    return f"{subject}: {gain}; the lowest is {worst} with {quality.text(quality.last[worst][1])}{few}"


def routes(snapshots: Sequence[SiteSnapshot], round: int) -> list[Route]:
    """Return the routes of a round: the plan, with what the sites at either end know of each."""
    known: dict[tuple[str, str, str], Route] = {}
    for snapshot in snapshots:
        kind = snapshot["artifact"] or ""
        for planned in snapshot["plan"]:
            for receiver, senders in planned["receives_from"].items() if planned["round"] == round else ():
                for sender in senders:
                    known.setdefault((sender, receiver, kind), planned_route(round, sender, receiver, kind))
    for snapshot in snapshots:
        for link in snapshot["links"]:
            key = link["sender"], link["receiver"], link["kind"]
            if link["round"] == round and (key not in known or _says_more(link, known[key])):
                known[key] = link
    return list(known.values())


def planned_route(round: int, sender: str, receiver: str, kind: str) -> Route:
    return {
        "round": round,
        "sender": sender,
        "receiver": receiver,
        "kind": kind,
        "state": "planned",
        "bytes": None,
        "share": None,
        "reason": "",
    }


def _says_more(link: Route, known: Route) -> bool:
    rank, known_rank = ROUTE_STATES.index(link["state"]), ROUTE_STATES.index(known["state"])
    return rank > known_rank or (rank == known_rank and link["share"] is not None)


def _own_row(snapshot: SiteSnapshot) -> OverviewRow:
    status, training = snapshot["status"], snapshot["status"]["training"]
    running = status["daemon"] == "running"
    refuses: dict[str, int] = {}
    for group in (each for each in snapshot["refusals"] if not each["old"]):
        refuses[group["of"]] = refuses.get(group["of"], 0) + group["times"]
    return {
        "site": status["site"],
        "seen_by": status["site"],
        "state": _own_state(status),
        "round": status["round"],
        "phase": status["phase"] if running else None,
        "progress": training["step"] / max(training["steps"], 1) if training else None,
        "last_seen_s": None,
        "software": status.get("software"),
        "certificate_days": status["certificate_days"],
        "waiting_for": status["waiting_for"],
        "refuses": refuses,
        "losses": describe_losses(status["site"], status.get("contributions", {}), round=status["round"]),
        "failure": status["failure"],
        "room": snapshot["room"],
    }


def _own_state(status: SiteStatus) -> OwnState:
    if status["daemon"] == "down":
        return DOWN_STATES.get(status["phase"], "down")
    return status["daemon"]


def _unreadable_row(name: str, problem: str) -> OverviewRow:
    return {**_EMPTY_ROW, "site": name, "seen_by": name, "state": "unreadable", "failure": problem}


def _peer_row(name: str, snapshots: Sequence[SiteSnapshot]) -> OverviewRow:
    """Return the row of a site of another machine, by the site here that heard it last."""

    def age_s(snapshot: SiteSnapshot) -> float:
        peer = snapshot["status"]["peers"].get(name)
        return math.inf if peer is None or peer["last_seen_s"] is None else peer["last_seen_s"]

    nearest = min(snapshots, key=age_s)
    peer = nearest["status"]["peers"][name]
    days = [snapshot["certificates"][name] for snapshot in snapshots if name in snapshot["certificates"]]
    return {
        **_EMPTY_ROW,
        "site": name,
        "seen_by": nearest["status"]["site"],
        "state": peer["state"],
        "round": peer["round"],
        "phase": peer["phase"],
        "progress": peer["progress"],
        "last_seen_s": peer["last_seen_s"],
        "software": peer["software"],
        "certificate_days": max(days, default=None),
    }


def _attention(snapshot: SiteSnapshot, here: Collection[str]) -> Iterator[Attention]:
    """Return what the snapshot says that an operator should look at; peers of this machine speak for themselves."""
    status = snapshot["status"]
    site = status["site"]

    def item(text: str, *, of: str = site, urgent: bool = True) -> Attention:
        return {"site": of, "urgent": urgent, "text": text}

    if status["departed"]:
        yield item(status["departed"])
    elif status["daemon"] == "down" and status["phase"] == "down":
        yield item("its daemon does not run; start it with `mhfl-peer start`, unless it is meant to be down")
    if status["daemon"] == "unresponsive":
        yield item("its daemon runs but does not answer; see its log, and if it stays so, kill it and start it again")
    if status["failure"]:
        yield item(f"its training has failed: {status['failure']}; correct that, then run `mhfl-peer resume`")
    if change := status.get("datalist"):  # an older daemon does not say
        yield item(f"{change}; `mhfl-peer withdraw` says what that means", urgent=False)
    if status["held"]:
        yield item(f"held: {status['held']}", urgent=False)
    for phase, text in PHASE_REMARKS.items():
        if status["phase"] == phase:
            yield item(text, urgent=phase == "isolated")
    for name, peer in status["peers"].items():
        if name not in here and peer["state"] == "silent":
            yield item(f"{site} has not heard it for {duration(peer['last_seen_s'] or 0.0)}; ask that site", of=name)
        days = snapshot["certificates"].get(name)
        if name not in here and days is not None and days < CERTIFICATE_DAYS_MIN:
            yield item(_expiry(days), of=name, urgent=days < 0)
    days = status["certificate_days"]
    if days is not None and days < CERTIFICATE_DAYS_MIN:
        yield item(_expiry(days), urgent=days < 0)
    for group in (each for each in snapshot["refusals"] if not each["old"]):
        times = f"{group['times']} times, " if group["times"] > 1 else ""
        rounds = f"last in round {group['last_round']}" if group["times"] > 1 else f"in round {group['last_round']}"
        what = f"it declined to {site}" if group["declined"] else f"{site} refused it"
        yield item(f"{what} ({times}{rounds}): {group['reason']}", of=group["of"], urgent=False)
    if (last := status["last_round"]) is not None:
        for name, reason in last["missing"].items():
            yield item(f"round {last['round']} at {site} went on without it ({reason})", of=name, urgent=False)


def _expiry(days: int) -> str:
    remedy = 'renew it: `mhfl-peer help site`, "Renew a certificate"'
    if days < 0:
        return f"its certificate has expired, so that it can call no site; {remedy}"
    return f"its certificate expires in {days} days; {remedy}"


_EMPTY_ROW: OverviewRow = {
    "site": "",
    "seen_by": "",
    "state": "unknown",
    "round": None,
    "phase": None,
    "progress": None,
    "last_seen_s": None,
    "software": None,
    "certificate_days": None,
    "waiting_for": [],
    "refuses": {},
    "losses": "",
    "failure": "",
    "room": None,
}

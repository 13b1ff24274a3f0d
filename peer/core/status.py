"""What the state machine knows of `status`, and the plan of the coming rounds."""

from __future__ import annotations

from typing import Any, cast

from peer.core import cross_evaluation
from peer.core.exchange import Exchange, Want
from peer.core.peer_progress import is_there, unfinished
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.core.site_memory import best_and_newest_round, newest_leak, newest_spending
from peer.core.state import SiteState
from peer.core.status_document import (
    MachineStatus,
    PeerProgress,
    PeerState,
    PeerWait,
    RefusedEntry,
    TrainingProgress,
    WaitKind,
    peer_wait,
)


def status(site: SiteState, *, now_s: float) -> MachineStatus:
    """Build the part of `status` that the state machine knows.

    Args:
        site: the state machine.
        now_s: seconds of its monotonic clock.
    """
    rules, progress = site.rules, site.progress
    training: TrainingProgress = {}
    if progress is not None:
        training = {
            "stage": progress.stage,
            "step": progress.step,
            "steps": progress.steps,
            "loss": dict(progress.losses),
        }
    return {
        "site": rules.site,
        "digest": rules.federation,
        "method": rules.method,
        "generation": site.memory.generation,
        "phase": site.told_phase,
        "phase_s": round(now_s - site.since_s, 1),
        "round": site.number,
        "rounds": rules.rounds,
        "committed": site.memory.committed,
        "waiting_for": waiting_for(site, now_s=now_s),
        "peers": {name: _peer(site, name, now_s) for name in rules.known},
        "training": training,
        "samples": dict(site.memory.samples),
        "weights": site.memory.weights,
        "best_round": best_and_newest_round(site.memory),
        "leak": newest_leak(site.memory),
        "spent": newest_spending(site.memory),
        "refusals": [cast(RefusedEntry, entry) for entry in site.refusals],
        "failure": site.failure,
        "departed": site.departure,
    }


def unreported(site: SiteState) -> dict[int, dict[str, str]]:
    """Return for every round whose model is lent now the peers that have not evaluated it, each with the reason."""
    lent = site.memory.evaluation.lent
    return {round: {str(name): why for name, why in site.unreported(one).items()} for round, one in lent.items()}


def waiting_for(site: SiteState, *, now_s: float) -> list[PeerWait]:
    """List the peers that the site waits for, and why; empty while it works."""
    rules = site.rules
    if site.sum_wait is not None:
        wait, (_, awaited) = site.sum_wait, site.sum_wait.machine.awaited()
        ends_s = round(site.sum_deadline_s(wait) - now_s, 1)
        return [peer_wait(name, "secure_sum", now_s - wait.step_s, ends_s) for name in awaited]
    if site.exchange is not None:
        current = site.exchange
        return [_want(current, want, rules, now_s) for _, want in sorted(current.wants.items()) if want.open]
    if site.phase == Phase.GATHERING:
        left_s = None if site.pace.gather_s is None else round(site.pace.gather_s - (now_s - site.since_s), 1)
        absent = [name for name in rules.others_in(1) if not is_there(site, name)]
        return [peer_wait(name, "hello", now_s - site.since_s, left_s) for name in absent]
    if site.phase in (Phase.PACING, Phase.ISOLATED):
        behind = [name for name in rules.others_in(site.memory.committed + 1) if _behind(site, name)]
        return [peer_wait(name, "progress", now_s - site.since_s, None) for name in behind]
    if site.phase == Phase.DONE:
        left_s = None if rules.stay else round(site.pace.linger_s - (now_s - site.since_s), 1)
        due: dict[SiteName, WaitKind] = dict.fromkeys(cross_evaluation.awaited(site), "evaluation")
        due.update(dict.fromkeys(unfinished(site), "last_round"))
        return [peer_wait(name, kind, now_s - site.since_s, left_s) for name, kind in sorted(due.items())]
    return []


def plan_of(rules: Rules, *, rounds: int, first: int = 1) -> dict[str, Any]:
    """List who receives from whom in ``rounds`` rounds from ``first`` on, at most up to the last."""
    shown = []
    for round in range(first, min(rules.rounds, first + rounds - 1) + 1):
        pattern, members = rules.pattern(round), rules.members(round)
        names = members.names
        made_in = rules.made_in(round) if rules.staleness else None
        planned: dict[str, Any] = {
            "round": round,
            "order": None,
            "visits": None,
            "members": list(names),
            "made_in": made_in,
        }
        if pattern == "permutation" or pattern == "circulate":
            order = rules.order(round)
            receives = {name: [names[order[index]]] for index, name in enumerate(names) if order[index] != index}
            shown.append(planned | {"order": list(order), "receives_from": receives})
        elif pattern == "visit":
            visiting = {name: list(rules.visitors(round, name)) for name in names}
            orders = [list(order) for order in rules.visiting_orders(round)]
            shown.append(planned | {"receives_from": visiting, "visits": orders})
        else:
            others = {name: list(members.others(name)) for name in names} if pattern == "all_to_all" else {}
            shown.append(planned | {"receives_from": others})
    return {
        "digest": rules.federation,
        "schedule": rules.drawn_kind,
        "sites": list(rules.members(first).names),
        "pattern": rules.plan.pattern,
        "artifact": rules.plan.artifact,
        "rounds": shown,
    }


def _want(current: Exchange, want: Want, rules: Rules, now_s: float) -> PeerWait:
    last_s = min(current.opened_s + rules.epoch(current.round).pace.wait_max_s, want.since_s + want.patience_s)
    ends = (min(current.opened_s + current.slow_s, last_s), last_s)
    deadline_s = next((end_s for end_s in ends if end_s > now_s), last_s)  # without a quorum the first one may pass
    wait = peer_wait(want.origin, current.kind, now_s - want.since_s, round(deadline_s - now_s, 1))
    return wait if want.owner == want.origin else {**wait, "artifact": f"{want.owner}'s {current.kind}"}


def _behind(site: SiteState, name: SiteName) -> bool:
    pulse = site.peers.pulse(name)
    return pulse is None or pulse.round < site.memory.committed


def _peer(site: SiteState, name: SiteName, now_s: float) -> PeerProgress:
    heard = site.peers.heard.get(name)
    if heard is None:
        state: PeerState = "absent" if name in site.rules.without else "unknown"
        return {"state": state, "round": None, "phase": None, "progress": None, "last_seen_s": None}
    pulse = heard.pulse
    return {
        "state": "silent" if site.peers.silent(name, now_s) else "heard",
        "round": pulse.round if pulse is not None else None,
        "phase": pulse.phase if pulse is not None else None,
        "progress": round(pulse.progress, 3) if pulse is not None else None,
        "last_seen_s": round(now_s - heard.last_s, 1),
    }

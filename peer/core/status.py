"""What a site shows of itself: plain data for `status`, drawn from the state machine alone."""

from __future__ import annotations

from typing import Any

from peer.core import global_test
from peer.core.exchange import Exchange, Want
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rounds import unfinished
from peer.core.rules import Rules
from peer.core.state import SiteState


def status(site: SiteState, *, now_s: float) -> dict[str, Any]:
    """The running site, with stable keys.

    Args:
        site: the state machine.
        now_s: seconds of its monotonic clock.

    Returns:
        ``waiting_for`` names whom the site waits for, for how long already and for how long at most (seconds); its
        ``kind`` is the kind of artifact, or ``hello``, ``progress``, ``evaluation`` or ``last_round``;
        ``peers`` maps each site to its state (``heard``, ``silent`` or ``unknown``), round, phase and silence.
    """
    rules, progress = site.rules, site.progress
    training: dict[str, Any] = {}
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
        "phase": str(site.phase),
        "phase_s": round(now_s - site.since_s, 1),
        "round": site.number,
        "rounds": rules.rounds,
        "committed": site.memory.committed,
        "waiting_for": waiting_for(site, now_s=now_s),
        "peers": {name: _peer(site, name, now_s) for name in rules.roster.others(rules.site)},
        "training": training,
        "samples": dict(site.memory.samples),
        "refusals": list(site.refusals),
        "failure": site.failure,
    }


def unreported(site: SiteState) -> dict[int, dict[str, str]]:
    """Of every round whose model is lent now: who has not said how it did, and why not."""
    lent = site.memory.evaluation.lent
    return {round: {str(name): why for name, why in site.unreported(one).items()} for round, one in lent.items()}


def waiting_for(site: SiteState, *, now_s: float) -> list[dict[str, Any]]:
    """Whom the site waits for and why; empty while it works."""
    rules = site.rules
    if site.exchange is not None:
        current = site.exchange
        return [_want(current, want, rules, now_s) for _, want in sorted(current.wants.items()) if want.open]
    if site.phase == Phase.GATHERING:
        left_s = None if rules.pace.gather_s is None else round(rules.pace.gather_s - (now_s - site.since_s), 1)
        absent = [name for name in rules.others if name not in site.greeted]
        return [_wait(name, "hello", "hello", now_s - site.since_s, left_s) for name in absent]
    if site.phase in (Phase.PACING, Phase.ISOLATED):
        behind = [name for name in rules.others if _behind(site, name)]
        return [_wait(name, "progress", "progress", now_s - site.since_s, None) for name in behind]
    if site.phase == Phase.DONE:
        left_s = None if rules.stay else round(rules.pace.linger_s - (now_s - site.since_s), 1)
        due = dict.fromkeys(global_test.awaited(site), "evaluation") | dict.fromkeys(unfinished(site), "last_round")
        words = {"last_round": "its last round"}
        waited_s = now_s - site.since_s
        return [_wait(name, kind, words.get(kind, kind), waited_s, left_s) for name, kind in sorted(due.items())]
    return []


def plan_of(rules: Rules, *, rounds: int, first: int = 1) -> dict[str, Any]:
    """Who receives from whom in the rounds from ``first`` on, at most up to the last."""
    names = rules.roster.names
    shown = []
    for round in range(first, min(rules.rounds, first + rounds - 1) + 1):
        pattern = rules.pattern(round)
        if pattern == "permutation" or pattern == "circulate":
            order = rules.order(round)
            receives = {name: [names[order[index]]] for index, name in enumerate(names) if order[index] != index}
            shown.append({"round": round, "order": list(order), "receives_from": receives})
        else:
            others = {name: list(rules.roster.others(name)) for name in names} if pattern == "all_to_all" else {}
            shown.append({"round": round, "order": None, "receives_from": others})
    return {
        "digest": rules.federation,
        "schedule": rules.schedule_kind,
        "sites": list(names),
        "pattern": rules.plan.pattern,
        "artifact": rules.plan.artifact,
        "rounds": shown,
    }


def _want(current: Exchange, want: Want, rules: Rules, now_s: float) -> dict[str, Any]:
    kind = str(rules.plan.artifact)
    what = f"{want.owner}'s {kind}" if want.owner != want.origin else kind
    ends = (current.opened_s + current.slow_s, current.opened_s + rules.pace.wait_max_s)
    deadline_s = next((end_s for end_s in ends if end_s > now_s), ends[-1])  # without a quorum the first one may pass
    return _wait(want.origin, kind, what, now_s - want.since_s, round(deadline_s - now_s, 1))


def _wait(site: SiteName, kind: str, artifact: str, since_s: float, deadline_s: float | None) -> dict[str, Any]:
    wait = {"site": site, "kind": kind, "artifact": artifact}
    return {**wait, "since_s": round(since_s, 1), "deadline_s": deadline_s}


def _behind(site: SiteState, name: SiteName) -> bool:
    pulse = site.peers.pulse(name)
    return pulse is None or pulse.round < site.memory.committed


def _peer(site: SiteState, name: SiteName, now_s: float) -> dict[str, Any]:
    heard = site.peers.heard.get(name)
    if heard is None:
        state = "absent" if name in site.rules.without else "unknown"
        return {"state": state, "round": None, "phase": None, "progress": None, "last_seen_s": None}
    pulse = heard.pulse
    return {
        "state": "silent" if site.peers.silent(name, now_s) else "heard",
        "round": pulse.round if pulse is not None else None,
        "phase": pulse.phase if pulse is not None else None,
        "progress": round(pulse.progress, 3) if pulse is not None else None,
        "last_seen_s": round(now_s - heard.last_s, 1),
    }

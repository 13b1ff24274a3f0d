"""What follows from a site's memory: the one place that decides what to do next, after a start as after every stage."""

from __future__ import annotations

from collections.abc import Iterable

from peer.core import commands, exchange, guests, pace, waiting
from peer.core.commands import Source
from peer.core.facts import Artifact, Seen
from peer.core.replay import body_of
from peer.core.roster import Sha256, SiteName
from peer.core.site import BUSY, Phase, Site


def go_on(site: Site) -> None:
    """Do what comes next. Everything that matters is read from memory, so a restart goes on where it was."""
    site.cancel_exchange()
    memory, rules = site.memory, site.rules
    if not memory.state:
        site.enter(Phase.INITIALISING)
        site.emit(commands.Initialise(memory.generation, site.next_attempt()))
        return
    site.publish_due()
    circulated = 0 < rules.circulating == memory.committed
    if memory.finished:
        site.enter(Phase.DONE)
        check_done(site)
    elif memory.open is not None:
        next_phase(site)
    elif circulated and not memory.home:
        waiting.hand_back(site)
        review(site)
    elif circulated and rules.evaluates(memory.committed) and not memory.measured:
        _evaluate(site, memory.committed, memory.state)
    elif memory.committed == 0 and rules.plan.pattern != "none":
        site.enter(Phase.GATHERING)
        check_gathered(site)
    else:
        set_pace(site)


def review(site: Site) -> None:
    """Look at the exchange; go on if it is over."""
    if waiting.settle(site):
        go_on(site)


def check_gathered(site: Site) -> None:
    """Begin round 1 once everybody answered, after ``gather_s``, or when others have begun.

    Those who have begun do without whoever is missing here; to wait for that site would hold them up, too. Two of them
    must say so, where there are two besides the missing one, so that no single site can start a federation early.
    """
    gather_s, others = site.rules.pace.gather_s, site.rules.others
    waited = gather_s is not None and site.now_s >= site.neighbours.began_s + gather_s
    begun = len(site.neighbours.begun) >= min(2, (len(others) + 1) // 2)
    if waited or begun or len(site.greeted) == len(others):
        set_pace(site)


def set_pace(site: Site) -> None:
    """Between rounds: finish, wait for the others, jump after them, or open the next round."""
    rules, memory = site.rules, site.memory
    if site.phase != Phase.ISOLATED:
        site.enter(Phase.PACING)
    if memory.committed >= rules.rounds:
        site.persist("finished", memory.committed)
        go_on(site)
        return
    if rules.plan.pattern == "none" or not rules.others:
        open_round(site, memory.committed + 1)
        return
    present = site.neighbours.present(rules.others, site.now_s)
    if not present and not _alone(site):
        return
    site.alone = not present
    site.enter(Phase.PACING)
    rounds = site.neighbours.rounds(rules.others, site.now_s)
    middle = pace.lower_median(rounds)
    following = memory.committed + 1
    if middle is not None and rules.circulating < following < middle - rules.pace.lag_rounds_max:
        ahead = sum(round >= middle for round in rounds)
        if ahead >= min(2, len(rules.others)):
            following = _jump(site, min(middle, rules.rounds))
    if middle is None or following <= middle + rules.pace.lead_rounds_max:
        open_round(site, following)


def _jump(site: Site, round: int) -> int:
    """Leave out the rounds that the others have passed; the newest own artifact serves the round that comes now."""
    publish = round if site.rules.plan.published == "commit" else None
    site.persist("skipped", round, {"from": site.memory.committed + 1, "publish": publish})
    site.publish_due()
    return round


def _alone(site: Site) -> bool:
    """Whether to go on although nobody is heard: only after ``isolated_s`` of isolation."""
    if site.alone:
        return True
    if not all(site.neighbours.silent(name, site.now_s) for name in site.rules.others):
        return False
    if site.phase != Phase.ISOLATED:
        site.persist("isolated", site.memory.committed)
        site.enter(Phase.ISOLATED)
        return False
    return site.now_s >= site.since_s + site.rules.pace.isolated_s


def open_round(site: Site, round: int) -> None:
    """Begin a round; dFLMoE's first stage already uses the heads that are here."""
    sources = exchange.kept_heads(site.rules, came=(), held=site.memory.held.values()) if site.rules.plan.cached else ()
    site.persist("opened", round, {"sources": body_of(sources)})
    next_phase(site)


def next_phase(site: Site) -> None:
    """Enter the plan's next phase of the open round, or end the round."""
    current, rules, memory = site.opened, site.rules, site.memory
    circulates = rules.pattern(current.number) == "circulate"
    site.progress = None
    if current.position == len(rules.plan.phases):
        if rules.evaluates(current.number) and not circulates and not current.evaluated:
            _evaluate(site, current.number, current.state, current.sources)
        else:
            commit(site)
        return
    name = rules.plan.phases[current.position]
    order = (memory.generation, current.number)
    if name == "exchange":
        waiting.open_exchange(site)
        review(site)
    elif name == "aggregate":
        site.enter(Phase.AGGREGATE)
        site.emit(commands.Aggregate(*order, site.next_attempt(), current.state, current.sources))
    else:
        slot = rules.turn(current.number) if circulates else None
        stage = name.removeprefix("train:")
        site.enter(Phase.TRAIN)
        site.emit(commands.Train(*order, site.next_attempt(), stage, current.state, current.sources, slot))


def _evaluate(site: Site, round: int, base: str, sources: tuple[Source, ...] = ()) -> None:
    site.enter(Phase.EVALUATE)
    cached = sources if site.rules.plan.cached else ()
    lent = site.rules.lends(round)
    site.emit(commands.Evaluate(site.memory.generation, round, site.next_attempt(), base, cached, lent))


def commit(site: Site) -> None:
    """End the round: one row that holds all of it, then what follows from it."""
    current, rules, memory = site.opened, site.rules, site.memory
    round, artifact, needed = current.number, current.artifact, memory.names()
    visiting = rules.pattern(round) == "circulate" and rules.turn(round) != rules.site
    last = rules.circulating if rules.pattern(round) == "circulate" else rules.rounds
    consumed = rules.plan.published == "commit" and (visiting or round < last)
    sources = [
        {"site": source.origin, "round": source.round, "sha256": source.artifact.sha256, "fallback": source.fallback}
        for source in current.sources
    ]
    body = {
        "generation": memory.generation,
        "sources": sources,
        "contributors": sorted({rules.site, *(source.origin for source in current.sources)}),
        "missing": current.missing,
        "below_quorum": current.below_quorum,
        "skipped": memory.skipped,
        "artifact_sha256": artifact.sha256 if artifact is not None else None,
        "aggregate_sha256": current.aggregate,
        "metrics": current.metrics,
        "threads": current.threads,
        "duration_s": current.duration_s,
        "state": current.state,
        "artifact": body_of(artifact),
        "publish": round + 1 if consumed and artifact is not None else None,
        "visiting": visiting,
    }
    site.persist("committed", round, body)
    compare(site, rules.others)
    site.publish_due()
    tidy(site, needed)
    site.ended = True


def compare(site: Site, names: Iterable[SiteName]) -> None:
    """Note who ended the last committed round with the same mean; other contributors make another one, and may."""
    memory = site.memory
    if memory.aggregate is None:
        return
    for name in names:
        pulse = site.neighbours.pulse(name)
        if pulse is None or name in memory.compared or pulse.aggregate is None:
            continue
        if pulse.committed_round == memory.committed:
            agrees = pulse.aggregate == memory.aggregate
            site.persist("compared", memory.committed, {"site": name, "sha256": pulse.aggregate, "agrees": agrees})


def tidy(site: Site, needed: set[Sha256]) -> None:
    """Let go of artifacts that no later round, fallback or receiver can need.

    Args:
        site: the site.
        needed: the digests that were needed before the row that ended the round.
    """
    rules, memory = site.rules, site.memory
    newest: dict[SiteName, int] = {}
    for source in memory.held.values():
        newest[source.artifact.owner] = max(newest.get(source.artifact.owner, 0), source.round)
    for digest, source in list(memory.held.items()):
        last = source.round == newest[source.artifact.owner]
        cached = last and (rules.plan.cached or memory.committed < rules.circulating)
        age = memory.committed - source.round
        fresh = last and rules.fallback == "stale" and age < rules.staleness_rounds_max
        used = age >= 0 or (memory.home and source.artifact.owner == rules.site)
        if used and not cached and not fresh:
            site.persist("discarded", memory.committed, {"sha256": digest})
    old = memory.committed - rules.pace.artifact_rounds_max
    away = rules.circulating > 0 and not memory.home
    own = max((key for key in memory.published if key[1] == rules.site), default=None) if away else None
    if any(key[0] <= old and key != own for key in memory.published):
        site.persist("retired", old, {"kept": own if own is None else list(own)})
    for round in [round for round in memory.evaluation.lent if round <= old]:
        site.lapse(round, retired=True)
    for digest in sorted(needed - memory.names()):
        site.emit(commands.Discard(digest))


def come_home(site: Site, state: str, artifact: Artifact | None) -> None:
    """End the circulating rounds with the own model where it belongs."""
    needed = site.memory.names()
    waiting.come_home(site, state, artifact)
    site.publish_due()
    tidy(site, needed)
    go_on(site)


def check_done(site: Site) -> None:
    """Leave once nobody can need this site any more, or it lingered long enough."""
    rules = site.rules
    needed = unfinished(site) or guests.awaited(site)
    if not rules.stay and (not needed or site.now_s >= site.since_s + rules.pace.linger_s):
        site.leave()


def unfinished(site: Site) -> list[SiteName]:
    """Who may still need this site: whoever has not said that it is done, silent, stopped or not."""
    rules = site.rules
    if rules.plan.pattern == "none":
        return []
    return [name for name in rules.others if not site.neighbours.done(name, rules.rounds)]


def regenerate(site: Site, *, reported_by: SiteName, seen: Seen) -> None:
    """A backup was restored here: go on as a new generation, so that what is made again is not taken for a forgery."""
    memory, busy = site.memory, site.phase in BUSY
    body = {"generation": seen.generation + 1, "reported_by": reported_by, "their_round": seen.round}
    site.persist("regenerated", memory.committed, body)
    for (round, _), artifact in sorted(memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    guests.begin(site)
    if busy:
        site.emit(commands.Halt(memory.generation, site.next_attempt()))
    if site.phase not in (Phase.PAUSED, Phase.FAILED):
        go_on(site)

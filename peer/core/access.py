"""Authorisation: which peer may have which artifact of this site.

The schedule decides, not the caller's claims.
"""

from __future__ import annotations

from peer.core.artifacts import Artifact, EvaluationResult, Purpose
from peer.core.kinds import Kind
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.site_memory import Memory

SCHEDULED: tuple[Purpose, ...] = ("train", "handback", "return")
CHANGE_NO_ANSWER = frozenset({"arrived", "compared", "discarded"})
"""Kinds of rows that do not change ``answer``; in an all-to-all round each peer causes one of each."""


def epoch_digest(rules: Rules, *, caller: SiteName, for_round: int) -> Sha256 | None:
    """Return the digest of the epoch that a request of the caller must state; ``None`` is the genesis.

    A shadow is not a member of the round that it requests, and states the epoch of its first round.
    """
    return rules.epoch(for_round + _shadows(rules, caller, for_round)).digest


def _shadows(rules: Rules, caller: SiteName, round: int) -> bool:
    """Return whether the caller only receives in this round, the one before its first."""
    return not rules.secure and rules.pattern(round) == "all_to_all" and rules.epochs.first_round(caller) == round + 1


def denial(
    rules: Rules, *, caller: SiteName, kind: Kind, for_round: int, owner: SiteName, purpose: Purpose
) -> str | None:
    """Return why the caller may not have this site's artifact of that kind and round; ``None`` if it may.

    Args:
        rules: the federation as this site sees it.
        caller: the name in the caller's verified certificate.
        kind: of artifact.
        for_round: the round that consumes it.
        owner: the site whose model it is: this site, except in circulating rounds.
        purpose: ``train`` follows the schedule, ``handback`` brings a circulating model home, ``return`` gives the
            owner its model as this site trained it, ``evaluate`` lends the model at the end of a round to any peer.

    In circulating rounds, a site that had the model before may send its copy, too: the receiver compares a suspicious
    copy with the one from which it was trained.

    A past or future round is no reason to deny: ``answer`` then returns ``RETIRED`` or ``NOT_YET``. Nor is a round
    whose key this site lacks: ``answer`` returns no artifact before the key has arrived.
    """
    plan = rules.plan
    if caller == rules.site or not rules.has_known(caller):
        return f"{caller!r} is not a peer of this federation"
    if (number := rules.epochs.expelled_by(caller)) is not None:
        return expelled_reason(caller, number)
    if kind in plan.never_leaves or kind not in plan.sends:
        return f"method {rules.method!r} sends no {kind}"
    if (kind == "return") != (purpose == "return"):
        return f"a {kind} is not for purpose {purpose}"
    if purpose == "handback":
        if not rules.circulating:
            return "no model circulates in this federation, so none is handed back"
        if not 1 < for_round <= rules.circulating + 1 or owner != caller:
            return f"only its owner may take a model home, and only for rounds 2 to {rules.circulating + 1}"
        return None
    if purpose == "evaluate":
        if rules.evaluation_denied is not None:
            return rules.evaluation_denied
        if owner != rules.site or not rules.lends(for_round):
            return f"no model is lent after round {for_round}"
        was = caller in rules.members(for_round) and caller not in rules.epochs.gone
        return None if was else f"{caller!r} is no member of round {for_round}, or not any more"
    if not 1 <= for_round <= rules.rounds:
        return f"round {for_round} is outside this federation's 1 to {rules.rounds}"
    if rules.pattern(for_round) == "none":
        return f"every site trains at home in round {for_round}"
    if caller not in rules.members(for_round) and not _shadows(rules, caller, for_round):
        return f"{caller!r} is no member of round {for_round}"
    if rules.pattern(for_round) == "all_to_all":
        return None if owner == rules.site else "a site serves only its own artifact"
    if _awaits_key(rules, for_round=for_round, owner=owner, purpose=purpose):
        return None
    if rules.pattern(for_round) == "visit":
        return _visit_denial(rules, caller=caller, for_round=for_round, owner=owner, purpose=purpose)
    slot = rules.turn(for_round, caller)
    if slot != owner:
        return f"round {for_round} does not give {owner}'s {kind} to {caller}"
    if rules.site != owner and not _has_held(rules, owner, for_round):
        return f"{rules.site} is not where {caller} takes {owner}'s {kind} in round {for_round}"
    return None


def _awaits_key(rules: Rules, *, for_round: int, owner: SiteName, purpose: Purpose) -> bool:
    """Return whether this site needs a round key before it can tell if the schedule grants the artifact."""
    if purpose == "evaluate":
        return False
    if purpose == "handback" or rules.pattern(for_round) == "circulate":
        trained = for_round > 1 and rules.site in rules.members(for_round - 1)
        if trained and not rules.knows_holder(for_round, owner):
            return True
    return purpose != "handback" and rules.lacks_order(for_round)


def expelled_reason(caller: SiteName, number: int) -> str:
    """Build the reason with which a site refuses an expelled caller."""
    return f"{caller!r} was expelled from this federation by amendment {number}"


def _has_held(rules: Rules, slot: SiteName, for_round: int) -> bool:
    """Return whether this site had a circulating model for the round, or for one whose copy it may keep."""
    first = max(1, for_round - 1 - rules.epoch(for_round).pace.artifact_rounds_max)
    return rules.pattern(for_round) == "circulate" and any(
        rules.holder(round, slot) == rules.site for round in range(first, for_round + 1)
    )


def _visit_denial(rules: Rules, *, caller: SiteName, for_round: int, owner: SiteName, purpose: Purpose) -> str | None:
    """Return why the caller gets no visitor, or no return, of this site in a round; ``None`` if it does."""
    if rules.site not in rules.members(for_round):
        return f"{rules.site!r} is no member of round {for_round}"
    if purpose == "return":
        if owner != caller:
            return "only its owner may have a return"
        visits = caller in rules.visitors(for_round)
        return None if visits else f"in round {for_round}, {caller}'s model does not visit {rules.site}"
    if owner != rules.site:
        return "a site serves only its own model to visit"
    visits = rules.site in rules.visitors(for_round, caller)
    return None if visits else f"round {for_round} does not give {owner}'s {rules.plan.artifact} to {caller}"


def answer(
    rules: Rules, memory: Memory, *, for_round: int, owner: SiteName, purpose: Purpose
) -> tuple[int, Artifact] | Unavailable:
    """Answer a caller that may have the artifact: the artifact with its true round, or why there is none.

    Args:
        rules: the federation as this site sees it.
        memory: what this site has published and committed.
        for_round: the round that consumes it.
        owner: the site whose model it is.
        purpose: as in ``denial``.
    """
    if purpose == "evaluate":
        return _lent(rules, memory, for_round)
    if _awaits_key(rules, for_round=for_round, owner=owner, purpose=purpose):
        return Unavailable.NOT_YET
    if purpose == "train" and for_round == rules.circulating + 1 > 1 and not memory.model_is_home:
        return Unavailable.NOT_YET
    circulates = rules.pattern(for_round) == "circulate"
    published = memory.published.get((for_round, owner))
    circulated = circulates or purpose == "handback"
    if published is not None and (not circulated or rules.follows_order(for_round, owner)):
        return for_round, published
    if purpose == "handback":
        return Unavailable.SKIPPED if memory.committed >= rules.circulating else Unavailable.NOT_YET
    if for_round <= memory.committed - rules.epoch(for_round).pace.artifact_rounds_max:
        return Unavailable.RETIRED
    if purpose == "return":
        return _no_return(rules, memory, for_round=for_round, owner=owner)
    if circulates and rules.trained_at(for_round, owner) != rules.site:
        copies = [(round, artifact) for (round, of), artifact in memory.published.items() if of == owner]
        served = (copy for copy in copies if copy[0] < for_round and rules.follows_order(copy[0], owner))
        newest = max(served, key=lambda copy: copy[0], default=None)
        return newest if newest is not None else Unavailable.SKIPPED
    last = for_round - 1 if rules.plan.published == "commit" else for_round
    due = any(round <= rules.rounds or of != rules.site for round, of in memory.publications_due)
    return Unavailable.SKIPPED if memory.committed >= last and not due and memory.state else Unavailable.NOT_YET


def _no_return(rules: Rules, memory: Memory, *, for_round: int, owner: SiteName) -> Unavailable:
    """Return why the owner's trained model is unavailable: SKIPPED once it is certain that none will follow."""
    if (for_round, owner) in memory.publications_due or not memory.state:
        return Unavailable.NOT_YET
    current = memory.open
    if memory.committed >= for_round:
        return Unavailable.SKIPPED
    exchange = rules.plan.phases.index("exchange")
    if current is None or current.number != for_round or current.position <= exchange:
        return Unavailable.NOT_YET
    hosted = {source.artifact.owner for source in current.sources}
    trained = "returns" in rules.plan.phases[: current.position + 1]
    return Unavailable.SKIPPED if trained or owner not in hosted else Unavailable.NOT_YET


def first_copies(rules: Rules, memory: Memory, round: int) -> list[tuple[SiteName, Purpose, int]]:
    """List peer, purpose and size of every artifact that this site publishes in a round, each copy once.

    A model that will be lent but does not exist yet counts with the size of the largest artifact.
    """
    published = [(owner, artifact) for (for_round, owner), artifact in memory.published.items() if for_round == round]
    copies = [
        (peer, purpose, artifact.bytes)
        for owner, artifact in published
        for purpose in SCHEDULED
        for peer in rules.others
        if purpose == "train" or round > rules.circulating  # most owners get no earlier copy back
        if denial(rules, caller=peer, kind=artifact.kind, for_round=round, owner=owner, purpose=purpose) is None
    ]
    if rules.evaluation_denied is None and rules.lends(round):
        lent = memory.evaluation.lent.get(round)
        sizes = [artifact.bytes for _, artifact in published]
        size = lent.artifact.bytes if lent is not None and lent.artifact is not None else max(sizes, default=0)
        copies += [(peer, "evaluate", size) for peer in rules.others]
    return copies


def _lent(rules: Rules, memory: Memory, round: int) -> tuple[int, Artifact] | Unavailable:
    lent = memory.evaluation.lent.get(round)
    if lent is not None and lent.artifact is not None:
        return round, lent.artifact
    if round <= memory.committed - rules.epoch(round).pace.artifact_rounds_max:
        return Unavailable.RETIRED
    away = round == rules.circulating == memory.committed and not memory.evaluated_after_handback
    return Unavailable.SKIPPED if memory.committed >= round and not away else Unavailable.NOT_YET


def unasked(rules: Rules, memory: Memory, *, caller: SiteName, report: EvaluationResult) -> str | None:
    """Return why this site refuses an evaluation; ``None`` if it concerns a model that the site lends.

    The digest shows that the caller has the lent model's manifest. An evaluation without metrics needs no digest.
    """
    if rules.evaluation_denied is not None:
        return rules.evaluation_denied
    if not rules.has_peer(caller):
        return f"{caller!r} takes no part in this federation's rounds"
    lent = memory.evaluation.lent.get(report.round)
    if lent is None or lent.artifact is None:
        return f"no model of round {report.round} is lent"
    if report.generation != memory.generation:
        return f"generation {report.generation} is not this site's {memory.generation}"
    if report.sha256 != lent.artifact.sha256 and not (report.sha256 is None and report.unmeasured == "not_received"):
        return f"the model that was lent after round {report.round} is another one"
    return None

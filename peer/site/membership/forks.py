"""The choice between two chains, and the proof that two bodies of one number were signed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from peer.core.messages import SignedAmendment
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.chain import Chain
from peer.site.membership.signatures import signers


class Choice(enum.StrEnum):
    """The decision about another site's chain."""

    SAME = "same"
    BEHIND = "behind"  # it is a prefix of the own chain
    TAKEN = "taken"
    KEPT = "kept"  # it differs, and the rule prefers the own chain
    LIVED = "lived"  # it differs, and the site has opened a round since: only the operator may switch


@dataclass(frozen=True, slots=True)
class Fork:
    """Two valid bodies of one number; ``double_signers`` have signed both."""

    number: int
    own: SignedAmendment
    other: SignedAmendment
    double_signers: tuple[str, ...]


def compare(own: Chain, other: Chain, *, opened_round: int) -> tuple[Choice, Fork | None]:
    """Choose between two valid chains of one genesis; return the choice and their fork, if any.

    The longer chain wins. Of two equally long ones, the chain whose first differing body has the smaller
    digest wins: all sites that have not opened a round since choose alike. A chain that changes a round
    which the site has opened is not taken, so that old keys cannot rewrite past rounds.
    """
    pairs = zip(own.links, other.links, strict=False)
    number = next((a.after.number for a, b in pairs if a.after.digest != b.after.digest), None)
    if number is None:
        if len(own.links) == len(other.links):
            return Choice.SAME, None
        return (Choice.TAKEN if len(other.links) > len(own.links) else Choice.BEHIND), None
    one, two = own.links[number - 1], other.links[number - 1]
    fork = _fork(own, number, one.signed, two.signed)
    if opened_round >= min(one.amendment.from_round, two.amendment.from_round):
        return Choice.LIVED, fork
    preferred = max(own.links, other.links, key=len)
    if len(own.links) == len(other.links):
        preferred = own.links if one.after.digest < two.after.digest else other.links
    return (Choice.KEPT if preferred is own.links else Choice.TAKEN), fork


def prove(chain: Chain, number: int, other: SignedAmendment) -> Fork:
    """Build the proof of a fork from a body that competes with the chain's own of the same number.

    Raise ``AmendmentRefused`` if the other body is not valid there, or is the same.
    """
    if not 1 <= number <= len(chain.links):
        raise AmendmentRefused(f"the chain has no amendment {number}", "fetch the chain first")
    rival = chain.until(number - 1).extended(other).links[-1]
    own = chain.links[number - 1]
    if rival.after.digest == own.after.digest:
        raise AmendmentRefused(f"amendment {number} is in the chain", "nothing needs to be done")
    return _fork(chain, number, own.signed, rival.signed)


def _fork(chain: Chain, number: int, one: SignedAmendment, two: SignedAmendment) -> Fork:
    before = chain.after(number - 1)
    both = [set(signers(each, authorities=before.authorities, keys=before.keys)[0]) for each in (one, two)]
    return Fork(number, one, two, tuple(sorted(both[0] & both[1])))

"""The reason why a site opens no further round: an amendment holds it, or too few members are heard."""

from __future__ import annotations

import datetime

from peer.core.machine import SiteMachine
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.site.membership.chain import Chain
from peer.site.membership.signatures import FOUNDER, signers
from peer.site.records.members import AMENDMENT_MISSING


def why_held(machine: SiteMachine, chain: Chain, *, is_added: bool, now_s: float) -> str:
    """Explain what a site in the phase ``held`` waits for, and what ends it; empty in any other phase of a member.

    Args:
        machine: the site.
        chain: its amendments.
        is_added: whether the site is a member; a newcomer is one once the amendment that adds it has arrived.
        now_s: seconds of the machine's clock.
    """
    if not is_added:
        return AMENDMENT_MISSING
    if machine.phase != Phase.HELD:
        return ""
    rules, following = machine.rules, machine.memory.committed + 1
    epoch = rules.epoch(following)
    if epoch.hold:
        return _amendment_that_holds(chain, epoch.number)
    if rules.lacks_order(following):
        return f"this site has no round key for round {following}: it gets the key from the next member that it reaches"
    present = machine.peers.present(rules.others_in(following), now_s)
    silent = sorted(set(rules.others_in(following)) - set(present))
    return (
        f"{1 + len(present)} of {len(epoch.members)} members are heard, and [pace] members_min asks for "
        f"{epoch.pace.members_min}: it goes on once more of {_listed(silent)} are heard"
    )


def _amendment_that_holds(chain: Chain, number: int) -> str:
    """Describe the amendment that began an epoch's hold: its signers, its date, and what ends it."""
    if not chain.after(number).hold:
        return f"this program cannot apply amendment {number}: the log says why; upgrade mhfl-peer"
    while number > 1 and chain.after(number - 1).hold:
        number -= 1
    link, before = chain.links[number - 1], chain.after(number - 1)
    names, _ = signers(link.signed, authorities=before.authorities, keys=before.keys)
    issued = datetime.datetime.fromtimestamp(link.amendment.issued, datetime.UTC)
    is_founders = chain.head.governance.members is None
    ends = "federation resume" if is_founders else "federation propose --resume"
    return (
        f"amendment {number} of {issued:%Y-%m-%d %H:%M} UTC, signed by {', '.join(sorted(names)) or FOUNDER}, holds "
        f"the federation from round {link.after.from_round} on: `mhfl-peer {ends}` ends it"
    )


def _listed(names: list[SiteName]) -> str:
    """Join at most five names."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")

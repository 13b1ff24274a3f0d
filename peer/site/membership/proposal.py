"""Proposed amendments: built on a chain, passed from member to member, signed, and enacted."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from peer.core.messages import Endorsement, SignedAmendment
from peer.core.roster import NO_ROUND_KEY, ROUND_KEY_BYTES, RoundKey, Sha256, SiteName, site_name
from peer.site.config.toml import split_route
from peer.site.identity.certificates import Identity
from peer.site.membership.amendment import Amendment, AmendmentRefused, body_digest, decode
from peer.site.membership.chain import Chain, Membership, amended, check_place
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.folder import amendment_from_json, amendment_to_json
from peer.site.membership.round_keys import amendment_tag, check_orders, open_key, orders_of, seal_key
from peer.site.membership.signatures import FOUNDER, counted_members, endorse, quorum, signers

VERSION = 1
SIGNING_S = 3600.0
"""Time for members to sign a proposal whose author chose no round; they telephone meanwhile."""
SIGNING_ROUNDS_SHARE = 10
"""At most a tenth of the remaining rounds pass while members sign."""
PROPOSAL_BYTES_MAX = 4 << 20
"""Upper bound: the longest body, escaped as JSON, and a signature and a sealed key of each of 1,000 members."""


@dataclass(frozen=True, slots=True)
class SignatureCount:
    """The signers of a proposal, and the number of signatures that it needs."""

    by: tuple[str, ...]
    needed: int
    problems: tuple[str, ...]

    @property
    def missing(self) -> int:
        return max(0, self.needed - len(self.by))


@dataclass(frozen=True, slots=True)
class Proposal:
    """An amendment that collects signatures; ``keys`` are copies of its round key, each sealed for one member."""

    signed: SignedAmendment
    keys: Mapping[SiteName, bytes] = field(default_factory=dict)

    @classmethod
    def decode(cls, content: bytes) -> Proposal:
        """Decode a proposal file. Raise ``AmendmentRefused`` if it has another form."""
        try:
            if len(content) > PROPOSAL_BYTES_MAX:
                raise ValueError(f"it is over {PROPOSAL_BYTES_MAX} bytes")
            document = json.loads(content)
            if not isinstance(document, dict) or document.get("mhfl_proposal") != VERSION:
                raise ValueError(f"it is no proposal of version {VERSION}")
            keys = {
                site_name(name): base64.b64decode(sealed, validate=True) for name, sealed in document["keys"].items()
            }
            return cls(amendment_from_json(document["amendment"]), keys)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
            raise AmendmentRefused(f"the proposal cannot be read: {error}", "ask its author for it again") from error

    def encode(self) -> bytes:
        """Encode the proposal as indented JSON, which people can read before they sign."""
        keys = {name: base64.b64encode(self.keys[name]).decode("ascii") for name in sorted(self.keys)}
        document = {"mhfl_proposal": VERSION, "amendment": amendment_to_json(self.signed), "keys": keys}
        return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"

    @property
    def amendment(self) -> Amendment:
        return decode(self.signed.body)

    @property
    def digest(self) -> Sha256:
        return body_digest(self.signed.body)

    def merged(self, other: Proposal) -> Proposal:
        """Add another copy's signatures and sealed keys. Raise ``AmendmentRefused`` if it is another amendment."""
        if other.signed.body != self.signed.body:
            raise AmendmentRefused(
                f"two proposals differ: {self.digest[:12]}… and {other.digest[:12]}…", "name copies of one proposal"
            )
        signed = SignedAmendment(self.signed.body, (*self.signed.by, *other.signed.by))
        return Proposal(signed, {**other.keys, **self.keys})

    def with_signature(self, endorsement: Endorsement) -> Proposal:
        return replace(self, signed=SignedAmendment(self.signed.body, (*self.signed.by, endorsement)))


def make(
    chain: Chain,
    genesis: Genesis,
    own: Identity,
    recipients: Mapping[SiteName, ec.EllipticCurvePublicKey],
    changes: Mapping[str, Any],
    *,
    from_round: int,
    reached_round: int,
    issued: int,
) -> Proposal:
    """Build the next amendment of a chain, unsigned; one that expels a site brings a new round key.

    Args:
        own: the identity of the proposing site.
        recipients: the members whose keys are known: each gets a copy of a new round key.
        changes: as ``Amendment`` has them.
        reached_round: the highest round that any member has reported.

    Raises:
        AmendmentRefused: a change is impossible; the error says what to do.
    """
    head = chain.head
    key, tag = None, head.round_key_tag or amendment_tag(own.round_key or NO_ROUND_KEY, head.federation)
    if changes.get("expel") is not None:
        key = RoundKey(secrets.token_bytes(ROUND_KEY_BYTES))
        tag = amendment_tag(key, head.federation)
    amendment = Amendment(
        federation=head.federation,
        number=head.number + 1,
        previous=head.digest,
        from_round=from_round,
        issued=issued,
        round_key_tag=tag,
        **changes,
    )
    body = draw(chain, genesis, amendment, reached_round=reached_round).encode()
    members = amended(head, amendment, body_digest(body)).keys
    known = {own.name: own.key.public_key(), **recipients}
    keys = {
        name: seal_key(key, known[name], federation=head.federation, site=name)
        for name in members
        if key is not None and name in known
    }
    return Proposal(SignedAmendment(body, ()), keys)


def draw(
    chain: Chain,
    genesis: Genesis,
    amendment: Amendment,
    *,
    reached_round: int,
) -> Amendment:
    """Complete the amendment; check that it can be next in the chain and that every site can apply it.

    Args:
        amendment: its place in the chain is filled in here.
        reached_round: the highest round that any member has reported.

    Raises:
        AmendmentRefused: a change is impossible; the error says what to do.
    """
    head = chain.head
    amendment = replace(amendment, federation=head.federation, number=head.number + 1, previous=head.digest)
    check_not_past(amendment, reached_round, f"a member is in round {reached_round}")
    check_place(amendment, head)
    try:
        body = amendment.encode()
    except ValueError as error:
        raise AmendmentRefused(str(error), "correct the setting") from error
    if amendment.expel is not None and head.governance.members is not None:
        needed = quorum(len(head.keys), head.governance, expels=True)
        if needed > len(head.keys) - 1:
            raise AmendmentRefused(
                f"expel: {needed} of {len(head.keys)} members would have to sign, and {amendment.expel} does not",
                "of two members none can expel the other: one of them leaves",
            )
    after = amended(head, amendment, body_digest(body))
    _check_addresses(amendment, after)
    genesis.settings_after(after)
    return amendment


def _check_addresses(amendment: Amendment, after: Membership) -> None:
    """Raise ``AmendmentRefused`` if an added site has another member's address, unless at a relay.

    Sites accept such an address in a chain that they follow: it stops no round.
    """
    for site in amendment.add:
        if site.address is None or split_route(site.address)[0]:
            continue
        others = [name for name, address in after.addresses.items() if address == site.address and name != site.name]
        if others:
            raise AmendmentRefused(
                f"add: the address {site.address} of {site.name} is that of {others[0]}",
                f"ask {site.name} for its own; only at a relay, `relay NAME host:port`, several sites have one",
            )


def check_not_past(amendment: Amendment, reached_round: int, reason: str) -> None:
    """Raise ``AmendmentRefused`` if the amendment's first round is past."""
    if amendment.from_round <= reached_round and not is_never_late(amendment):
        raise AmendmentRefused(
            f"round {amendment.from_round} is past: {reason}",
            f"let the amendment begin with round {reached_round + 1} or later",
        )


def is_never_late(amendment: Amendment) -> bool:
    """Return whether the end of a hold and new keys are the only changes.

    They may come at any time: they change no order, and only the last round may remain.
    """
    return amendment.hold is not True and amendment.changes <= {"hold", "rekey"}


def first_round(chain: Chain, *, reached_round: int, lead_rounds_max: int, signing_rounds: int = 0) -> int:
    """Choose the first round of an amendment: no member can have begun it when the others learn of it.

    Args:
        chain: the chain that the amendment extends.
        reached_round: the highest round that any member has reported.
        lead_rounds_max: as in ``[pace]``.
        signing_rounds: rounds that pass while members sign; at most a tenth of the remaining ones.
    """
    head = chain.head
    signing_rounds = min(signing_rounds, max(0, head.rounds - reached_round) // SIGNING_ROUNDS_SHARE)
    return max(min(reached_round + lead_rounds_max + 1 + signing_rounds, head.rounds), head.from_round)


def count_signatures(chain: Chain, proposal: Proposal) -> SignatureCount:
    """Count the valid signatures and notices. Raise ``AmendmentRefused`` if the proposal is not next in the chain."""
    before, amendment = chain.head, proposal.amendment
    check_place(amendment, before)
    valid, problems = signers(proposal.signed, authorities=before.authorities, keys=before.keys)
    if before.governance.members is None:
        return SignatureCount(tuple(name for name in valid if name == FOUNDER), 1, tuple(problems))
    by = counted_members(valid, amendment, authorities=before.authorities, keys=before.keys)
    needed = quorum(len(before.keys), before.governance, expels=amendment.expel is not None)
    return SignatureCount(tuple(sorted(by)), needed, tuple(problems))


def count_by_genesis(genesis: Genesis, proposal: Proposal) -> SignatureCount:
    """Count the signatures by the roster and governance of federation.toml, for a founder without the chain.

    Amendments may have changed both. Where the founder governs, nobody needs to be counted.
    """
    head, amendment = Chain.of(genesis.config).head, proposal.amendment
    if head.governance.members is None:
        return SignatureCount((), 1, ())
    valid, problems = signers(proposal.signed, authorities=head.authorities, keys=head.keys)
    by = {name for name in valid if name not in (FOUNDER, amendment.expel)}
    needed = quorum(len(head.keys), head.governance, expels=amendment.expel is not None)
    return SignatureCount(tuple(sorted(by)), needed, tuple(problems))


def open_round_key(chain: Chain, genesis: Genesis, proposal: Proposal, own: Identity) -> RoundKey | None:
    """Decrypt and check the proposal's new round key; return ``None`` if it brings none.

    Raise ``AmendmentRefused`` if this site has no copy, the copy does not fit, or the key looks ground.
    """
    amendment, head = proposal.amendment, chain.head
    genesis_tag = amendment_tag(own.round_key or NO_ROUND_KEY, head.federation)
    former = {genesis_tag, *(link.after.round_key_tag for link in chain.links)}
    if amendment.expel is not None and amendment.round_key_tag in former:
        raise AmendmentRefused(
            f"the proposal expels {amendment.expel} and names a round key that {amendment.expel} may have",
            "do not approve it: `federation propose --expel` draws a new key",
        )
    if amendment.round_key_tag in (head.round_key_tag, genesis_tag):
        return None
    after = amended(head, amendment, proposal.digest)
    if (sealed := proposal.keys.get(own.name)) is None:
        raise AmendmentRefused(
            f"the proposal brings a new round key, and no copy of it for {own.name}",
            "ask its author for a proposal that was made while this site was reachable",
        )
    try:
        key = open_key(sealed, own.key, federation=head.federation, tag=amendment.round_key_tag, site=own.name)
    except ValueError as error:
        raise AmendmentRefused(str(error), "do not approve it, and tell its author") from error
    kind = "ring" if genesis.config.plan.pattern == "visit" else genesis.config.schedule.kind
    orders = orders_of(
        key, federation=head.federation, members=after.members, first=after.from_round, last=after.rounds, kind=kind
    )
    check_orders(orders, members=after.members, kind=kind)
    return key


def check_approvable(chain: Chain, genesis: Genesis, proposal: Proposal, own: Identity) -> None:
    """Raise ``AmendmentRefused`` if a member must not sign, or if its signature would not count."""
    head, amendment = chain.head, proposal.amendment
    if head.governance.members is None:
        raise AmendmentRefused(
            "the founder alone signs the amendments of this federation", "the founder uses `federation amend`"
        )
    if own.name not in head.keys or own.name == amendment.expel:
        reason = "is expelled by it" if own.name == amendment.expel else "is no member"
        raise AmendmentRefused(f"{own.name} {reason}: its signature does not count", "other members sign it")
    count_signatures(chain, proposal)
    genesis.settings_after(amended(head, amendment, proposal.digest))
    open_round_key(chain, genesis, proposal, own)


def check_settings(genesis: Genesis, proposal: Proposal) -> None:
    """Raise ``AmendmentRefused`` if the proposal's settings cannot be applied, for a founder without the chain.

    The check of the first amendment is the members' own. A later one's settings are checked against the
    genesis, as the amendments between are not known.
    """
    amendment, head = proposal.amendment, Chain.of(genesis.config).head
    if amendment.number == head.number + 1:
        after = amended(head, amendment, proposal.digest)
    else:
        after = replace(head, number=amendment.number, settings=amendment.settings)
    genesis.settings_after(after)


def approve(proposal: Proposal, own: Identity) -> Proposal:
    """Add this site's signature; the caller has recorded the approval before."""
    return proposal.with_signature(endorse(own, proposal.signed.body))

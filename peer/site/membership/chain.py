"""The chain of amendments from the genesis on: the rules for each link, and the state after it.

A chain is a value. ``Chain.extended`` checks one more amendment against all before it; its validity
depends on the chain alone, never on this site's rounds, clock or version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peer.core import limits
from peer.core.messages import ChainHead, SignedAmendment
from peer.core.roster import Sha256, SiteName
from peer.site.config.schema import FederationConfig
from peer.site.identity.certificates import read_authority
from peer.site.membership.amendment import Amendment, AmendmentRefused, Governance, Requirements, body_digest, decode
from peer.site.membership.signatures import Keys, check_signatures, verify_notice

UPGRADE = "update mhfl-peer here: this version cannot judge the amendment"


@dataclass(frozen=True, slots=True)
class Membership:
    """The federation's members and settings after an amendment; number 0 is the genesis.

    Attributes:
        digest: of the amendment's body; of the genesis, the federation's.
        keys: the members, sorted, each with its pinned key.
        used_names: every name that a site of the federation has or had.
        used_keys: every key that a site has or had pinned, with that site.
        authorities: the CA certificates in PEM, the current one last.
        settings: the amendments' settings so far, as tables of federation.toml.
        rounds: T.
        newcomers: the members that this amendment added.
        round_key_tag: the round key's; ``None`` for the genesis, which does not state it.
        unknown: keys of this amendment, or one before it, that this program does not know.
    """

    federation: Sha256
    number: int
    digest: Sha256
    from_round: int
    keys: Keys
    used_names: frozenset[str]
    authorities: tuple[str, ...]
    governance: Governance
    rounds: int
    addresses: Mapping[SiteName, str] = field(default_factory=dict)
    used_keys: Mapping[Sha256, SiteName] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    expelled: frozenset[SiteName] = frozenset()
    left: frozenset[SiteName] = frozenset()
    newcomers: frozenset[SiteName] = frozenset()
    hold: bool = False
    requires: Requirements | None = None
    round_key_tag: Sha256 | None = None
    unknown: frozenset[str] = frozenset()

    @property
    def members(self) -> tuple[SiteName, ...]:
        return tuple(self.keys)

    @property
    def head(self) -> ChainHead | None:
        """The chain tip as messages state it: ``None`` for the genesis."""
        return ChainHead(self.number, self.digest) if self.number else None


@dataclass(frozen=True, slots=True)
class Link:
    """An amendment of a chain, its valid signatures, and the membership after it."""

    signed: SignedAmendment
    amendment: Amendment
    after: Membership


@dataclass(frozen=True, slots=True)
class Chain:
    """A genesis and the valid amendments after it."""

    genesis: Membership
    links: tuple[Link, ...] = ()

    @classmethod
    def of(cls, federation: FederationConfig, amendments: Iterable[SignedAmendment] = ()) -> Chain:
        """Build a federation's chain. Raise ``AmendmentRefused`` for the first invalid amendment."""
        return cls(_genesis(federation)).with_all(amendments)

    @property
    def head(self) -> Membership:
        """The membership after the newest amendment."""
        return self.links[-1].after if self.links else self.genesis

    def after(self, number: int) -> Membership:
        """Return the membership after the amendment of this number; 0 is the genesis."""
        return self.links[number - 1].after if number else self.genesis

    def at(self, round: int) -> Membership:
        """Return the epoch of a round: the membership with the highest number whose ``from_round`` is not above it."""
        begun = (link.after for link in reversed(self.links) if link.after.from_round <= round)
        return next(begun, self.genesis)

    def with_all(self, amendments: Iterable[SignedAmendment]) -> Chain:
        """Extend the chain by these amendments in turn."""
        chain = self
        for signed in amendments:
            chain = chain.extended(signed)
        return chain

    def until(self, number: int) -> Chain:
        """Truncate the chain after this amendment."""
        return replace(self, links=self.links[:number])

    def extended(self, signed: SignedAmendment) -> Chain:
        """Extend the chain by one amendment. Raise ``AmendmentRefused`` if it is not valid here."""
        amendment, before = decode(signed.body), self.head
        check_place(amendment, before)
        after = amended(before, amendment, body_digest(signed.body))
        kept = check_signatures(
            signed,
            amendment,
            authorities=before.authorities,
            keys=before.keys,
            governance=before.governance,
        )
        return replace(self, links=(*self.links, Link(kept, amendment, after)))


def check_place(amendment: Amendment, before: Membership) -> None:
    """Raise ``AmendmentRefused`` unless the amendment is the next one after ``before``."""
    fresh = "make it again from the newest chain: `federation amend` and `federation propose` take it from a site"
    if amendment.federation != before.federation:
        raise AmendmentRefused(
            f"the amendment is of the federation {amendment.federation[:12]}…, not {before.federation[:12]}…",
            "name the file of this federation",
        )
    if amendment.number != before.number + 1:
        raise AmendmentRefused(
            f"amendment {amendment.number} is not next in the chain, which ends with {before.number}", fresh
        )
    if amendment.previous != before.digest:
        raise AmendmentRefused(
            f"amendment {amendment.number} follows {amendment.previous[:12]}…, and this chain has "
            f"{before.digest[:12]}… before it",
            fresh,
        )
    if amendment.from_round < before.from_round:
        raise AmendmentRefused(
            f"amendment {amendment.number} is from round {amendment.from_round}, and the one before it from round "
            f"{before.from_round}",
            f"let it begin with round {before.from_round} or later",
        )
    if amendment.from_round > (last := max(before.rounds, before.from_round)):
        raise AmendmentRefused(
            f"amendment {amendment.number} is from round {amendment.from_round}, after the last one, {before.rounds}",
            f"let it begin with round {last} at the latest",
        )
    if not amendment.changes:
        raise AmendmentRefused(f"amendment {amendment.number} changes nothing", "say what it shall change")


def amended(before: Membership, amendment: Amendment, digest: Sha256) -> Membership:
    """Return the membership after an amendment. Raise ``AmendmentRefused``, which names the impossible change."""
    keys = dict(before.keys)
    leavers = _remove(keys, before, amendment)
    names = [site.name for site in amendment.add]
    for site in amendment.add:
        if site.name in before.used_names or names.count(site.name) > 1:
            raise AmendmentRefused(f"add: the name {site.name} is used, or was", "give the new site another name")
        keys[site.name] = site.key
    for name, key in amendment.rekey.items():
        if name not in before.keys or name not in keys:
            raise AmendmentRefused(f"rekey: {name} is no member", _listed(before))
        keys[name] = key
    used_keys = dict(before.used_keys)
    for name, key in [(site.name, site.key) for site in amendment.add] + [*amendment.rekey.items()]:
        if used_keys.setdefault(key, name) != name:
            raise AmendmentRefused(f"the key of {name} is that of {used_keys[key]}", "every site has its own key")
    governance = amendment.governance if amendment.governance is not None else before.governance
    unpinned = [name for name, pinned in keys.items() if pinned is None]
    if governance.members is not None and unpinned:
        raise AmendmentRefused(
            f"governance: members sign with pinned keys, and none is pinned of {', '.join(unpinned)}",
            "pin the keys in the same amendment: `--rekey SITE=KEY` for each",
        )
    if len(keys) > limits.SITES_MAX:
        raise AmendmentRefused(f"add: {len(keys)} members are over {limits.SITES_MAX}", "add fewer sites")
    removed = leavers | ({amendment.expel} if amendment.expel else set())
    addresses = {name: text for name, text in before.addresses.items() if name not in removed}
    addresses |= {site.name: site.address for site in amendment.add if site.address is not None}
    _check_round_key(before, amendment)
    return replace(
        before,
        number=amendment.number,
        digest=digest,
        from_round=amendment.from_round,
        keys=dict(sorted(keys.items())),
        used_names=before.used_names | set(names),
        used_keys=used_keys,
        authorities=_authorities(before, amendment),
        governance=governance,
        rounds=_rounds(before, amendment),
        addresses=addresses,
        settings=merged(before.settings, amendment.settings),
        expelled=before.expelled | ({amendment.expel} if amendment.expel else set()),
        left=before.left | leavers,
        newcomers=frozenset(names),
        hold=before.hold if amendment.hold is None else amendment.hold,
        requires=amendment.requires or before.requires,
        round_key_tag=amendment.round_key_tag,
        unknown=before.unknown | amendment.unknown.keys(),
    )


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the changes to the document: tables are merged, every other value replaces the former one."""
    result = dict(document)
    for key, value in changes.items():
        inner = result.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = merged(inner, value)
        result[key] = value
    return result


def _remove(keys: dict[SiteName, Sha256 | None], before: Membership, amendment: Amendment) -> frozenset[SiteName]:
    """Remove the expelled and the leaving sites from ``keys``; return the leaving ones."""
    leavers = frozenset(
        verify_notice(notice, federation=before.federation, authorities=before.authorities, keys=before.keys).site
        for notice in amendment.leave
    )
    if len(leavers) < len(amendment.leave):
        raise AmendmentRefused("leave: two notices are of one site", "name each site once")
    if amendment.expel is not None and (amendment.expel not in keys or amendment.expel in leavers):
        raise AmendmentRefused(f"expel: {amendment.expel} is no member, or leaves", _listed(before))
    for name in leavers | ({amendment.expel} if amendment.expel is not None else set()):
        del keys[name]
    if not keys and not amendment.add:
        raise AmendmentRefused(
            f"amendment {amendment.number} leaves the federation without a member",
            "the last site ends it with `mhfl-peer stop`; nothing needs to be amended",
        )
    return leavers


def _check_round_key(before: Membership, amendment: Amendment) -> None:
    """Require a new round key on expulsion, and allow one on addition only; the genesis states no tag."""
    if before.round_key_tag is None:
        return
    same = amendment.round_key_tag == before.round_key_tag
    if amendment.expel is not None and same:
        raise AmendmentRefused(
            f"amendment {amendment.number} expels {amendment.expel} and keeps the round key",
            "an expelled site must not know the orders to come: `federation amend --expel` draws a new key",
        )
    if amendment.expel is None and not amendment.add and not same:
        raise AmendmentRefused(
            f"amendment {amendment.number} changes the round key and neither expels nor adds a site",
            "only these two bring a new one",
        )


def _authorities(before: Membership, amendment: Amendment) -> tuple[str, ...]:
    if amendment.authority is None:
        return before.authorities
    try:
        read_authority(amendment.authority.encode())
    except ValueError as error:
        raise AmendmentRefused(f"authority: {error}", "name the certificate of the new CA, in PEM") from error
    if amendment.authority in before.authorities:
        raise AmendmentRefused("authority: the federation has or had this CA", "leave it out")
    return (*before.authorities, amendment.authority)


def _rounds(before: Membership, amendment: Amendment) -> int:
    rounds = amendment.settings.get("rounds", before.rounds)
    if rounds < amendment.from_round - 1:
        raise AmendmentRefused(
            f"set.rounds: {rounds} is before round {amendment.from_round - 1}, which the amendment does not reach",
            f"end the federation with round {amendment.from_round - 1} or later",
        )
    return int(rounds)


def _listed(before: Membership) -> str:
    return f"the members are {', '.join(before.members)}"


def _genesis(federation: FederationConfig) -> Membership:
    if federation.ca_certificate is None:
        raise AmendmentRefused(f"{federation.where} is a draft", "use the file that `federation create` wrote")
    keys = federation.pinned_keys
    return Membership(
        federation=federation.digest,
        number=0,
        digest=federation.digest,
        from_round=1,
        keys=dict(sorted(keys.items())),
        used_names=frozenset(keys),
        used_keys={key: name for name, key in keys.items() if key is not None},
        authorities=(federation.ca_certificate,),
        governance=Governance(federation.governance_members),
        rounds=federation.rounds,
        addresses=federation.addresses,
    )

"""The epochs of a chain, in the state machine's form: members, keys and settings by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peer.core.epochs import Epoch, Epochs
from peer.core.limits import PROTOCOL_VERSION_MAX
from peer.core.messages import FEATURES
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.errors import ConfigError
from peer.site.config import toml
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.chain import Chain, Membership, merged
from peer.site.membership.round_keys import amendment_tag

Keyring = Mapping[Sha256, RoundKey]
"""The site's round keys, by the tag in amendments."""


@dataclass(frozen=True, slots=True)
class Genesis:
    """federation.toml as text and as parsed configuration: amendments change the text's tables."""

    document: Mapping[str, Any]
    config: FederationConfig

    @classmethod
    def parse(cls, federation_toml: str, where: str = "federation.toml") -> Genesis:
        return cls(toml.parse(federation_toml, where), FederationConfig.parse(federation_toml, where))

    def settings_after(self, membership: Membership) -> FederationConfig:
        """Return the federation's configuration with the members and settings after an amendment.

        A quorum or a number of visits that exceeds the remaining peers is lowered. Raise
        ``AmendmentRefused``, which names the key that this program cannot apply, or the site that the
        method has no place for.
        """
        if self.config.plan.fixed_sites and (added := sorted(set(membership.keys) - set(self.config.roster))):
            raise AmendmentRefused(
                f"add: {self.config.method.name} has no place for {', '.join(added)}: its networks are built "
                "for the sites of federation.toml",
                "found another federation with all sites in federation.toml, or with a `[method] name` whose sites "
                "may change",
            )
        changed, others = merged(self.document, membership.settings), len(membership.members) - 1
        if isinstance(quorum := changed.get("quorum"), int) and quorum > others:
            changed["quorum"] = others or None
        visits = self.config.plan.visits
        if isinstance(count := changed["method"].get(visits), int):
            changed["method"] = merged(changed["method"], {str(visits): max(1, min(count, others))})
        changed["governance"] = membership.governance.document()
        changed["site"] = [
            {"name": name} | ({} if pinned is None else {"key": pinned}) for name, pinned in membership.keys.items()
        ]
        try:
            config = toml.validate(FederationConfig, changed, f"amendment {membership.number}")
        except ConfigError as error:
            raise AmendmentRefused(error.message, "correct the setting, or update mhfl-peer here") from error
        config._digest = membership.federation
        return config


def epochs_of(chain: Chain, federation_toml: str, *, round_key: RoundKey | None, keys: Keyring) -> Epochs:
    """Build the epochs of a chain.

    An epoch that this program cannot apply keeps the former settings and holds: a chain's validity must
    not depend on a site's version. An amendment that ends a hold ends it for all rounds, also those
    before its own: nobody could ever open them.

    Args:
        federation_toml: the text of the genesis.
        round_key: the genesis' key, which a site that was added later may lack.
    """
    genesis = Genesis.parse(federation_toml)
    known = dict(keys)
    if round_key is not None:
        known[amendment_tag(round_key, chain.genesis.federation)] = round_key
    epochs: list[Epoch] = []
    config, upgrade = genesis.config, ""
    memberships = (chain.genesis, *(link.after for link in chain.links))
    free = max(membership.number for membership in memberships if not membership.hold)  # the genesis never holds
    for membership in memberships:
        try:
            config = genesis.settings_after(membership)
            upgrade = upgrade_reason(membership)
        except AmendmentRefused as error:
            upgrade = error.message
        key = round_key if membership.round_key_tag is None else known.get(membership.round_key_tag)
        held = membership.hold and membership.number > free
        epochs.append(_epoch(membership, config, key, hold=held or bool(upgrade)))
    return Epochs(tuple(epochs))


def upgrade_reason(membership: Membership) -> str:
    """Return why this program must be updated before the epoch begins; empty if it need not be."""
    if membership.unknown:
        return f"amendment {membership.number} has keys that this version does not know: " + ", ".join(
            sorted(membership.unknown)
        )
    requires = membership.requires
    if requires is None:
        return ""
    if requires.protocol > PROTOCOL_VERSION_MAX:
        return f"the federation requires protocol {requires.protocol}, and this version speaks {PROTOCOL_VERSION_MAX}"
    missing = sorted(set(requires.features) - set(FEATURES))
    return f"the federation requires {', '.join(missing)}, which this version does not know" if missing else ""


def _epoch(membership: Membership, config: FederationConfig, key: RoundKey | None, *, hold: bool) -> Epoch:
    rules = make_rules(config, SiteName(membership.members[0]), key or RoundKey(bytes(32)))
    return Epoch(
        number=membership.number,
        digest=membership.digest if membership.number else None,
        from_round=membership.from_round,
        members=membership.members,
        round_key=key,
        rounds=membership.rounds,
        round_steps=rules.round_steps,
        parameters=rules.parameters,
        pace=rules.pace,
        quorum=rules.quorum,
        fallback=rules.fallback,
        staleness_rounds_max=rules.staleness_rounds_max,
        hold=hold,
        newcomers=membership.newcomers,
        expelled=membership.expelled,
        left=membership.left,
    )

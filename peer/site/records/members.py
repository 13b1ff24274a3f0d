"""Who the members of a federation are in each round, by the chain of amendments in a site's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.core.epochs import Epochs
from peer.core.roster import RoundKey, SiteName
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.chain import Chain
from peer.site.membership.epoch_rules import epochs_of
from peer.site.membership.folder import MembershipFolder

MembersOf = Callable[[int], Sequence[str]]
"""The members in a round, sorted."""
AMENDMENT_MISSING = (
    "the amendment that adds this site has not arrived: wait for it, or ask the founder whether it was made, and "
    "handed in at a member"
)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a federation whose members have changed."""

    chain: Chain
    leaving: frozenset[str]

    @classmethod
    def read(cls, folder: SiteFolder) -> Members | None:
        """Read the chain in the site's folder; None without one. Raises ``PeerError`` if it is broken."""
        if not folder.membership.exists():
            return None
        membership = MembershipFolder(folder.membership)
        chain = membership.chain(FederationConfig.load(folder.federation_toml))
        return cls(chain, frozenset(json.loads(notice.body)["site"] for notice in membership.notices()))

    @property
    def rounds(self) -> int:
        return self.chain.head.rounds

    def of(self, round: int) -> Sequence[str]:
        """Return the members in a round."""
        return self.chain.at(round).members

    def held(self, site: SiteName) -> str:
        """Return why a site whose daemon is down opens no round; empty at one that is, or was, a member."""
        return "" if site in self.chain.head.used_names else AMENDMENT_MISSING

    def departure(self, site: str) -> str:
        """Return why a site is no member any more; empty while it is one, and before an amendment adds it."""
        head = self.chain.head
        if site in head.left:
            return "this site left the federation"
        if site not in head.expelled:
            return ""
        number = next(link.after.number for link in self.chain.links if link.amendment.expel == site)
        return f"this site was expelled from the federation by amendment {number}: ask the members why"

    def present(self) -> list[str]:
        """Return the members now, newcomers included before their first round; without those that leave."""
        return [name for name in self.chain.head.members if name not in self.leaving]


def members_of(folder: SiteFolder, genesis: Sequence[str]) -> MembersOf:
    """Return the members in each round; without amendments, the sites of federation.toml."""
    members = Members.read(folder)
    return members.of if members is not None else lambda round: genesis


def epochs_at_rest(folder: SiteFolder, federation: FederationConfig, round_key: RoundKey | None) -> Epochs:
    """Return the epochs by the chain in the site's folder, with the round keys in it."""
    membership = MembershipFolder(folder.membership)
    text = folder.federation_toml.read_text("utf-8")
    return epochs_of(membership.chain(federation), text, round_key=round_key, keys=membership.round_keys())

"""Sites whose chains keepers keep, with a clock that the test moves; and chains for them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.core import events
from peer.core.messages import AmendmentsReply, ChainHead
from peer.core.roster import RoundKey, SiteName
from peer.daemon.chain_keeper import ASK_S, ChainKeeper
from peer.site.identity.certificates import certificate_der, certificate_key
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.round_keys import amendment_tag, seal_key
from tests.fakes.chains import GENESIS_KEY, AmendedFederation, identity, newcomer

AMERICA, ASIA, EUROPE = map(SiteName, ("america", "asia", "europe"))


FEDERATION = AmendedFederation("africa", "asia", "europe")


class KeptSite:
    """A keeper with its folder, what it reported, and a clock that the test moves."""

    def __init__(self, folder: Path, name: str, *, key: RoundKey | None = GENESIS_KEY, opened: int = 1) -> None:
        self.name, self.folder = SiteName(name), MembershipFolder(folder / name / "membership")
        self.reported: list[events.Event] = []
        self.now_s, self.opened, self.key = 0.0, opened, key
        self.calls: list[tuple[SiteName, int]] = []
        self.peers: dict[SiteName, KeptSite] = {}
        self.keeper = self.start()

    def start(self) -> ChainKeeper:
        return ChainKeeper(
            self.folder,
            FEDERATION.toml,
            own=lambda: identity(self.name),
            round_key=self.key,
            opened_round=lambda: self.opened,
            report=self.reported.append,
            clock=lambda: self.now_s,
        )

    def have(self, chain: Chain, *keys: RoundKey) -> "KeptSite":
        """Start again with this chain and these round keys on disk."""
        self.folder.save_chain(chain)
        self.folder.save_round_keys({amendment_tag(key, FEDERATION.config.digest): key for key in keys})
        self.keeper = self.start()
        return self

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        self.calls.append((peer, after))
        return self.peers[peer].keeper.answer(self.name, certificate_der(identity(self.name).certificate), after)

    def follow(self, peer: "KeptSite", head: ChainHead | None = None, *, after_s: float = ASK_S) -> bool:
        """Hear the peer's head some time later; by default the last true answer of the peer is long enough ago."""
        self.now_s += after_s
        self.peers[peer.name] = peer
        return asyncio.run(self.keeper.follow(peer.name, head or peer.keeper.head, self))

    def refusals(self) -> list[str]:
        return [each.reason for each in self.reported if isinstance(each, events.PeerRefused)]

    def learned(self) -> list[events.EpochsLearned]:
        return [each for each in self.reported if isinstance(each, events.EpochsLearned)]


@dataclass
class Answering:
    """A client whose peer gives one reply to every question."""

    reply: AmendmentsReply

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        return self.reply


MakeSite = Callable[..., KeptSite]


def chain(*changes: dict[str, Any]) -> Chain:
    grown = FEDERATION.chain()
    for each in changes:
        grown = FEDERATION.extend(grown, **each)
    return grown


def sealed_for_africa(key: RoundKey) -> bytes:
    public_key = certificate_key(identity("africa").certificate)
    return seal_key(key, public_key, federation=FEDERATION.config.digest, site=SiteName("africa"))


EXPULSION = chain({"from_round": 10, "add": (newcomer("america"),)}, {"from_round": 20, "key": 1, "expel": ASIA})


HOLDS = chain({"hold": True})


EXPELS = chain({"expel": ASIA, "key": 1})

"""Shared by the commands about members and amendments: a site's chain, and actions on it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output
from peer.core.roster import SiteName
from peer.errors import DaemonDown, FederationMismatch, MembershipError, PeerError
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, find_site, home_folder, sites
from peer.site.identity.certificates import Identity, read_authority
from peer.site.membership.amendment import body_digest
from peer.site.membership.chain import Chain
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.proposal import first_round

if TYPE_CHECKING:
    from peer.net.transport.control import ControlClient
    from peer.site.records.history import RecentRounds

TOLD = ("enact", "leave")
"""Actions that the other sites must learn of."""
MAYBE_PAST = "what round the others are in is not known here: one that is past round {round} follows from its next on"
UNHEARD = "no daemon runs here: amendments that the other sites have, and this one lacks, are not known"
COMING = "amendment {number} begins with round {round}, and none after it begins sooner"
AT_REST = "no daemon runs here: its next start tells the other sites"


def complete_member(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the members after the newest amendment, as known to the site that the command is about.

    If the command does not yet name one of several sites, complete the members of all of them.
    """
    names = {name for _, chain in _chains(context) for name in chain.head.members}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_newcomer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the newcomers that the site has not accepted yet."""
    names: set[str] = set()
    for membership, chain in _chains(context):
        with contextlib.suppress(PeerError):
            names |= set(chain.head.members) - set(chain.genesis.keys) - membership.accepted()
    return sorted(name for name in names if name.startswith(incomplete))


def complete_fork(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the digests of the competing amendments that `federation choose` accepts."""
    digests: set[str] = set()
    for membership, chain in _chains(context):
        with contextlib.suppress(PeerError):
            digests |= {body_digest(fork.other.body) for fork in membership.forks(chain)}
    return sorted(digest for digest in digests if digest.startswith(incomplete))


def _chains(context: click.Context) -> Iterator[tuple[MembershipFolder, Chain]]:
    """Yield the chains on disk of the site that the command names, or of all sites under the home folder."""
    settings, name = context.find_object(Settings) or Settings(), context.params.get("site_name")
    for folder in sites(home_folder(settings.home)):
        if name in (None, folder.site, f"{folder.federation}/{folder.site}"):
            with contextlib.suppress(PeerError):
                membership = MembershipFolder(folder.membership)
                yield membership, membership.chain(FederationConfig.load(folder.federation_toml))


def longest_chain(home: Path, site_name: str | None, federation: FederationConfig) -> tuple[SiteFolder, Chain] | None:
    """Return this machine's site with the longest chain of this federation, and the chain; ``None`` without one."""
    named = None if site_name is None else find_site(home, site_name)
    chains = []
    for folder in sites(home) if named is None else (named,):
        if folder.federation != federation.name:
            continue
        own = FederationConfig.load(folder.federation_toml)
        if own.digest == federation.digest:
            chains.append((folder, MembershipFolder(folder.membership).chain(own)))
    if named is not None and not chains:
        raise FederationMismatch(f"{named.federation_toml} is of another federation", "name a site of this one")
    return max(chains, key=lambda pair: pair[1].head.number, default=None)


@dataclass(frozen=True)
class SiteChain:
    """A site of this machine, its chain of amendments, and its current status."""

    folder: SiteFolder
    membership: MembershipFolder
    genesis: Genesis
    chain: Chain
    own: Identity
    status: Mapping[str, Any]

    @classmethod
    def open(cls, folder: SiteFolder) -> SiteChain:
        """Load a site's chain, even with an expired certificate; raise ``PeerError`` if a file is unusable."""
        from peer.cli.watch import read_document

        genesis = Genesis.parse(toml.read(folder.federation_toml), str(folder.federation_toml))
        membership = MembershipFolder(folder.membership)
        chain = membership.chain(genesis.config)
        own = Identity.load(
            folder.pki,
            name=folder.site,
            ca_certificate=genesis.config.ca_certificate,
            now=None,
            pinned_key=chain.head.keys.get(folder.site),
            later=[read_authority(pem.encode()) for pem in chain.head.authorities[1:]],
            joined_later=folder.site not in chain.genesis.keys,
        )
        return cls(folder, membership, genesis, chain, own, read_document(folder, "status", {}))

    @property
    def reached_round(self) -> int:
        """The highest round that any member, this site included, is known to be in."""
        rounds: list[int] = [peer["round"] or 0 for peer in self.status["peers"].values()]
        return max([int(self.status["round"]), *rounds])

    @functools.cached_property
    def recent(self) -> RecentRounds:
        """The rounds that this site committed most recently."""
        from peer.site.records.history import recent_rounds_on_disk

        return recent_rounds_on_disk(self.folder)

    def first_round(self, *, signing_s: float = 0.0) -> int:
        """Return the round to propose an amendment for, by the newest chain.

        Args:
            signing_s: the time that members get to sign it, converted to rounds by this site's recent pace.
        """
        pace_s = self.recent.pace_s if signing_s else None
        return first_round(
            self.chain,
            reached_round=self.reached_round,
            lead_rounds_max=self.genesis.settings_after(self.chain.head).pace.lead_rounds_max,
            signing_rounds=int(signing_s // pace_s) if pace_s else 0,
        )

    def until_round_s(self, round: int) -> float | None:
        """Estimate the seconds until this site opens a round; ``None`` if it is held or has no pace yet."""
        if self.recent.last is None or self.status["held"]:
            return None
        return self.recent.left_s(max(0, round - 1 - self.recent.last["round"]), now_s=time.time())

    def check_newest(self, *, besides: SiteName | None = None, instead: bool = False) -> list[str]:
        """Return notes about the peers' amendments.

        Raise ``MembershipError`` if a peer advertises a later chain tip than this site's, or this site was expelled or
        has left. A peer may lie about its chain tip, so the site being expelled is ignored, and an operator may insist.

        Args:
            besides: the site that the amendment expels.
            instead: whether the operator insists.
        """
        head = self.chain.head
        if self.folder.site in head.expelled | head.left:
            way = "was expelled from" if self.folder.site in head.expelled else "has left"
            raise MembershipError(
                f"{self.folder.site} {way} {self.genesis.config.name}: nobody follows an amendment from here",
                f"work at the site of a member: {', '.join(head.members)}",
            )
        running, document = self._ask(lambda daemon: daemon.show("membership"))
        soonest = self.reached_round + self.genesis.settings_after(head).pace.lead_rounds_max + 1
        late = head.number and head.from_round > soonest
        notes = [COMING.format(number=head.number, round=head.from_round)] if late else []
        if not running:
            return [*notes, UNHEARD]
        for name, stated in document["heads"].items():
            if stated["number"] > head.number and name != besides and not instead:
                raise MembershipError(
                    f"{name} has amendment {stated['number']}, and this site's chain ends with {head.number}",
                    "wait until this site's daemon has it, and look again; if that peer lies, repeat with --instead",
                )
        return notes

    def act(self, action: str, **arguments: Any) -> Any:
        """Carry out an action in the running daemon, or in the folder if none runs, with the same refusals."""
        from peer.daemon.chain_keeper import keeper_at_rest
        from peer.daemon.governance import MembershipActions

        try:
            done, document = self._ask(lambda daemon: daemon.act(action, **arguments))
        except DaemonDown as error:
            raise DaemonDown(
                f"{error.message}; `{action}` may have been carried out",
                "look at `mhfl-peer federation show` before you repeat it",
            ) from error
        if done:
            return document
        with self.folder.locked():
            document = MembershipActions(keeper_at_rest(self.folder, self.own), self.folder).act(action, arguments)
        if action in TOLD:
            document["notes"].append(AT_REST)
        if action == "enact":
            document["notes"].append(MAYBE_PAST.format(round=document["from_round"]))
        return document

    def _ask(self, call: Callable[[ControlClient], Any]) -> tuple[bool, Any]:
        """Return whether a daemon runs here, and its answer; raise ``DaemonDown`` if one listens without answering."""
        from peer.net.transport.control import AMENDING_S, ControlClient, DaemonSilent

        try:
            if (socket := self.folder.control_socket()).exists():
                return True, call(ControlClient(socket, answer_s=AMENDING_S))
        except DaemonSilent:
            raise
        except DaemonDown:
            pass
        return False, None


def render_enacted(document: Mapping[str, Any]) -> output.RenderableType:
    """Render an amendment that the site's chain now contains."""
    return output.fields(
        (
            ("enacted", f"amendment {document['number']}, {document['digest']}"),
            ("from round", document["from_round"]),
            *(("change", sentence) for sentence in document["changes"]),
            ("members", ", ".join(document["members"])),
            ("signed by", ", ".join(document["signed_by"])),
            *(("note", note) for note in document["notes"]),
        )
    )

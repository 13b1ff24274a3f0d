"""What the commands about members and amendments share: a site's chain, and its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output
from peer.config import toml
from peer.config.schema import FederationConfig
from peer.config.site_folder import SiteFolder, find_site, home_folder
from peer.core.roster import SiteName
from peer.errors import DaemonDown, MembershipError, PeerError
from peer.identity.certificates import Identity, read_authority
from peer.membership.chain import Chain
from peer.membership.epoch_rules import Genesis
from peer.membership.folder import MembershipFolder

if TYPE_CHECKING:
    from peer.transport.control import ControlClient

TOLD = ("enact", "leave")
"""Actions that concern the other sites."""
MAYBE_PAST = "what round the others are in is not known here: one that is past round {round} follows from its next on"
UNHEARD = "no daemon runs here: amendments that the other sites have, and this one lacks, are not known"
AT_REST = "no daemon runs here: its next start tells the other sites"


def complete_member(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The members after the newest amendment, as the site that the command is about has them."""
    settings = context.find_object(Settings) or Settings()
    try:
        folder = find_site(home_folder(settings.home), context.params.get("site_name"))
        chain = MembershipFolder(folder.membership).chain(FederationConfig.load(folder.federation_toml))
    except PeerError:
        return []
    return [name for name in chain.head.members if name.startswith(incomplete)]


@dataclass(frozen=True)
class SiteChain:
    """A site of this machine, its chain of amendments, and what the site hears now."""

    folder: SiteFolder
    membership: MembershipFolder
    genesis: Genesis
    chain: Chain
    own: Identity
    status: Mapping[str, Any]

    @classmethod
    def open(cls, folder: SiteFolder) -> SiteChain:
        """``PeerError`` where a file of the site cannot be used. A certificate out of date does not matter."""
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
        """The highest round that a member is heard to be in, this site included."""
        rounds: list[int] = [peer["round"] or 0 for peer in self.status["peers"].values()]
        return max([int(self.status["round"]), *rounds])

    def check_newest(self, *, besides: SiteName | None = None, instead: bool = False) -> list[str]:
        """What to note of amendments that the peers have; ``MembershipError`` where one has a later one than this site.

        A peer may lie about it, so that its expulsion does not wait for it, nor an operator who insists.

        Args:
            besides: the site that the amendment expels.
            instead: whether the operator insists.
        """
        running, document = self._ask(lambda daemon: daemon.show("membership"))
        if not running:
            return [UNHEARD]
        head = self.chain.head
        for name, stated in document["heads"].items():
            if stated["number"] > head.number and name != besides and not instead:
                raise MembershipError(
                    f"{name} has amendment {stated['number']}, and this site's chain ends with {head.number}",
                    "wait until this site's daemon has it, and look again; if that peer lies, repeat with --instead",
                )
        return []

    def act(self, action: str, **arguments: Any) -> Any:
        """Carry out an action in the running daemon, and otherwise in the folder, with the same refusals."""
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
        """Whether a daemon runs here, and its answer; ``DaemonDown`` where one listens that does not answer."""
        from peer.transport.control import ControlClient, DaemonSilent

        try:
            if (socket := self.folder.control_socket()).exists():
                with ControlClient(socket) as client:
                    return True, call(client)
        except DaemonSilent:
            raise
        except DaemonDown:
            pass
        return False, None


def render_enacted(document: Mapping[str, Any]) -> output.RenderableType:
    """An amendment that the site's chain has now."""
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

"""The operator's changes to a site's chain of amendments, with or without a running daemon."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from peer.core.roster import Sha256, SiteName
from peer.daemon.chain_keeper import ChainKeeper
from peer.documents.membership import AmendmentEnacted, ChainChosen, LeaveNoticed, NewcomerAccepted
from peer.errors import MembershipError
from peer.site.config import toml
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.amendment import AmendmentRefused, body_digest, notice_from_base64
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.proposal import Proposal, approve, check_approvable, count_signatures
from peer.site.membership.shown import words_of
from peer.site.membership.signatures import signers

KNOWN_BEFORE = "this site gave its notice before: a daemon that runs tells it to whoever may lack it"
DIGITS_MIN = 8
"""Of a digest that a person types."""


class MembershipActions:
    """The actions by name; each returns the document of its command.

    The caller holds the folder's lock.
    """

    def __init__(self, keeper: ChainKeeper, folder: SiteFolder) -> None:
        self._keeper, self._folder = keeper, folder
        self._membership = MembershipFolder(folder.membership)
        self._actions: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "enact": self._enact,
            "approve": self._approve,
            "leave": self._leave,
            "accept": self._accept,
            "choose": self._choose,
        }

    def act(self, action: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Execute an action; raise ``MembershipError`` with the reason if it is refused and changes nothing."""
        try:
            return dict(self._actions[action](arguments))
        except AmendmentRefused as error:
            raise MembershipError(error.message, error.remedy) from error

    def _enact(self, arguments: Mapping[str, Any]) -> AmendmentEnacted:
        proposal = Proposal.decode(str(arguments["proposal"]).encode())
        sealed, is_followed = proposal.keys.get(self._folder.site, b""), bool(arguments.get("is_followed"))
        self._keeper.enact(proposal.signed, sealed=sealed, is_followed=is_followed)
        link = next(link for link in self._keeper.chain.links if link.after.digest == proposal.digest)
        before = self._keeper.chain.after(link.after.number - 1)
        valid, _ = signers(link.signed, authorities=before.authorities, keys=before.keys)
        return {
            "site": self._folder.site,
            "number": link.after.number,
            "digest": link.after.digest,
            "from_round": link.after.from_round,
            "changes": words_of(link.amendment, before, self._genesis()),
            "members": list(link.after.members),
            "signed_by": sorted(valid),
            "notes": [],
        }

    def _genesis(self) -> Genesis:
        return Genesis.parse(toml.read(self._folder.federation_toml), str(self._folder.federation_toml))

    def _approve(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Check the proposal, record the approval, and only then sign."""
        proposal = Proposal.decode(str(arguments["proposal"]).encode())
        chain, own = self._keeper.chain, self._keeper.own
        check_approvable(chain, self._genesis(), proposal, own)
        self._membership.approve(
            proposal.amendment.number, proposal.signed.body, instead=bool(arguments.get("instead"))
        )
        if own.name not in count_signatures(chain, proposal).by:
            proposal = approve(proposal, own)
        return {"proposal": proposal.encode().decode()}

    def _leave(self, arguments: Mapping[str, Any]) -> LeaveNoticed:
        notice = notice_from_base64(arguments["notice"])
        content = json.loads(notice.body)
        is_known = content["site"] in self._keeper.notices
        self._keeper.leave(notice)
        members = [] if is_known else self._keeper.chain.head.members
        unreached: list[str] = [name for name in members if name not in self._keeper.notices]
        notes = [KNOWN_BEFORE] if is_known else []
        return {"site": content["site"], "issued": content["issued"], "unreached": unreached, "notes": notes}

    def _accept(self, arguments: Mapping[str, Any]) -> NewcomerAccepted:
        name, chain = str(arguments["site"]), self._keeper.chain
        newcomers = [member for member in chain.head.members if member not in chain.genesis.keys]
        if name not in newcomers:
            raise AmendmentRefused(
                f"{name} is no site that an amendment added",
                f"amendments added {', '.join(newcomers)}" if newcomers else "so far no amendment added one",
            )
        self._membership.accept(SiteName(name))
        accepted = sorted(self._membership.accepted())
        return {"site": self._folder.site, "newcomer": name, "accepted": list(accepted), "notes": []}

    def _choose(self, arguments: Mapping[str, Any]) -> ChainChosen:
        self._keeper.choose(self._whole_digest(str(arguments["digest"]).lower()))
        head = self._keeper.chain.head
        return {"site": self._folder.site, "head": {"number": head.number, "digest": head.digest}, "notes": []}

    def _whole_digest(self, start: str) -> Sha256:
        """Complete the digest of a fork's other amendment; ``AmendmentRefused`` unless exactly one begins so."""
        others = {body_digest(fork.other.body) for fork in self._membership.forks(self._keeper.chain)}
        fitting = [digest for digest in others if digest.startswith(start)]
        if len(fitting) != 1 or len(start) < DIGITS_MIN:
            raise AmendmentRefused(
                f"{start or 'nothing'} is the beginning of no other amendment that this site has seen, or of several",
                f"give the digest that `federation show` lists as a fork, or {DIGITS_MIN} digits of it",
            )
        return fitting[0]

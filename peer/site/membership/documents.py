"""The JSON documents of the commands that show and change the members of a federation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypedDict

from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.errors import ConfigError
from peer.site.config import toml
from peer.site.config.schema import SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.site_tables import EgressConfig
from peer.site.membership.amendment import Amendment, AmendmentRefused, body_digest
from peer.site.membership.chain import Chain, Membership, merged
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.signatures import quorum, signers
from peer.site.membership.wording import changes_in_words


class AmendmentHead(TypedDict):
    """The newest amendment of a chain; number 0 is federation.toml."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body; of number 0, the federation's digest"]


class MemberShown(TypedDict):
    """A member after the newest amendment."""

    name: Annotated[str, "its name"]
    key: Annotated[str | None, "SHA-256 of its pinned key; null: any certificate of the CA counts"]
    address: Annotated[str | None, "as federation.toml or its `add` has it"]
    from_round: Annotated[int, "the first round that it takes part in"]
    leaving: Annotated[bool, "whether a notice of it waits for the amendment that takes it out"]
    accepted: Annotated[bool, "whether it may receive from this site: a newcomer once `federation accept` says so"]


class EpochShown(TypedDict):
    """An amendment of the chain, and what it changes."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    issued: Annotated[int, "when it was made, in Unix seconds"]
    changes: Annotated[list[str], "what it changes, in words"]
    members: Annotated[list[str], "the members after it"]
    signed_by: Annotated[list[str], "whose signatures hold"]


class ApprovalShown(TypedDict):
    """An amendment that this site signed, and that is not in its chain yet."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]


class NoticeShown(TypedDict):
    """A site's notice that it leaves."""

    site: Annotated[str, "the site"]
    issued: Annotated[int, "when it signed, in Unix seconds"]


class ForkShown(TypedDict):
    """A proof that two amendments of one number were signed."""

    number: Annotated[int, "the number of both"]
    own: Annotated[str, "digest of the one in this site's chain"]
    other: Annotated[str, "digest of the other"]
    signed_both: Annotated[list[str], "who signed both"]


class MembershipShown(TypedDict):
    """The chain of amendments as a site has it."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    head: Annotated[AmendmentHead, "the newest amendment"]
    governance: Annotated[str, "who signs: `founder` or `members`"]
    signatures: Annotated[int, "how many signatures the next amendment needs, if it expels nobody"]
    rounds: Annotated[int, "the number of rounds"]
    hold: Annotated[bool, "whether an amendment holds the rounds"]
    members: Annotated[list[MemberShown], "the members after the newest amendment"]
    epochs: Annotated[list[EpochShown], "the amendments, oldest first"]
    approved: Annotated[list[ApprovalShown], "what this site signed and nobody enacted here"]
    notices: Annotated[list[NoticeShown], "of members that leave"]
    forks: Annotated[list[ForkShown], "what else was signed"]
    heads: Annotated[
        Mapping[str, AmendmentHead], "by peer that was heard since the daemon started, the head that it stated last"
    ]


class AmendmentEnacted(TypedDict):
    """An amendment that a site's chain has now; the other sites get it from there."""

    site: Annotated[str, "the site that enacted it"]
    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    changes: Annotated[list[str], "what it changes, in words"]
    members: Annotated[list[str], "the members after it"]
    signed_by: Annotated[list[str], "whose signatures hold"]
    notes: Annotated[list[str], "what else to know"]


class ProposalSigned(TypedDict):
    """A proposal that members sign in turn."""

    file: Annotated[str, "the file, for the next member"]
    number: Annotated[int, "the amendment's number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    enact_until_round: Annotated[
        int | None, "the last round in which a site can enact it; null where its only change is the end of a hold"
    ]
    enact_left_s: Annotated[
        float | None, "about how many seconds are left for that, by this site's recent rounds; null if not known"
    ]
    changes: Annotated[list[str], "what it changes, in words"]
    signed_by: Annotated[list[str], "whose signatures count; where a site leaves, its notice may be one"]
    needed: Annotated[int, "how many signatures it needs"]
    keys_for: Annotated[list[str], "the members with a copy of its new round key; empty where it brings none"]
    notes: Annotated[list[str], "what else to know"]


class LeaveNoticed(TypedDict):
    """The notice of a site that leaves."""

    site: Annotated[str, "the site that leaves"]
    issued: Annotated[int, "when it signed, in Unix seconds"]
    unreached: Annotated[list[str], "the members that had not answered the notice when the command ended"]
    notes: Annotated[list[str], "what else to know"]


class NewcomerAccepted(TypedDict):
    """A newcomer that this site's policy lets receive."""

    site: Annotated[str, "this site"]
    newcomer: Annotated[str, "who may receive"]
    accepted: Annotated[list[str], "all newcomers that may"]
    notes: Annotated[list[str], "what else to know"]


class ChainChosen(TypedDict):
    """The chain that the operator chose of two."""

    site: Annotated[str, "this site"]
    head: Annotated[AmendmentHead, "the newest amendment now"]
    notes: Annotated[list[str], "what else to know"]


DOCUMENTS: Mapping[str, Any] = {
    "leave": LeaveNoticed,
    "federation accept": NewcomerAccepted,
    "federation choose": ChainChosen,
    "federation propose": ProposalSigned,
    "federation approve": ProposalSigned,
    "federation enact": AmendmentEnacted,
    "federation show --site": MembershipShown,
    "federation amend": AmendmentEnacted,
    "federation hold": AmendmentEnacted,
    "federation resume": AmendmentEnacted,
}


def membership_shown(site_folder: SiteFolder, heads: Mapping[SiteName, ChainHead | None]) -> MembershipShown:
    """The chain in a site's folder; ``PeerError`` where it cannot be read.

    Args:
        heads: what the peers stated that the running daemon heard; ``None`` for the genesis.
    """
    site, folder = site_folder.site, MembershipFolder(site_folder.membership)
    genesis = Genesis.parse(toml.read(site_folder.federation_toml), str(site_folder.federation_toml))
    chain = folder.chain(genesis.config)
    head, notices = chain.head, [json.loads(notice.body) for notice in folder.notices()]
    leaving = {content["site"] for content in notices}
    accepted, policy = folder.accepted() | {site} | chain.genesis.keys.keys(), _newcomers_policy(site_folder)
    first_rounds = dict.fromkeys(chain.genesis.members, 1) | {
        name: link.after.from_round for link in chain.links for name in link.after.newcomers
    }
    return {
        "site": site,
        "federation": genesis.config.name,
        "digest": genesis.config.digest,
        "head": {"number": head.number, "digest": head.digest},
        "governance": "founder" if head.governance.members is None else "members",
        "signatures": 1 if head.governance.members is None else quorum(len(head.keys), head.governance, expels=False),
        "rounds": head.rounds,
        "hold": head.hold,
        "members": [
            {
                "name": name,
                "key": key,
                "address": head.addresses.get(name),
                "from_round": first_rounds[name],
                "leaving": name in leaving,
                "accepted": policy == "accept" or name in accepted,
            }
            for name, key in head.keys.items()
        ],
        "epochs": list(_epochs(chain, genesis)),
        "approved": [
            {"number": number, "digest": digest}
            for number, digest in folder.approvals().items()
            if number > head.number
        ],
        "notices": [
            {"site": content["site"], "issued": content["issued"]}
            for content in notices
            if content["site"] in head.keys
        ],
        "forks": [
            {
                "number": fork.number,
                "own": body_digest(fork.own.body),
                "other": body_digest(fork.other.body),
                "signed_both": list(fork.double_signers),
            }
            for fork in folder.forks(chain)
        ],
        "heads": {
            name: {"number": 0, "digest": chain.genesis.digest}
            if stated is None
            else {"number": stated.number, "digest": stated.digest}
            for name, stated in sorted(heads.items())
        },
    }


def _newcomers_policy(site_folder: SiteFolder) -> str:
    """``[egress] newcomers`` of site.toml, or the default where that file cannot be used."""
    try:
        return SiteConfig.load(site_folder.site_toml).egress.newcomers
    except ConfigError:
        return EgressConfig().newcomers


def words_of(amendment: Amendment, before: Membership, genesis: Genesis) -> list[str]:
    """The changes of an amendment in words, with the settings that hold before it."""
    try:
        settings = genesis.settings_after(before).model_dump(mode="json")
    except AmendmentRefused:  # this version cannot apply them
        settings = merged(genesis.document, before.settings)
    return changes_in_words(amendment, before, settings)


def _epochs(chain: Chain, genesis: Genesis) -> Iterator[EpochShown]:
    before = chain.genesis
    for link in chain.links:
        valid, _ = signers(link.signed, authorities=before.authorities, keys=before.keys)
        yield {
            "number": link.after.number,
            "digest": link.after.digest,
            "from_round": link.after.from_round,
            "issued": link.amendment.issued,
            "changes": words_of(link.amendment, before, genesis),
            "members": list(link.after.members),
            "signed_by": sorted(valid),
        }
        before = link.after

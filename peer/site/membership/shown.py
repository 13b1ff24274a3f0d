"""The JSON documents of the commands that show and change the members of a federation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.documents.membership import EpochShown, MembershipShown
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


def membership_shown(site_folder: SiteFolder, heads: Mapping[SiteName, ChainHead | None]) -> MembershipShown:
    """Describe the chain in a site's folder. Raise ``PeerError`` if it cannot be read.

    Args:
        heads: the chain tips that the running daemon's peers stated; ``None`` for the genesis.
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
    """Return ``[egress] newcomers`` of site.toml, or the default if that file cannot be used."""
    try:
        return SiteConfig.load(site_folder.site_toml).egress.newcomers
    except ConfigError:
        return EgressConfig().newcomers


def words_of(amendment: Amendment, before: Membership, genesis: Genesis) -> list[str]:
    """Describe an amendment's changes in words, with the settings that hold before it."""
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

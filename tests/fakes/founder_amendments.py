"""Amendments of a founder whose CA folder lies beside the sites, from round 2 on."""

from pathlib import Path
from typing import Any

from peer.core.messages import SignedAmendment
from peer.daemon.dispatch import now
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.enrolment import Authority
from peer.site.membership.amendment import Amendment
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.round_keys import amendment_tag
from peer.site.membership.signatures import endorse_as_founder


def extend(chain: Chain, authority: Authority, **changes: Any) -> Chain:
    head = chain.head
    place = {"federation": head.federation, "number": head.number + 1, "previous": head.digest, "from_round": 2}
    tag = amendment_tag(authority.round_key, head.federation)
    body = Amendment(**{**place, "issued": 1, "round_key_tag": tag, **changes}).encode()
    return chain.extended(SignedAmendment(body, (endorse_as_founder(authority.key, body),)))


def amend(folder: SiteFolder, ca: Path, **changes: Any) -> None:
    """Extend the chain in a site's folder."""
    authority, membership = Authority.load(ca, now=now()), MembershipFolder(folder.membership)
    membership.save_chain(extend(membership.chain(authority.federation), authority, **changes))

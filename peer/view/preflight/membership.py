"""Whether this site is still a member, and whether its program can follow the amendments."""

from __future__ import annotations

from collections.abc import Iterator

from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.epoch_rules import Genesis, upgrade_reason
from peer.site.records.members import Members
from peer.view.preflight.finding import Finding


def check_membership(folder: SiteFolder, federation: FederationConfig) -> Iterator[Finding]:
    """Findings where a start would end, or hold, by the amendments and notices in the site's folder.

    A failure about ``membership`` means that the site is no member any more.
    """
    members, own = Members.read(folder), folder.site
    if members is None or federation.ca_certificate is None:
        return
    if departure := members.departure(own):
        yield Finding("membership", "failure", departure, "nothing is left to do: a start would end at once")
    elif own in members.leaving:
        text = "this site has signed its notice that it leaves the federation"
        yield Finding("membership", "failure", text, "nothing is left to do: a start would only tell its peers")
    else:
        yield from _check_hold(folder, members)


def _check_hold(folder: SiteFolder, members: Members) -> Iterator[Finding]:
    """Return a failure where this program cannot apply the newest amendment, so that the site would hold."""
    head = members.chain.head
    try:
        Genesis.parse(folder.federation_toml.read_text("utf-8")).settings_after(head)
        reason = upgrade_reason(head)
    except AmendmentRefused as error:
        reason = error.message
    if reason:
        text = f"{reason}: this site would hold from round {head.from_round} on"
        yield Finding("amendments", "failure", text, "update mhfl-peer at this site")
    elif head.hold:
        text = f"the federation holds from round {head.from_round} on"
        yield Finding("amendments", "warning", text, "a start waits until an amendment ends the hold")

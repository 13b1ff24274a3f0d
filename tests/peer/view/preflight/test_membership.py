"""What `check` says of a site that is no member any more, or whose program cannot follow the amendments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.founder_amendments import amend
from peer.core.messages import SignedNotice
from peer.core.roster import Sha256, SiteName
from peer.daemon import startup
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.amendment import Newcomer, Requirements
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.signatures import sign_notice
from peer.view.preflight.finding import Finding

RunCheck = Callable[..., dict[str, Finding]]
OSLO = Newcomer(SiteName("oslo"), Sha256("a" * 64), None)


def notice(folder: SiteFolder) -> SignedNotice:
    federation, _, own = startup.load(folder)
    return sign_notice(own, federation=federation.digest, issued=1)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (False, "this site was expelled from the federation by amendment 1: ask the members why"),
        (True, "this site left the federation"),
    ],
)
def test_a_site_that_is_no_member_any_more_is_told_nothing_else(
    run_check: RunCheck, folder: SiteFolder, founders_ca: Path, left: bool, message: str
) -> None:
    change: dict[str, Any] = {"leave": (notice(folder),)} if left else {"expel": SiteName("asia")}
    amend(folder, founders_ca, add=(OSLO,), **change)
    _, finding = run_check().values()
    assert (finding.subject, finding.verdict, finding.message) == ("membership", "failure", message)


def test_a_site_with_a_notice_of_its_own_is_told_that_a_start_only_tells_its_peers(
    run_check: RunCheck, folder: SiteFolder
) -> None:
    MembershipFolder(folder.membership).save_notices([notice(folder)])
    _, finding = run_check().values()
    assert (finding.subject, finding.verdict) == ("membership", "failure")
    assert "has signed its notice that it leaves" in finding.message


def test_a_hold_of_the_federation_is_worth_a_warning(
    run_check: RunCheck, folder: SiteFolder, founders_ca: Path
) -> None:
    amend(folder, founders_ca, hold=True)
    finding = run_check()["amendments"]
    assert (finding.verdict, finding.message) == ("warning", "the federation holds from round 2 on")


def test_an_amendment_that_this_program_cannot_apply_is_a_failure(
    run_check: RunCheck, folder: SiteFolder, founders_ca: Path
) -> None:
    amend(folder, founders_ca, requires=Requirements(protocol=0, features=("flying",)), add=(OSLO,))
    finding = run_check()["amendments"]
    assert (finding.verdict, finding.remedy) == ("failure", "update mhfl-peer at this site")
    assert "requires flying, which this version does not know: this site would hold from round 2" in finding.message

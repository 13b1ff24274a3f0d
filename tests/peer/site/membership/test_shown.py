"""The document of a site's chain."""

from pathlib import Path

import pytest

from fakes.drafts import site_text
from fakes.governed import GovernedFederation
from peer.core.messages import ChainHead
from peer.core.roster import Sha256, SiteName
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.forks import prove
from peer.site.membership.shown import membership_shown
from tests.fakes.chains import AmendedFederation, newcomer

FEDERATION = AmendedFederation("africa", "asia", "europe", members=2)
ASIA, EUROPE = SiteName("asia"), SiteName("europe")


@pytest.fixture
def place(tmp_path: Path) -> GovernedFederation:
    """The folder of asia in a federation of members, whose chain this test writes."""
    governed = GovernedFederation(tmp_path, tmp_path, FEDERATION.config)
    governed.folder("asia").path.mkdir(parents=True)
    governed.folder("asia").federation_toml.write_text(FEDERATION.toml)
    return governed


def test_the_chain_of_a_site_and_what_waits(place: GovernedFederation) -> None:
    folder = MembershipFolder(place.folder("asia").membership)
    chain = FEDERATION.extend(FEDERATION.chain(), ("africa", "asia"), add=(newcomer("oceania"),))
    folder.save_chain(chain)
    folder.save_notices([FEDERATION.notice("europe", issued=7)])
    folder.approve(1, chain.links[0].signed.body)
    folder.approve(2, b"another")
    stated = {EUROPE: None, ASIA: ChainHead(1, chain.head.digest)}
    shown = membership_shown(place.folder("asia"), stated)
    genesis = {"number": 0, "digest": FEDERATION.config.digest}
    assert shown["head"] == {"number": 1, "digest": chain.head.digest}
    assert (shown["governance"], shown["signatures"], shown["rounds"], shown["hold"]) == ("members", 3, 100, False)
    assert [(each["name"], each["from_round"], each["leaving"], each["accepted"]) for each in shown["members"]] == [
        ("africa", 1, False, True),
        ("asia", 1, False, True),
        ("europe", 1, True, True),
        ("oceania", 10, False, False),
    ]
    place.folder("asia").site_toml.write_text(site_text(egress={"newcomers": "accept"}))
    assert all(each["accepted"] for each in membership_shown(place.folder("asia"), {})["members"])
    (epoch,) = shown["epochs"]
    assert (epoch["signed_by"], epoch["from_round"], len(epoch["members"])) == (["africa", "asia"], 10, 4)
    assert [each["number"] for each in shown["approved"]] == [2]
    assert shown["notices"] == [{"site": "europe", "issued": 7}]
    assert shown["heads"] == {"asia": shown["head"], "europe": genesis}


def test_a_fork_names_who_signed_both(place: GovernedFederation) -> None:
    folder = MembershipFolder(place.folder("asia").membership)
    own = FEDERATION.extend(FEDERATION.chain(), ("africa", "asia"), hold=True)
    other = FEDERATION.sign(FEDERATION.after(FEDERATION.chain(), settings={"rounds": 200}), ("africa", "europe"))
    folder.save_chain(own)
    rival = FEDERATION.chain().extended(other)
    folder.save_fork(prove(own, 1, other), kept=own.links[0].signed)
    (fork,) = membership_shown(place.folder("asia"), {})["forks"]
    assert fork == {
        "number": 1,
        "own": own.head.digest,
        "other": Sha256(rival.head.digest),
        "signed_both": ["africa"],
    }


def test_settings_that_this_version_cannot_apply_are_shown(place: GovernedFederation) -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), ("africa", "asia"), settings={"pace": {"tempo": 3}})
    chain = FEDERATION.extend(chain, ("africa", "asia"), settings={"pace": {"tempo": 4}})
    MembershipFolder(place.folder("asia").membership).save_chain(chain)
    shown = membership_shown(place.folder("asia"), {})
    assert shown["epochs"][1]["changes"] == ["sets pace.tempo to 4 (so far 3)"]

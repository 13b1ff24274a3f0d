"""What an operator enacts and chooses, with or without a running daemon."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.kept_sites import ASIA, EUROPE, EXPELS, FEDERATION, HOLDS, MakeSite, chain, sealed_for_africa
from peer.core import rows
from peer.core.roster import Sha256, SiteName
from peer.daemon.chain_keeper import ASK_S_MAX, keeper_at_rest
from peer.site.config.site_folder import SiteFolder, make_private
from peer.site.identity.certificates import certificate_der
from peer.site.membership.amendment import AmendmentRefused
from peer.site.records.journal import Journal
from tests.fakes.chains import identity, newcomer, round_key


def test_an_operators_amendment_is_kept_and_told(keep: MakeSite) -> None:
    africa = keep("africa")
    africa.keeper.enact(HOLDS.links[0].signed)
    assert africa.keeper.head == HOLDS.head.head
    assert [event.epochs.at(10).hold for event in africa.learned()] == [True]
    assert africa.start().chain == HOLDS
    africa.keeper.enact(HOLDS.links[0].signed)
    assert len(africa.learned()) == 1


@pytest.mark.parametrize(
    ("amendment", "by", "opened", "reason"),
    [
        ({"hold": True, "number": 2}, ("founder",), 1, "amendment 2 is not next in the chain, which ends with 0"),
        ({"hold": True}, ("asia",), 1, "amendment 1 is not signed by the founder's CA key"),
        ({"hold": True}, ("founder",), 10, "round 10 is past: this site has opened round 10"),
        ({"add": (newcomer("asia", 2),)}, ("founder",), 1, "add: the name asia is used, or was"),
        ({"settings": {"quorum": -1}}, ("founder",), 1, "amendment 1"),
        ({"expel": ASIA, "key": 1}, ("founder",), 1, "amendment 1 names a round key that this site does not have"),
        (
            {"leave": tuple(map(FEDERATION.notice, ("africa", "asia", "europe")))},
            ("founder",),
            1,
            "amendment 1 leaves the federation without a member",
        ),
    ],
)
def test_what_cannot_be_enacted_is_named_and_changes_nothing(
    keep: MakeSite, amendment: dict[str, Any], by: tuple[str, ...], opened: int, reason: str
) -> None:
    africa = keep("africa", opened=opened)
    drawn = FEDERATION.after(FEDERATION.chain(), **{key: amendment[key] for key in amendment if key != "number"})
    signers = [name for name in by if name != "founder"]
    signed = FEDERATION.sign(replace(drawn, number=amendment.get("number", 1)), signers, founder="founder" in by)
    with pytest.raises(AmendmentRefused, match=reason):
        africa.keeper.enact(signed)
    assert (africa.keeper.head, africa.start().head, africa.reported) == (None, None, [])


@pytest.mark.parametrize("again", [False, True])
def test_an_enacted_round_key_is_opened_from_its_sealed_copy_also_where_it_was_lost(
    keep: MakeSite, again: bool
) -> None:
    africa = keep("africa").have(EXPELS if again else FEDERATION.chain())
    africa.keeper.enact(EXPELS.links[0].signed, sealed=sealed_for_africa(round_key(1)))
    assert africa.learned()[-1].epochs.at(10).round_key == round_key(1)
    assert africa.keeper.chain == EXPELS


def test_a_sites_notice_is_spread_and_a_strangers_refused(keep: MakeSite) -> None:
    africa = keep("africa")
    with pytest.raises(AmendmentRefused, match="a notice is refused: america is no member"):
        africa.keeper.leave(FEDERATION.notice("america"))
    africa.keeper.leave(FEDERATION.notice("asia"))
    assert africa.learned()[-1].epochs.leaving == {"asia"}
    assert africa.keeper.answer(EUROPE, certificate_der(identity("europe").certificate), 0).notices


def test_the_file_of_an_amendment_beside_the_own_one_is_kept_as_a_fork_to_choose(keep: MakeSite) -> None:
    """Whoever has a new key that the others do not know cannot ask them."""
    own, theirs = chain({"settings": {"rounds": 200}}), chain({"settings": {"rounds": 300}})
    africa = keep("africa", opened=10).have(own)
    with pytest.raises(AmendmentRefused, match="follows another amendment 1; it keeps this one as a fork") as refused:
        africa.keeper.enact(theirs.links[0].signed)
    assert f"federation choose {theirs.head.digest[:12]}`" in refused.value.remedy
    assert africa.keeper.chain == own
    africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == theirs
    forged = replace(chain({"settings": {"rounds": 400}}).links[0].signed, by=())
    with pytest.raises(AmendmentRefused, match="is not next in the chain"):
        africa.keeper.enact(forged)
    assert len(africa.folder.forks(theirs)) == 1


def test_the_file_of_another_chain_s_expulsion_brings_its_round_key_for_the_choice(keep: MakeSite) -> None:
    own, sealed = chain({"hold": True}), sealed_for_africa(round_key(1))
    africa = keep("africa", opened=10).have(own)
    with pytest.raises(AmendmentRefused, match="is not next in the chain"):
        africa.keeper.enact(replace(EXPELS.links[0].signed, by=()), sealed=sealed)
    for each in (b"", sealed_for_africa(round_key(2)), sealed):
        assert africa.folder.round_keys() == {}
        with pytest.raises(AmendmentRefused, match="it keeps this one as a fork"):
            africa.keeper.enact(EXPELS.links[0].signed, sealed=each)
    africa.keeper.choose(EXPELS.head.digest)
    assert africa.learned()[-1].epochs.at(10).round_key == round_key(1)


def test_an_amendment_of_a_member_s_chain_is_enacted_though_its_first_round_is_past(keep: MakeSite) -> None:
    """The only peer that has it may have its present key pinned by it alone: then no site can ask that peer."""
    grown = FEDERATION.extend(EXPELS, key=1, settings={"rounds": 200})
    africa = keep("africa", opened=11).have(EXPELS, round_key(1))
    with pytest.raises(AmendmentRefused, match="round 10 is past: this site has opened round 11"):
        africa.keeper.enact(grown.links[1].signed)
    with pytest.raises(AmendmentRefused, match="is not signed by the founder"):
        africa.keeper.enact(replace(grown.links[1].signed, by=()), is_followed=True)
    africa.keeper.enact(grown.links[1].signed, is_followed=True)
    assert africa.start().chain == africa.keeper.chain == grown
    restored = keep("europe", opened=11)
    with pytest.raises(AmendmentRefused, match="names a round key that this site does not have"):
        restored.keeper.enact(EXPELS.links[0].signed, is_followed=True)


def test_no_operator_chooses_what_the_site_would_undo_by_itself(keep: MakeSite) -> None:
    long, short = chain(*[{"from_round": 50, "hold": True}] * 2), chain({"from_round": 60, "hold": True})
    africa, europe = keep("africa").have(short), keep("europe").have(long)
    assert africa.follow(europe)
    with pytest.raises(AmendmentRefused, match="by itself until it has opened round 50: it would switch back"):
        africa.keeper.choose(short.head.digest)
    assert africa.start().chain == africa.keeper.chain == long
    africa.opened = 50
    africa.keeper.choose(short.head.digest)
    assert not africa.follow(europe)
    assert africa.start().chain == africa.keeper.chain == short


def test_a_newcomer_counts_as_added_by_the_amendment_of_its_bundle_alone(keep: MakeSite) -> None:
    true = chain({"from_round": 5, "hold": True}, {"from_round": 10, "add": (newcomer("america"),)})
    asia, europe = keep("asia").have(chain({"from_round": 2, "add": (newcomer("america"),)})), keep("europe").have(true)
    america = keep("america", key=None, opened=2)
    pinned = true.head.head
    assert pinned is not None
    america.folder.save_joined(pinned)
    america.keeper = america.start()
    america.peers = {ASIA: asia, EUROPE: europe}
    asyncio.run(america.keeper.ask(ASIA, america))
    assert (america.keeper.head, america.keeper.is_added) == (asia.keeper.head, False)
    assert not america.start().is_added
    asyncio.run(america.keeper.ask(EUROPE, america))
    assert (america.keeper.head, america.keeper.is_added) == (pinned, True)
    with pytest.raises(AmendmentRefused, match="the amendment of this site's bundle"):
        america.keeper.choose(asia.keeper.chain.head.digest)
    assert america.start().is_added


def test_the_operator_switches_to_the_other_body_and_back(keep: MakeSite) -> None:
    own, theirs = chain({"settings": {"rounds": 200}}), chain({"settings": {"rounds": 300}}, {"hold": True})
    africa, europe = keep("africa", opened=10).have(own), keep("europe").have(theirs)
    assert not africa.follow(europe)
    with pytest.raises(AmendmentRefused, match="no fork that this site has seen has the amendment"):
        africa.keeper.choose(Sha256("ab" * 32))
    africa.keeper.choose(theirs.after(1).digest)
    assert africa.keeper.chain == theirs.until(1)
    assert africa.follow(europe)
    assert africa.start().chain == theirs
    africa.keeper.choose(own.head.digest)
    assert africa.keeper.chain == own


def test_no_operator_chooses_a_chain_whose_round_key_the_site_lacks(keep: MakeSite) -> None:
    own, theirs = chain({"hold": True}), chain({"key": 1, "expel": ASIA})
    africa, europe = keep("africa", opened=10).have(own), keep("europe").have(theirs)
    assert not africa.follow(europe)
    with pytest.raises(AmendmentRefused, match=r"does not have the round key of the amendment .* until a peer"):
        africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == own
    assert africa.learned() == []
    europe.have(theirs, round_key(1))
    assert not africa.follow(europe, after_s=ASK_S_MAX)
    africa.keeper.choose(theirs.head.digest)
    assert africa.start().chain == africa.keeper.chain == theirs
    asia = keep("asia", opened=10).have(own)
    assert not asia.follow(europe)
    asia.keeper.choose(theirs.head.digest)  # which expels it: it needs no key
    assert asia.keeper.chain == theirs


def test_a_site_whose_daemon_does_not_run_enacts_and_its_opened_round_counts(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path, "trial", SiteName("africa"))
    make_private(folder.path)
    folder.federation_toml.write_text(FEDERATION.toml)
    keeper_at_rest(folder, identity("africa")).enact(HOLDS.links[0].signed)
    assert keeper_at_rest(folder, identity("africa")).chain == HOLDS
    with contextlib.closing(Journal(folder.generation(folder.create_generation()) / "journal.db")) as journal:
        journal.write(rows.OpenedRow(20, sources=()))
    longer = FEDERATION.sign(FEDERATION.after(HOLDS, from_round=20, settings={"rounds": 200}))
    with pytest.raises(AmendmentRefused, match="round 20 is past: this site has opened round 20"):
        keeper_at_rest(folder, identity("africa")).enact(longer)

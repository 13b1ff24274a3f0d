"""When a keeper asks a peer for amendments, and when it names a peer whose stated heads are false."""

import asyncio
import itertools

import pytest

from fakes.kept_sites import ASIA, EUROPE, EXPULSION, HOLDS, MakeSite, chain
from peer.core.messages import AmendmentsReply, ChainHead, SignedAmendment
from peer.core.roster import Sha256, SiteName
from peer.daemon.chain_keeper import ASK_S, ASK_S_MAX, UNANSWERED_S
from peer.net.transport.client import Unreachable
from tests.fakes.chains import round_key


def test_one_question_to_a_peer_in_ten_seconds_and_a_liar_delays_nobody_else(keep: MakeSite) -> None:
    liar, europe, africa = keep("asia"), keep("europe").have(EXPULSION), keep("africa")
    claim = ChainHead(9, Sha256("ab" * 32))
    assert not africa.follow(liar, claim)
    for later_s, peer in ((UNANSWERED_S / 2, europe), (ASK_S - 1.0, liar)):
        assert not africa.follow(peer, peer.keeper.head or claim, after_s=later_s)
    assert len(africa.calls) == 1
    africa.now_s = 2 * ASK_S
    africa.follow(liar, claim, after_s=10 * ASK_S)
    assert africa.follow(europe, after_s=UNANSWERED_S)


def test_a_peer_whose_heads_are_false_is_asked_less_and_less_often(keep: MakeSite) -> None:
    liar, africa = keep("asia"), keep("africa")
    asked_s = []
    for second in range(1800):
        calls = len(africa.calls)
        africa.follow(liar, ChainHead(9, Sha256(f"{second:064x}")), after_s=1.0)
        if len(africa.calls) > calls:
            asked_s.append(second)
    waits_s = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert waits_s == [20, 40, 80, 160, 320, 320, 320, 320]


def test_a_true_head_forgives_the_false_ones_before(keep: MakeSite) -> None:
    asia, africa = keep("asia"), keep("africa")
    for number in range(3):
        africa.follow(asia, ChainHead(9, Sha256(f"{number:064x}")), after_s=ASK_S_MAX)
    asia.have(EXPULSION.until(1))
    assert africa.follow(asia, after_s=ASK_S_MAX)
    assert not africa.follow(asia, ChainHead(9, Sha256("ab" * 32)))
    asia.have(EXPULSION)
    assert africa.follow(asia, after_s=2 * ASK_S)


def test_the_head_of_a_fork_of_lived_rounds_is_logged_once_and_asked_for_less_often(
    keep: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    africa = keep("africa", opened=10).have(chain({"settings": {"rounds": 200}}))
    europe = keep("europe").have(chain({"settings": {"rounds": 300}}, {"settings": {"rounds": 400}}))
    asked = [africa.follow(europe) or len(africa.calls) for _ in range(7)]
    assert [later - earlier for earlier, later in itertools.pairwise([0, *asked])] == [2, 0, 2, 0, 0, 0, 2]
    assert caplog.messages.count("chain forked") == 1


def test_a_true_head_delays_no_question_to_a_peer_with_a_later_one(keep: MakeSite) -> None:
    asia, europe, africa = keep("asia").have(EXPULSION.until(1)), keep("europe").have(EXPULSION), keep("africa")
    assert africa.follow(asia)
    africa.now_s -= ASK_S
    assert africa.follow(europe)
    assert africa.keeper.head == europe.keeper.head


def test_after_a_question_that_nobody_answered_another_peer_is_asked_soon(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION), keep("africa")

    class Unplugged:
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            raise Unreachable(peer, "no answer")

    with pytest.raises(Unreachable):
        asyncio.run(africa.keeper.follow(ASIA, europe.keeper.head, Unplugged()))
    assert not africa.keeper.follows(EUROPE, europe.keeper.head)
    assert africa.follow(europe, after_s=UNANSWERED_S)


def test_a_head_that_a_peer_does_not_have_is_named_once(keep: MakeSite) -> None:
    liar, africa = keep("asia"), keep("africa")
    claim = ChainHead(9, Sha256("ab" * 32))
    for _ in range(3):
        africa.follow(liar, claim)
    assert africa.refusals() == ["its amendments: states amendment 9 (abababababab…) and does not have it"]
    assert africa.learned() == []


def test_a_peer_that_took_another_chain_since_it_stated_its_head_is_not_named(keep: MakeSite) -> None:
    europe, africa = keep("europe").have(EXPULSION, round_key(1)), keep("africa").have(EXPULSION, round_key(1))
    before = chain({"from_round": 10, "hold": True})
    assert not africa.follow(europe, before.head.head)
    assert africa.refusals() == []
    assert africa.keeper.chain == EXPULSION


@pytest.mark.parametrize("fetched", [True, False])
def test_a_peer_is_not_named_for_an_amendment_that_this_site_has_seen(keep: MakeSite, fetched: bool) -> None:
    """The peer followed it, and took this site's chain before its earlier statements were compared."""
    chains = HOLDS, chain({"hold": True, "settings": {"rounds": 90}})
    own, other = sorted(chains, key=lambda each: each.head.digest)
    africa, europe = keep("africa").have(own), keep("europe").have(other)
    if fetched:
        assert not africa.follow(europe)
    europe.have(own)
    for _ in range(2):
        assert not africa.follow(europe, other.head.head, after_s=ASK_S_MAX)
    assert any("does not have it" in reason for reason in africa.refusals()) != fetched


def test_an_answer_without_the_stated_head_delays_the_next_question_though_another_one_changed_the_chain(
    keep: MakeSite,
) -> None:
    """Statements that the peer sent before it took another chain may still be under way."""
    africa, claim = keep("africa"), HOLDS.head.head

    class Meanwhile:
        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            africa.keeper.enact(EXPULSION.links[0].signed)
            return AmendmentsReply((), (), ())

    assert not asyncio.run(africa.keeper.follow(EUROPE, claim, Meanwhile()))
    africa.now_s += ASK_S
    assert not africa.keeper.follows(EUROPE, claim)
    africa.now_s += ASK_S
    assert africa.keeper.follows(EUROPE, claim)
    assert africa.refusals() == []


def test_a_peer_that_shows_this_site_s_own_chain_again_and_again_ends_the_question(
    keep: MakeSite,
) -> None:
    africa = keep("africa").have(EXPULSION, round_key(1))
    own, forged = tuple(link.signed for link in EXPULSION.links), SignedAmendment(b"{}", ())

    class Repeating:
        calls = 0

        async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
            self.calls += 1
            assert self.calls < 10, "the question goes on for ever"
            return AmendmentsReply(own[after:] or (forged,), (), ())

    liar = Repeating()
    africa.now_s += ASK_S
    assert not asyncio.run(africa.keeper.follow(EUROPE, ChainHead(9, Sha256("ab" * 32)), liar))
    assert liar.calls == 3
    assert africa.refusals() == ["its amendments: the amendment is refused: it has no 'federation'"]
    assert africa.keeper.chain == EXPULSION

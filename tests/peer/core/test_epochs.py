"""Which epoch a round belongs to."""

import pytest

from fakes.core_site import amend
from peer.core.epochs import Epoch, Epochs
from peer.core.roster import RoundKey, Sha256, SiteName

KEY = RoundKey(bytes(32))
NORTH, SOUTH, EAST = (SiteName(name) for name in ("north", "south", "east"))
GENESIS = Epoch(0, None, 1, (NORTH, SOUTH), KEY, 9)


ADDED = amend(Epochs((GENESIS,)), 4, members="east north south")


def epoch(number: int, from_round: int) -> Epoch:
    return Epoch(number, None, from_round, (SiteName("asia"), SiteName("europe")), KEY, 100)


def test_the_highest_epoch_that_has_begun_holds() -> None:
    epochs = Epochs((epoch(0, 1), epoch(1, 10), epoch(2, 10), epoch(3, 12)))
    assert [epochs.at(round).number for round in (1, 9, 10, 11, 12, 1000)] == [0, 0, 2, 2, 3, 3]
    assert epochs.head.number == 3


@pytest.mark.parametrize("first_rounds", [[], [2], [1, 5, 4]])
def test_epochs_that_do_not_follow_each_other_are_refused(first_rounds: list[int]) -> None:
    with pytest.raises(ValueError, match=r"begin|holds from"):
        Epochs(tuple(epoch(number, first) for number, first in enumerate(first_rounds)))


def test_epochs_have_no_gap() -> None:
    with pytest.raises(ValueError, match="without a gap"):
        Epochs((epoch(0, 1), epoch(2, 4)))


def test_a_round_key_is_never_shown() -> None:
    assert "round_key" not in repr(epoch(0, 1))


def test_a_pinned_round_keeps_its_epoch_and_no_other_does() -> None:
    pinned = ADDED.pin(4, None)
    assert (pinned.at(4).number, pinned.at(5).number) == (0, 1)
    assert ADDED.pin(5, ADDED.head.digest) is ADDED
    assert ADDED.pin(4, Sha256("f" * 64)) is ADDED, "a site whose operator chose another branch"


def test_a_site_that_an_amendment_takes_out_is_gone_at_once() -> None:
    chain = amend(ADDED, 8, members="east south", expelled="north")
    assert chain.gone == {NORTH}
    assert NORTH in chain.at(7).members
    assert Epochs(ADDED.all, leaving=frozenset({SOUTH})).gone == {SOUTH}


def test_a_newcomer_has_a_first_round_and_a_stranger_has_none() -> None:
    assert [ADDED.first_round(name) for name in (NORTH, EAST, SiteName("west"))] == [1, 4, None]

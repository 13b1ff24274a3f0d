"""Late, forked and restored chains: which one a site takes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.site.config.schema import FederationConfig
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.chain import Chain
from peer.site.membership.forks import Choice, compare, prove
from tests.fakes.chains import AmendedFederation, from_hex

VECTORS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "chain.json").read_text())
FOUNDED = AmendedFederation("africa", "asia", "europe")
MEMBERS = AmendedFederation("africa", "asia", "europe", members=2)


def fork(*, one: int = 200, two: int = 300, from_round: int = 10) -> tuple[Chain, Chain, Chain]:
    """A chain with one amendment, and two continuations of it."""
    common = FOUNDED.extend(FOUNDED.chain(), from_round=5, settings={"rounds": 150})
    return (
        common,
        FOUNDED.extend(common, from_round=from_round, settings={"rounds": one}),
        FOUNDED.extend(common, from_round=from_round, settings={"rounds": two}),
    )


def test_a_late_site_takes_the_longer_chain_whatever_it_has_lived() -> None:
    common, one, _ = fork()
    assert compare(common, one, opened_round=50) == (Choice.TAKEN, None)
    assert compare(one, common, opened_round=0) == (Choice.BEHIND, None)
    assert compare(one, one, opened_round=50) == (Choice.SAME, None)


def test_the_longer_of_two_chains_is_taken() -> None:
    _, one, two = fork()
    longer = FOUNDED.extend(two, from_round=10, hold=True)
    assert compare(one, longer, opened_round=9)[0] == Choice.TAKEN
    assert compare(longer, one, opened_round=9)[0] == Choice.KEPT


def test_of_two_as_long_the_smaller_digest_is_taken() -> None:
    _, one, two = fork()
    smaller, larger = sorted((one, two), key=lambda chain: chain.head.digest)
    assert compare(larger, smaller, opened_round=9)[0] == Choice.TAKEN
    assert compare(smaller, larger, opened_round=9)[0] == Choice.KEPT


def test_who_has_lived_the_fork_switches_only_by_hand() -> None:
    _, one, two = fork()
    longer = FOUNDED.extend(two, from_round=10, hold=True)
    assert compare(one, longer, opened_round=10)[0] == Choice.LIVED


def test_old_keys_cannot_reach_behind_a_lived_round() -> None:
    """The own body is of a round to come; the other one begins with a round that was lived without it."""
    common = FOUNDED.chain()
    own = FOUNDED.extend(common, from_round=50, settings={"rounds": 150})
    other = FOUNDED.extend(FOUNDED.extend(common, from_round=2, settings={"rounds": 160}), hold=True)
    assert compare(own, other, opened_round=20)[0] == Choice.LIVED


def test_who_signed_both_bodies_is_named() -> None:
    chain = MEMBERS.chain()
    one = MEMBERS.extend(chain, ("africa", "asia"), settings={"rounds": 200})
    two = MEMBERS.extend(chain, ("asia", "europe"), settings={"rounds": 300})
    _, proof = compare(one, two, opened_round=0)
    assert proof is not None
    assert (proof.number, proof.double_signers) == (1, ("asia",))
    assert prove(one, 1, two.links[0].signed) == proof
    _, one, two = fork()
    _, proof = compare(one, two, opened_round=0)
    assert proof is not None
    assert (proof.number, proof.double_signers) == (2, ("the founder",))


def test_a_body_that_is_not_valid_there_proves_nothing() -> None:
    chain = MEMBERS.chain()
    one = MEMBERS.extend(chain, ("africa", "asia"), settings={"rounds": 200})
    unsigned = MEMBERS.sign(MEMBERS.after(chain, hold=True), ("asia",))
    with pytest.raises(AmendmentRefused, match="1 of the 2"):
        prove(one, 1, unsigned)
    with pytest.raises(AmendmentRefused, match="is in the chain"):
        prove(one, 1, one.links[0].signed)
    with pytest.raises(AmendmentRefused, match="no amendment 2"):
        prove(one, 2, unsigned)


@pytest.mark.parametrize("known", VECTORS["forks"])
def test_the_known_choices(known: dict[str, Any]) -> None:
    config = FederationConfig.parse(VECTORS["chains"][0]["genesis"]["toml"], "federation.toml")
    own, other = (Chain.of(config, map(from_hex, known[each])) for each in ("own", "other"))
    assert compare(own, other, opened_round=known["opened_round"])[0] == known["choice"]


def grow(draw: Callable[[st.SearchStrategy[int]], int]) -> list[Chain]:
    """Chains of one genesis that share some of their beginnings."""
    chains = [FOUNDED.chain()]
    for number in range(draw(st.integers(1, 6))):
        base = chains[draw(st.integers(0, len(chains) - 1))]
        chains.append(FOUNDED.extend(base, from_round=10, settings={"rounds": 200 + number}))
    return chains


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_all_who_hear_the_same_chains_end_with_the_same(data: st.DataObject) -> None:
    """Whatever comes late, twice, forked, or from a restored backup: an old chain is heard like any other."""
    chains = grow(data.draw)
    ends = set()
    for _ in range(3):
        own = data.draw(st.sampled_from(chains))
        heard = [*data.draw(st.permutations(chains)), *data.draw(st.lists(st.sampled_from(chains), max_size=3))]
        for other in heard:
            own = other if compare(own, other, opened_round=0)[0] == Choice.TAKEN else own
        ends.add(own.head.digest)
    assert len(ends) == 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_preference_is_an_order(data: st.DataObject) -> None:
    chains = grow(data.draw)
    one, two, three = (data.draw(st.sampled_from(chains)) for _ in range(3))
    there, back = compare(one, two, opened_round=0)[0], compare(two, one, opened_round=0)[0]
    assert (there == Choice.TAKEN) + (back == Choice.TAKEN) == (one.head.digest != two.head.digest)
    taken = [compare(a, b, opened_round=0)[0] == Choice.TAKEN for a, b in ((one, two), (two, three), (one, three))]
    assert not (taken[0] and taken[1]) or taken[2]

"""Round keys of epochs: sealed to one site, checked against the tag, and not searched for."""

import hmac
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_private_key

from peer.core.roster import RoundKey, Sha256, SiteName
from peer.site.identity.bundle import SUITE, seal
from peer.site.identity.certificates import new_key
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.round_keys import (
    LABEL,
    ROUNDS_COUNTED_MAX,
    amendment_tag,
    check_orders,
    open_key,
    orders_of,
    seal_key,
)

FEDERATION = Sha256("5a" * 32)
KEY = RoundKey(bytes(range(32)))
ASIA, EUROPE = SiteName("asia"), SiteName("europe")
MEMBERS = tuple(map(SiteName, ("africa", "asia", "europe", "oceania")))


def test_a_tag_is_bound_to_the_federation_and_differs_from_that_of_a_greeting() -> None:
    assert amendment_tag(KEY, FEDERATION) == hmac.digest(KEY, LABEL + b"\x5a" * 32, "sha256").hex()
    assert amendment_tag(KEY, Sha256("5b" * 32)) != amendment_tag(KEY, FEDERATION)


def test_a_sealed_key_opens_for_its_site_alone() -> None:
    own, tag = new_key(), amendment_tag(KEY, FEDERATION)
    sealed = seal_key(KEY, own.public_key(), federation=FEDERATION, site=ASIA)
    assert open_key(sealed, own, federation=FEDERATION, tag=tag, site=ASIA) == KEY
    for changes in (
        {"key": new_key()},
        {"site": EUROPE},
        {"federation": Sha256("5b" * 32)},
        {"tag": amendment_tag(RoundKey(bytes(32)), FEDERATION)},
        {"sealed": sealed[:-1] + bytes([sealed[-1] ^ 1])},
        {"sealed": b""},
        {"sealed": seal(KEY, own.public_key(), digest=FEDERATION, site=ASIA)},
    ):
        arguments = {"sealed": sealed, "key": own, "federation": FEDERATION, "tag": tag, "site": ASIA} | changes
        with pytest.raises(ValueError, match="sealed"):
            open_key(**arguments)  # type: ignore[arg-type]


def test_a_key_that_was_not_meant_is_refused() -> None:
    """A member seals another key under the info of the right tag: only the tag shows it."""
    own, tag = new_key(), amendment_tag(KEY, FEDERATION)
    info = LABEL + bytes.fromhex(FEDERATION) + bytes.fromhex(tag) + b"asia"
    with pytest.raises(ValueError, match="is not the round key"):
        open_key(SUITE.encrypt(bytes(32), own.public_key(), info=info), own, federation=FEDERATION, tag=tag, site=ASIA)


@pytest.mark.parametrize("kind", ["permutation", "derangement", "ring"])
def test_a_drawn_key_passes(kind: str) -> None:
    for seed in range(5):
        key = RoundKey(bytes([seed]) * 32)
        orders = orders_of(key, federation=FEDERATION, members=MEMBERS, first=10, last=110, kind=kind)
        check_orders(orders, members=MEMBERS, kind=kind)
        assert len(orders) == 101


@pytest.mark.parametrize(("rounds", "refused"), [(8, False), (10, True), (50, True)])
def test_orders_that_were_searched_for_are_refused(rounds: int, refused: bool) -> None:
    """Chance gives a pair of four sites ten rounds of ten once in a million; twelve pairs are looked at, both ways."""
    suitable = [(1, 2, 3, 0)] * rounds
    if not refused:
        check_orders(suitable, members=MEMBERS, kind="permutation")
        return
    with pytest.raises(AmendmentRefused, match=rf"lets africa receive from asia in {rounds} of {rounds} rounds"):
        check_orders(suitable, members=MEMBERS, kind="permutation")


def test_sites_that_never_meet_are_noticed() -> None:
    avoiding = [(1, 0, 3, 2), (2, 3, 0, 1)] * 30
    with pytest.raises(AmendmentRefused, match="in 0 of 60 rounds"):
        check_orders(avoiding, members=MEMBERS, kind="derangement")


def test_two_sites_meet_always() -> None:
    check_orders([(1, 0)] * 50, members=MEMBERS[:2], kind="derangement")
    check_orders([], members=MEMBERS, kind="permutation")


def test_only_so_many_orders_are_counted() -> None:
    orders = orders_of(KEY, federation=FEDERATION, members=MEMBERS[:1], first=1, last=10**6, kind="permutation")
    assert len(orders) == ROUNDS_COUNTED_MAX


def test_the_known_sealed_keys() -> None:
    known = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "chain.json").read_text())["sealed_keys"]
    key = load_der_private_key(bytes.fromhex(known["private_key"]), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names = {"federation": Sha256(known["federation"]), "tag": Sha256(known["tag"]), "site": SiteName(known["site"])}
    assert open_key(bytes.fromhex(known["sealed"]), key, **names).hex() == known["round_key"]  # type: ignore[arg-type]
    for refused in known["refused"]:
        with pytest.raises(ValueError, match="sealed"):
            open_key(bytes.fromhex(refused["sealed"]), key, **names)  # type: ignore[arg-type]

"""The seeds of pairs against RFC 7748, RFC 5869 and an implementation in whole numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes import reference_sum
from peer.core.roster import Sha256, SiteName
from peer.core.secure_sum import commitment
from peer.site.sums.pair_keys import SumContext, SumSecrets, check_public_key, pair_info

VECTORS = json.loads(reference_sum.PATH.read_text("utf-8"))
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
CONTEXT = SumContext(Sha256("11" * 32), Sha256("22" * 32), 7, "aggregate")
ONE, OTHER = SiteName("a"), SiteName("b")


def test_the_vectors_are_those_of_the_reference() -> None:
    assert reference_sum.PATH.read_text("utf-8") == reference_sum.text()


def test_the_reference_is_that_of_the_rfcs() -> None:
    """RFC 7748, 6.1; RFC 5869, A.1; RFC 8439, A.1 #1 and #2."""
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert reference_sum.x25519(ALICE, BOB).hex() == shared
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    assert reference_sum.hkdf(b"\x0b" * 22, salt, info, 42).hex() == okm
    stream = reference_sum.chacha20(bytes(32), 128).hex()
    assert stream.startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert stream[128:].startswith("9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed")


def test_a_public_key_is_that_of_rfc_7748() -> None:
    public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert SumSecrets(ALICE, bytes(32)).public_key.hex() == public


def test_a_seed_is_the_hkdf_of_the_shared_secret() -> None:
    seed = SumSecrets(ALICE, bytes(32)).pair_seed(CONTEXT, own=OTHER, other=ONE, other_key=BOB)
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    salt = bytes.fromhex("11" * 32 + "22" * 32)
    assert seed == reference_sum.hkdf(shared, salt, pair_info(CONTEXT, ONE, OTHER), 32)


@pytest.mark.parametrize("vector", VECTORS["info"], ids=lambda vector: "-".join(vector["sites"]))
def test_info_is_the_known_answer(vector: dict[str, Any]) -> None:
    assert pair_info(SumContext(**vector["context"]), *vector["sites"]).hex() == vector["info"]


def test_no_two_sums_have_the_same_info() -> None:
    infos = {
        pair_info(SumContext(CONTEXT.federation, CONTEXT.amendment, number, stage), SiteName(one), SiteName(other))
        for number in (1, 256)
        for stage in ("a", "ab", "")
        for one, other in (("a", "bc"), ("ab", "c"), ("a", "b"), ("aa", "bc"))
    }
    assert len(infos) == 2 * 3 * 4


@pytest.mark.parametrize("vector", VECTORS["sums"], ids=lambda vector: f"{vector['bits']}-{vector['clip']}")
def test_both_sites_of_a_pair_derive_the_known_seed(vector: dict[str, Any]) -> None:
    context, members = SumContext(**vector["context"]), vector["members"]
    for own, member in members.items():
        secrets = SumSecrets(bytes.fromhex(member["private_key"]), bytes.fromhex(member["own_seed"]))
        assert secrets.public_key.hex() == member["public_key"]
        for other, known in member["pair_seeds"].items():
            key = bytes.fromhex(members[other]["public_key"])
            seed = secrets.pair_seed(context, own=own, other=other, other_key=key)
            assert seed.hex() == known
            assert json.loads(member["statement"])["commitments"][other] == commitment(seed)


def test_drawn_secrets_differ_and_do_not_print() -> None:
    one, other = SumSecrets.draw(), SumSecrets.draw()
    assert len({one.private_key, one.own_seed, other.private_key, other.own_seed}) == 4
    assert repr(one) == "SumSecrets(...)"


ORDER_8 = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")


@pytest.mark.parametrize(
    "key", [bytes(32), (1).to_bytes(32, "little"), ORDER_8, bytes(31)], ids=["zero", "order 4", "order 8", "short"]
)
def test_a_key_whose_secret_anybody_knows_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        SumSecrets.draw().pair_seed(CONTEXT, own=ONE, other=OTHER, other_key=key)
    with pytest.raises(ValueError, match=r"."):
        check_public_key(key)


def test_a_drawn_key_passes() -> None:
    check_public_key(SumSecrets.draw().public_key)


def test_a_pair_is_of_two_and_a_name_is_short() -> None:
    with pytest.raises(ValueError, match="a is not a pair"):
        pair_info(CONTEXT, ONE, ONE)
    with pytest.raises(ValueError, match="300 bytes"):
        pair_info(CONTEXT, ONE, SiteName("b" * 300))

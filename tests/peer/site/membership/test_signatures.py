"""Who signs: the founder's CA key, or a quorum of members with their pinned keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.core.limits import ISSUED_MAX
from peer.core.messages import Endorsement, SignedAmendment, SignedNotice
from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.membership.amendment import Amendment, AmendmentRefused, Governance
from peer.site.membership.chain import Chain
from peer.site.membership.signatures import FOUNDER, LeaveNotice, endorse, quorum, signers, verify_notice
from tests.fakes.chains import NOW, AmendedFederation, identity, newcomer, pin, tampered

QUORUMS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "chain.json").read_text())["quorums"]
FOUNDED = AmendedFederation("asia", "europe")
FOUR = AmendedFederation("africa", "asia", "europe", "oceania", members=2)

OTHER_CA = certificates.certificate_pem(certificates.new_authority("other", now=NOW)[1]).decode()


def longer(chain: Chain, federation: AmendedFederation = FOUR) -> Amendment:
    return federation.after(chain, settings={"rounds": 200})


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_two_quorums_have_a_site_in_common(members: int, wanted: int) -> None:
    needed = quorum(members, Governance(wanted), expels=False)
    assert 2 * needed > members
    assert needed <= members
    assert needed >= min(wanted, members)


@pytest.mark.parametrize(
    ("members", "wanted", "expels", "needed"),
    [tuple(known[key] for key in ("members", "wanted", "expels", "needed")) for known in QUORUMS],
)
def test_how_many_must_sign(members: int, wanted: int, expels: bool, needed: int) -> None:
    assert quorum(members, Governance(wanted), expels=expels) == needed


@pytest.mark.parametrize("by", [("asia", "europe"), ()])
def test_members_do_not_sign_for_a_founder(by: tuple[str, ...]) -> None:
    chain = FOUNDED.chain()
    with pytest.raises(AmendmentRefused, match="not signed by the founder's CA key"):
        chain.extended(FOUNDED.sign(longer(chain, FOUNDED), by, founder=False))


def test_the_founder_does_not_sign_for_members() -> None:
    chain = FOUR.chain()
    with pytest.raises(AmendmentRefused, match=r"has 2 of the 3 signatures that 4 members need \(africa, asia\)"):
        chain.extended(FOUR.sign(longer(chain), ("africa", "asia"), founder=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"add": (newcomer("america"),)},
        {"key": 1, "expel": SiteName("asia")},
        {"rekey": {SiteName("asia"): pin("asia", 2)}},
        {"governance": Governance()},
        {"authority": OTHER_CA},
        {"hold": True},
    ],
)
@pytest.mark.parametrize("by", [(), ("africa",), ("africa", "asia")])
def test_neither_the_ca_nor_a_minority_changes_anything_against_the_members(
    changes: dict[str, Any], by: tuple[str, ...]
) -> None:
    chain = FOUR.chain()
    with pytest.raises(AmendmentRefused, match="of the 3 signatures that 4 members need"):
        chain.extended(FOUR.sign(FOUR.after(chain, **changes), by, founder=True))


def test_the_ca_s_second_certificate_for_a_member_signs_nothing() -> None:
    chain = FOUR.chain()
    body = longer(chain).encode()
    forged = tuple(endorse(identity(name, 2), body) for name in ("africa", "asia", "europe"))
    with pytest.raises(AmendmentRefused, match="has 0 of the 3"):
        chain.extended(SignedAmendment(body, forged))


def test_a_site_counts_once() -> None:
    chain = FOUR.chain()
    with pytest.raises(AmendmentRefused, match="has 2 of the 3"):
        chain.extended(FOUR.sign(longer(chain), ("asia", "asia", "asia", "europe")))


def test_a_signature_that_does_not_fit_is_named_and_counts_for_nothing() -> None:
    chain = FOUR.chain()
    with pytest.raises(AmendmentRefused, match=r"has 0 of the 3 .*asia: the signature does not fit"):
        chain.extended(tampered(FOUR.sign(longer(chain), ("africa", "asia", "europe"))))


def test_a_bad_signature_beside_enough_good_ones_is_dropped() -> None:
    chain = FOUR.chain()
    signed = FOUR.sign(longer(chain), ("africa", "asia", "europe"))
    stained = SignedAmendment(signed.body, (Endorsement(b"\x30", b"\x30"), *signed.by))
    assert chain.extended(stained).links[0].signed.by == chain.extended(signed).links[0].signed.by


def test_only_the_pinned_key_of_a_site_counts() -> None:
    """A founder who issues a certificate for another key in a member's name signs for nobody."""
    chain = FOUR.chain()
    body = longer(chain).encode()
    impostor = endorse(identity("europe", 2), body)
    signed = SignedAmendment(body, (*FOUR.sign(body, ("africa", "asia")).by, impostor))
    with pytest.raises(AmendmentRefused, match=r"has 2 of the 3 .*europe: the federation pins"):
        chain.extended(signed)


def test_a_stranger_does_not_sign() -> None:
    chain = FOUR.chain()
    with pytest.raises(AmendmentRefused, match="antarctica is no member"):
        chain.extended(FOUR.sign(longer(chain), ("africa", "asia", "antarctica")))


def test_members_of_the_amendment_before_sign() -> None:
    chain = FOUR.extend(FOUR.chain(), ("africa", "asia", "europe"), add=(newcomer("america"),))
    with pytest.raises(AmendmentRefused, match="has 2 of the 3 signatures that 5 members"):
        chain.extended(FOUR.sign(longer(chain), ("africa", "asia")))
    assert chain.extended(FOUR.sign(longer(chain), ("africa", "asia", "america"))).head.number == 2


def test_the_expelled_does_not_sign() -> None:
    chain = FOUR.chain()
    expulsion = FOUR.after(chain, key=1, expel=SiteName("oceania"))
    with pytest.raises(AmendmentRefused, match="has 2 of the 3"):
        chain.extended(FOUR.sign(expulsion, ("africa", "asia", "oceania")))
    assert chain.extended(FOUR.sign(expulsion, ("africa", "asia", "europe"))).head.expelled == {"oceania"}


def test_all_members_cannot_be_asked_to_expel_one_of_them() -> None:
    """With M = N the one to be expelled could stop its own expulsion."""
    federation = AmendedFederation("africa", "asia", "europe", members=3)
    chain = federation.extend(federation.chain(), ("africa", "asia"), key=1, expel=SiteName("europe"))
    assert chain.head.members == ("africa", "asia")


def test_a_notice_counts_as_a_signature_where_leaving_is_all() -> None:
    chain = FOUR.extend(FOUR.chain(), ("africa", "asia", "europe"), hold=True)
    notice = FOUR.notice("oceania")
    assert FOUR.extend(chain, ("africa", "asia"), leave=(notice,)).head.left == {"oceania"}
    with pytest.raises(AmendmentRefused, match="has 2 of the 3"):
        FOUR.extend(chain, ("africa", "asia"), leave=(notice,), settings={"rounds": 200})


def test_no_notice_signs_number_1_which_states_a_round_key() -> None:
    chain = FOUR.chain()
    notices = tuple(map(FOUR.notice, ("africa", "asia", "oceania")))
    with pytest.raises(AmendmentRefused, match="has 0 of the 3"):
        chain.extended(SignedAmendment(FOUR.after(chain, key=9, leave=notices).encode(), ()))
    with pytest.raises(AmendmentRefused, match="has 2 of the 3"):
        FOUR.extend(chain, ("africa", "europe"), key=9, leave=notices)


def test_a_founder_signs_for_leavers_too() -> None:
    with pytest.raises(AmendmentRefused, match="founder's CA key"):
        FOUNDED.chain().extended(
            FOUNDED.sign(FOUNDED.after(FOUNDED.chain(), leave=(FOUNDED.notice("asia"),)), ("europe",), founder=False)
        )


def test_signatures_stay_when_certificates_expire_and_are_renewed() -> None:
    """``verify_certificate`` without a time: what was signed stays signed."""
    before = FOUR.chain().head
    valid, problems = signers(
        FOUR.sign(longer(FOUR.chain()), ("asia",), founder=True), authorities=before.authorities, keys=before.keys
    )
    assert set(valid) == {"asia", FOUNDER}
    assert problems == []


def verify(notice: SignedNotice, genesis: AmendedFederation = FOUR, **changes: Any) -> LeaveNotice:
    """Verify a notice against a genesis, or what an amendment makes of it."""
    before = genesis.extend(genesis.chain(), **changes).head if changes else genesis.chain().head
    return verify_notice(notice, federation=genesis.config.digest, authorities=before.authorities, keys=before.keys)


@pytest.mark.parametrize(
    ("notice", "reason"),
    [
        (
            replace(FOUR.notice("europe"), certificate_der=FOUR.notice("asia").certificate_der),
            "signature does not fit",
        ),
        (FOUNDED.notice("asia"), "another federation"),
        (tampered(FOUR.notice("asia", issued=178)), "signature does not fit"),
        (FOUR.notice("antarctica"), "antarctica is no member"),
        (FOUR.notice("asia", generation=2), "asia: the federation pins"),
        (FOUR.notice("asia", issued=ISSUED_MAX + 1), "issued is no Unix time"),  # of no year that people can read
    ],
)
def test_a_notice_that_is_not_the_sites_own_is_refused(notice: SignedNotice, reason: str) -> None:
    with pytest.raises(AmendmentRefused, match=reason):
        verify(notice)


def test_a_notice_states_when_it_was_issued() -> None:
    notice = verify(FOUR.notice("asia", issued=7))
    assert (notice.site, notice.issued) == ("asia", 7)


def test_an_unpinned_site_may_have_any_key_of_the_ca() -> None:
    for generation in (1, 2):
        verify(FOUNDED.notice("asia", generation=generation), FOUNDED)
    with pytest.raises(AmendmentRefused, match="asia: the federation pins"):
        verify(FOUNDED.notice("asia"), FOUNDED, rekey={SiteName("asia"): pin("asia", 2)})

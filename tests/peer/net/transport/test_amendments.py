"""The messages of GetAmendments: whole amendments that fit, and bounds on every field."""

import pytest

from peer.core import limits
from peer.core.messages import AmendmentsReply, Endorsement, SealedKey, SignedAmendment, SignedNotice
from peer.net.transport import amendments
from peer.net.transport.bounds import WireError
from peer.pb import peer_pb2 as pb

SIGNED = SignedAmendment(b"{}", (Endorsement(b"", b"signature"), Endorsement(b"certificate", b"signature")))
REPLY = AmendmentsReply(
    (SIGNED, SIGNED), (SealedKey(0, b"sealed"), SealedKey(2, b"sealed")), (SignedNotice(b"{}", b"s", b"c"),)
)


def test_a_reply_survives_the_wire() -> None:
    assert amendments.decode_amendments(amendments.encode_amendments(REPLY)) == REPLY
    assert amendments.decode_amendments(pb.Amendments()) == AmendmentsReply()
    assert amendments.decode_after(amendments.encode_after(7)) == 7


def test_as_many_whole_amendments_as_fit_are_sent() -> None:
    long = SignedAmendment(b"x" * limits.AMENDMENT_BYTES_MAX, SIGNED.by)
    message = amendments.encode_amendments(AmendmentsReply((long,) * 10, REPLY.keys))
    assert len(message.amendments) == 3
    assert len(message.keys) == 2
    assert message.ByteSize() <= limits.AMENDMENTS_MESSAGE_BYTES_MAX
    short = SignedAmendment(b"x" * 200, SIGNED.by)
    many = amendments.encode_amendments(AmendmentsReply((short,) * 5000))
    assert 4000 < len(many.amendments) < 5000
    assert many.ByteSize() <= limits.AMENDMENTS_MESSAGE_BYTES_MAX


def test_the_longest_amendment_of_the_largest_federation_is_sent() -> None:
    by = (Endorsement(b"c" * 800, b"s" * limits.SIGNATURE_BYTES_MAX),) * (limits.SITES_MAX // 2 + 1)
    reply = AmendmentsReply((SignedAmendment(b"x" * limits.AMENDMENT_BYTES_MAX, by),))
    assert amendments.decode_amendments(amendments.encode_amendments(reply)) == reply


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"amendments": [pb.Amendment(by=[])]}, "amendments.body is empty"),
        ({"amendments": [pb.Amendment(body=b"x" * (limits.AMENDMENT_BYTES_MAX + 1))]}, "over the limit of 262144"),
        ({"amendments": [pb.Amendment(body=b"x", by=[pb.Endorsement()])]}, "amendments.by.signature is empty"),
        (
            {"amendments": [pb.Amendment(body=b"x", by=[pb.Endorsement(signature=b"s", certificate_der=b"c" * 8193)])]},
            "certificate_der has 8193 bytes",
        ),
        ({"amendments": [pb.Amendment(body=b"x", by=[pb.Endorsement(signature=b"s")] * 1002)]}, "1002 entries"),
        ({"keys": [pb.SealedKey(number=1)]}, "amendments.keys.sealed is empty"),
        ({"keys": [pb.SealedKey(number=10_001, sealed=b"x")]}, "keys.number = 10001 is outside"),
        ({"keys": [pb.SealedKey(sealed=b"x" * 257)]}, "257 bytes"),
        ({"notices": [pb.Notice(body=b"x" * 513)]}, "513 bytes"),
        ({"notices": [pb.Notice(body=b"x")]}, "notices.signature is empty"),
        ({"notices": [pb.Notice()] * 1001}, "1001 entries"),
    ],
)
def test_what_is_outside_a_bound_is_refused(changes: dict[str, list[object]], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        amendments.decode_amendments(pb.Amendments(**changes))  # type: ignore[arg-type]


def test_a_number_beyond_every_chain_is_refused() -> None:
    with pytest.raises(WireError, match=r"after\.number = 10001"):
        amendments.decode_after(pb.After(number=10_001))

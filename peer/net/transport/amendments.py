"""Encoding and checks of ``GetAmendments``; ``peer.site.membership`` parses an amendment's body."""

from __future__ import annotations

from peer.core import limits
from peer.core.messages import AmendmentsReply, Endorsement, SealedKey, SignedAmendment, SignedNotice
from peer.net.transport.bounds import WireError, at_most, number
from peer.pb import peer_pb2 as pb

SEALED_BYTES_MAX = 256  # HPKE's encapsulated key, the round key and a tag take 113


def encode_after(after: int) -> pb.After:
    return pb.After(number=number("after.number", after, maximum=limits.AMENDMENTS_MAX))


def decode_after(message: pb.After) -> int:
    return number("after.number", message.number, maximum=limits.AMENDMENTS_MAX)


def encode_amendments(reply: AmendmentsReply) -> pb.Amendments:
    """Encode an answer to ``GetAmendments``: as many whole amendments as fit beside all keys and notices.

    The asking site repeats the call until it has the chain tip. Raises ``WireError`` if the message is too large.
    """
    message = pb.Amendments(
        keys=[pb.SealedKey(number=key.number, sealed=key.sealed) for key in reply.keys],
        notices=map(encode_notice, reply.notices),
    )
    size = message.ByteSize()
    for signed in reply.amendments:
        amendment = pb.Amendment(
            body=signed.body,
            by=[pb.Endorsement(certificate_der=each.certificate_der, signature=each.signature) for each in signed.by],
        )
        size += amendment.ByteSize() + FRAME_BYTES
        if size > limits.AMENDMENTS_MESSAGE_BYTES_MAX and message.amendments:
            break
        message.amendments.append(amendment)
    at_most("amendments", message.ByteSize(), limits.MESSAGE_BYTES_MAX, "bytes")
    return message


FRAME_BYTES = 8
"""A field's tag, and a length of at most four bytes."""


def decode_amendments(message: pb.Amendments) -> AmendmentsReply:
    """Decode and check an answer to ``GetAmendments``. Raises ``WireError`` naming the field and the limit."""
    at_most("amendments", message.ByteSize(), limits.MESSAGE_BYTES_MAX, "bytes")
    at_most("amendments.keys", len(message.keys), limits.AMENDMENTS_MAX, "entries")
    at_most("amendments.notices", len(message.notices), limits.SITES_MAX, "entries")
    return AmendmentsReply(
        tuple(map(_amendment, message.amendments)),
        tuple(
            SealedKey(
                number("amendments.keys.number", key.number, maximum=limits.AMENDMENTS_MAX),
                _some("amendments.keys.sealed", key.sealed, SEALED_BYTES_MAX),
            )
            for key in message.keys
        ),
        tuple(decode_notice("amendments.notices", notice) for notice in message.notices),
    )


def encode_notice(notice: SignedNotice) -> pb.Notice:
    return pb.Notice(body=notice.body, signature=notice.signature, certificate_der=notice.certificate_der)


def decode_notice(field: str, notice: pb.Notice) -> SignedNotice:
    return SignedNotice(
        _some(f"{field}.body", notice.body, limits.NOTICE_BYTES_MAX),
        _some(f"{field}.signature", notice.signature, limits.SIGNATURE_BYTES_MAX),
        _some(f"{field}.certificate_der", notice.certificate_der, limits.CERTIFICATE_BYTES_MAX),
    )


def _amendment(message: pb.Amendment) -> SignedAmendment:
    at_most("amendments.by", len(message.by), limits.SITES_MAX + 1, "entries")
    for each in message.by:
        at_most("amendments.by.certificate_der", len(each.certificate_der), limits.CERTIFICATE_BYTES_MAX, "bytes")
    return SignedAmendment(
        _some("amendments.body", message.body, limits.AMENDMENT_BYTES_MAX),
        tuple(
            Endorsement(
                each.certificate_der, _some("amendments.by.signature", each.signature, limits.SIGNATURE_BYTES_MAX)
            )
            for each in message.by
        ),
    )


def _some(field: str, value: bytes, bytes_max: int) -> bytes:
    if not value:
        raise WireError(f"{field} is empty")
    at_most(field, len(value), bytes_max, "bytes")
    return value

"""Encoding and checks of ``GetSum``: what a member shows another of one secure sum.

``proto/README.md`` section 10 specifies the messages, and ``peer.core.secure_sum`` decides what they mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from peer.core import limits
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import Contributions, SumOpening, SumStatements
from peer.net.transport.bounds import WireError, at_most, digest, finite, known, number, site, text
from peer.net.transport.wire import UNAVAILABLE, UNAVAILABLE_OF
from peer.pb import peer_pb2 as pb

SECRET_BYTES = 32
"""Of a key and of a seed."""


@dataclass(frozen=True, slots=True)
class SumRequest:
    """Whose statements on which sum a member requests.

    ``epoch`` is the digest of the epoch of the round; ``None`` is the genesis. ``known`` is the SHA-256 of the encoded
    statements that the caller has: the asked site waits until it has others. ``None``: the caller has none.
    """

    round: int
    stage: str
    epoch: Sha256 | None = None
    known: Sha256 | None = None


def encode_sum_request(request: SumRequest, *, wait_s: float) -> pb.SumRequest:
    _check_request(request)
    return pb.SumRequest(
        epoch=bytes.fromhex(request.epoch or ""),
        round=request.round,
        stage=request.stage,
        known=bytes.fromhex(request.known or ""),
        wait_s=finite("sum_request.wait_s", wait_s, maximum=limits.MANIFEST_WAIT_S),
    )


def decode_sum_request(message: pb.SumRequest) -> tuple[SumRequest, float]:
    """Decode a request for ``GetSum``, and the wait for the answer in seconds."""
    request = SumRequest(
        round=message.round,
        stage=message.stage,
        epoch=Sha256(message.epoch.hex()) if message.epoch else None,
        known=Sha256(message.known.hex()) if message.known else None,
    )
    _check_request(request)
    return request, finite("sum_request.wait_s", message.wait_s, maximum=limits.MANIFEST_WAIT_S)


def _check_request(request: SumRequest) -> None:
    number("sum_request.round", request.round, minimum=1, maximum=limits.ROUNDS_MAX)
    text("sum_request.stage", request.stage)
    if request.epoch is not None:
        digest("sum_request.epoch", request.epoch)
    if request.known is not None:
        digest("sum_request.known", request.known)


def encode_statements(statements: SumStatements) -> bytes:
    """Encode what a site shows, equal statements as equal bytes; raise ``WireError`` if other sites would refuse it."""
    message = pb.SumStatements()
    if statements.key is not None:
        message.key = statements.key
    if statements.shown is not None:
        message.shown.CopyFrom(_encode_contributions(statements.shown))
    if statements.commit is not None:
        message.commit.CopyFrom(_encode_contributions(statements.commit))
    if statements.opening is not None:
        message.opening.own = statements.opening.own
        message.opening.shared.extend(
            pb.PairSeed(site=name, seed=seed) for name, seed in sorted(statements.opening.shared.items())
        )
    decode_statements(content := message.SerializeToString(deterministic=True))
    return content


def decode_statements(content: bytes) -> SumStatements:
    """Decode and check what a member shows. Raises ``WireError`` naming the field and the limit."""
    at_most("statements", len(content), limits.SUM_STATEMENTS_BYTES_MAX, "bytes")
    try:
        message = pb.SumStatements.FromString(content)
    except DecodeError as error:
        raise WireError(f"statements are not a message of mhfl.v1: {error}") from None
    return SumStatements(
        key=_secret("statements.key", message.key) if message.key else None,
        shown=_decode_contributions("statements.shown", message.shown) if message.HasField("shown") else None,
        commit=_decode_contributions("statements.commit", message.commit) if message.HasField("commit") else None,
        opening=_decode_opening(message.opening) if message.HasField("opening") else None,
    )


def statements_digest(content: bytes) -> Sha256:
    """Compute the digest of encoded statements that a request states as ``known``."""
    return Sha256(hashlib.sha256(content).hexdigest())


def encode_sum_reply(reply: bytes | Unavailable) -> pb.SumReply:
    """Encode an answer to ``GetSum``: encoded statements, or why there is no sum."""
    if isinstance(reply, Unavailable):
        return pb.SumReply(unavailable=UNAVAILABLE[_none(reply)])
    return pb.SumReply(statements=reply)


def decode_sum_reply(message: pb.SumReply) -> bytes | Unavailable:
    """Decode an answer to ``GetSum``, but not the statements."""
    answer = message.WhichOneof("reply")
    if answer == "unavailable":
        return _none(known("sum_reply.unavailable", UNAVAILABLE_OF, message.unavailable))
    if answer is None:
        raise WireError("sum_reply has neither statements nor a reason why there is no sum")
    return message.statements


def encode_site_digests(digests: Mapping[SiteName, Sha256]) -> list[pb.SiteDigest]:
    return [pb.SiteDigest(site=name, digest=bytes.fromhex(value)) for name, value in sorted(digests.items())]


def decode_site_digests(field: str, message: Iterable[pb.SiteDigest]) -> dict[SiteName, Sha256]:
    """Decode digests by site, in the order of the names and each once; the caller bounds their number."""
    digests: dict[SiteName, Sha256] = {}
    for entry in message:
        name = _next_site(field, entry.site, digests)
        digests[name] = digest(f"{field}[{name}].digest", entry.digest.hex())
    return digests


def check_site_digests(field: str, digests: Mapping[SiteName, Sha256]) -> None:
    """Raise ``WireError`` if there are too many digests, or a name or a digest is none."""
    at_most(field, len(digests), limits.SUM_MEMBERS_MAX, "entries")
    for name, value in digests.items():
        digest(f"{field}[{site(field, name)}].digest", value)


def _encode_contributions(contributions: Contributions) -> pb.Contributions:
    check_site_digests("statements.contributors", contributions)
    return pb.Contributions(contributors=encode_site_digests(contributions))


def _decode_contributions(field: str, message: pb.Contributions) -> Contributions:
    at_most(f"{field}.contributors", len(message.contributors), limits.SUM_MEMBERS_MAX, "entries")
    return decode_site_digests(f"{field}.contributors", message.contributors)


def _decode_opening(message: pb.SumOpening) -> SumOpening:
    own = _secret("statements.opening.own", message.own)
    at_most("statements.opening.shared", len(message.shared), limits.SUM_MEMBERS_MAX, "entries")
    shared: dict[SiteName, bytes] = {}
    for entry in message.shared:
        name = _next_site("statements.opening.shared", entry.site, shared)
        shared[name] = _secret(f"statements.opening.shared[{name}].seed", entry.seed)
    return SumOpening(own, shared)


def _next_site(field: str, name: str, before: Mapping[SiteName, object]) -> SiteName:
    """Check the name of an entry, which follows those before it."""
    checked = site(f"{field}.site", name)
    if before and checked <= max(before):
        raise WireError(f"{field}.site {checked!r} stands twice, or not in the order of the names")
    return checked


def _none(reason: Unavailable) -> Unavailable:
    if reason not in (Unavailable.RETIRED, Unavailable.EPOCH):
        raise WireError(f"sum_reply.unavailable = {reason} is no reason why there is no sum")
    return reason


def _secret(field: str, value: bytes) -> bytes:
    """Check the length of a key or a seed; the error shows nothing of it."""
    if len(value) != SECRET_BYTES:
        raise WireError(f"{field} has {len(value)} bytes, not {SECRET_BYTES}")
    return value

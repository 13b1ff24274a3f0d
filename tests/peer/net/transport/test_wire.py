"""Messages survive the wire bit for bit; a value over a limit is refused by name, both ways."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.core import limits
from peer.core.artifacts import PURPOSES
from peer.core.kinds import KINDS
from peer.core.limits import COUNT_MAX
from peer.core.messages import FEATURES, ChainHead, Heartbeat, Hello, Seen, SignedManifest, SignedRound, Unavailable
from peer.net.transport import wire
from peer.net.transport.bounds import WireError
from peer.pb import peer_pb2 as pb

GREETING = Hello(1, "fe" * 32, "0a" * 32, 2, 1_700_000_000.25, Seen(1, 9, "0b" * 32), "mhfl-peer 0.1.0")
PULSE = Heartbeat(2, 7, "train", 0.5, 7, 6)

SIGNED = SignedManifest(b"body", b"signature", b"certificate")

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
heads = st.none() | st.builds(ChainHead, st.integers(1, limits.AMENDMENTS_MAX), digests)
rounds = st.integers(1, limits.ROUNDS_MAX)
counts = st.integers(0, COUNT_MAX)
texts = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)


@given(
    st.builds(
        Hello,
        st.integers(1, 9),
        digests,
        digests,
        st.integers(0, 99),
        st.floats(0, 1e10),
        st.none() | st.builds(Seen, rounds, rounds, digests, st.none() | st.just(SIGNED)),
        st.just("") | texts,
        digests,
        st.none() | st.booleans(),
        st.just(0) | st.integers(9, 99),
        st.lists(st.from_regex("[a-z0-9-]{1,32}", fullmatch=True), max_size=limits.FEATURES_MAX).map(tuple),
        heads,
    )
)
def test_a_greeting_survives_the_wire(greeting):
    assert wire.decode_greeting(wire.encode_greeting(greeting)) == greeting


@given(
    st.builds(
        Heartbeat,
        *[st.integers(0, 99)] * 2,
        texts,
        st.floats(0, 1),
        *[st.integers(0, 99)] * 2,
        st.none() | digests,
        st.none() | st.just(SignedRound(b"body", b"signature", b"certificate")),
        heads,
    )
)
def test_a_pulse_survives_the_wire(pulse):
    assert wire.decode_pulse(wire.encode_pulse(pulse)) == pulse


@given(st.builds(wire.ArtifactRequest, st.sampled_from(KINDS), rounds, st.sampled_from(PURPOSES), names, st.booleans()))
def test_requests_survive_the_wire(request):
    message = wire.encode_manifest_request(request, wait_s=1.5)
    assert wire.decode_manifest_request(message) == (request, 1.5)
    fetch = wire.encode_fetch_request(request, sha256="0c" * 32, offset=7)
    assert wire.decode_fetch_request(fetch) == (replace(request, earlier=False), "0c" * 32, 7)


@pytest.mark.parametrize("reply", [*Unavailable, SignedManifest(b"body", b"signature", b"certificate")])
def test_replies_survive_the_wire(reply):
    assert wire.decode_reply(wire.encode_reply(reply)) == reply


@given(st.binary(max_size=40_000))
def test_a_chunk_is_read_as_protobuf_reads_it(data):
    assert bytes(wire.decode_chunk(pb.Chunk(data=data).SerializeToString())) == data


@given(st.binary(max_size=40_000))
def test_a_chunk_is_written_as_protobuf_writes_it(data):
    assert wire.encode_chunk(data) == pb.Chunk(data=data).SerializeToString()


@given(st.binary(max_size=300))
def test_a_chunk_in_any_other_encoding_is_left_to_protobuf(message):
    try:
        expected = pb.Chunk.FromString(message).data
    except Exception as error:
        with pytest.raises(type(error)):
            wire.decode_chunk(message)
    else:
        assert bytes(wire.decode_chunk(message)) == expected


def changed(message, changes):
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("encode", "decode", "fact", "changes", "reason"),
    [
        (wire.encode_greeting, wire.decode_greeting, GREETING, changes, reason)
        for changes, reason in [
            ({"protocol": 0}, "greeting.protocol = 0"),
            ({"federation": b"f"}, "greeting.federation"),
            ({"roster": b""}, "greeting.roster"),
            ({"generation": limits.ROUNDS_MAX + 1}, "greeting.generation"),
            ({"clock_s": float("nan")}, "greeting.clock_s = nan"),
            ({"clock_s": float("inf")}, "greeting.clock_s = inf"),
            ({"clock_s": -1.0}, "greeting.clock_s = -1.0 is outside 0"),
            ({"software": "x" * 1025}, "greeting.software has 1025 bytes"),
            ({"protocol": 3, "protocol_max": 2}, "greeting.protocol_max = 2 is outside 3"),
            ({"features": ["a"] * 65}, "greeting.features has 65 entries, over the limit of 64"),
            ({"features": ["UPPER"]}, "greeting.features 'UPPER' is not 1 to 32 of a-z, 0-9 and -"),
            ({"features": ["x" * 33]}, "greeting.features 'x.*' is not 1 to 32"),
            ({"features": [""]}, "greeting.features '' is not 1 to 32"),
            ({"class_names": [b""] * 1025}, "greeting.class_names has 1025 entries, over the limit of 1024"),
            ({"class_names": [b"x" * 15]}, "greeting.class_names has a digest of 15 bytes, not 16"),
        ]
    ]
    + [
        (wire.encode_pulse, wire.decode_pulse, PULSE, changes, reason)
        for changes, reason in [
            ({"generation": limits.ROUNDS_MAX + 1}, "pulse.generation"),
            ({"round": limits.ROUNDS_MAX + 1}, "pulse.round"),
            ({"published_round": limits.ROUNDS_MAX + 1}, "pulse.published_round"),
            ({"committed_round": limits.ROUNDS_MAX + 1}, "pulse.committed_round"),
            ({"phase": ""}, "pulse.phase is empty"),
            ({"phase": "a\nb"}, "pulse.phase .* cannot be printed"),
            ({"progress": 1.01}, "pulse.progress = 1.01 is outside 0 to 1"),
            ({"progress": float("nan")}, "pulse.progress = nan"),
            ({"aggregate": b"ab"}, "pulse.aggregate"),
        ]
    ],
)
def test_a_greeting_or_pulse_outside_a_limit_is_refused_by_name(encode, decode, fact, changes, reason):
    message = changed(encode(fact), changes)
    with pytest.raises(WireError, match=reason):
        decode(message)


GREETING_OF_0_2_0 = bytes.fromhex(
    f"08011220{'fe' * 32}1a20{'0a' * 32}20022900001040fc54d9413226080110091a20{'0b' * 32}"
    f"3a0f6d68666c2d7065657220302e322e304220{'0c' * 32}4801"
)
PULSE_OF_0_2_0 = bytes.fromhex(f"080210071a05747261696e21000000000000e03f280730063a20{'0d' * 32}")


def test_the_recorded_messages_of_release_0_2_0_are_read_as_they_were_meant():
    greeting = wire.decode_greeting(pb.Greeting.FromString(GREETING_OF_0_2_0))
    assert greeting == replace(GREETING, software="mhfl-peer 0.2.0", round_key_tag="0c" * 32, evaluates=True)
    assert (greeting.protocol_max, greeting.features) == (0, ())
    assert wire.decode_pulse(pb.Pulse.FromString(PULSE_OF_0_2_0)) == replace(PULSE, aggregate="0d" * 32)


def test_what_release_0_2_0_reads_of_a_message_is_written_as_it_was():
    """Fields that a receiver does not know follow those that it knows, and are left out where they are empty."""
    known = replace(GREETING, software="mhfl-peer 0.2.0", round_key_tag="0c" * 32, evaluates=True)
    assert wire.encode_greeting(known).SerializeToString() == GREETING_OF_0_2_0
    told = replace(known, protocol_max=1, features=FEATURES)
    assert wire.encode_greeting(told).SerializeToString().startswith(GREETING_OF_0_2_0)
    proven = replace(PULSE, aggregate="0d" * 32, proof=SignedRound(b"body", b"signature", b"certificate"))
    assert wire.encode_pulse(proven).SerializeToString().startswith(PULSE_OF_0_2_0)


def test_a_proof_of_a_round_is_bounded():
    message = wire.encode_pulse(replace(PULSE, proof=SignedRound(b"body", b"signature", b"certificate")))
    message.proof.body = b"b" * (limits.ROUND_CLAIM_BYTES_MAX + 1)
    with pytest.raises(WireError, match=r"pulse\.proof\.body has 257 bytes"):
        wire.decode_pulse(message)


@pytest.mark.parametrize("changes", [{"generation": 0}, {"round": 0}, {"sha256": b""}])
def test_what_a_greeting_saw_is_checked(changes):
    message = wire.encode_greeting(GREETING)
    changed(message.seen, changes)
    with pytest.raises(WireError, match=rf"greeting\.seen\.{next(iter(changes))}"):
        wire.decode_greeting(message)


REQUEST = wire.ArtifactRequest("head", 3, "handback", "asia")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": 0}, "request.kind = 0"),
        ({"purpose": 7}, "request.purpose = 7"),
        ({"for_round": 0}, "request.for_round = 0"),
        ({"owner": "a b"}, "request.owner"),
        ({"wait_s": 20.5}, "request.wait_s = 20.5 is outside 0 to 20"),
        ({"wait_s": float("nan")}, "request.wait_s = nan"),
    ],
)
def test_a_manifest_request_outside_a_limit_is_refused_by_name(changes, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_manifest_request(changed(wire.encode_manifest_request(REQUEST, wait_s=1.0), changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sha256": b"x" * 31}, "request.sha256"),
        ({"offset": limits.ARTIFACT_BYTES_MAX + 1}, "request.offset"),
        ({"kind": 99}, "request.kind = 99"),
        ({"for_round": limits.ROUNDS_MAX + 1}, "request.for_round"),
    ],
)
def test_a_fetch_request_outside_a_limit_is_refused_by_name(changes, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_fetch_request(changed(wire.encode_fetch_request(REQUEST, sha256="0c" * 32, offset=0), changes))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ManifestReply(), "neither a manifest nor a reason"),
        (pb.ManifestReply(unavailable=0), "reply.unavailable = 0"),
        (pb.ManifestReply(unavailable=9), "reply.unavailable = 9"),
        (pb.ManifestReply(manifest=pb.SignedManifest()), "signed_manifest.body is empty"),
        (pb.ManifestReply(manifest=pb.SignedManifest(body=b"b")), "signed_manifest.signature is empty"),
        (
            pb.ManifestReply(manifest=pb.SignedManifest(body=b"b", signature=b"s" * 81, certificate_der=b"c")),
            "signed_manifest.signature has 81 bytes, over the limit of 80",
        ),
        (
            pb.ManifestReply(manifest=pb.SignedManifest(body=b"b", signature=b"s", certificate_der=b"c" * 8193)),
            "signed_manifest.certificate_der has 8193 bytes",
        ),
        (
            pb.ManifestReply(
                manifest=pb.SignedManifest(
                    body=b"b" * (limits.MANIFEST_BYTES_MAX + 1), signature=b"s", certificate_der=b"c"
                )
            ),
            "signed_manifest.body has 1048577 bytes",
        ),
    ],
)
def test_a_reply_outside_a_limit_is_refused_by_name(message, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_reply(message)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (pb.Head(number=0, digest=b"1" * 32), "head.number = 0 is outside 1 to 10000"),
        (pb.Head(number=1, digest=b"1" * 31), "head.digest"),
    ],
)
def test_a_head_of_another_form_is_refused(head, reason):
    greeting = wire.encode_greeting(GREETING)
    greeting.head.CopyFrom(head)
    with pytest.raises(WireError, match=f"greeting.{reason}"):
        wire.decode_greeting(greeting)
    pulse = wire.encode_pulse(PULSE)
    pulse.head.CopyFrom(head)
    with pytest.raises(WireError, match=f"pulse.{reason}"):
        wire.decode_pulse(pulse)


def test_a_request_names_its_epoch():
    request = wire.ArtifactRequest("model", 3, "train", "europe", epoch="ab" * 32)
    assert wire.decode_manifest_request(wire.encode_manifest_request(request, wait_s=1.0)) == (request, 1.0)
    encoded = wire.encode_fetch_request(request, sha256="cd" * 32, offset=0)
    assert wire.decode_fetch_request(encoded)[0] == request
    encoded.epoch = b"short"
    with pytest.raises(WireError, match=r"request\.epoch"):
        wire.decode_fetch_request(encoded)

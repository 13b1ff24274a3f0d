"""What members show each other of a sum survives the wire; anything else is refused by name, and reaches nobody."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.local_network import LocalNetwork
from peer.core import limits
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumOpening, SumStatements
from peer.net.transport import sum_statements as wire
from peer.net.transport.bounds import WireError
from peer.net.transport.client import Misbehaved, Refused, Unreachable
from peer.net.transport.server import Refusal, Status
from peer.net.transport.sum_statements import SumRequest
from peer.pb import peer_pb2 as pb
from peer.site.sums.pair_keys import check_public_key

VECTORS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "sum_statements.json").read_text())
ASIA, EUROPE, DIGEST = SiteName("asia"), SiteName("europe"), Sha256("ab" * 32)
RAW = bytes.fromhex(DIGEST)
REQUEST = SumRequest(3, "train", DIGEST, Sha256("cd" * 32))
FULL = SumStatements(
    key=b"k" * 32,
    shown={ASIA: DIGEST, EUROPE: DIGEST},
    commit={ASIA: DIGEST},
    opening=SumOpening(b"o" * 32, {EUROPE: b"s" * 32}),
)

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True).map(SiteName)
seeds = st.binary(min_size=32, max_size=32)
digests = seeds.map(lambda digest: Sha256(digest.hex()))
sets = st.none() | st.dictionaries(names, digests, max_size=limits.SUM_MEMBERS_MAX)
openings = st.builds(SumOpening, seeds, st.dictionaries(names, seeds, max_size=4))


@given(st.builds(SumStatements, st.none() | seeds, sets, sets, st.none() | openings))
def test_statements_survive_the_wire(statements: SumStatements) -> None:
    content = wire.encode_statements(statements)
    assert wire.decode_statements(content) == statements
    assert wire.encode_statements(wire.decode_statements(content)) == content


def test_a_site_that_has_said_nothing_differs_from_one_that_takes_no_part() -> None:
    assert wire.encode_statements(SumStatements()) == b""
    none = SumStatements(shown={})
    assert wire.decode_statements(wire.encode_statements(none)) == none != SumStatements()


def test_equal_statements_have_one_digest_in_whatever_order_they_were_built() -> None:
    reversed_set = dict(reversed(list((FULL.shown or {}).items())))
    other = SumStatements(FULL.key, reversed_set, FULL.commit, FULL.opening)
    content = wire.encode_statements(FULL)
    assert wire.encode_statements(other) == content
    assert wire.statements_digest(content) == hashlib.sha256(content).hexdigest()


def test_the_largest_statements_fit() -> None:
    members = [SiteName(f"{'s' * 29}-{index:02}") for index in range(limits.SUM_MEMBERS_MAX)]
    digests, pairs = dict.fromkeys(members, DIGEST), dict.fromkeys(members, b"s" * 32)
    largest = SumStatements(b"k" * 32, digests, digests, SumOpening(b"o" * 32, pairs))
    assert wire.decode_statements(wire.encode_statements(largest)) == largest


def entries(*sites: str, digest: bytes = RAW) -> pb.Contributions:
    return pb.Contributions(contributors=[pb.SiteDigest(site=name, digest=digest) for name in sites])


def opening(*sites: str, own: bytes = b"o" * 32, seed: bytes = b"s" * 32) -> pb.SumOpening:
    return pb.SumOpening(own=own, shared=[pb.PairSeed(site=name, seed=seed) for name in sites])


MANY = [f"s{index:03}" for index in range(limits.SUM_MEMBERS_MAX + 1)]
ORDER = "stands twice, or not in the order of the names"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": b"k" * 31}, r"statements\.key has 31 bytes, not 32"),
        ({"key": b"k" * 33}, r"statements\.key has 33 bytes, not 32"),
        ({"shown": entries("asia", "asia")}, rf"statements\.shown\.contributors\.site 'asia' {ORDER}"),
        ({"shown": entries("europe", "asia")}, rf"statements\.shown\.contributors\.site 'asia' {ORDER}"),
        ({"commit": entries("Asia")}, r"statements\.commit\.contributors\.site: site name 'Asia'"),
        ({"commit": entries("")}, r"statements\.commit\.contributors\.site"),
        ({"commit": entries("asia", digest=b"short")}, r"statements\.commit\.contributors\[asia\]\.digest"),
        ({"shown": entries(*MANY)}, r"statements\.shown\.contributors has 65 entries, over the limit of 64"),
        ({"commit": entries(*MANY)}, r"statements\.commit\.contributors has 65 entries"),
        ({"opening": opening(own=b"")}, r"statements\.opening\.own has 0 bytes, not 32"),
        ({"opening": opening("asia", seed=b"s" * 31)}, r"statements\.opening\.shared\[asia\]\.seed has 31 bytes"),
        ({"opening": opening("asia", "asia")}, rf"statements\.opening\.shared\.site 'asia' {ORDER}"),
        ({"opening": opening(*MANY)}, r"statements\.opening\.shared has 65 entries"),
    ],
)
def test_statements_outside_a_bound_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.decode_statements(pb.SumStatements(**changes).SerializeToString())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff" * 8, "statements are not a message of mhfl.v1"),
        (b"x" * (limits.SUM_STATEMENTS_BYTES_MAX + 1), "statements has 16385 bytes, over the limit of 16384"),
    ],
)
def test_other_bytes_are_no_statements(content: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.decode_statements(content)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        statements = wire.decode_statements(content)
    except WireError:
        return
    assert wire.decode_statements(wire.encode_statements(statements)) == statements


@pytest.mark.parametrize(
    "statements",
    [
        SumStatements(key=b"short"),
        SumStatements(shown={SiteName("Asia"): DIGEST}),
        SumStatements(commit={ASIA: Sha256("ab")}),
        SumStatements(opening=SumOpening(b"o" * 32, {ASIA: b""})),
    ],
)
def test_what_others_would_refuse_is_not_sent(statements: SumStatements) -> None:
    with pytest.raises(WireError, match=r"^statements\."):
        wire.encode_statements(statements)


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["what"])
def test_known_statements_are_read(vector: dict[str, Any]) -> None:
    content, key, opened = bytes.fromhex(vector["statements"]), vector["key"], vector["opening"]
    assert wire.statements_digest(content) == vector["known"]
    expected = SumStatements(
        None if key is None else bytes.fromhex(key),
        vector["shown"],
        vector["commit"],
        None if opened is None else SumOpening(bytes.fromhex(opened["own"]), pairs(opened["shared"])),
    )
    assert wire.decode_statements(content) == expected
    assert content.startswith(wire.encode_statements(expected))


def pairs(shared: dict[SiteName, str]) -> dict[SiteName, bytes]:
    return {name: bytes.fromhex(seed) for name, seed in shared.items()}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["what"])
def test_known_statements_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.decode_statements(bytes.fromhex(vector["statements"]))


@pytest.mark.parametrize("key", VECTORS["small_order"])
def test_known_keys_of_small_order_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_public_key(bytes.fromhex(key))


# --- requests and replies ---------------------------------------------------------------------------------------------
@given(
    st.builds(
        SumRequest, st.integers(1, limits.ROUNDS_MAX), st.just("commit"), st.none() | digests, st.none() | digests
    )
)
def test_requests_survive_the_wire(request: SumRequest) -> None:
    assert wire.decode_sum_request(wire.encode_sum_request(request, wait_s=1.5)) == (request, 1.5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 0}, r"sum_request\.round = 0 is outside 1"),
        ({"round": limits.ROUNDS_MAX + 1}, r"sum_request\.round = 1000001"),
        ({"stage": ""}, r"sum_request\.stage is empty"),
        ({"stage": "x" * 1025}, r"sum_request\.stage has 1025 bytes"),
        ({"stage": "a\nb"}, r"sum_request\.stage .* cannot be printed"),
        ({"epoch": b"short"}, r"sum_request\.epoch"),
        ({"known": b"k" * 33}, r"sum_request\.known"),
        ({"wait_s": 20.5}, r"sum_request\.wait_s = 20.5 is outside 0 to 20"),
        ({"wait_s": float("nan")}, r"sum_request\.wait_s = nan"),
    ],
)
def test_a_request_outside_a_limit_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    message = wire.encode_sum_request(REQUEST, wait_s=1.0)
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(WireError, match=reason):
        wire.decode_sum_request(message)


@pytest.mark.parametrize("reply", [b"", b"any bytes", Unavailable.RETIRED, Unavailable.EPOCH])
def test_replies_survive_the_wire(reply: bytes | Unavailable) -> None:
    encoded = wire.encode_sum_reply(reply).SerializeToString()
    assert wire.decode_sum_reply(pb.SumReply.FromString(encoded)) == reply


@pytest.mark.parametrize("code", [0, 1, 3, 9])
def test_a_reply_with_another_reason_is_refused(code: Any) -> None:
    """NOT_YET is an empty statement, and whoever skips a sum shows an empty set."""
    with pytest.raises(WireError, match=r"sum_reply\.unavailable = "):
        wire.decode_sum_reply(pb.SumReply(unavailable=code))


def test_an_empty_reply_is_refused() -> None:
    with pytest.raises(WireError, match="neither statements nor a reason"):
        wire.decode_sum_reply(pb.SumReply())


# --- over TLS ---------------------------------------------------------------------------------------------------------
async def test_a_request_reaches_the_handler_and_its_answer_the_caller(network: LocalNetwork) -> None:
    asked: list[Any] = []
    replies: list[bytes | Unavailable] = [wire.encode_statements(FULL), b"", Unavailable.RETIRED, Unavailable.EPOCH]

    async def answer(caller: SiteName, request: SumRequest, wait_s: float) -> bytes | Unavailable:
        asked.append((caller, request, wait_s))
        return replies[len(asked) - 1]

    await network.serve("europe", sums=answer)
    africa = network.dial("africa")
    assert [await africa.get_sum(EUROPE, REQUEST, wait_s=1.5) for _ in replies] == replies
    assert asked == [("africa", REQUEST, 1.5)] * len(replies)


async def test_a_long_wait_ends_with_what_is_said_meanwhile(network: LocalNetwork) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer(caller: SiteName, request: SumRequest, wait_s: float) -> bytes:
        began.set()
        await go_on.wait()
        return b"said"

    await network.serve("europe", sums=answer)
    waiting = asyncio.create_task(network.dial("africa").get_sum(EUROPE, REQUEST))
    await began.wait()
    assert not waiting.done()
    go_on.set()
    assert await waiting == b"said"


async def test_a_program_without_secure_sums_says_so_and_its_caller_does_not_take_it_for_a_breach(
    network: LocalNetwork,
) -> None:
    await network.serve("europe")
    with pytest.raises(Refused, match="europe: this site takes part in no secure sums"):
        await network.dial("africa").get_sum(EUROPE, REQUEST)


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.DENIED, Refused), (Status.MALFORMED, Refused), (Status.BUSY, Unreachable)]
)
async def test_a_refusal_reaches_the_caller_with_its_reason(
    network: LocalNetwork, status: Status, expected: type[Exception]
) -> None:
    async def refuse(caller: SiteName, request: SumRequest, wait_s: float) -> bytes:
        raise Refusal(status, "not for you")

    await network.serve("europe", sums=refuse)
    with pytest.raises(expected, match="europe: not for you"):
        await network.dial("africa").get_sum(EUROPE, REQUEST)


async def test_a_stranger_reaches_no_handler_and_a_bad_request_neither(network: LocalNetwork) -> None:
    asked: list[SiteName] = []

    async def answer(caller: SiteName, request: SumRequest, wait_s: float) -> bytes:
        asked.append(caller)
        return b""

    europe = await network.serve("europe", sums=answer)
    with pytest.raises(Refused, match="'mars' is not in the roster"):
        await network.dial("mars").get_sum(EUROPE, REQUEST)
    africa = network.dial("africa")
    async with africa._open(EUROPE) as channel:
        with pytest.raises(Exception, match=r"sum_request\.stage is empty"):
            await channel.ask("GetSum", pb.SumRequest(round=1), pb.SumReply, timeout_s=5.0)
    assert asked == []
    assert [call for _, call, _ in europe.service.refused_calls] == ["GetSum", "GetSum"]


async def test_a_server_s_answer_that_is_no_message_is_its_breach(network: LocalNetwork) -> None:
    async def answer(caller: SiteName, request: SumRequest, wait_s: float) -> Unavailable:
        return Unavailable.RETIRED

    await network.serve("europe", sums=answer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "encode_sum_reply", lambda reply: pb.SumReply())
        with pytest.raises(Misbehaved, match="neither statements nor a reason"):
            await network.dial("africa").get_sum(EUROPE, REQUEST)

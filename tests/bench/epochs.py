"""What an epoch costs: how fast an amendment reaches every daemon, and what a chain of them weighs.

Four real daemons train nothing (``tests/fakes/worker.py``). ``python tests/bench/run.py epochs``
measures from the start of ``mhfl-peer federation amend``, in this process, until the last daemon
has the amendment on disk. The chains of 1, 10 and 100 amendments are of four members, too; each
amendment changes one setting.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from row import Row, below

from peer.core.messages import AmendmentsReply, ChainHead, Heartbeat, SealedKey
from peer.core.roster import SiteName
from peer.net.transport import wire
from peer.net.transport.amendments import encode_amendments
from peer.site.membership.chain import Chain
from peer.site.membership.folder import CHAIN_FILE, MembershipFolder
from peer.site.membership.round_keys import seal_key

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fakes.amended_daemons import SITE, AmendedDaemons
from fakes.drafts import draft
from tests.fakes.chains import AmendedFederation, identity, round_key

SITES = ("africa", "america", "asia", "europe")
LENGTHS = (1, 10, 100)
POLL_S = 0.02
HEARTBEAT_BYTES_MAX = 40
"""By which a heartbeat may grow with the head of a chain."""


def measure(*, quick: bool) -> list[Row]:
    """The way of an amendment, the weight of chains, and what messages grow by."""
    return [*spread(1 if quick else 5), *weigh(LENGTHS[: 2 if quick else 3]), *grow()]


def spread(repetitions: int) -> list[Row]:
    """Seconds until the command returns, and until all four daemons have the amendment."""
    text = draft("bench", rounds=100_000, method="fedavg", shared_model={"name": "resnet10"})
    command_s, all_s = [], []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mhfl-epochs-")))
        daemons = AmendedDaemons.create(folder, text, dict.fromkeys(SITES, SITE))
        assert isinstance(daemons, AmendedDaemons)
        stack.enter_context(daemons)
        for name in SITES:
            daemons.start(name)
        for name in SITES:
            daemons.until(name, lambda status: status["committed"] >= 2)
        for number in range(1, repetitions + 1):
            began_s = time.perf_counter()
            change = f"pace.wait_max_s={600 + number}"
            daemons.govern("europe", "amend", "--ca", daemons.ca, "--set", change)
            command_s.append(time.perf_counter() - began_s)
            while any(daemons.show(name, "membership")["head"]["number"] < number for name in SITES):
                time.sleep(POLL_S)
            all_s.append(time.perf_counter() - began_s)
    return [
        Row("`federation amend` returns, median", statistics.median(command_s), "s"),
        Row("all of 4 daemons have the amendment, median", statistics.median(all_s), "s"),
        Row("all of 4 daemons have the amendment, slowest", max(all_s), "s"),
    ]


def weigh(lengths: tuple[int, ...]) -> list[Row]:
    """Bytes and verification of chains that the founder signs, or three of four members."""
    rows = []
    for signers, members in (("the founder", None), ("3 members", 3)):
        federation = AmendedFederation(*SITES, members=members, rounds=100_000)
        by = SITES[:members] if members else ()
        chain = federation.chain()
        for number in range(1, max(lengths) + 1):
            chain = federation.extend(chain, by, settings={"pace": {"wait_max_s": 600.0 + number}})
            if number in lengths:
                rows += _weigh_chain(federation, chain, f"{number} signed by {signers}")
    key = seal_key(
        round_key(1), identity("asia").key.public_key(), federation=federation.config.digest, site=SiteName("asia")
    )
    with_key = encode_amendments(AmendmentsReply((), (SealedKey(1, key),), ())).ByteSize()
    return [*rows, Row("a sealed round key in an answer", with_key, "bytes")]


def _weigh_chain(federation: AmendedFederation, chain: Chain, label: str) -> list[Row]:
    signed = tuple(link.signed for link in chain.links)
    began_s = time.perf_counter()
    federation.chain(*signed)
    verified_ms = (time.perf_counter() - began_s) * 1e3
    with tempfile.TemporaryDirectory(prefix="mhfl-epochs-") as folder:
        MembershipFolder(Path(folder)).save_chain(chain)
        disk_bytes = (Path(folder) / CHAIN_FILE).stat().st_size
    return [
        Row(f"{label}: on the wire", encode_amendments(AmendmentsReply(signed, (), ())).ByteSize(), "bytes"),
        Row(f"{label}: on disk", disk_bytes, "bytes"),
        Row(f"{label}: verified in", verified_ms, "ms"),
    ]


def grow() -> list[Row]:
    """What a heartbeat, and a request for an artifact, grow by once there is an amendment."""
    head = ChainHead(100, AmendedFederation("asia").config.digest)
    pulse, with_head = (Heartbeat(1, 3, "train", 0.5, 3, 2, head=each) for each in (None, head))
    request, of_epoch = (
        wire.ArtifactRequest("model", 3, "train", SiteName("asia"), epoch=each) for each in (None, head.digest)
    )
    beat = wire.encode_pulse(with_head).ByteSize() - wire.encode_pulse(pulse).ByteSize()
    asked = (wire.encode_manifest_request(each, wait_s=0.0).ByteSize() for each in (of_epoch, request))
    return [
        below("a heartbeat grows by", beat, "bytes", HEARTBEAT_BYTES_MAX),
        Row("a request for an artifact grows by", next(asked) - next(asked), "bytes"),
    ]

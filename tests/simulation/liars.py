"""Members that lie: real daemons whose messages are changed on their way out, and signed with their own key.

A liar has a few habits. Each changes one kind of message; which field gets which value is drawn for
each message. What a liar's daemon does besides is honest, so that its lies meet every phase.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from peer.core.roster import canonical_json
from peer.files import artifact_path
from peer.net.transport.manifest import LABEL
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates
from peer.site.membership.amendment import MANDATORY
from peer.site.membership.signatures import AMENDMENT_LABEL, NOTICE_LABEL
from simulation.worker import NOT_A_NUMBER, NUMBERS, artifact_file

HUGE = (0, 1, (1 << 31) - 1, 1 << 40, (1 << 53) + 1, (1 << 63) - 1)
USELESS = artifact_file(NOT_A_NUMBER * NUMBERS)
METHODS = pb.DESCRIPTOR.services_by_name["Exchange"].methods_by_name
REPEATS_SHARE = 0.2
TEXTS = ("done", "gone", "train", "paused", "leaving", "no such phase", "", "\x1b[2J", "x" * 2000, "é" * 400)


def draw_habits(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.sample(sorted(HABITS), rng.choice((1, 1, 2, 3))))


def draw_chain_habits(rng: random.Random) -> tuple[str, ...]:
    """Habits about amendments, which a liar has before all others; who forges them makes the others ask."""
    habits = tuple(rng.sample(sorted(CHAIN_HABITS), rng.choice((0, 1, 2))))
    return habits if "forge_amendments" not in habits else tuple(dict.fromkeys((*habits, "state_false_head")))


def draw_amending_habits(rng: random.Random) -> tuple[str, ...]:
    """Now and then the habits of a liar that amends the federation alone."""
    return tuple(AMENDING_HABITS) if rng.random() < 0.3 else ()


def draw_repeating_habits(rng: random.Random) -> tuple[str, ...]:
    """Now and then the habit of a liar that sends the same useless artifact again and again."""
    return tuple(REPEATING_HABITS) if rng.random() < REPEATS_SHARE else ()


@dataclass
class Liar:
    """What one site makes of its messages.

    Attributes:
        habits: keys of ``ALL_HABITS``.
        rounds: the last round of the federation.
        key: signs what the liar changes.
        artifacts: the folder of its own artifacts.
        federation: the federation's digest.
        round_key_tag: of the genesis' round key.
        head: the head of its daemon's chain.
        certificate_der: its certificate.
        blatant: by receiver, the lies that it cannot have taken for the truth.
        shown: by the digest that a receiver was shown, the digest of the artifact itself.
        replaced: by receiver and round, the digest of the artifact in whose place the useless one was shown.
        asked: by caller, its last request for a manifest.
        template: a manifest of its own, from which it makes those of rounds that it has not come to.
        signed_ahead: the last round for which it has signed such a manifest.
    """

    habits: tuple[str, ...]
    rounds: int
    key: Any
    rng: random.Random
    artifacts: Path
    federation: str = ""
    certificate_der: bytes = b""
    round_key_tag: str = ""
    head: pb.Head = field(default_factory=pb.Head)
    blatant: Counter[str] = field(default_factory=Counter)
    shown: dict[bytes, bytes] = field(default_factory=dict)
    replaced: dict[tuple[str, int], bytes] = field(default_factory=dict)
    asked: dict[str, pb.ManifestRequest] = field(default_factory=dict)
    template: bytes = b""
    signed_ahead: int = 0

    def change(self, receiver: str, call: str, part: str, data: bytes) -> bytes:
        """The bytes that leave in place of these."""
        method = METHODS[call]
        message = getattr(pb, (method.input_type if part == "request" else method.output_type).name)()
        lies = (lie for lie, types in map(ALL_HABITS.__getitem__, self.habits) if type(message) in types)
        lie = next(lies, change_chunk if part == "chunk" else None)
        if lie is None:
            return data
        message.ParseFromString(data)
        return lie(self, receiver, message) or message.SerializeToString()

    def receive(self, sender: str, call: str, data: bytes) -> bytes:
        """What the liar's daemon sees of a request: a receiver names the digest that it was shown."""
        if call == "GetManifest" and "repeat_useless_bytes" in self.habits:
            request = self.asked[sender] = pb.ManifestRequest.FromString(data)
            request.wait_s = 0.0
            return request.SerializeToString()
        if call != "FetchArtifact" or not (self.shown or self.replaced):
            return data
        request = pb.FetchRequest.FromString(data)
        if request.sha256 == hashlib.sha256(USELESS).digest():
            rounds = sorted((round for name, round in self.replaced if name == sender and round <= request.for_round))
            if rounds:
                request.sha256 = self.replaced[sender, rounds[-1]]
        request.sha256 = self.shown.get(request.sha256, request.sha256)
        return request.SerializeToString()

    def sign(self, manifest: pb.Manifest, reply: pb.ManifestReply) -> None:
        reply.manifest.body = manifest.SerializeToString(deterministic=True)
        reply.manifest.signature = certificates.sign(self.key, LABEL + reply.manifest.body)

    def next_amendment(self, body: bytes) -> pb.Amendment:
        """An amendment after this one, which the liar alone has signed."""
        before = json.loads(body)
        place = {key: before[key] for key in MANDATORY} | {"number": before["number"] + 1}
        return self.endorsed({**place, "previous": hashlib.sha256(body).hexdigest()})

    def own_amendment(self, head: pb.Head) -> pb.Amendment:
        """An amendment after the liar's own head, always the same, which the liar alone has signed."""
        place = {"federation": self.federation, "number": head.number + 1, "issued": 1}
        previous = head.digest.hex() or self.federation
        return self.endorsed(
            {**place, "previous": previous, "from_round": self.rounds, "round_key_tag": self.round_key_tag}
        )

    def endorsed(self, place: Mapping[str, Any]) -> pb.Amendment:
        """An amendment at a place that holds the federation, which the liar alone has signed."""
        own = canonical_json({**place, "hold": True})
        signature = certificates.sign(self.key, AMENDMENT_LABEL + own)
        return pb.Amendment(body=own, by=[pb.Endorsement(certificate_der=self.certificate_der, signature=signature)])


Lie = Callable[[Liar, str, Any], bytes | None]
"""Changes a message to a receiver, or returns other bytes in its place."""


def claim_later_round(liar: Liar, receiver: str, pulse: pb.Pulse) -> None:
    """Claim to be in the last round, or after it."""
    pulse.round = liar.rng.choice((liar.rounds, liar.rounds, liar.rounds + 1, 10**6))
    pulse.committed_round = liar.rng.choice((pulse.committed_round, liar.rounds, 10**6))


def claim_first_round(liar: Liar, receiver: str, pulse: pb.Pulse) -> None:
    """Claim to train in round 1 for ever."""
    pulse.round, pulse.committed_round, pulse.phase = 1, 0, "train"
    pulse.progress = liar.rng.random()


def spoil_pulse(liar: Liar, receiver: str, pulse: pb.Pulse) -> None:
    """A field of the heartbeat has a senseless value."""
    name = liar.rng.choice(("phase", "progress", "aggregate", "generation", "published_round"))
    if name == "phase":
        pulse.phase = liar.rng.choice(TEXTS)
    elif name == "progress":
        pulse.progress = liar.rng.choice((float("nan"), float("inf"), -1.0, 2.0, 1.0))
    elif name == "aggregate":
        pulse.aggregate = liar.rng.randbytes(liar.rng.choice((0, 1, 32, 33)))
    else:
        setattr(pulse, name, liar.rng.choice(HUGE))


def claim_restored_backup(liar: Liar, receiver: str, greeting: pb.Greeting) -> None:
    """Claim to have seen a later generation of the receiver."""
    greeting.seen.generation = liar.rng.choice((1, 2, 900, 10**6))
    greeting.seen.round = liar.rng.choice((1, liar.rounds, 10**6))
    greeting.seen.sha256 = liar.rng.randbytes(32)


def spoil_greeting(liar: Liar, receiver: str, greeting: pb.Greeting) -> None:
    """A field of the greeting has a senseless or a foreign value."""
    name = liar.rng.choice(("protocol", "federation", "roster", "generation", "clock_s", "software", "round_key_tag"))
    if name in ("federation", "roster", "round_key_tag"):
        setattr(greeting, name, liar.rng.randbytes(liar.rng.choice((0, 31, 32))))
    elif name == "software":
        greeting.software = liar.rng.choice(TEXTS)
    elif name == "clock_s":
        greeting.clock_s = liar.rng.choice((float("nan"), -1.0, 0.0, 1e18))
    else:
        setattr(greeting, name, liar.rng.choice((2, 7, (1 << 31) - 1)))


def _manifest(reply: pb.ManifestReply) -> pb.Manifest | None:
    return pb.Manifest.FromString(reply.manifest.body) if reply.HasField("manifest") else None


def sign_wrong_manifest(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    """A manifest of another round, owner, method, federation or kind, or about other bytes."""
    manifest = _manifest(reply)
    if manifest is None:
        return
    name = liar.rng.choice(("round", "owner", "method", "federation", "origin", "kind", "sha256", "bytes", "tensors"))
    if name == "round":
        manifest.round += liar.rng.choice((1, 2, 10**5))
    elif name == "kind":
        manifest.kind = manifest.kind % 3 + 1
    elif name in ("owner", "origin"):
        setattr(manifest, name, receiver if getattr(manifest, name) != receiver else manifest.origin)
    elif name == "method":
        manifest.method = "feddal" if manifest.method != "feddal" else "fedavg"
    elif name in ("federation", "sha256"):
        setattr(manifest, name, liar.rng.randbytes(32))
    elif name == "bytes":
        manifest.bytes = max(1, manifest.bytes - 1)
    else:
        manifest.tensors[0].shape[0] += 1
    liar.blatant[receiver] += 1
    liar.sign(manifest, reply)


def exaggerate(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    """A manifest with the largest numbers that are permitted, or larger ones."""
    manifest = _manifest(reply)
    if manifest is None:
        return
    name = liar.rng.choice(("steps", "training_samples", "bytes", "egress_count", "generation"))
    setattr(manifest, name, liar.rng.choice((1 << 33, 1 << 40, 1 << 53, (1 << 63) - 1)))
    if name == "egress_count":
        manifest.egress_head = liar.rng.randbytes(32)
    liar.sign(manifest, reply)


def forge_signature(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    manifest = _manifest(reply)
    if manifest is None:
        return
    reply.manifest.signature = liar.rng.randbytes(70)
    liar.blatant[receiver] += 1


def never_ready(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    """Answer for ever that the artifact does not exist yet."""
    reply.unavailable = pb.UNAVAILABLE_NOT_YET


def skip(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    reply.unavailable = liar.rng.choice((pb.UNAVAILABLE_RETIRED, pb.UNAVAILABLE_SKIPPED, 77))


def equivocate(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    """Show each receiver a model of its own for the same round."""
    manifest = _manifest(reply)
    if manifest is None:
        return
    path = artifact_path(liar.artifacts, manifest.sha256.hex())
    if path.exists():
        digest = hashlib.sha256(_for(receiver, path.read_bytes())).digest()
        liar.shown[digest] = manifest.sha256
        manifest.sha256 = digest
    liar.sign(manifest, reply)


def repeat_useless_bytes(liar: Liar, receiver: str, reply: pb.ManifestReply) -> None:
    """Show, for every round and before its time, the same bytes that no worker takes."""
    manifest = _manifest(reply)
    asked = liar.asked.get(receiver)
    if manifest is None and reply.unavailable == pb.UNAVAILABLE_NOT_YET and liar.template and asked is not None:
        manifest = pb.Manifest.FromString(liar.template)
        manifest.round, reply.manifest.certificate_der = asked.for_round, liar.certificate_der
        liar.signed_ahead = max(liar.signed_ahead, asked.for_round)
    elif manifest is None or manifest.evaluation or manifest.bytes != len(USELESS):
        return
    else:
        liar.replaced[receiver, manifest.round] = manifest.sha256
        liar.template = manifest.SerializeToString()
    manifest.sha256 = hashlib.sha256(USELESS).digest()
    liar.sign(manifest, reply)


def change_chunk(liar: Liar, receiver: str, chunk: pb.Chunk) -> None:
    """The bytes of what the receiver was shown; artifacts here fit into one chunk."""
    if "equivocate" in liar.habits:
        chunk.data = _for(receiver, chunk.data)
    elif "repeat_useless_bytes" in liar.habits:
        chunk.data = USELESS[-len(chunk.data) :]


def _for(receiver: str, content: bytes) -> bytes:
    """The content with a last byte that depends on the receiver; artifacts here fit into one chunk."""
    return content[:-1] + bytes([sum(receiver.encode()) % 256])


def damage_chunk(liar: Liar, receiver: str, chunk: pb.Chunk) -> None:
    """A byte of the artifact is another one, or some are missing, or too many."""
    content = bytearray(chunk.data)
    how = liar.rng.choice(("flip", "cut", "extend"))
    if how == "flip":
        content[liar.rng.randrange(len(content))] ^= 1 << liar.rng.randrange(8)
    elif how == "cut":
        del content[len(content) // 2 :]
    else:
        content += b"x" * 1000
    liar.blatant[receiver] += 1
    chunk.data = bytes(content)


def send_garbage(liar: Liar, receiver: str, message: Message) -> bytes:
    return liar.rng.randbytes(liar.rng.choice((1, 10, 1000)))


def ask_for_anything(liar: Liar, receiver: str, request: pb.ManifestRequest) -> None:
    """A request for an artifact that the schedule does not give to the liar."""
    name = liar.rng.choice(("for_round", "owner", "purpose", "kind"))
    value = {"for_round": liar.rng.choice((0, 1, 2, 10**7)), "owner": receiver}.get(name, liar.rng.choice((0, 1, 2, 9)))
    setattr(request, name, value)


def fetch_anything(liar: Liar, receiver: str, request: pb.FetchRequest) -> None:
    """A fetch of other bytes, or from an offset beyond the end."""
    if liar.rng.random() < 0.5:
        request.offset = liar.rng.choice(HUGE)
    else:
        request.sha256 = liar.rng.randbytes(32)


def report_anything(liar: Liar, receiver: str, report: pb.Metrics) -> None:
    """Metrics without sense on the receiver's model."""
    name = liar.rng.choice([field.name for field in report.DESCRIPTOR.fields if field.type == field.TYPE_UINT64])
    setattr(report, name, liar.rng.choice(HUGE[:-1]))


def state_false_head(liar: Liar, receiver: str, message: pb.Pulse | pb.Greeting) -> None:
    """The head of a chain that nobody has: further than the true one, of as many amendments, or without sense."""
    head = message.head
    head.number = liar.rng.choice((head.number + 1, max(1, head.number), *HUGE))
    head.digest = liar.rng.randbytes(liar.rng.choice((0, 31, 32, 32, 32, 32)))


def forge_notice(liar: Liar, receiver: str, pulse: pb.Pulse) -> None:
    """A notice that the receiver leaves, under the liar's own signature."""
    content = {"federation": liar.federation, "site": receiver, "issued": 1}
    pulse.notice.body = canonical_json(content)
    pulse.notice.signature = certificates.sign(liar.key, NOTICE_LABEL + pulse.notice.body)
    pulse.notice.certificate_der = liar.certificate_der


def forge_amendments(liar: Liar, receiver: str, reply: pb.Amendments) -> None:
    """A chain that is cut, replayed, changed under its signatures, not canonical or too large; foreign keys."""
    how = liar.rng.choice(("cut", "replay", "change", "space", "large", "unsigned", "own", "keys", "notices", "none"))
    if how == "keys":
        reply.keys.add(number=liar.rng.choice((0, 1, 2, 1 << 31)), sealed=liar.rng.randbytes(113))
    elif how == "notices":
        reply.notices.add(body=b"{}", signature=liar.rng.randbytes(70), certificate_der=liar.certificate_der)
    elif how == "cut" or not reply.amendments:
        del reply.amendments[liar.rng.randrange(len(reply.amendments) or 1) :]
    elif how == "replay":
        reply.amendments.extend(list(reply.amendments))
    elif how == "change":
        body = reply.amendments[-1].body
        reply.amendments[-1].body = body.replace(b'"from_round":', b'"from_round":1')
    elif how == "space":
        reply.amendments[-1].body += b" "
    elif how == "large":
        reply.amendments[-1].body = bytes(300 << 10)
    elif how == "own":
        reply.amendments.append(liar.next_amendment(reply.amendments[-1].body))
    elif how == "unsigned":
        del reply.amendments[-1].by[:]


def state_own_amendment(liar: Liar, receiver: str, pulse: pb.Pulse) -> None:
    """The head of an amendment that the liar alone has signed, and will show."""
    liar.head.CopyFrom(pulse.head)
    pulse.head.number += 1
    pulse.head.digest = hashlib.sha256(liar.own_amendment(liar.head).body).digest()


def show_own_amendment(liar: Liar, receiver: str, reply: pb.Amendments) -> None:
    last = hashlib.sha256(reply.amendments[-1].body).digest() if reply.amendments else liar.head.digest
    if last == liar.head.digest:
        reply.amendments.append(liar.own_amendment(liar.head))


def ask_for_any_amendment(liar: Liar, receiver: str, request: pb.After) -> None:
    request.number = liar.rng.choice((*HUGE, 1 << 20))


Habits = Mapping[str, tuple[Lie, set[type[Message]]]]
"""By name, how a liar changes messages, and of which types."""
HABITS: Habits = {
    lie.__name__: (lie, set(types))
    for lie, *types in (
        (claim_later_round, pb.Pulse),
        (claim_first_round, pb.Pulse),
        (spoil_pulse, pb.Pulse),
        (claim_restored_backup, pb.Greeting),
        (spoil_greeting, pb.Greeting),
        (sign_wrong_manifest, pb.ManifestReply),
        (exaggerate, pb.ManifestReply),
        (forge_signature, pb.ManifestReply),
        (never_ready, pb.ManifestReply),
        (skip, pb.ManifestReply),
        (equivocate, pb.ManifestReply),
        (damage_chunk, pb.Chunk),
        (send_garbage, pb.Pulse, pb.Greeting, pb.ManifestReply, pb.ManifestRequest, pb.FetchRequest),
        (ask_for_anything, pb.ManifestRequest),
        (fetch_anything, pb.FetchRequest),
        (report_anything, pb.Metrics),
    )
}
CHAIN_HABITS: Habits = {
    "state_false_head": (state_false_head, {pb.Pulse}),
    "forge_notice": (forge_notice, {pb.Pulse}),
    "greet_with_false_head": (state_false_head, {pb.Greeting}),
    "forge_amendments": (forge_amendments, {pb.Amendments}),
    "ask_for_any_amendment": (ask_for_any_amendment, {pb.After}),
}
AMENDING_HABITS: Habits = {
    "state_own_amendment": (state_own_amendment, {pb.Pulse}),
    "show_own_amendment": (show_own_amendment, {pb.Amendments}),
}
"""A liar has both or none."""
REPEATING_HABITS: Habits = {"repeat_useless_bytes": (repeat_useless_bytes, {pb.ManifestReply})}
ALL_HABITS = {**HABITS, **CHAIN_HABITS, **AMENDING_HABITS, **REPEATING_HABITS}

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
from peer.identity import certificates
from peer.membership.amendment import MANDATORY
from peer.membership.signatures import AMENDMENT_LABEL, NOTICE_LABEL
from peer.pb import peer_pb2 as pb
from peer.transport.manifest import LABEL
from simulation.worker import NOT_A_NUMBER, NUMBERS, artifact_file

HUGE = (0, 1, (1 << 31) - 1, 1 << 40, (1 << 53) + 1, (1 << 63) - 1)
USELESS = artifact_file(NOT_A_NUMBER * NUMBERS)
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
        told: by habit, the number of lies.
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
    told: Counter[str] = field(default_factory=Counter)
    shown: dict[bytes, bytes] = field(default_factory=dict)
    replaced: dict[tuple[str, int], bytes] = field(default_factory=dict)
    asked: dict[str, pb.ManifestRequest] = field(default_factory=dict)
    template: bytes = b""
    signed_ahead: int = 0

    def change(self, receiver: str, call: str, part: str, data: bytes) -> bytes:
        """The bytes that leave in place of these."""
        for habit in self.habits:
            calls, lie = ALL_HABITS[habit]
            if (call, part) in calls:
                self.told[habit] += 1
                return lie(self, receiver, data)
        return change_chunk(self, receiver, data) if part == "chunk" else data

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

    def sign(self, manifest: pb.Manifest, reply: pb.ManifestReply) -> bytes:
        reply.manifest.body = manifest.SerializeToString(deterministic=True)
        reply.manifest.signature = certificates.sign(self.key, LABEL + reply.manifest.body)
        return reply.SerializeToString()

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


Lie = Callable[[Liar, str, bytes], bytes]


def claim_later_round(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Claim to be in the last round, or after it."""
    pulse = pb.Pulse.FromString(data)
    pulse.round = liar.rng.choice((liar.rounds, liar.rounds, liar.rounds + 1, 10**6))
    pulse.committed_round = liar.rng.choice((pulse.committed_round, liar.rounds, 10**6))
    return pulse.SerializeToString()


def claim_first_round(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Claim to train in round 1 for ever."""
    pulse = pb.Pulse.FromString(data)
    pulse.round, pulse.committed_round, pulse.phase = 1, 0, "train"
    pulse.progress = liar.rng.random()
    return pulse.SerializeToString()


def spoil_pulse(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A field of the heartbeat has a senseless value."""
    pulse = pb.Pulse.FromString(data)
    name = liar.rng.choice(("phase", "progress", "aggregate", "generation", "published_round"))
    if name == "phase":
        pulse.phase = liar.rng.choice(TEXTS)
    elif name == "progress":
        pulse.progress = liar.rng.choice((float("nan"), float("inf"), -1.0, 2.0, 1.0))
    elif name == "aggregate":
        pulse.aggregate = liar.rng.randbytes(liar.rng.choice((0, 1, 32, 33)))
    else:
        setattr(pulse, name, liar.rng.choice(HUGE))
    return pulse.SerializeToString()


def claim_restored_backup(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Claim to have seen a later generation of the receiver."""
    greeting = pb.Greeting.FromString(data)
    greeting.seen.generation = liar.rng.choice((1, 2, 900, 10**6))
    greeting.seen.round = liar.rng.choice((1, liar.rounds, 10**6))
    greeting.seen.sha256 = liar.rng.randbytes(32)
    return greeting.SerializeToString()


def spoil_greeting(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A field of the greeting has a senseless or a foreign value."""
    greeting = pb.Greeting.FromString(data)
    name = liar.rng.choice(("protocol", "federation", "roster", "generation", "clock_s", "software", "round_key_tag"))
    if name in ("federation", "roster", "round_key_tag"):
        setattr(greeting, name, liar.rng.randbytes(liar.rng.choice((0, 31, 32))))
    elif name == "software":
        greeting.software = liar.rng.choice(TEXTS)
    elif name == "clock_s":
        greeting.clock_s = liar.rng.choice((float("nan"), -1.0, 0.0, 1e18))
    else:
        setattr(greeting, name, liar.rng.choice((2, 7, (1 << 31) - 1)))
    return greeting.SerializeToString()


def _manifest(data: bytes) -> tuple[pb.ManifestReply, pb.Manifest | None]:
    reply = pb.ManifestReply.FromString(data)
    return reply, pb.Manifest.FromString(reply.manifest.body) if reply.HasField("manifest") else None


def sign_wrong_manifest(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A manifest of another round, owner, method, federation or kind, or about other bytes."""
    reply, manifest = _manifest(data)
    if manifest is None:
        return data
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
    return liar.sign(manifest, reply)


def exaggerate(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A manifest with the largest numbers that are permitted, or larger ones."""
    reply, manifest = _manifest(data)
    if manifest is None:
        return data
    name = liar.rng.choice(("steps", "training_samples", "bytes", "egress_count", "generation"))
    setattr(manifest, name, liar.rng.choice((1 << 33, 1 << 40, 1 << 53, (1 << 63) - 1)))
    if name == "egress_count":
        manifest.egress_head = liar.rng.randbytes(32)
    return liar.sign(manifest, reply)


def forge_signature(liar: Liar, receiver: str, data: bytes) -> bytes:
    reply, manifest = _manifest(data)
    if manifest is None:
        return data
    reply.manifest.signature = liar.rng.randbytes(70)
    liar.blatant[receiver] += 1
    return reply.SerializeToString()


def never_ready(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Answer for ever that the artifact does not exist yet."""
    return pb.ManifestReply(unavailable=pb.UNAVAILABLE_NOT_YET).SerializeToString()


def skip(liar: Liar, receiver: str, data: bytes) -> bytes:
    return pb.ManifestReply(
        unavailable=liar.rng.choice((pb.UNAVAILABLE_RETIRED, pb.UNAVAILABLE_SKIPPED, 77))
    ).SerializeToString()


def equivocate(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Show each receiver a model of its own for the same round."""
    reply, manifest = _manifest(data)
    if manifest is None:
        return data
    path = artifact_path(liar.artifacts, manifest.sha256.hex())
    if path.exists():
        digest = hashlib.sha256(_for(receiver, path.read_bytes())).digest()
        liar.shown[digest] = manifest.sha256
        manifest.sha256 = digest
    return liar.sign(manifest, reply)


def repeat_useless_bytes(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Show, for every round and before its time, the same bytes that no worker takes."""
    reply, manifest = _manifest(data)
    asked = liar.asked.get(receiver)
    if manifest is None and reply.unavailable == pb.UNAVAILABLE_NOT_YET and liar.template and asked is not None:
        manifest = pb.Manifest.FromString(liar.template)
        manifest.round, reply.manifest.certificate_der = asked.for_round, liar.certificate_der
        liar.signed_ahead = max(liar.signed_ahead, asked.for_round)
    elif manifest is None or manifest.evaluation or manifest.bytes != len(USELESS):
        return data
    else:
        liar.replaced[receiver, manifest.round] = manifest.sha256
        liar.template = manifest.SerializeToString()
    manifest.sha256 = hashlib.sha256(USELESS).digest()
    return liar.sign(manifest, reply)


def change_chunk(liar: Liar, receiver: str, data: bytes) -> bytes:
    """The bytes of what the receiver was shown; artifacts here fit into one chunk."""
    content = pb.Chunk.FromString(data).data
    if "equivocate" in liar.habits:
        content = _for(receiver, content)
    elif "repeat_useless_bytes" in liar.habits:
        content = USELESS[-len(content) :]
    return pb.Chunk(data=content).SerializeToString()


def _for(receiver: str, content: bytes) -> bytes:
    """The content with a last byte that depends on the receiver; artifacts here fit into one chunk."""
    return content[:-1] + bytes([sum(receiver.encode()) % 256])


def damage_chunk(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A byte of the artifact is another one, or some are missing, or too many."""
    content = bytearray(pb.Chunk.FromString(data).data)
    how = liar.rng.choice(("flip", "cut", "extend"))
    if how == "flip":
        content[liar.rng.randrange(len(content))] ^= 1 << liar.rng.randrange(8)
    elif how == "cut":
        del content[len(content) // 2 :]
    else:
        content += b"x" * 1000
    liar.blatant[receiver] += 1
    return pb.Chunk(data=bytes(content)).SerializeToString()


def send_garbage(liar: Liar, receiver: str, data: bytes) -> bytes:
    return liar.rng.randbytes(liar.rng.choice((1, 10, 1000)))


def ask_for_anything(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A request for an artifact that the schedule does not give to the liar."""
    request: Message = pb.ManifestRequest.FromString(data)
    name = liar.rng.choice(("for_round", "owner", "purpose", "kind"))
    value = {"for_round": liar.rng.choice((0, 1, 2, 10**7)), "owner": receiver}.get(name, liar.rng.choice((0, 1, 2, 9)))
    setattr(request, name, value)
    return request.SerializeToString()


def fetch_anything(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A fetch of other bytes, or from an offset beyond the end."""
    request = pb.FetchRequest.FromString(data)
    if liar.rng.random() < 0.5:
        request.offset = liar.rng.choice(HUGE)
    else:
        request.sha256 = liar.rng.randbytes(32)
    return request.SerializeToString()


def report_anything(liar: Liar, receiver: str, data: bytes) -> bytes:
    """Metrics without sense on the receiver's model."""
    report = pb.Metrics.FromString(data)
    name = liar.rng.choice([field.name for field in report.DESCRIPTOR.fields if field.type == field.TYPE_UINT64])
    setattr(report, name, liar.rng.choice(HUGE[:-1]))
    return report.SerializeToString()


def _false_head(liar: Liar, head: pb.Head) -> None:
    """The head of a chain that nobody has: further than the true one, of as many amendments, or without sense."""
    head.number = liar.rng.choice((head.number + 1, max(1, head.number), *HUGE))
    head.digest = liar.rng.randbytes(liar.rng.choice((0, 31, 32, 32, 32, 32)))


def state_false_head(liar: Liar, receiver: str, data: bytes) -> bytes:
    pulse = pb.Pulse.FromString(data)
    _false_head(liar, pulse.head)
    return pulse.SerializeToString()


def greet_with_false_head(liar: Liar, receiver: str, data: bytes) -> bytes:
    greeting = pb.Greeting.FromString(data)
    _false_head(liar, greeting.head)
    return greeting.SerializeToString()


def forge_notice(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A notice that the receiver leaves, under the liar's own signature."""
    pulse = pb.Pulse.FromString(data)
    content = {"federation": liar.federation, "site": receiver, "issued": 1}
    pulse.notice.body = canonical_json(content)
    pulse.notice.signature = certificates.sign(liar.key, NOTICE_LABEL + pulse.notice.body)
    pulse.notice.certificate_der = liar.certificate_der
    return pulse.SerializeToString()


def forge_amendments(liar: Liar, receiver: str, data: bytes) -> bytes:
    """A chain that is cut, replayed, changed under its signatures, not canonical or too large; foreign keys."""
    reply = pb.Amendments.FromString(data)
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
    return reply.SerializeToString()


def state_own_amendment(liar: Liar, receiver: str, data: bytes) -> bytes:
    """The head of an amendment that the liar alone has signed, and will show."""
    pulse = pb.Pulse.FromString(data)
    liar.head.CopyFrom(pulse.head)
    pulse.head.number += 1
    pulse.head.digest = hashlib.sha256(liar.own_amendment(liar.head).body).digest()
    return pulse.SerializeToString()


def show_own_amendment(liar: Liar, receiver: str, data: bytes) -> bytes:
    reply = pb.Amendments.FromString(data)
    last = hashlib.sha256(reply.amendments[-1].body).digest() if reply.amendments else liar.head.digest
    if last == liar.head.digest:
        reply.amendments.append(liar.own_amendment(liar.head))
    return reply.SerializeToString()


def ask_for_any_amendment(liar: Liar, receiver: str, data: bytes) -> bytes:
    return pb.After(number=liar.rng.choice((*HUGE, 1 << 20))).SerializeToString()


BEATS = {("Beat", "request"), ("Beat", "answer")}
GREETINGS = {("Hello", "request"), ("Hello", "answer")}
MANIFESTS = {("GetManifest", "answer")}
EVERYTHING = BEATS | GREETINGS | MANIFESTS | {("GetManifest", "request"), ("FetchArtifact", "request")}
HABITS: Mapping[str, tuple[set[tuple[str, str]], Lie]] = {
    lie.__name__: (calls, lie)
    for calls, lie in (
        (BEATS, claim_later_round),
        (BEATS, claim_first_round),
        (BEATS, spoil_pulse),
        (GREETINGS, claim_restored_backup),
        (GREETINGS, spoil_greeting),
        (MANIFESTS, sign_wrong_manifest),
        (MANIFESTS, exaggerate),
        (MANIFESTS, forge_signature),
        (MANIFESTS, never_ready),
        (MANIFESTS, skip),
        (MANIFESTS, equivocate),
        ({("FetchArtifact", "chunk")}, damage_chunk),
        (EVERYTHING, send_garbage),
        ({("GetManifest", "request")}, ask_for_anything),
        ({("FetchArtifact", "request")}, fetch_anything),
        ({("PutMetrics", "request")}, report_anything),
    )
}
CHAIN_HABITS: Mapping[str, tuple[set[tuple[str, str]], Lie]] = {
    lie.__name__: (calls, lie)
    for calls, lie in (
        (BEATS, state_false_head),
        (BEATS, forge_notice),
        (GREETINGS, greet_with_false_head),
        ({("GetAmendments", "answer")}, forge_amendments),
        ({("GetAmendments", "request")}, ask_for_any_amendment),
    )
}
AMENDING_HABITS: Mapping[str, tuple[set[tuple[str, str]], Lie]] = {
    "state_own_amendment": (BEATS, state_own_amendment),
    "show_own_amendment": ({("GetAmendments", "answer")}, show_own_amendment),
}
"""A liar has both or none."""
REPEATING_HABITS: Mapping[str, tuple[set[tuple[str, str]], Lie]] = {
    "repeat_useless_bytes": (MANIFESTS, repeat_useless_bytes)
}
ALL_HABITS = {**HABITS, **CHAIN_HABITS, **AMENDING_HABITS, **REPEATING_HABITS}

"""The daemon's counters and records of each peer while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.core.messages import Hello


@dataclass(slots=True)
class TrafficCount:
    """Messages sent to a peer beside artifacts: greetings, heartbeats and manifests, with answers."""

    messages: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class PeerAccount:
    """The daemon's record of one peer since it started. Times are monotonic seconds.

    ``greeting`` is the peer's last one that matches this federation. ``mismatch`` is why one of the two sites refused
    the other's greeting: the peer takes no part until a greeting matches. ``denied_s`` maps call and reason of the
    recent denials in the journal to their times.
    """

    spoken: TrafficCount = field(default_factory=TrafficCount)
    sent_bytes: int = 0
    greeting: Hello | None = None
    clock_skew_s: float | None = None
    called_at_s: float | None = None
    beat_at_s: float | None = None
    mismatch: str = ""
    denied_s: dict[tuple[str, str], float] = field(default_factory=dict)

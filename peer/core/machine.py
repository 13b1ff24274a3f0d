"""The state machine of a site: events in, commands out, no clock, no file, no network.

``SiteMachine.handle`` is the only mutator. What it may do is the table ``TRANSITIONS`` of ``peer.core.transitions``,
and how
the phases follow each other is the graph ``NEXT`` of ``peer.core.phases``; what is not there is a bug of ours and
raises. Memory changes only through rows that are persisted, and a ``Persist`` precedes whatever depends on it. Each
row names the event that caused it.
"""

from __future__ import annotations

from peer.core import events, global_test, rounds
from peer.core.commands import Command
from peer.core.rows import Cause
from peer.core.state import IllegalTransitionError, SiteState
from peer.core.transitions import TRANSITIONS


class SiteMachine(SiteState):
    """One site's course through the rounds."""

    def handle(self, event: events.Event, *, now_s: float) -> list[Command]:
        """Take in one event; returns the commands to carry out, in order.

        Args:
            event: what happened.
            now_s: seconds of a monotonic clock.

        Raises:
            IllegalTransitionError: the event cannot occur in this phase, or led to a phase that cannot follow it.
        """
        handler = TRANSITIONS.get((self.phase, type(event)))
        if handler is None:
            raise IllegalTransitionError(f"{type(event).__name__} in phase {self.phase}")
        self.now_s, self.steps = now_s, []
        peer: str = getattr(event, "site", "") or getattr(event, "origin", "")
        self.cause = Cause(self.cause.event_number + 1, type(event).__name__, peer)
        global_test.watch(self)
        handler(self, event)
        while self.ended:  # a loop and not a recursion: rounds that need no work may follow each other in one event
            self.ended = False
            rounds.go_on(self)
        global_test.look(self)
        self.wake(global_test.due_s(self))
        out, self.out = self.out, []
        return out

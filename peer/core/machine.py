"""The state machine of a site: events in, commands out, no clock, no file, no network.

``SiteMachine.handle`` is the only mutator. The table ``TRANSITIONS`` of ``peer.core.transitions`` lists what each event
does in each phase. The graph ``NEXT`` of ``peer.core.phases`` lists which phase may follow which. An event or a step
that is missing there is a bug of this program, and raises. Memory changes only through rows that are persisted, and a
``Persist`` precedes the commands that depend on it. Each row names the event that caused it.
"""

from __future__ import annotations

from peer.core import cross_evaluation, events, fetches, rounds
from peer.core.commands import Command
from peer.core.rows import Cause
from peer.core.state import IllegalTransitionError, SiteState
from peer.core.transitions import TRANSITIONS


class SiteMachine(SiteState):
    """The state machine of one site, over all rounds."""

    def handle(self, event: events.Event, *, now_s: float) -> list[Command]:
        """Process one event and return the commands for the daemon, in order.

        Args:
            event: what happened.
            now_s: seconds of a monotonic clock.

        Raises:
            IllegalTransitionError: the event cannot occur in this phase, or led to a phase that may
                not follow it.
        """
        handler = TRANSITIONS.get((self.phase, type(event)))
        if handler is None:
            raise IllegalTransitionError(f"{type(event).__name__} in phase {self.phase}")
        self.now_s, self.steps = now_s, []
        self.peers.silence_s = self.pace.silence_s
        peer: str = getattr(event, "site", "") or getattr(event, "origin", "")
        self.cause = Cause(self.cause.event_number + 1, type(event).__name__, peer)
        cross_evaluation.give_up_overdue(self)
        handler(self, event)
        while self.round_ended:  # not a recursion: many rounds without work may pass in one event
            self.round_ended = False
            rounds.go_on(self)
        fetches.order_due(self)
        cross_evaluation.order_due(self)
        self.wake(cross_evaluation.due_s(self))
        commands, self.out = self.out, []
        return commands

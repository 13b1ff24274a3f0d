"""The operator's calls to a running daemon: the documents behind the commands, and the actions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from peer.core import events
from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.core.status import plan_of, unreported
from peer.daemon.dispatch import Daemon
from peer.daemon.governance import MembershipActions
from peer.net.transport.control import MEMBERSHIP_ACTIONS
from peer.site.membership.shown import membership_shown
from peer.site.records import folder_documents

FOLLOW_MIN_S = 0.25
"""Shortest interval between two documents: a person reads at most four a second, a slow terminal shows fewer."""
FOLLOW_MAX_S = 1.0
"""Interval between two documents without an event: the waiting times in them still change."""

ACTION_EVENTS: Mapping[str, tuple[type[events.Event], str]] = {
    "pause": (events.PauseRequested, "training stops after this step; the site keeps serving"),
    "resume": (events.ResumeRequested, "the site goes on"),
    "stop": (events.StopRequested, "the site writes its checkpoint, tells its peers and leaves"),
}

AWAY = ("pause", "stop")
"""Actions after which the other sites continue without this one."""


class OperatorService:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._membership = MembershipActions(daemon.chain, daemon.folder)
        self._amending = asyncio.Lock()

    async def show(self, topic: str, arguments: Mapping[str, Any]) -> object:
        daemon = self._daemon
        if topic in ("status", "peers"):
            status = daemon.status()
            return status if topic == "status" else status["peers"]
        if topic == "plan":
            first = int(arguments.get("first") or daemon.machine.number or 1)
            rules = daemon.machine.rules
            if daemon.own.round_key is None:  # a newcomer without the chain: no order is drawn without a key
                rules = rules.amended(daemon.chain.epochs())
            plan = plan_of(rules, rounds=int(arguments["rounds"]), first=first)
            return {"federation": daemon.federation.name, **plan}
        if topic == "membership":
            return await asyncio.to_thread(membership_shown, daemon.folder, self._heads())
        if topic == "health":  # the control socket opens before the port, and closes after it
            return {"site": daemon.own.name, "serves": bool(daemon.served), "trains": not daemon.machine.failure}
        document = await asyncio.to_thread(folder_documents.document, daemon.folder, topic, arguments)
        return self._with_reasons(document) if topic == "evaluation" else document

    def _with_reasons(self, document: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add why cells are empty now; the journal has these reasons only after the site leaves."""
        reasons = unreported(self._daemon.machine)
        for record in reversed(document):  # newest first: a round may occur in two generations
            for site, reason in reasons.pop(record["round"], {}).items():
                if "reason" in record["cells"].get(site, {}):
                    record["cells"][site] = {"reason": reason}
        return document

    def _heads(self) -> dict[SiteName, ChainHead | None]:
        """Return the chain tip that each peer stated with its last heartbeat."""
        machine = self._daemon.machine
        pulses = {name: machine.peers.pulse(name) for name in machine.rules.known}
        return {name: pulse.head for name, pulse in pulses.items() if pulse is not None}

    async def act(self, action: str, arguments: Mapping[str, Any]) -> object:
        if action in MEMBERSHIP_ACTIONS:
            async with self._amending:  # two concurrent approvals could sign one body and record the other
                if action == "approve":  # counting orders takes seconds in a large federation
                    return await asyncio.to_thread(self._membership.act, action, arguments)
                return self._membership.act(action, arguments)
        event_type, effect = ACTION_EVENTS[action]
        machine = self._daemon.machine
        self._daemon.report(event_type())
        if action in AWAY and not machine.memory.finished:
            lag = machine.rules.pace.lag_rounds_max
            effect += f"; the others go on, and a site that is more than {lag} rounds behind skips what it missed"
        return {"site": self._daemon.own.name, "action": action, "effect": effect}

    async def follow(self, topic: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        """Yield the document now, after every event at most four times a second, and once the daemon has ended."""
        history = (
            folder_documents.history_of(self._daemon.folder, topic) if topic in folder_documents.HISTORIES else None
        )
        rows_read = -1
        while True:
            ended = self._daemon.ended
            if history is None:
                yield await self.show(topic, arguments)
            else:
                await asyncio.to_thread(history.read_all)
                if rows_read != history.rows_read:  # send nothing where there is no new row
                    rows_read = history.rows_read
                    yield await asyncio.to_thread(folder_documents.history_document, history, topic)
            if ended:
                return
            changed = self._daemon.changed
            await asyncio.sleep(FOLLOW_MIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_MAX_S - FOLLOW_MIN_S):
                    await changed.wait()

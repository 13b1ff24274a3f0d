"""The operator's side of a running daemon: the documents behind the commands, and the three wishes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from peer.core import events
from peer.core import status as status_document
from peer.daemon.dispatch import Daemon
from peer.records import folder_documents

FOLLOW_MIN_S = 0.25
"""A person sees no more than four pictures a second, and a slow terminal even fewer."""
FOLLOW_MAX_S = 1.0
"""Waiting times move although nothing happens."""

WISHES: Mapping[str, tuple[type[events.Event], str]] = {
    "pause": (events.PauseRequested, "training stops after this step; the site keeps serving"),
    "resume": (events.ResumeRequested, "the site goes on"),
    "stop": (events.StopRequested, "the site writes its checkpoint, tells its peers and leaves"),
}


class OperatorService:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def show(self, what: str, arguments: Mapping[str, Any]) -> object:
        daemon = self._daemon
        if what in ("status", "peers"):
            status = daemon.status()
            return status if what == "status" else status["peers"]
        if what == "plan":
            first = int(arguments.get("first") or daemon.machine.number or 1)
            plan = status_document.plan_of(daemon.machine.rules, rounds=int(arguments["rounds"]), first=first)
            return {"federation": daemon.federation.name, **plan}
        document = await asyncio.to_thread(folder_documents.document, daemon.folder, what, arguments)
        return self._with_reasons(document) if what == "evaluation" else document

    def _with_reasons(self, document: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Why cells are empty, as this daemon sees it now; the journal tells it only when the site leaves."""
        reasons = status_document.unreported(self._daemon.machine)
        for record in reversed(document):  # of a round in two generations the newer one
            for site, why in reasons.pop(record["round"], {}).items():
                if "reason" in record["cells"].get(site, {}):
                    record["cells"][site] = {"reason": why}
        return document

    def serves(self) -> bool:
        return bool(self._daemon.served)

    def trains(self) -> bool:
        """Whether the training has not failed for good."""
        return not self._daemon.machine.failure

    async def act(self, action: str) -> object:
        wish, effect = WISHES[action]
        self._daemon.report(wish())
        return {"site": self._daemon.own.name, "action": action, "effect": effect}

    async def follow(self, what: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        """The document now, and again whenever something happened, four times a second at most."""
        history = folder_documents.history_of(self._daemon.folder, what) if what in folder_documents.HISTORIES else None
        rows_read = -1
        while True:
            if history is None:
                yield await self.show(what, arguments)
            else:
                await asyncio.to_thread(history.read_all)
                if rows_read != history.rows_read:  # each row is read once, and nothing is sent where there is none
                    rows_read = history.rows_read
                    yield await asyncio.to_thread(folder_documents.history_document, history, what)
            changed = self._daemon.changed
            await asyncio.sleep(FOLLOW_MIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_MAX_S - FOLLOW_MIN_S):
                    await changed.wait()

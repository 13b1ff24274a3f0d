"""A daemon's control socket as commands find it, without a daemon."""

from collections.abc import Mapping
from typing import Any

import pytest

from peer.core.messages import ChainHead
from peer.errors import DaemonDown
from peer.net.transport.control import DaemonSilent
from peer.site.config.site_folder import SiteFolder


class OperatorsDaemon:
    """States heads of peers; it answers nothing else, and no action in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: SiteFolder, **heads: ChainHead) -> None:
        self.heads, self.silent = heads, False
        self.answer_s: float | None = None
        self.actions: list[str] = []
        self.documents: dict[str, Any] = {}
        monkeypatch.setattr(SiteFolder, "control_socket", lambda other: other.path / "socket")  # of any length
        folder.control_socket().touch()
        monkeypatch.setattr("peer.net.transport.control.ControlClient", self._client)

    def _client(self, path: object, *, answer_s: float | None = None) -> "OperatorsDaemon":
        self.answer_s = answer_s
        return self

    def show(self, topic: str, **arguments: Any) -> Mapping[str, Any]:
        if topic in self.documents:
            return self.documents[topic]  # type: ignore[no-any-return]
        if topic != "membership":
            raise DaemonDown("no daemon answers")
        heads = {name: {"number": head.number, "digest": head.digest} for name, head in self.heads.items()}
        return {"heads": heads}

    def act(self, action: str, **arguments: Any) -> Any:
        self.actions.append(action)
        if self.silent:
            raise DaemonSilent("the daemon did not answer within 5 s", "look again")
        raise DaemonDown("no daemon answers")

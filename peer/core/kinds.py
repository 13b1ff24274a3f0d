"""The kinds of artifacts, apart from ``peer.core.plan``: commands that only read rows need no plans."""

from __future__ import annotations

from typing import Literal

Kind = Literal["model", "head", "proxy", "messenger", "return", "prototype", "prediction", "sums"]
KINDS: tuple[Kind, ...] = ("model", "head", "proxy", "messenger", "return", "prototype", "prediction", "sums")

"""Real daemons without training, whose operators amend the federation with the commands."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes import daemon
from fakes.cli import run_json
from fakes.drafts import site_text
from peer.core.roster import SiteName
from peer.errors import DaemonDown
from peer.lab.demo.local_federation import LocalFederation

SITE = site_text(model={"name": "resnet10"})
LIMIT_S = 120.0


class WatchedDaemons(LocalFederation):
    """Daemons without training that a test waits for."""

    limit_s = LIMIT_S

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool], document: str = "status") -> dict[str, Any]:
        """The first status, or other document, of a running site that satisfies a condition."""
        end_s, shown = time.monotonic() + self.limit_s, None
        while time.monotonic() < end_s:
            with contextlib.suppress(DaemonDown):
                shown = self.show(name, document)
                if holds(shown):
                    return dict(shown)
            time.sleep(0.1)
        raise AssertionError(f"{name} never was as it should: {shown}; {self.console(name)[-3000:]}")


class AmendedDaemons(WatchedDaemons):
    """Daemons whose operators call the commands in this process."""

    program = daemon.program("paced", 64, "all_to_all", "model", "train")

    def call(self, *words: object) -> Any:
        return run_json("--home", self.home, *words)

    def govern(self, site: str, command: str, *words: object) -> Any:
        consent = ("--yes",) if command in ("amend", "hold", "resume") else ()
        return self.call("federation", command, *consent, "--site", site, *words)

    def follow(self, number: int, *names: str) -> None:
        """Wait until these sites have the amendment."""
        for name in names:
            self.until(name, lambda shown: shown["head"]["number"] >= number, "membership")

    def end(self, *names: str) -> None:
        """Wait until the daemons of these sites have ended without a fault."""
        for name in names:
            assert self.daemons[SiteName(name)].wait(self.limit_s) == 0, self.console(name)[-3000:]

    @property
    def ca(self) -> Path:
        return self.home.parent / "ca"

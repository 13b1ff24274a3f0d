"""The real worker, which stops itself once, in the training of the second round: as if it hung between two steps."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from peer.core import commands
from peer.core.worker_protocol import WorkerSetting
from peer.train import worker

ROUND = 2
STEPS = 10
MARK = Path("checkpoints") / "stopped"
"""In the generation's folder: the process that stopped itself."""


class StoppingInbox(worker.Inbox):
    """Knows where the worker is."""

    home: Path
    steps = 0

    def take(self) -> commands.Command:
        command = super().take()
        if isinstance(command, WorkerSetting):
            self.home = Path(command.home)
        self.trains = isinstance(command, commands.Train) and command.round == ROUND
        return command

    def halted(self) -> bool:
        mark = self.home / MARK
        self.steps += self.trains
        if self.steps == STEPS and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().halted()


if __name__ == "__main__":
    worker.Inbox = StoppingInbox  # type: ignore[misc]
    sys.exit(worker.main())

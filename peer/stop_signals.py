"""The signals that end a long-running process in order: a daemon with a checkpoint and a farewell to its peers."""

from __future__ import annotations

import signal

IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""They would end a process at once, and some tools send them to make a program read its logs' files anew."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end, and ignore those that would end it by mistake.

    A lost terminal sends SIGHUP, unless the process was started with ``nohup``, which ignores it; a limit of computing
    time SIGXCPU. SIGQUIT ends a process at once, as a user who sends it wants.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, *hangup)

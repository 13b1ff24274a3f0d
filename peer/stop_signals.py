"""The signals that end a long-running process in order: a daemon with a checkpoint and a farewell to its peers."""

from __future__ import annotations

import signal

REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else range(0)  # macOS has none
IGNORED = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO),
    *REAL_TIME,
)
"""They would end a process at once, and mean nothing to a daemon: clocks that it does not set, and signals of which
every program has its own meaning, such as to read its logs' files anew.
"""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end, and ignore those that would end it by mistake.

    A lost terminal sends SIGHUP, unless the process was started with ``nohup``, which ignores it; a limit of computing
    time SIGXCPU; a power supply that fails SIGPWR. SIGQUIT ends a process at once, as a user who sends it wants.
    """
    for number in IGNORED:
        signal.signal(number, _ignore)
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    power = (signal.SIGPWR,) if hasattr(signal, "SIGPWR") else ()
    return (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, *power, *hangup)


def _ignore(number: int, frame: object) -> None:
    """Do nothing: unlike ``SIG_IGN``, a handler is not passed on to the programs that this process starts."""

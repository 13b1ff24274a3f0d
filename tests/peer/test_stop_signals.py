"""Which signals end a daemon in order, in processes of their own: a signal changes the whole process."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from peer.stop_signals import stop_signals
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
asked = stop_signals()
ends_at_once = {signal.SIGKILL, signal.SIGQUIT}  # as a user who sends them wants
faults = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
stops = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
others = {signal.SIGSTKFLT}  # which no kernel sends
for number in signal.valid_signals() - {*asked} - ends_at_once - faults - stops - others:
    os.kill(os.getpid(), number)
print(*map(int, asked))
"""


@pytest.mark.parametrize(("how", "ends"), [("terminal", True), ("nohup", False)])
def test_a_lost_terminal_is_a_wish_to_end_unless_nohup_ignores_it(how: str, ends: bool) -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    asked = {signal.Signals(int(number)) for number in process.stdout.split()}
    assert (signal.SIGHUP in asked) is ends
    assert asked >= {signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, signal.SIGPWR}

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
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
print(*map(int, asked))
"""


@pytest.mark.parametrize(("how", "ends"), [("terminal", True), ("nohup", False)])
def test_a_lost_terminal_is_a_wish_to_end_unless_nohup_ignores_it(how: str, ends: bool) -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    asked = {signal.Signals(int(number)) for number in process.stdout.split()}
    assert (signal.SIGHUP in asked) is ends
    assert asked >= {signal.SIGINT, signal.SIGTERM, signal.SIGXCPU}

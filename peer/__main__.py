"""The ``mhfl-peer`` command and ``python -m peer``: Ctrl-C prints no traceback, even while modules are imported."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. Before and after it runs, Ctrl-C ends the process without a traceback."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # False if a caller set a handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from peer import cli

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()

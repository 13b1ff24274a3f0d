"""``python -m peer.cli``: the same as the ``mhfl-peer`` command."""

from peer.cli import main

main()

"""A real daemon with another worker: ``daemon.py WORKER --home HOME start --site NAME [OPTION...]``.

WORKER is a JSON list, the command that the daemon executes as its worker; the rest is a command line of ``mhfl-peer``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from peer import errors
from peer.daemon import startup
from peer.site.config import site_folder


def program(*worker: object) -> tuple[str, ...]:
    """What starts such daemons, for ``LocalFederation``: their worker is ``worker.py`` with these arguments."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("worker.py")), *map(str, worker)]
    return (sys.executable, "-P", __file__, json.dumps(command))


def main() -> int:
    """Run the daemon; the exit code of ``mhfl-peer start``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("worker", type=json.loads)
    parser.add_argument("--home", type=Path)
    parser.add_argument("command", choices=["start"])
    parser.add_argument("--site")
    parser.add_argument("--resume", default="auto")
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    options = startup.Options(
        resume=arguments.resume, stay=arguments.stay, without=tuple(arguments.without), worker=arguments.worker
    )
    try:
        startup.run(site_folder.find_site(site_folder.home_folder(arguments.home), arguments.site), options)
    except errors.PeerError as error:
        print(f"mhfl-peer: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Say whether a hospital finished: every round is committed, and its egress ledger is whole. Else
exit 1.

verdict.py SITE
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def read_json(*arguments: str) -> Any:
    """The document that a command of the program prints with ``--json``."""
    process = subprocess.run(["mhfl-peer", *arguments, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(process.stdout)


def main(site: str) -> int:
    """Print one line, then the output of `egress verify`; return the exit code."""
    rounds = read_json("status", "--site", site)["rounds"]
    rows = read_json("rounds", "--site", site)
    committed = {row["round"] for row in rows}
    missing = [f"{peer} {reason} in {row['round']}" for row in rows for peer, reason in row["missing"].items()]
    print(
        f"{site}: {len(committed)} of {rounds} rounds committed; missing: {', '.join(missing) or 'nobody'}", flush=True
    )
    verified = subprocess.run(["mhfl-peer", "egress", "verify", "--site", site], check=False)
    return int(verified.returncode != 0 or committed != set(range(1, rounds + 1)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

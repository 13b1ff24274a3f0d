"""Say of hospitals whether they finished: every round committed, and the ledger of what left unbroken. Else exit 1.

verdict.py SITE
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def told(*arguments: str) -> Any:
    """What a command of the program prints with ``--json``."""
    printed = subprocess.run(["mhfl-peer", *arguments, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(printed.stdout)


def main(site: str) -> int:
    """Print one line, then what `egress verify` says; the exit code."""
    rounds = told("status", "--site", site)["rounds"]
    rows = told("rounds", "--site", site)
    committed = {row["round"] for row in rows}
    missing = [f"{who} {why} in {row['round']}" for row in rows for who, why in row["missing"].items()]
    print(
        f"{site}: {len(committed)} of {rounds} rounds committed; missing: {', '.join(missing) or 'nobody'}", flush=True
    )
    verified = subprocess.run(["mhfl-peer", "egress", "verify", "--site", site], check=False)
    return int(verified.returncode != 0 or committed != set(range(1, rounds + 1)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Whether `models` and `losses` are ours: another distribution may have packages of these names.

This module imports nothing that needs them, so that it can say so where nothing else could.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from peer.preflight.finding import Finding

OURS = "mhfl-peer"
NAMES = ("models", "losses")
REMEDY = f"uninstall the other distribution, or use a virtual environment for {OURS} alone"


def packages() -> Iterator[Finding]:
    """Where another distribution's ``models`` or ``losses`` would be imported instead of ours, or lies over them."""
    home = Path(__file__).resolve().parents[2]
    owners = importlib.metadata.packages_distributions()
    for name in NAMES:
        found = importlib.util.find_spec(name)
        where = Path(found.origin).resolve().parents[1] if found is not None and found.origin else None
        others = sorted(set(owners.get(name, ())) - {OURS})
        if where != home:
            what = f"comes from {where}, not from {OURS} in {home}" if where else f"is missing from {OURS} in {home}"
        elif others:
            what = f"is also that of {', '.join(others)}, whose files may have replaced those of {OURS}"
        else:
            continue
        yield Finding(f"package {name}", "failure", f"package {name!r} {what}", REMEDY)

"""The documents behind `rounds`, `transfers`, `egress`, `events` and the status of a site whose daemon is down.

Each is plain data with stable keys, drawn from the journals and the egress ledger, so that the running daemon and a
reader beside a stopped one say the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from peer.core import replay
from peer.egress import Ledger
from peer.home import SiteFolder
from peer.journal import Journal

TRANSFER_KEYS = ("time", "direction", "peer", "purpose", "kind", "round", "sha256", "bytes", "outcome")
BULKY = frozenset({"artifact", "tensors", "spec", "body", "signature", "certificate_der"})
QUIET = frozenset({"ignored", "discarded", "manifest"})
"""Rows that `events` leaves out unless it is asked for all."""


def journals(folder: SiteFolder) -> list[Journal]:
    """The journals of every generation, oldest first, for reading."""
    paths = [folder.generation(number) / "journal.db" for number in folder.generations()]
    return [Journal(path, read_only=True) for path in paths if path.exists()]


def rounds(read: Sequence[Journal]) -> list[dict[str, Any]]:
    """The committed rounds of these journals, oldest first."""
    return [record for journal in read for record in replay.round_records(journal.rows())]


def received(read: Sequence[Journal]) -> list[dict[str, Any]]:
    """What came in: one record a finished transfer."""
    found = []
    for journal in read:
        for row in journal.records(("received",)):
            body = row["body"]
            found.append({"time": row["time"], "direction": "in", "round": row["round"], **body})
    return found


def transfers(read: Sequence[Journal], ledger: Ledger) -> list[dict[str, Any]]:
    """What came in and what left, by time."""
    every = [*received(read), *ledger.transfers()]
    return [{key: record[key] for key in TRANSFER_KEYS} for record in sorted(every, key=lambda record: record["time"])]


def egress(ledger: Ledger) -> list[dict[str, Any]]:
    """What left, by time."""
    return [{key: record[key] for key in TRANSFER_KEYS} for record in ledger.transfers()]


def events(read: Sequence[Journal], *, last: int = 50, everything: bool = False) -> list[dict[str, Any]]:
    """The newest journal rows, oldest first, without bulk.

    Args:
        read: the journals.
        last: at most so many.
        everything: also the rows that hardly ever matter.
    """
    found = []
    for journal in read:
        for row in journal.records():
            if everything or row["kind"] not in QUIET:
                found.append({**row, "body": _slim(row["body"])})
    return found[-last:]


def status_when_down(folder: SiteFolder) -> dict[str, Any]:
    """What the disk knows of a site whose daemon does not run; the keys are those of the running one."""
    document = tomllib.loads(folder.federation_toml.read_text(encoding="utf-8"))
    read = [journal for journal in journals(folder) if not journal.empty()]
    memory = replay.recover(read[-1].rows()) if read else replay.Memory()
    configured = read[-1].records(("configured",), last=1) if read else []
    others = sorted(site["name"] for site in document["site"] if site["name"] != folder.site)
    unknown = {"state": "unknown", "round": None, "phase": None, "progress": None, "last_seen_s": None}
    return {
        "daemon": "down",
        "site": folder.site,
        "federation": folder.federation,
        "digest": configured[-1]["body"]["federation"] if configured else "",
        "method": document["method"]["name"],
        "generation": memory.generation,
        "phase": "finished" if memory.finished else "down",
        "round": memory.open.number if memory.open is not None else memory.committed,
        "rounds": document["rounds"],
        "committed": memory.committed,
        "waiting_for": [],
        "peers": {name: dict(unknown) for name in others},
        "training": {},
        "samples": memory.samples,
        "refusals": [],
        "failure": "",
    }


def _slim(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _slim(value) for key, value in body.items() if key not in BULKY}
    if isinstance(body, list):
        return [_slim(item) for item in body]
    return body

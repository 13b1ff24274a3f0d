"""Log lines for rows of the journal."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

LOGGED_KINDS = frozenset(
    {"isolated", "alone", "joined", "amended", "skipped", "slot_lost", "regenerated", "paused", "resumed", "finished"}
)
"""Kinds of journal rows that the daemon also logs by their name."""


def log_row(kind: str, round: int, body: Any) -> None:
    """Log a row that matters to an operator."""
    if kind == "committed":
        facts = {"sources": [source["site"] for source in body["sources"]], "missing": body["missing"]}
        if not any(facts.values()):
            facts["alone"] = "as planned"
        log.info("round committed", extra={"round": round, **facts, "seconds": body["duration_s"]})
    elif kind == "compared" and not body["agrees"]:
        log.warning("peer has another mean", extra={"round": round, "peer": body["site"], "sha256": body["sha256"]})
    elif kind == "reverted":
        facts = {"reason": body["reason"], "contributors": body["origins"]}
        log.warning("training diverged after a round: its artifacts are left out", extra={"round": round, **facts})
    elif kind == "refused":
        event = "peer declined" if body.get("declined") else "peer refused"
        log.warning(event, extra={"round": round, "peer": body["origin"], "reason": body["reason"]})
    elif kind == "report":
        unmeasured = body["report"]["unmeasured"]
        log.info("model measured", extra={"round": round, "peer": body["site"], "unmeasured": unmeasured})
    elif kind == "work_failed":
        log.error("training failed", extra={"round": round, "fault": body["fault"], "reason": body["reason"]})
    elif kind in LOGGED_KINDS:
        log.info(kind.replace("_", " "), extra={"round": round})

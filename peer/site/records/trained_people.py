"""Which rounds a person was trained on, from the cohorts that a generation's journal names."""

from __future__ import annotations

from pathlib import Path

from peer.cohorts import Cohorts
from peer.site.records.journal import Journal


def datalist_change(journal: Journal, datalist: Path) -> str:
    """Say how many people of the last trained round the datalist has no more; empty if none, or nobody can tell."""
    newest = journal.records(("trained",), last=1)
    cohort = newest[0]["body"].get("cohort") if newest else None
    missing = Cohorts(journal.path.parent).missing_from(datalist, cohort) if cohort is not None else None
    if not missing:
        return ""
    fewer = "1 subject" if missing == 1 else f"{missing} subjects"
    return f"the datalist changed since round {newest[0]['round']}: {fewer} fewer"

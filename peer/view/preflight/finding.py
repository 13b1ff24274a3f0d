"""A finding: one line of `mhfl-peer check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The subject of a check, the verdict on it, and a remedy unless the verdict is "ok"."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""

    @classmethod
    def by_remedy(cls, subject: str, message: str, remedy: str = "", *, failure: bool = False) -> Finding:
        """Return a finding that is ok without a remedy, and with one a warning, or a failure."""
        return cls(subject, "ok" if not remedy else "failure" if failure else "warning", message, remedy)

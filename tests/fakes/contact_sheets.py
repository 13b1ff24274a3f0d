"""The page of a contact sheet with samples that were never painted."""

import math
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import CLASS
from peer.documents.data import ContactSheet, DatalistInspected, SheetSample
from peer.train.data.datalist import Sample
from peer.train.data.sheet_page import render
from peer.train.data.table_sheet import describe_columns

EDGES = {"left": "L", "right": "R", "top": "A", "bottom": "P"}


def sample(**keys: Any) -> SheetSample:
    whole: SheetSample = {
        "split": "training",
        "image": "scans/of/<b>p1</b>/t1.nii.gz",
        "label": 1,
        "subject": "p1",
        "problem": "",
        "stored": {"shape": "1x6x8x10", "lowest": -1024.0, "highest": 3071.0, "mean": -3.5, "deviation": 2.0},
        "prepared": {"shape": "1x4x4x4", "lowest": -1.0, "highest": 2.0, "mean": 0.0, "deviation": 1.0},
        "orientation": "RAS",
        "labels": {},
        "histogram": {"lowest": -1.0, "highest": 2.0, "shares": [0.5, 0.0, 0.5]},
        "views": [
            {"plane": "axial", "index": 2, "edges": EDGES},
            {"plane": "coronal", "index": 2, "edges": EDGES},
        ],
    }
    return {**whole, **keys}  # type: ignore[typeddict-item]


def page(
    *samples: SheetSample, pictures: list[dict[str, Any]], task: str = "classification", **preparation: Any
) -> str:
    """The page of these samples, prepared by these keys and usual ones."""
    part = {"samples": 2, "subjects": 1, "unnamed": 0, "classes": {"1": 2}, "class_subjects": {"1": 1}}
    sheet: ContactSheet = {
        "page": "sheet.html",
        "site": "alpha",
        "task": task,
        "classes": {"0": "benign", "1": "malignant"},
        "preparation": {
            "channels": 1,
            "classes": 2,
            "input_size": [4, 4, 4],
            "augmentation": {"flip": 0.5},
            **preparation,
        },
        "splits": {"training": part, "test": {**part, "samples": 0, "classes": {}}},
        "gaps": ["test has no sample of class 0"],
        "histograms": {"training": {"lowest": -1.0, "highest": 2.0, "shares": [0.5, 0.5]}},
        "samples": list(samples),
        "columns": [],
    }  # type: ignore[typeddict-item]
    survey = {"samples": 2, "subjects": 1, "unnamed": 0, "classes": {"1": 2}, "shapes": {}, "labels": 0}
    document: DatalistInspected = {
        "datalist": "<i>list</i>.json",
        "splits": {"training": survey, "test": survey},
        "unlabelled": 0,
        "problems": ["files are missing: x"],
        "warnings": ["volumes run in different directions"],
    }  # type: ignore[typeddict-item]
    return render(document, sheet, pictures)


def table_page(*columns: TableColumn) -> str:
    """The page of a table of two classes with these columns, and one row that has no value of them."""
    rows = [tuple(float(place % 2) for place in range(len(columns))), (math.nan,) * len(columns)]
    samples = [Sample(f"row {number}", (), number, row=row) for number, row in enumerate(rows)]
    splits = {"training": samples, "test": samples[:1]}
    part = {"samples": 2, "subjects": 0, "unnamed": 2, "classes": {"0": 1, "1": 1}, "class_subjects": {"0": 0, "1": 0}}
    sheet: ContactSheet = {
        "page": "sheet.html",
        "site": "alpha",
        "task": "tabular",
        "classes": {"0": "<b>well</b>", "1": "ill"},
        "preparation": {"channels": 9, "classes": 2, "columns": len(columns)},
        "splits": dict.fromkeys(splits, part),
        "gaps": [],
        "histograms": {},
        "samples": [],
        "columns": describe_columns(columns, splits, CLASS),
    }  # type: ignore[typeddict-item]
    document: DatalistInspected = {"datalist": "list.json", "problems": [], "warnings": []}  # type: ignore[typeddict-item]
    return render(document, sheet, [])


PICTURES = {"image": ["aW1n", "aW1n"], "augmented": ["YXVn", "YXVn"]}

"""The page of a contact sheet with samples that were never painted."""

from typing import Any

from peer.documents.data import ContactSheet, DatalistInspected, SheetSample
from peer.train.data.sheet_page import render

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


PICTURES = {"image": ["aW1n", "aW1n"], "augmented": ["YXVn", "YXVn"]}

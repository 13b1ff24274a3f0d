"""The page of a contact sheet: self-contained, escaped, with letters where they are known."""

import re
from html.parser import HTMLParser
from typing import Any

from peer.data.documents import ContactSheet, DatalistInspected, SheetSample
from peer.data.sheet_page import WARNING, render

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


def page(*samples: SheetSample, pictures: list[dict[str, Any]], task: str = "classification", **keys: Any) -> str:
    part = {"samples": 2, "subjects": 1, "unnamed": 0, "classes": {"1": 2}, "class_subjects": {"1": 1}}
    sheet: ContactSheet = {
        "page": "sheet.html",
        "site": "alpha",
        "task": task,
        "classes": {"0": "benign", "1": "malignant"},
        "preparation": {"channels": 1, "classes": 2, "input_size": [4, 4, 4], "augmentation": {"flip": 0.5}},
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


def test_the_page_loads_nothing_runs_nothing_and_warns() -> None:
    html = page(sample(), pictures=[PICTURES])
    sources = re.findall(r'(?:src|href|action)="([^"]*)"', html)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"<script|<link|<iframe|@import|url\(|\son\w+=|\sstyle=", html)
    assert re.search(r"Content-Security-Policy\" content=\"default-src &#x27;none&#x27;.*img-src data:", html)
    assert WARNING.replace("'", "&#x27;") in html


def test_names_are_escaped_and_long_paths_shortened() -> None:
    html = page(sample(), pictures=[PICTURES])
    assert "<b>p1</b>" not in html
    assert "<i>list</i>" not in html
    assert "…/b&gt;/t1.nii.gz" in html


def test_what_is_wrong_stands_first() -> None:
    html = page(sample(problem="holds a NaN"), pictures=[{}])
    for text in ("files are missing: x", "volumes run in different directions", "test has no sample of class 0"):
        assert html.index(text) < html.index("What there is")
    assert "cannot be read: holds a NaN" in html


def test_letters_stand_at_the_edges_of_what_is_not_augmented() -> None:
    html = page(sample(), pictures=[PICTURES])
    image, augmented = html.split("<figcaption>augmented</figcaption>")
    assert image.count('<b class="left">L</b>') == 2
    assert 'class="left">' not in augmented
    assert "axes run to R, A, S" in augmented


def test_values_classes_and_subjects_are_told() -> None:
    html = page(sample(), pictures=[PICTURES])
    for text in (
        "stored 1x6x8x10, −1024 to 3071, mean −3.5",
        "<h3>class 1, malignant</h3>",
        "<td class=none>0",
        "2 <small>of 1 subject</small>",
    ):
        assert text in html


def test_signals_are_curves_and_label_maps_have_a_key() -> None:
    curves = {"curves": [[0.0, 1.0], [1.0, 1.0]], "augmented_curves": None}
    assert page(sample(views=[]), pictures=[curves]).count("<polyline") == 3
    html = page(sample(label=None, labels={"0": 0.9, "1": 0.1}), pictures=[PICTURES], task="segmentation")
    assert "malignant 10 %" in html
    assert '<i class="label1">' in html


def test_every_element_is_closed() -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.stack: list[str] = []

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "img", "br", "rect", "polyline"):
                self.stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.stack.pop() == tag

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

    balance = Balance()
    balance.feed(page(sample(), sample(label=0), sample(split="test"), pictures=[PICTURES] * 3))
    assert balance.stack == []

"""The page of a contact sheet: self-contained, escaped, with letters where they are known."""

import re
from html import unescape

from fakes.contact_sheets import PICTURES, page, sample, table_page
from fakes.html_elements import PageParser
from peer.core.columns import TableColumn


def test_the_page_loads_nothing_runs_nothing_and_warns() -> None:
    html = page(sample(), pictures=[PICTURES])
    sources = re.findall(r'(?:src|href|action)="([^"]*)"', html)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"<script|<link|<iframe|@import|url\(|\son\w+=|\sstyle=", html)
    assert re.search(r"Content-Security-Policy\" content=\"default-src &#39;none&#39;.*img-src data:", html)
    assert "This page shows patients' images. It stays in the hospital" in unescape(html)


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


def test_the_range_of_values_is_told() -> None:
    window = {"low": -160.0, "high": 240.0, "percentiles": False}
    assert "intensity <b>−160 to 240</b>" in page(sample(), pictures=[PICTURES], intensity=window)


def test_a_setting_without_a_value_is_left_out() -> None:
    html = page(sample(), pictures=[PICTURES], columns=(), normalise="unit")
    assert "<span>normalise <b>unit</b></span>" in html
    assert "<b></b>" not in html


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
        '<td class="none">0',
        "2 <small>of 1 subject</small>",
    ):
        assert text in html


def test_signals_are_curves_and_label_maps_have_a_key() -> None:
    curves = {"curves": [[0.0, 1.0], [1.0, 1.0]], "augmented_curves": None}
    assert page(sample(views=[]), pictures=[curves]).count("<polyline") == 3
    html = page(sample(label=None, labels={"0": 0.9, "1": 0.1}), pictures=[PICTURES], task="segmentation")
    assert "malignant 10 %" in html
    assert '<i class="label1">' in html


COLUMNS = (
    TableColumn("<i>age</i>", "number", (0.0, 100.0), unit="years"),
    TableColumn("pain", "category", levels=("none", "<u>some</u>")),
    TableColumn("smokes", "flag"),
)


def test_a_table_has_distributions_in_place_of_pictures() -> None:
    html = table_page(*COLUMNS)
    assert html.count("<polygon") == 3, "training of two classes, and the test of one"
    assert html.count('class="card distribution"') == 3
    text = unescape(html)
    for words in ("9 channels of 3 columns", '<i class="stratum2"></i>class 1, ill', "<span>100</span>", "in 20 bins"):
        assert words in text
    assert html.count("<td>missing</td>") == 3
    assert "patients' values. It stays in the hospital" in text
    assert "Each picture is" not in html
    assert not re.search(r"<script|\sstyle=|<i>age|<u>some|<b>well", html)


def test_the_bars_are_as_long_as_the_shares() -> None:
    smokes = table_page(COLUMNS[2])
    widths = re.findall(r'rect class="stratum(\d)" width="([\d.]+)"', smokes)
    # no, yes, missing: training of both classes, then the test, which holds the first row alone
    assert widths == [
        ("1", "100.0"), ("2", "0.0"), ("1", "100.0"),
        ("1", "0.0"), ("2", "0.0"), ("1", "0.0"),
        ("1", "0.0"), ("2", "100.0"), ("1", "0.0"),
    ]  # fmt: skip


def test_every_element_is_closed() -> None:
    whole = PageParser(page(sample(), sample(label=0), sample(split="test"), pictures=[PICTURES] * 3))
    assert whole.stack == []
    assert PageParser(table_page(*COLUMNS)).stack == []

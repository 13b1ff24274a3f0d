"""The demonstration's page: one file, its own style, and a figure for every site and method."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fakes.demonstration import ROUNDS, SITES, demonstration
from peer.lab.demo import picture


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "picture.html"
    picture.write(demonstration(), path)
    return path.read_text()


def test_the_page_has_a_curve_for_every_site_and_the_visits_of_every_method(page: str) -> None:
    titles = re.findall(r'<p class="name">(.*?)</p>', page)
    assert titles == [
        *(f"{site} (resnet11, width 8)" for site in SITES),
        "fedvisit: whose models each site had in each round",
    ]
    drawings = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(drawings) == len(titles)
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    markers = re.findall(r"<use [^>]*fill: #[^>]*>", drawings[-1])
    in_key = len(SITES)
    assert len(markers) == len(SITES) * ROUNDS + in_key
    assert "on average 10.0 of the 20.0 points that pooling all data gives" in page
    assert "pooled bound" in page


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    assert not re.findall(r"""(?:src|(?<!xlink:)href)=["'](?!#|data:)|url\((?!#)|@import|<script""", page)
    assert set(re.findall(r'xlink:href="(.)', page)) <= {"#"}
    assert "prefers-color-scheme: dark" in page


def test_the_page_shows_each_site_over_the_splits_first(tmp_path: Path) -> None:
    picture.write(demonstration(over_splits=True), tmp_path / "picture.html")
    page = (tmp_path / "picture.html").read_text()
    assert re.findall(r'<p class="name">(.*?)</p>', page)[:4] == [
        "AUC, own test data",
        "Brier score, own test data",
        "AUC minus that of training alone, own test data",
        "AUC minus that of training alone, test data of all sites",
    ]
    first = re.search(r"<svg .*?</svg>", page, re.DOTALL)
    assert first is not None
    assert len(re.findall(r"<use [^>]*fill: #[^>]*>", first[0])) == 3  # a disc for each method, at the site with values
    assert "Mean of 3 splits" in page
    assert "on each site&#39;s own test data africa +10.0, asia –; on the test data of all sites" in page


def test_a_site_without_values_and_a_study_without_the_bound_are_drawn(tmp_path: Path) -> None:
    document = demonstration(pooled=None)
    for method in document["methods"].values():
        method["sites"]["asia"] |= {"local_test": None, "curve": {}}  # type: ignore[operator]
    picture.write(document, tmp_path / "picture.html")
    assert "pooled bound" not in (tmp_path / "picture.html").read_text()

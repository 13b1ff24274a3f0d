"""The picture of a round: every site once, every route once, in its state."""

import re
from xml.etree import ElementTree

import pytest

from fakes.snapshots import federation, link, site_snapshot
from fakes.templates import render_macro
from peer.view.dashboard.ring import NAMED_MAX, arrange_ring

SVG = ElementTree.Element


def drawing(*names: str, **changes: object) -> tuple[str, SVG]:
    ring = arrange_ring(federation(site_snapshot(names[0], sites=names, **changes)).overview)
    text = render_macro("charts.html.j2", "ring", ring)
    return text, ElementTree.fromstring(text)


def of_class(root: SVG, name: str) -> list[SVG]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


def test_each_site_is_named_and_each_route_is_in_its_state() -> None:
    links = [
        link("america", "asia", state="arrived"),
        link("asia", "europe", state="moving"),
        link("europe", "africa", state="missing"),
    ]
    _, root = drawing("africa", "america", "asia", "europe", links=links)
    assert [element.text for element in of_class(root, "name")] == ["africa", "america", "asia", "europe"]
    counts = {state: len(of_class(root, state)) for state in ("arrived", "moving", "missing", "planned")}
    assert counts == {"arrived": 1, "moving": 1, "missing": 1, "planned": 1}


@pytest.mark.parametrize("count", range(1, 41))
def test_all_is_within_the_picture_whatever_the_number_of_sites(count: int) -> None:
    names = [f"site-{index:02}" for index in range(count)]
    _, root = drawing(*names)
    left, top, width, height = map(float, root.get("viewBox", "").split())
    ways = [element.get("d", "") for element in root.iter("path") if element.get("class") != "progress"]
    numbers = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)(?=[QL Z]|$)", " ".join(ways))]
    assert len(numbers) >= 4 * (count - 1)
    circles = [(float(element.get("cx", "")), float(element.get("cy", ""))) for element in root.iter("circle")]
    assert len(circles) == count
    for x, y in [*numbers, *circles]:
        assert left <= x <= left + width
        assert top <= y <= top + height
    for index, (x, y) in enumerate(circles):
        assert all(abs(x - x2) + abs(y - y2) > 30 for x2, y2 in circles[:index])


def test_many_sites_have_numbers_instead_of_names() -> None:
    names = [f"site-{index:02}" for index in range(NAMED_MAX + 1)]
    _, root = drawing(*names)
    assert of_class(root, "name") == []
    assert [element.text for element in of_class(root, "inside")] == [str(number + 1) for number in range(len(names))]


def test_a_long_name_is_cut_short_and_whole_in_its_title() -> None:
    text, root = drawing("a" * 32, "europe")
    assert of_class(root, "name")[0].text == "a" * 13 + "…"
    assert f"{'a' * 32}: train" in text


def test_a_phase_of_a_peer_is_text() -> None:
    peer = {"state": "heard", "round": 3, "phase": "<script>\x1b", "progress": None, "last_seen_s": 1.0, "software": ""}
    text, root = drawing("asia", "europe", peers={"europe": peer})
    assert "<script>" not in text
    assert "<script>" in [element.text for element in of_class(root, "note")]

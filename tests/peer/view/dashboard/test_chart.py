"""Charts: the numbers that everybody looks at, on axes with round numbers."""

from xml.etree import ElementTree

import pytest

from peer.site.records.snapshot import Curve
from peer.view.dashboard.chart import POINTS_MAX, axis_ticks, choose_tags, draw_chart, title


def curves(*tags: str) -> list[Curve]:
    return [{"tag": tag, "points": [(1, 1.0)]} for tag in tags]


def test_a_measure_of_each_split_and_the_training_losses_come_first() -> None:
    tags = ("test/accuracy", "test/auc", "test/samples", "test/auc_undefined", "test/loss", "validation/accuracy",
            "global_test/auc", "train/total", "train/total_last", "round/duration_s", "traffic/sent_bytes")  # fmt: skip
    first, others = choose_tags(curves(*tags))
    assert first == ["validation/accuracy", "test/auc", "global_test/auc", "train/total"]
    assert others == ["test/accuracy", "test/loss"]


def test_a_tag_is_shown_in_words() -> None:
    assert title("global_test/auc") == "AUC on every site's test data"
    assert title("train/distillation_ratio") == "distillation ratio (train)"


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.52, 0.93), (-3.0, 2.0), (5.0, 5.0), (0.0, 0.0), (1e-7, 3e-7), (-1e9, 1e9)]
)
def test_ticks_are_few_and_cover_the_values(low: float, high: float) -> None:
    ticks = axis_ticks(low, high)
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize(("low", "high"), [(0.86, 1.0), (1.0, 1.0), (0.97, 0.97), (0.2, 0.999), (0.98, 0.999)])
def test_an_axis_ends_where_the_measure_does(low: float, high: float) -> None:
    ticks = axis_ticks(low, high, highest=1.0)
    assert high - 1e-9 <= ticks[-1] <= 1.0 + 1e-9
    assert len(ticks) >= 2


def test_the_axis_of_an_auc_ends_at_one() -> None:
    text = draw_chart("test/auc", {"asia": [(1, 1.0), (2, 1.0)]}, {"asia": 0}, rounds=2)
    assert ">1.0" in text
    assert ">1.1" not in text


def test_a_line_a_site_and_no_more_points_than_pixels() -> None:
    points = [(round, round / 5000) for round in range(1, 5001)]
    text = draw_chart("test/auc", {"asia": points, "europe": [(1, 0.5)]}, {"asia": 0, "europe": 9}, rounds=5000)
    root = ElementTree.fromstring(text)
    asia, europe = (element.get("d", "") for element in root.iter("path") if element.get("class") == "curve")
    assert asia.count("L") <= POINTS_MAX
    assert asia.endswith("320.0 10.0")
    assert europe.count("L") == 0
    assert 'class="line1 dashed"' in text

"""Charts: the numbers that everybody looks at, on axes with round numbers."""

from xml.etree import ElementTree

import pytest

from fakes.templates import render_macro
from peer.view.dashboard.chart import POINTS_MAX, Points, axis_ticks, choose_tags, lay_out_chart, measure_range, title


def draw_chart(lines: dict[str, Points], styles: dict[str, int], *, rounds: int) -> str:
    return render_macro(
        "charts.html.j2", "chart", lay_out_chart("test/auc", {"test/auc": lines}, styles, rounds=rounds)
    )


def test_a_measure_of_each_split_and_the_training_losses_come_first() -> None:
    tags = ("test/accuracy", "test/auc", "test/samples", "test/auc_undefined", "test/loss", "validation/accuracy",
            "global_test/auc", "train/total", "train/total_last", "round/duration_s", "traffic/sent_bytes")  # fmt: skip
    first, others = choose_tags(tags)
    assert first == ["validation/accuracy", "test/auc", "global_test/auc", "train/total"]
    assert others == ["test/accuracy", "test/loss"]


def test_a_tag_is_shown_in_words() -> None:
    assert title("global_test/auc") == "AUC on every site's test data"
    assert title("train/distillation_ratio") == "Distillation over the loss on labels (train)"


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


def test_the_axis_of_an_auc_above_chance_begins_at_chance() -> None:
    assert axis_ticks(0.5, 1.0, highest=1.0)[0] == pytest.approx(0.5)


def test_the_axis_of_an_auc_ends_at_one() -> None:
    text = draw_chart({"asia": [(1, 1.0), (2, 1.0)]}, {"asia": 0}, rounds=2)
    assert ">1.0" in text
    assert ">1.1" not in text


def test_the_charts_of_one_metric_have_a_common_axis_that_of_an_auc_begins_at_chance() -> None:
    lines: dict[str, dict[str, Points]] = {
        "test/auc": {"asia": [(1, 0.9)]}, "validation/auc": {"asia": [(1, 0.45)]}, "train/auc": {"asia": [(1, 0.1)]},
        "test/accuracy": {"asia": [(1, 0.5), (2, 0.7)]}, "validation/accuracy": {"asia": [(1, 0.6)]},
        "train/total": {"asia": [(1, 2.5)]},
    }  # fmt: skip
    assert measure_range("test/auc", lines) == measure_range("validation/auc", lines) == (0.45, 1.0)
    assert measure_range("test/auc", {"test/auc": {"asia": [(1, 0.9)]}}) == (0.5, 1.0)
    assert measure_range("validation/accuracy", lines) == (0.5, 0.7)
    assert measure_range("train/total", lines) == (2.5, 2.5)


def test_a_title_says_how_many_samples_a_value_is_of() -> None:
    assert title("test/auc", [18]) == "AUC on own test data (18 samples)"
    assert title("test/auc", [40, 18, 20]) == "AUC on own test data (18 to 40 samples)"
    assert title("train/total", [18]) == "Training loss (train)"
    assert title("train/ce_dam") == "Cross-entropy of the local model (train)"
    assert title("test/loss") == "Loss on own test data"


def test_a_line_a_site_and_no_more_points_than_pixels() -> None:
    points = [(round, round / 5000) for round in range(1, 5001)]
    text = draw_chart({"asia": points, "europe": [(1, 0.5)]}, {"asia": 0, "europe": 9}, rounds=5000)
    root = ElementTree.fromstring(text)
    asia, europe = (element.get("d", "") for element in root.iter("path") if element.get("class") == "curve")
    assert asia.count("L") <= POINTS_MAX
    assert asia.endswith("320.0 10.0")
    assert europe.count("L") == 0
    assert 'class="line1 dashed"' in text

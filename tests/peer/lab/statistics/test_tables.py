"""The tables' arithmetic: by hand, and on the figures that FedSKD prints."""

import math
import statistics

import pytest

from peer.lab.statistics.tables import (
    Average,
    Matrix,
    average,
    combined,
    defined,
    generalisation,
    global_test,
    local_test,
    over_folds,
    site_gap,
    worst_site,
)

# Two sites, three folds. The diagonals are (.6, .8), (.7, .9), (.8, .7).
FOLDS: list[Matrix] = [
    {"asia": {"asia": 0.6, "europe": 0.4}, "europe": {"asia": 0.6, "europe": 0.8}},
    {"asia": {"asia": 0.7, "europe": 0.5}, "europe": {"asia": 0.5, "europe": 0.9}},
    {"asia": {"asia": 0.8, "europe": 0.6}, "europe": {"asia": 0.7, "europe": 0.7}},
]


@pytest.mark.parametrize(("value", "expected"), [(0.0, True), (None, False), (math.nan, False), (math.inf, False)])
def test_what_counts(value: float | None, expected: bool) -> None:
    assert defined(value) is expected


def test_what_is_undefined_is_left_out_and_counted() -> None:
    assert average([0.5, None, 0.7, math.nan]) == Average(pytest.approx(0.6), count=2, undefined=2)
    assert average([None]) == Average(None, count=0, undefined=1)
    assert average([]) == Average(None, count=0, undefined=0)


def test_means_of_means_count_alike() -> None:
    spread = combined([average([0.2, 0.4, 0.6]), average([0.8, None]), average([None])])
    assert spread == Average(pytest.approx(0.6), count=4, undefined=2)


def test_the_deviation_is_that_of_all_folds() -> None:
    spread = over_folds([average([value]) for value in (0.6, 0.7, None, 0.8)])
    assert spread.mean == pytest.approx(0.7)
    assert spread.std == pytest.approx(math.sqrt(0.02 / 3))  # ddof 0
    assert spread.folds == (0.6, 0.7, None, 0.8)
    assert spread.undefined == 1


def test_nothing_has_no_mean() -> None:
    spread = over_folds([average([None]), average([])])
    assert (spread.mean, spread.std, spread.undefined) == (None, None, 1)


def test_local_test_is_the_diagonal() -> None:
    row = local_test(FOLDS)
    assert row.cells["asia"].folds == (0.6, 0.7, 0.8)
    assert row.cells["asia"].std == pytest.approx(math.sqrt(0.02 / 3))
    assert row.cells["europe"].mean == pytest.approx(0.8)
    # Inside the folds: .7, .8, .75. Averaging the clients' deviations, .082 both, would give another.
    assert row.mean.folds == pytest.approx((0.7, 0.8, 0.75))
    assert row.mean.mean == pytest.approx(0.75)
    assert row.mean.std == pytest.approx(math.sqrt(0.005 / 3))


def test_global_test_is_the_mean_of_each_row() -> None:
    row = global_test(FOLDS)
    assert row.cells["asia"].folds == pytest.approx((0.5, 0.6, 0.7))
    assert row.cells["europe"].folds == pytest.approx((0.7, 0.7, 0.7))
    assert row.cells["europe"].std == pytest.approx(0)
    assert row.mean.folds == pytest.approx((0.6, 0.65, 0.7))
    assert row.mean.std == pytest.approx(math.sqrt(0.005 / 3))


def test_the_matrix_itself_over_folds() -> None:
    cells = generalisation(FOLDS)
    assert cells["asia"]["europe"].mean == pytest.approx(0.5)
    assert cells["europe"]["asia"].folds == (0.6, 0.5, 0.7)


def test_one_model_of_all_has_one_global_mean() -> None:
    shared = {"asia": 0.6, "europe": 0.9}
    row = global_test([{"asia": shared, "europe": shared}])
    assert row.cells["asia"] == row.cells["europe"]
    assert row.mean.mean == row.cells["asia"].mean == pytest.approx(0.75)
    assert row.mean.std == 0


def test_undefined_cells_are_counted_in_every_mean_above_them() -> None:
    folds: list[Matrix] = [
        {"asia": {"asia": None, "europe": 0.4}, "europe": {"asia": 0.6, "europe": 0.8}},
        {"asia": {"asia": 0.7, "europe": math.nan}, "europe": {"asia": 0.5}},
    ]
    with pytest.raises(ValueError, match="fold 1: the model of 'europe' was not tested on its own split"):
        global_test(folds)
    folds[1] = {"asia": {"asia": 0.7, "europe": math.nan}, "europe": {"asia": 0.5, "europe": 0.9}}
    local, everywhere = local_test(folds), global_test(folds)
    assert (local.cells["asia"].folds, local.cells["asia"].undefined) == ((None, 0.7), 1)
    assert local.mean.folds == pytest.approx((0.8, 0.8))
    assert local.mean.undefined == 1
    assert everywhere.cells["asia"].folds == (0.4, 0.7)
    assert (everywhere.cells["europe"].undefined, everywhere.mean.undefined) == (0, 2)


@pytest.mark.parametrize(
    ("folds", "message"), [([], "no fold"), ([FOLDS[0], {"asia": {"asia": 1}}], r"fold 1 has .*'as")]
)
def test_folds_have_the_same_sites(folds: list[Matrix], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        local_test(folds)
    with pytest.raises(ValueError, match=message):
        generalisation(folds)


def test_the_deviation_of_a_sample_divides_by_one_less() -> None:
    values = (0.6, 0.7, 0.8)
    assert over_folds([average([value]) for value in values], ddof=1).std == pytest.approx(statistics.stdev(values))
    assert over_folds([average([0.6])], ddof=1).std is None
    assert local_test(FOLDS, ddof=1).cells["asia"].std == pytest.approx(statistics.stdev((0.6, 0.7, 0.8)))


def test_the_worst_site_and_the_gap_are_taken_inside_each_fold() -> None:
    folds = [
        {"a": {"a": 0.5}, "b": {"b": 0.9}},
        {"a": {"a": 0.8}, "b": {"b": 0.7}},
        {"a": {"a": None}, "b": {"b": None}},
    ]
    row = local_test(folds)
    assert worst_site(row).folds == (0.5, 0.7, None)
    assert worst_site(row).mean == pytest.approx(0.6), "of the sites' means the worst would be 0.65"
    assert worst_site(row, higher=False).mean == pytest.approx(0.85)
    assert site_gap(row).folds == pytest.approx((0.4, 0.1, None))
    assert site_gap(row, ddof=1).std == pytest.approx(statistics.stdev((0.4, 0.1)))

"""Values by round."""

import pytest

from peer.research.report.curves import by_site, mean_over_sites
from peer.research.report.results import read


def test_the_mean_over_sites_of_rounds_that_most_of_them_have() -> None:
    curves = mean_over_sites({"a": {1: 0.2, 2: 0.4}, "b": {1: 0.4, 2: 0.8, 3: 0.9}, "c": {1: 0.6}})
    assert curves == pytest.approx({1: 0.4, 2: 0.6})


def test_a_curve_is_the_mean_over_runs(make) -> None:
    runs = read(make(methods={"FedDAL": "feddal"}, seeds=(0, 1), sites=("a", "b"))).runs
    curves = by_site(runs, "auc")
    assert set(curves) == {"a", "b"}
    assert list(curves["a"]) == [2, 4, 6, 8, 10, 12]
    values = [run.sites["a"]["rounds"][1]["metrics"]["auc"] for run in runs]
    assert curves["a"][2] == pytest.approx(sum(values) / 2)
    assert by_site(runs, "dice") == {}

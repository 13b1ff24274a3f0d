"""Values by round."""

import pytest

from fakes.json_documents import change_documents
from peer.lab.report import plotting
from peer.lab.report.curves import by_site, learning, mean_over_sites
from peer.lab.report.results import read


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


def test_a_method_that_is_evaluated_at_the_end_alone_is_a_marker_and_is_named(make) -> None:
    folder = make(methods={"Local": "local", "FedCross": "fedcross"}, seeds=(0,), sites=("a", "b"))
    for document in change_documents(folder, "runs/*FedCross*/result.json"):
        for site in document["sites"].values():
            site["rounds"] = [*({**record, "metrics": {}} for record in site["rounds"][:-1]), site["rounds"][-1]]
    styles = plotting.assign_styles({"Local": "local", "FedCross": "fedcross"})
    with plotting.plot_style():
        figure = learning(read(folder), ("sites", "heterogeneous"), styles, name="t")
    assert "A single marker: FedCross" in figure.caption
    assert styles["FedCross"].colour in figure.drawing

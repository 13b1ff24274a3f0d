"""The main tables: rows, published figures beside them, marks and what is said below."""

import shutil
from typing import Any

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, cells, texts
from peer.lab.report.comparison import compare, spread_of_steps, summary, verdict
from peer.lab.report.measurements import Measurements
from peer.lab.report.published import choose_comparison, reference_tables
from peer.lab.report.results import Results, read

REGIONS = ("europe", "west-us", "central-us", "east-us")
ASD = {"paper": "FedSKD", "table": "II", "dataset": "FedASD", "setting": "heterogeneous"}
THREE = {"Centralised": "centralised", "Local": "local", "FedSKD": "fedskd"}


def compare_methods(folder: Any, metric: str = "auc", unit: str = "percent") -> tuple[Results, Any]:
    results = read(folder)
    published = choose_comparison(reference_tables(results.experiment["reference"]), SETTING, metric)
    return results, compare(Measurements(results), SETTING, metric, published, published_unit=unit, name="t")


def test_published_rows_stand_below_ours_and_what_was_not_run_at_the_end(make) -> None:
    missing = [{"method": "FedCross", "reason": "no time"}, {"method": "FedMD", "reason": "it needs public data"}]
    _, comparison = compare_methods(
        make(sites=REGIONS, methods=THREE, reference=ASD, not_run=missing, folds=2, classes=2)
    )
    assert list(cells(comparison.table)) == [
        "Centralised", "Centralised (published)", "Local", "Local (published)", "FedSKD", "FedSKD (published)",
        "FedCross (published, not run here)", "FedMD (not run here)",
    ]  # fmt: skip
    published = texts(comparison.table)["FedSKD (published)"]
    assert published["Local Test: west-us"] == "76.14 ± 4.30"
    assert published["Global Test: Mean"] == "67.10 ± 2.23"
    assert any("FedMD was not run here: it needs public data" in note for note in comparison.table.notes)


def test_where_sites_have_other_names_only_the_published_mean_stands_beside(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, reference=ASD, classes=2))
    row = cells(comparison.table)["FedSKD (published)"]
    assert row[:5] == ["76.66 ± 2.70", "–", "–", "–", "–"]
    assert any("other names than ours" in note for note in comparison.table.notes)


def test_numbered_clients_are_known_by_the_names_of_their_centres(make) -> None:
    centres = ("cvc-clinicdb", "cvc-colondb", "etis", "kvasir")
    polyp = {"paper": "dFLMoE", "table": "5", "dataset": "Polyp (4 centres)", "setting": "heterogeneous"}
    folder = make(kind="segmentation", sites=centres, methods={"dFLMoE": "dflmoe"}, reference=polyp)
    _, comparison = compare_methods(folder, "dice", "fraction")
    assert cells(comparison.table)["dFLMoE (published)"][:5] == ["0.7806", "0.8709", "0.7945", "0.6859", "0.7710"]


def test_a_row_takes_its_own_published_figures_and_no_others(make) -> None:
    methods = {"FedAvg": "fedavg", "FedBN": "fedavg", "mine": "fedskd"}
    folder = make(sites=REGIONS, methods=methods, reference={**ASD, "setting": "homogeneous"}, seeds=(0,))
    rows = list(cells(compare_methods(folder)[1].table))
    assert rows[:6] == ["FedAvg", "FedAvg (published)", "FedBN", "FedBN (published)", "mine", "mine (published)"]
    assert len(rows) == 3 + 7, "none of the seven published ones is lost"


def test_the_pooled_bound_is_shown_and_does_not_compete(make) -> None:
    _, comparison = compare_methods(make(methods=THREE))
    assert comparison.ranked == ["Local", "FedSKD"]
    assert comparison.best("local")[0] == "FedSKD"
    ranks = {row.label: row.cells[4].rank for row in comparison.table.rows}
    assert ranks == {"Centralised": 0, "Local": 2, "FedSKD": 1}


def test_the_best_mean_carries_a_sign_where_folds_agree(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, folds=5, seeds=(0,)))
    assert cells(comparison.table)["FedSKD"][0].endswith("*")
    assert not cells(comparison.table)["Local"][0].endswith("*")


def test_the_verdict_names_the_best_method_the_bounds_and_the_worst_site(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, folds=5, seeds=(0,)))
    text = verdict(comparison) or ""
    best = comparison.best("global")[0]
    assert text.startswith(f"{best} has the best mean of the Global Test, {comparison.unit.axis}: ")
    assert "; the pooled bound " in text
    worst = comparison.scores.by_test["global"].xs(best).mean().idxmin()
    assert f"; its worst site is {worst} with " in text
    assert f"training alone {cells(comparison.table)['Local'][6].split(' ')[0]}" in text


def test_one_run_has_no_deviation_and_no_test(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, seeds=(0,)))
    assert "±" not in cells(comparison.table)["FedSKD"][0]
    assert not any("t-test" in note for note in comparison.table.notes)
    assert comparison.table.notes[0].startswith("One run; ")


def test_a_global_test_that_no_federation_would_make_is_called_simulated(make) -> None:
    folder = make(methods={"Local": "local", "FedDAL": "feddal"}, seeds=(0,))
    for document in change_documents(folder, "experiment.json"):
        document["methods"]["FedDAL"]["kept_home"] = "the method lets no private model leave its site"
    _, comparison = compare_methods(folder)
    (note,) = [note for note in comparison.table.notes if "simulated" in note]
    assert "FedDAL" in note
    assert "Local" not in note


def test_one_model_for_all_has_one_global_value(make) -> None:
    _, comparison = compare_methods(make(methods={"Local": "local", "FedAvg": "fedavg"}))
    row = cells(comparison.table)["FedAvg"]
    assert row[6:10] == ["–"] * 4
    assert row[5] != "–"


def test_a_method_without_a_run_and_one_with_fewer_folds_are_named(make) -> None:
    folder = make(methods=THREE, folds=3, seeds=(0,))
    for path in (folder / "runs").glob("*Local*"):
        shutil.rmtree(path)
    shutil.rmtree(folder / "runs/sites.heterogeneous.all.FedSKD.fold-2.seed-0")
    _, comparison = compare_methods(folder)
    assert cells(comparison.table)["Local (no run)"] == ["–"] * 11
    assert "FedSKD: 2 of 3 folds." in comparison.table.notes


def test_unequal_work_is_said(make) -> None:
    folder = make(methods=THREE)
    _, comparison = compare_methods(folder)
    assert spread_of_steps(comparison.measured, SETTING) is None
    assert cells(comparison.table)["FedSKD"][-1] == "240"
    for document in change_documents(folder, "runs/*FedSKD*/result.json"):
        for site in document["sites"].values():
            site["steps"] = 480
    assert "Local 240, FedSKD 480" in str(spread_of_steps(Measurements(read(folder)), SETTING))


def test_the_summary_is_in_the_metrics_own_unit(make) -> None:
    _, comparison = compare_methods(make(methods=THREE))
    assert 0.6 < summary(comparison)["Local"]["local"] < 0.8


def test_a_fold_with_fewer_seeds_is_named(make) -> None:
    folder = make(methods=THREE, folds=2)
    shutil.rmtree(folder / "runs/sites.heterogeneous.all.FedSKD.fold-1.seed-1")
    assert "FedSKD: 3 of 4 runs." in compare_methods(folder)[1].table.notes


def test_one_model_for_all_is_that_of_every_run(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1))
    for result in change_documents(folder, "runs/*FedSKD*/result.json"):
        result["single_model"] = result["seed"] == 0
    _, comparison = compare_methods(folder)
    assert comparison.single_models == []


def test_classes_without_an_auc_are_counted_beside_it(make) -> None:
    folder = make(methods=THREE, classes=10)
    for result in change_documents(folder, "runs/*/result.json"):
        for row in result["matrix"].values():
            row["africa"]["auc_undefined"] = 5.0 + result["seed"]
    _, comparison = compare_methods(folder)
    row = cells(comparison.table)["classes without an AUC"]
    assert row[:5] == ["5–6 of 10", "0", "0", "0", "–"]
    assert any(note.startswith("Classes without an AUC") for note in comparison.table.notes)
    _, other = compare_methods(folder, "accuracy")
    assert "classes without an AUC" not in cells(other.table)


def test_a_row_without_runs_says_why(make) -> None:
    folder = make(methods=THREE)
    for result in change_documents(folder, "runs/*/result.json"):
        result["sites"]["europe"]["model"] = {"name": "resnet18"}
    for experiment in change_documents(folder, "experiment.json"):
        experiment["methods"] |= {
            "fedavg": {"method": "fedavg", "one_network": True},
            "wide": {"method": "fedskd", "models": ["homogeneous"]},
            "late": {"method": "feddal"},
        }
    rows = list(cells(compare_methods(folder)[1].table))
    assert rows[-2:] == ["fedavg (needs one network for all sites)", "late (no run)"]
    assert not any("wide" in row for row in rows)  # the page says above its tables that it is for other networks


def test_the_deviation_can_be_that_of_a_sample(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2))
    measured = [Measurements(read(folder, ddof=ddof)) for ddof in (0, 1)]
    by_ddof = [compare(each, SETTING, "auc", None, name="t") for each in measured]
    population, sample = (
        next(row.cells[4].std for row in each.table.rows if row.label == "FedSKD") for each in by_ddof
    )
    assert sample / population == pytest.approx((3 / 2) ** 0.5)
    assert "ddof 1" in by_ddof[1].table.notes[0]

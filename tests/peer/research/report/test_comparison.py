"""The main tables: rows, published figures beside them, marks and what is said below."""

import json
import shutil
from typing import Any

import pytest

from peer.research.report.comparison import compare, spread_of_steps, summary
from peer.research.report.published import choose_comparison, reference_tables
from peer.research.report.results import Results, read

SETTING = ("sites", "heterogeneous")
REGIONS = ("europe", "west-us", "central-us", "east-us")
ASD = {"paper": "FedSKD", "table": "II", "dataset": "FedASD", "setting": "heterogeneous"}
THREE = {"Centralised": "centralised", "Local": "local", "FedSKD": "fedskd"}


def compare_methods(folder: Any, metric: str = "auc") -> tuple[Results, Any]:
    results = read(folder)
    published = reference_tables(results.experiment["reference"])
    return results, compare(
        results, SETTING, metric, choose_comparison(published, SETTING, metric), published_unit="percent", name="t"
    )


def texts_by_label(comparison: Any) -> dict[str, list[str]]:
    return {
        row.label: [
            cell.format(column.digits) for cell, column in zip(row.cells, comparison.table.columns, strict=True)
        ]
        for row in comparison.table.rows
    }


def test_published_rows_stand_below_ours_and_what_was_not_run_at_the_end(make) -> None:
    missing = [{"method": "FedCross", "reason": "no time"}, {"method": "FedMD", "reason": "it needs public data"}]
    _, comparison = compare_methods(
        make(sites=REGIONS, methods=THREE, reference=ASD, not_run=missing, folds=2, classes=2)
    )
    assert list(texts_by_label(comparison)) == [
        "Centralised", "Centralised (published)", "Local", "Local (published)", "FedSKD", "FedSKD (published)",
        "FedCross (published, not run here)", "FedMD (not run here)",
    ]  # fmt: skip
    heads = [f"{column.group}: {column.name}" for column in comparison.table.columns]
    cells = dict(zip(heads, texts_by_label(comparison)["FedSKD (published)"], strict=True))
    assert cells["Local Test: west-us"] == "76.14 ± 4.30"
    assert cells["Global Test: Mean"] == "67.10 ± 2.23"
    assert any("FedMD was not run here: it needs public data" in note for note in comparison.table.notes)


def test_where_sites_have_other_names_only_the_published_mean_stands_beside(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, reference=ASD, classes=2))
    row = texts_by_label(comparison)["FedSKD (published)"]
    assert row[:5] == ["–", "–", "–", "–", "76.66 ± 2.70"]
    assert any("other names than ours" in note for note in comparison.table.notes)


def test_numbered_clients_are_known_by_the_names_of_their_centres(make) -> None:
    centres = ("cvc-clinicdb", "cvc-colondb", "etis", "kvasir")
    polyp = {"paper": "dFLMoE", "table": "5", "dataset": "Polyp (4 centres)", "setting": "heterogeneous"}
    folder = make(kind="segmentation", sites=centres, methods={"dFLMoE": "dflmoe"}, reference=polyp)
    results = read(folder)
    comparison = compare(
        results,
        SETTING,
        "dice",
        choose_comparison(reference_tables(polyp), SETTING, "dice"),
        published_unit="fraction",
        name="t",
    )
    assert texts_by_label(comparison)["dFLMoE (published)"][:5] == ["0.8709", "0.7945", "0.6859", "0.7710", "0.7806"]


def test_a_row_takes_its_own_published_figures_and_no_others(make) -> None:
    methods = {"FedAvg": "fedavg", "FedBN": "fedavg", "mine": "fedskd"}
    folder = make(sites=REGIONS, methods=methods, reference={**ASD, "setting": "homogeneous"}, seeds=(0,))
    rows = list(texts_by_label(compare_methods(folder)[1]))
    assert rows[:6] == ["FedAvg", "FedAvg (published)", "FedBN", "FedBN (published)", "mine", "mine (published)"]
    assert len(rows) == 3 + 7, "none of the seven published ones is lost"


def test_the_pooled_bound_is_shown_and_does_not_compete(make) -> None:
    _, comparison = compare_methods(make(methods=THREE))
    assert comparison.ranked == ("Local", "FedSKD")
    assert comparison.best("local")[0] == "FedSKD"
    ranks = {row.label: row.cells[4].rank for row in comparison.table.rows}
    assert ranks == {"Centralised": 0, "Local": 2, "FedSKD": 1}


def test_the_best_mean_carries_a_sign_where_folds_agree(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, folds=5, seeds=(0,)))
    assert texts_by_label(comparison)["FedSKD"][4].endswith("*")
    assert not texts_by_label(comparison)["Local"][4].endswith("*")


def test_one_run_has_no_deviation_and_no_test(make) -> None:
    _, comparison = compare_methods(make(methods=THREE, seeds=(0,)))
    assert "±" not in texts_by_label(comparison)["FedSKD"][4]
    assert not any("t-test" in note for note in comparison.table.notes)
    assert comparison.table.notes[0].startswith("One run; ")


def test_a_global_test_that_no_federation_would_make_is_called_simulated(make) -> None:
    folder = make(methods={"Local": "local", "FedDAL": "feddal"}, seeds=(0,))
    document = json.loads((folder / "experiment.json").read_text())
    document["methods"]["FedDAL"]["kept_home"] = "the method lets no private model leave its site"
    (folder / "experiment.json").write_text(json.dumps(document))
    _, comparison = compare_methods(folder)
    (note,) = [note for note in comparison.table.notes if "simulated" in note]
    assert "FedDAL" in note
    assert "Local" not in note


def test_one_model_for_all_has_one_global_value(make) -> None:
    _, comparison = compare_methods(make(methods={"Local": "local", "FedAvg": "fedavg"}))
    row = texts_by_label(comparison)["FedAvg"]
    assert row[5:9] == ["–"] * 4
    assert row[9] != "–"


def test_a_method_without_a_run_and_one_with_fewer_folds_are_named(make) -> None:
    folder = make(methods=THREE, folds=3, seeds=(0,))
    for path in (folder / "runs").glob("*Local*"):
        shutil.rmtree(path)
    shutil.rmtree(folder / "runs/sites.heterogeneous.all.FedSKD.fold-2.seed-0")
    _, comparison = compare_methods(folder)
    assert texts_by_label(comparison)["Local (no run)"] == ["–"] * 11
    assert "FedSKD: 2 of 3 folds." in comparison.table.notes


def test_unequal_work_is_said(make) -> None:
    results, comparison = compare_methods(make(methods=THREE))
    assert spread_of_steps(results, SETTING) is None
    assert texts_by_label(comparison)["FedSKD"][-1] == "240"
    for run in results.runs:
        if run.method == "FedSKD":
            for site in run.sites.values():
                site["steps"] = 480  # type: ignore[index]
    assert "Local 240, FedSKD 480" in str(spread_of_steps(results, SETTING))


def test_the_summary_is_in_the_metrics_own_unit(make) -> None:
    _, comparison = compare_methods(make(methods=THREE))
    assert 0.6 < comparison.methods["Local"].local.mean.mean < 0.8
    assert summary(comparison)["Local"]["local"] == comparison.methods["Local"].local.mean.mean


def test_a_fold_with_fewer_seeds_is_named(make) -> None:
    folder = make(methods=THREE, folds=2, seeds=(0, 1))
    shutil.rmtree(folder / "runs/sites.heterogeneous.all.FedSKD.fold-1.seed-1")
    _, comparison = compare_methods(folder)
    assert "FedSKD: 3 of 4 runs." in comparison.table.notes


def test_one_model_for_all_is_that_of_every_run(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1))
    for path in folder.glob("runs/*FedSKD*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "single_model": "seed-0" in path.parent.name}))
    _, comparison = compare_methods(folder)
    assert not comparison.methods["FedSKD"].single_model


def change_runs(folder: Any, change: Any) -> Any:
    for path in folder.glob("runs/*/result.json"):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    return folder


def test_classes_without_an_auc_are_counted_beside_it(make) -> None:
    def change(document: Any) -> None:
        for row in document["matrix"].values():
            row["africa"]["auc_undefined"] = 5.0 + document["seed"]

    folder = change_runs(make(methods=THREE, classes=10), change)
    _, comparison = compare_methods(folder)
    row = texts_by_label(comparison)["classes without an AUC"]
    assert row[:5] == ["5–6 of 10", "0", "0", "0", "–"]
    assert any(note.startswith("Classes without an AUC") for note in comparison.table.notes)
    _, other = compare_methods(folder, "accuracy")
    assert "classes without an AUC" not in texts_by_label(other)


def test_a_row_without_runs_says_why(make) -> None:
    def change(document: Any) -> None:
        document["sites"]["europe"]["model"] = {"name": "resnet18"}

    folder = change_runs(make(methods=THREE), change)
    experiment = json.loads((folder / "experiment.json").read_text())
    experiment["methods"] |= {
        "fedavg": {"method": "fedavg", "one_network": True},
        "wide": {"method": "fedskd", "models": ["homogeneous"]},
        "late": {"method": "feddal"},
    }
    (folder / "experiment.json").write_text(json.dumps(experiment))
    rows = list(texts_by_label(compare_methods(folder)[1]))
    assert rows[-3:] == ["fedavg (needs one network for all sites)", "wide (only for homogeneous)", "late (no run)"]


def test_the_deviation_can_be_that_of_a_sample(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2))
    by_ddof = [compare(read(folder, ddof=ddof), SETTING, "auc", None, name="t") for ddof in (0, 1)]
    (population, sample) = (each.methods["FedSKD"].local.mean.std for each in by_ddof)
    assert sample / population == pytest.approx((3 / 2) ** 0.5)
    assert "ddof 1" in by_ddof[1].table.notes[0]

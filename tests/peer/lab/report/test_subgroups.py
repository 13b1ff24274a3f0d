"""Gaps between groups and gains of subgroups."""

import statistics

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, compared
from peer.lab.report.results import read
from peer.lab.report.subgroups import baseline, gains, gains_table, gaps, grouping_keys
from peer.lab.statistics.fairness import subgroup_areas

THREE = {"Local": "local", "FedCross": "fedcross", "FedSKD": "fedskd"}


def test_keys_that_divide_the_samples(make) -> None:
    results = read(make(methods=THREE, sites=("a", "b")))
    assert grouping_keys(results.runs) == {
        "institution": ["a north", "a south", "b north", "b south"],
        "sex": ["female", "male"],
    }


def test_the_gap_is_that_of_the_means_over_sites(make) -> None:
    results, comparison = compared(make(methods=THREE, seeds=(0,), classes=2))
    (gap_table,) = gaps(comparison, name="fairness")
    assert gap_table.name == "fairness-sex"
    assert [column.name for column in gap_table.columns] == ["female", "male", "mean", "Δ"]
    (run,) = results.select(SETTING, "FedSKD")
    by_site = [
        subgroup_areas(*run.predictions(site, site), [sample["sex"] for sample in run.samples[site]])
        for site in run.sites
    ]
    female, male = (statistics.fmean(float(areas[sex] or 0) for areas in by_site) for sex in ("female", "male"))
    row = next(row for row in gap_table.rows if row.label == "FedSKD")
    assert [cell.value for cell in row.cells] == pytest.approx([female, male, (female + male) / 2, abs(female - male)])


def test_gains_are_over_fedcross_or_over_local(make) -> None:
    results = read(make(methods=THREE, seeds=(0,)))
    assert baseline(results, SETTING) == "FedCross"
    gains_by_key = gains(results, SETTING)
    assert set(gains_by_key) == {"class", "institution", "sex"}
    assert set(gains_by_key["class"]["FedSKD"]) == {"class 0", "class 1", "class 2"}
    assert set(gains_by_key["sex"]["FedSKD"]) == {"female (n = 72)", "male (n = 72)"}
    assert "FedCross" not in gains_by_key["sex"]
    sex_table = gains_table(gains_by_key["sex"], key="sex", against="FedCross", name="g")
    assert [row.label for row in sex_table.rows] == ["female (n = 72)", "male (n = 72)"]
    assert [column.name for column in sex_table.columns] == ["Local", "FedSKD"]


def test_without_a_baseline_there_is_no_gain(make) -> None:
    assert gains(read(make(methods={"FedSKD": "fedskd"})), SETTING) == {}


def test_the_datas_own_split_is_no_group(make) -> None:
    folder = make(methods=THREE, seeds=(0,), classes=2)
    for samples in change_documents(folder, "runs/*/samples.json"):
        for entries in samples.values():
            for index, entry in enumerate(entries):
                entry["split"] = ("training", "test")[index % 2]
    results, comparison = compared(folder)
    assert "split" not in grouping_keys(results.runs)
    names = [table.name for table in gaps(comparison, name="fairness")]
    assert names == ["fairness-sex"]

"""The shipped table has figures of RESULTS.md alone; gains and intervals are those that the text says."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from peer.lab.advice.evidence import PAIRED, SHIPPED, SINGLE, UNPAIRED, MeasuredGain, read_results, read_table

ROOT = Path(__file__).parents[4]
EXPERIMENTS = ROOT / "deploy" / "examples" / "experiments"


def rounded(gain: MeasuredGain) -> list[float | None]:
    return [None if each is None else round(each, 2) for each in (gain.mean, gain.low, gain.high, gain.share)]


def test_the_table_is_what_its_script_reads_from_the_results() -> None:
    script = runpy.run_path(str(ROOT / "deploy" / "evidence.py"))
    results = (EXPERIMENTS / "RESULTS.md").read_text("utf-8")
    assert script["build"](results) == SHIPPED.read_text("utf-8"), "run python deploy/evidence.py"
    other = script["build"](results.replace("| 0.935 | +11.6 (+7.7", "| 0.935 | +11.7 (+7.7"))
    assert other == SHIPPED.read_text("utf-8").replace("0.935,,11.6,7.7", "0.935,,11.7,7.7")


def test_every_figure_stands_in_the_results() -> None:
    results = (EXPERIMENTS / "RESULTS.md").read_text("utf-8")
    with SHIPPED.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) > 50
    for line in lines:
        for test in ("local", "global"):
            if line[f"{test}_gain"]:
                gain, low, high = (float(line[f"{test}_{part}"]) for part in ("gain", "low", "high"))
                text = f"{gain:+.1f} ({low:+.1f} to {high:+.1f})"
                assert text in results, line
            assert line[test] in results
            assert f"{line[test]} ± {line[f'{test}_deviation']}" in results or not line[f"{test}_deviation"], line
            assert f"| {line[f'{test}_share']} %" in results or not line[f"{test}_share"], line


def test_the_studies_are_those_of_the_presets() -> None:
    studies = {study.name: study for study in read_table()}
    assert len(studies) == len(read_table())
    for study in studies.values():
        words = study.source.split()
        assert words[1] == "demo" or (ROOT / words[2]).is_file()
    digits = studies["digits, classes differ"]
    assert (digits.people, digits.classes_alike, digits.networks_differ, digits.interval) == (40, False, True, PAIRED)
    best = next(row for row in digits.rows if row.row == "fedvisit-tuned")
    assert rounded(best.local_test) == [5.1, 3.0, 7.1, 83]
    assert rounded(best.global_test) == [28.5, 26.3, 30.6, 91]
    assert "fedvisit" not in {row.row for row in digits.rows}
    assert "centralised" not in {row.method for row in digits.rows}


def test_means_and_deviations_give_an_interval_as_of_two_independent_means() -> None:
    linear = next(study for study in read_table() if study.name == "heart disease, linear")
    row = next(row for row in linear.rows if row.row == "fedavg-epsilon-3")
    half = 100 * 2 * ((0.022**2 + 0.018**2) / 4) ** 0.5
    assert linear.interval == UNPAIRED
    assert (row.method, row.epsilon, row.shared_noise) == ("fedavg", 3.0, False)
    assert rounded(row.local_test) == [1.7, round(1.7 - half, 2), round(1.7 + half, 2), None]
    tissue = next(study for study in read_table() if study.kind == "segmentation")
    assert (tissue.interval, tissue.rows[0].local_test.sign) == (SINGLE, None)


@pytest.mark.parametrize(("low", "high", "sign"), [(0.1, 2.0, 1), (-2.0, -0.1, -1), (-0.0, 1.0, 0), (None, None, None)])
def test_the_sign_of_a_gain(low: float | None, high: float | None, sign: int | None) -> None:
    assert MeasuredGain(1.0, low, high).sign == sign


def write_results(folder: Path, seeds: dict[int, dict[str, float]], **parameters: Any) -> Path:
    """Runs of two sites, whose models have a method's AUC of that seed on all data, and one point more at home."""
    sites = {"asia": 30, "europe": 50}
    methods = {
        label: {"method": label, "parameters": parameters if label == "fedvisit" else {}} for label in seeds[min(seeds)]
    }
    document = {
        "format": 1,
        "name": "own",
        "metric": "auc",
        "seeds": [*seeds],
        "folds": 0,
        "task": {"kind": "classification", "spatial_dims": 2, "in_channels": 1, "classes": 2},
        "methods": methods,
        "models": {"mixed": {}},
        "partitions": {"skewed": {"kind": "dirichlet"}},
        "links": [{"name": "all"}],
    }
    folder.mkdir()
    (folder / "experiment.json").write_text(json.dumps(document))
    for seed, label in ((seed, label) for seed in seeds for label in methods):
        run = folder / "runs" / f"skewed.mixed.all.{label}.fold-0.seed-{seed}"
        run.mkdir(parents=True)
        value = seeds[seed][label]
        known = {"format": 1, "partition": "skewed", "models": "mixed", "links": "all", "fold": 0, "metric": "auc"}
        result = {
            **known,
            "id": run.name,
            "method": label,
            "seed": seed,
            "task": "classification",
            "sites": {
                site: {"samples": {"training": count}, "model": {"name": "resnet10", "width": count}, "steps": 1}
                for site, count in sites.items()
            },
            "matrix": {site: {other: {"auc": value + 0.01 * (site == other)} for other in sites} for site in sites},
        }
        (run / "result.json").write_text(json.dumps(result))
    return folder


def test_own_results_are_paired_over_seeds(tmp_path: Path) -> None:
    seeds = {
        1: {"local": 0.70, "centralised": 0.80, "fedvisit": 0.74},
        2: {"local": 0.72, "centralised": 0.82, "fedvisit": 0.78},
    }
    (study,) = read_results(write_results(tmp_path / "runs", seeds, visits=1))
    assert (study.name, study.kind, study.objective, study.sites) == ("own", "classification", "classification", 2)
    assert (study.people, study.classes_alike, study.networks_differ, study.interval) == (40, False, True, PAIRED)
    (row,) = study.rows
    assert (row.row, row.epsilon, row.parameters) == ("fedvisit", None, {"visits": 1})
    half = 12.7062 * 2 / 2  # Student's 97.5 % quantile of 1 degree of freedom; gains of 4 and 6 points
    assert rounded(row.local_test) == [5.0, round(5 - half, 2), round(5 + half, 2), 50]


def test_one_seed_of_own_results_has_no_interval(tmp_path: Path) -> None:
    (study,) = read_results(write_results(tmp_path / "runs", {1: {"local": 0.7, "fedvisit": 0.74}}))
    assert study.interval == SINGLE
    assert rounded(study.rows[0].global_test) == [4.0, None, None, None]

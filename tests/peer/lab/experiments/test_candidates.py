"""``[sweep]``: the candidates that a file describes, and what is said about one that is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.errors import ConfigError
from peer.lab.experiments.candidates import expand
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.sweep import prepare, sweep
from peer.lab.report.choice import choose
from peer.lab.report.results import read

Write = Callable[..., Path]
VALIDATION = {"[8, 8]": "[8, 8]\nvalidation_share = 0.5"}
ROWS: dict[str, Any] = {"local": {}, "far": {"method": "fedskd", "stages": {"train": {"count": 3}}}}


def grid(**rows: Any) -> dict[str, Any]:
    return {"methods": rows}


def test_a_row_has_a_candidate_for_each_combination_of_values() -> None:
    rows = expand(ROWS, grid(far={"gamma": [1.0, 10.0], "stages": {"train": {"learning_rate": [1e-3, 1e-4]}}}))
    assert rows.pop("local") == {}
    assert rows.keys() == {
        f"far+gamma-{gamma}+train.learning_rate-{rate}" for gamma in (1.0, 10.0) for rate in (0.001, 0.0001)
    }
    assert rows["far+gamma-10.0+train.learning_rate-0.001"] == {
        "method": "fedskd",
        "candidate_of": "far",
        "gamma": 10.0,
        "stages": {"train": {"count": 3, "learning_rate": 0.001}},
    }
    assert ROWS["far"] == {"method": "fedskd", "stages": {"train": {"count": 3}}}


def test_values_of_every_row_are_combined_with_its_own() -> None:
    both = {
        "*": {"budget": {"learning_rate": [1e-3, 1e-2]}},
        "far": {"taps": [[4], [3, 4]]},
        "local": {"alpha": [1, 2]},
    }
    rows = expand(ROWS, {"methods": both})
    assert len(rows) == 8
    assert rows["far+learning_rate-0.01+taps-3_4"]["taps"] == [3, 4]
    assert rows["local+learning_rate-0.01+alpha-2"]["budget"] == {"learning_rate": 0.01}


def test_a_row_draws_as_many_candidates_as_the_others_and_keeps_them_when_there_are_more() -> None:
    far = {"gamma": [1.0, 2.0, 3.0, 4.0]}
    two, three = (expand(ROWS, {"candidates": count, **grid(far=far)}) for count in (2, 3))
    assert len(two) == 3
    assert two.keys() < three.keys()


def test_no_row_tries_more_than_the_bound_also_where_another_has_fewer_combinations() -> None:
    grids = grid(far={"gamma": [1, 2, 3, 4]}, local={"alpha": [1, 2]})
    rows = [keys["candidate_of"] for keys in expand(ROWS, {"candidates": 3, **grids}).values()]
    assert (rows.count("far"), rows.count("local")) == (3, 2)


@pytest.mark.parametrize(
    ("sweep_table", "message"),
    [
        (grid(fra={"gamma": [1.0]}), "sweep.methods.fra: no such row (did you mean 'far'?)"),
        (grid(far={"gamma": 1.0}), "sweep.methods.far.gamma: expected a list of values"),
        (grid(far={"stages": {"train": {"count": []}}}), "sweep.methods.far.stages.train.count: expected a list"),
        (grid(far={"taps": [[4], 4]}), "two rows would both be called 'far+taps-4'"),
        (
            grid(far={"gamma": [1, 2]}, local={"alpha": [1, 2, 3]}),
            "sweep.candidates: is needed, as the rows have different numbers of combinations (local 3, far 2)",
        ),
    ],
)
def test_a_wrong_sweep_is_refused_by_its_key(sweep_table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="sweep") as refusal:
        expand(ROWS, sweep_table)
    assert message in str(refusal.value)


def test_candidates_are_checked_like_rows_and_need_validation_samples(experiment: Write) -> None:
    methods = "[methods.local]\n[methods.fedskd]\n[sweep.methods.fedskd]\ngamma = [1.0, {}]\n"
    with pytest.raises(ConfigError, match=r"data\.validation_share: is 0 at 'africa'; candidates need validation"):
        Experiment.load(experiment(methods.format(10.0)))
    with pytest.raises(ConfigError, match=r"methods\.fedskd\+gamma--1\.0\.gamma"):
        Experiment.load(experiment(methods.format(-1.0), replace=VALIDATION))
    loaded = Experiment.load(experiment(methods.format(10.0), replace=VALIDATION))
    assert loaded.rows == ["local", "fedskd"]
    assert len(loaded.methods) == 3


def test_links_name_the_row_of_candidates(experiment: Write) -> None:
    methods = "[methods.local]\n[methods.fedskd]\n[sweep.methods.fedskd]\ngamma = [1.0, 10.0]\n"
    links = '[links.half]\nloss = 0.5\nmethods = ["fedskd"]\n'
    loaded = Experiment.load(experiment(methods + links, replace=VALIDATION))
    disturbed = [label for _, _, name, label in loaded.combinations() if name == "half"]
    assert sorted(disturbed) == ["fedskd+gamma-1.0", "fedskd+gamma-10.0"]


def test_a_rows_own_learning_rate_holds_in_all_its_stages(experiment: Write) -> None:
    loaded = Experiment.load(experiment("[methods.fedskd]\nbudget.learning_rate = 0.5\n"))
    assert {stage["learning_rate"] for stage in loaded.stages("fedskd").values()} == {0.5}
    paper = {"steps = 2\n": "steps = 2\npaper = true\n"}
    with pytest.raises(ConfigError, match=r"methods\.fedskd\.budget: has no effect with paper = true"):
        Experiment.load(experiment("[methods.fedskd]\nbudget.learning_rate = 0.5\n", replace=paper))


def test_candidates_by_hand_differ_in_parameters_alone(experiment: Write) -> None:
    rows = '[methods.a]\nmethod = "fedskd"\ncandidate_of = "best"\n[methods.b]\nmethod = "{}"\ncandidate_of = "{}"\n'
    assert Experiment.load(experiment(rows.format("fedskd", "best"), replace=VALIDATION)).rows == ["best"]
    with pytest.raises(ConfigError, match="the candidates of 'best' differ in method"):
        Experiment.load(experiment(rows.format("local", "best"), replace=VALIDATION))
    with pytest.raises(ConfigError, match="'a' is the name of another row"):
        Experiment.load(experiment(rows.format("fedskd", "a"), replace=VALIDATION))


@pytest.mark.e2e
def test_the_report_chooses_by_what_the_runs_measured_on_validation_samples(experiment: Write, tmp_path: Path) -> None:
    methods = "[methods.local]\n[sweep.methods.local]\nbudget.learning_rate = [1e-3, 1e-9]\n"
    runs = prepare(Experiment.load(experiment(methods, replace=VALIDATION)), tmp_path / "out")
    assert not sweep(runs, jobs=1, keep=False, watch=lambda progress: None)
    results = choose(read(tmp_path / "out"))
    assert [run.method for run in results.runs] == ["local"]
    assert sorted(score.candidate for score in results.scores) == [
        "local+learning_rate-0.001",
        "local+learning_rate-1e-09",
    ]
    assert all(score.value is not None and score.loss > 0 for score in results.scores)

"""Answers about synthetic studies, each with the answer that the rules give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fakes.drafts import draft
from peer.documents.laboratory import Advice
from peer.lab.advice.answer import advise
from peer.lab.advice.evidence import PAIRED, SINGLE, MeasuredGain, Study, StudyRow
from peer.lab.advice.question import Question
from peer.site.config.schema import FederationConfig

ABOVE, AROUND, BELOW = (4.0, 2.0, 6.0), (1.0, -1.0, 3.0), (-3.0, -5.0, -1.0)
SITES = [{"name": name} for name in ("africa", "asia", "europe")]
ONE = {"shared_model": {"name": "resnet10", "width": 8, "norm": "group"}}
NOISE = {"privacy": {"mechanism": "noise", "epsilon": 2.0, "people": 40}}


def question(
    method: str = "fedvisit", *, people: float | None = 40, alike: bool | None = True, **keys: Any
) -> Question:
    text = draft("trial", method=method, site=SITES, **keys)
    return Question(FederationConfig.parse(text, "federation.toml"), people=people, classes_alike=alike)


def study(name: str = "scans", *, networks_differ: bool = True, **gains: tuple[float, float, float]) -> Study:
    """A study with 40 people a site and a row of each method, by its gain and interval on Local Test."""
    rows = tuple(StudyRow(row, row, MeasuredGain(*gain), MeasuredGain(*gain)) for row, gain in gains.items())
    kind = "classification"
    return Study(name, f"simulate {name}", kind, kind, 6, 40.0, True, networks_differ, "AUC", PAIRED, rows)


def noisy(row: StudyRow, epsilon: float, **changes: Any) -> StudyRow:
    return replace(row, row=f"{row.row}-{epsilon:g}", epsilon=epsilon, **changes)


def seen(answer: Advice) -> Mapping[str, Any]:
    return {key: answer[key] for key in ("answer", "row", "method")}  # type: ignore[literal-required]


def names(answer: Advice) -> list[str]:
    return [each["name"] for each in answer["studies"]]


def test_a_clear_winner_is_named_with_its_visits() -> None:
    shipped = [study(fedvisit=ABOVE, fedskd=AROUND, dflmoe=BELOW), study("scans too", fedvisit=ABOVE, fedskd=ABOVE)]
    answer = advise(question(), [], shipped)
    assert seen(answer) == {"answer": "likely", "row": "fedvisit", "method": "fedvisit"}
    assert answer["visits"] == 1
    assert names(answer) == ["scans", "scans too"]
    assert answer["relaxed"] == answer["not_stated"] == []
    assert "above 0 in 2, below 0 in 0" in answer["reason"]
    assert answer["find_out"][0].endswith("--only local --only centralised --only fedvisit")


@pytest.mark.parametrize(
    ("gains", "expected", "words"),
    [
        ([AROUND], "does not know", "above 0 in 0, below 0 in 0"),
        ([ABOVE, AROUND], "does not know", "above 0 in 1, below 0 in 0"),
        ([ABOVE, ABOVE], "likely", "above 0 in 2"),
        ([BELOW, BELOW], "not likely", "below 0 in 2"),
        ([ABOVE], "does not know", "one experiment on other data is too few"),
        ([BELOW], "does not know", "one experiment on other data is too few"),
        ([BELOW, AROUND], "does not know", "below 0 in 1"),
    ],
)
def test_only_intervals_on_one_side_of_zero_in_every_study_answer(gains: Any, expected: str, words: str) -> None:
    answer = advise(question(), [], [study(f"study {index}", fedvisit=gain) for index, gain in enumerate(gains)])
    assert (answer["answer"], answer["row"]) == (expected, "fedvisit")
    assert words in answer["reason"]


def test_two_studies_of_one_experiment_and_classes_that_are_not_known_are_no_evidence_for_other_data() -> None:
    one, two = study(fedvisit=ABOVE), study("other", fedvisit=ABOVE)
    assert advise(question(), [], [one, replace(two, source=one.source)])["answer"] == "does not know"
    answer = advise(question(alike=None), [], [one, two])
    assert answer["answer"] == "does not know"
    assert "it is not known whether the sites have like classes" in answer["reason"]
    assert advise(question(alike=None), [one, two], [])["answer"] == "likely"


def test_a_row_that_not_all_like_studies_have_is_no_answer() -> None:
    answer = advise(question(), [], [study(fedskd=AROUND, fedvisit=ABOVE), study("other", fedskd=AROUND)])
    assert (answer["answer"], answer["row"]) == ("does not know", "fedvisit")
    assert "1 of 2 like studies measured" in answer["reason"]


def test_without_a_study_of_the_task_it_does_not_know() -> None:
    signals = replace(study(fedvisit=ABOVE), kind="time_series", objective="time_series")
    answer = advise(question(), [], [signals])
    assert seen(answer) == {"answer": "does not know", "row": None, "method": None}
    assert 'nothing was measured of the kind "classification" with the target "class"' in answer["reason"]
    assert answer["studies"] == []
    assert answer["find_out"]


def test_a_single_run_is_no_evidence() -> None:
    single = replace(
        study(), interval=SINGLE, rows=(StudyRow("fedvisit", "fedvisit", MeasuredGain(4.0), MeasuredGain(4.0)),)
    )
    answer = advise(question(), [], [single])
    assert answer["answer"] == "does not know"
    assert "a single run has no interval" in answer["reason"]


def test_networks_give_way_before_classes_and_these_before_people() -> None:
    base = study(fedvisit=ABOVE)
    networks = replace(base, name="networks", networks_differ=False)
    classes = replace(base, name="classes", classes_alike=None)
    people = replace(base, name="people", people=121.0)
    answer = advise(question(), [], [people, classes, networks])
    assert names(answer) == ["networks"]
    assert answer["relaxed"] == ["networks: own networks here, one network there"]
    answer = advise(question(), [people, classes], [])
    assert names(answer) == ["classes"]
    assert answer["relaxed"] == ["classes of the sites: alike here, not known there"]
    assert answer["answer"] == "likely"
    answer = advise(question(), [], [people])
    assert answer["relaxed"] == ["people of a site: 40 here, 121 there"]
    assert (answer["answer"], answer["row"]) == ("does not know", "fedvisit")
    assert "no study has as many people a site" in answer["reason"]
    assert advise(question(), [replace(people, people=120.0)], [])["answer"] == "likely"


def test_what_is_not_known_is_named_and_not_compared() -> None:
    answer = advise(question(people=None, alike=None), [], [replace(study(fedvisit=ABOVE), classes_alike=False)])
    assert (answer["answer"], answer["row"], answer["relaxed"]) == ("does not know", "fedvisit", [])
    assert "it is not known how many people a site has" in answer["reason"]
    assert [sentence.partition(":")[0] for sentence in answer["not_stated"]] == [
        "how many people a site has", "whether the sites have like classes",
    ]  # fmt: skip


def test_own_results_come_before_the_table() -> None:
    own = replace(study("own", fedskd=AROUND), source="runs")
    answer = advise(question(), [own], [study(fedvisit=ABOVE)])
    assert (names(answer), answer["row"], answer["answer"]) == (["own"], "fedskd", "does not know")
    other_task = replace(own, objective="labels")
    assert names(advise(question(), [other_task], [study(fedvisit=ABOVE)])) == ["scans"]


def test_networks_of_their_own_exclude_methods_of_one_network() -> None:
    shipped = [study(fedavg=ABOVE, fedvisit=AROUND)]
    answer = advise(question(), [], shipped)
    assert answer["row"] == "fedvisit"
    assert answer["excluded"].keys() == {"fedavg"}
    assert "needs one network for all sites" in answer["excluded"]["fedavg"]
    answer = advise(question("fedavg", **ONE), [], shipped)
    assert (answer["row"], answer["excluded"], answer["networks_differ"]) == ("fedavg", {}, False)


def test_noise_leaves_rows_with_such_noise_of_methods_that_bear_it() -> None:
    plain = study(networks_differ=False, fedavg=ABOVE, fedskd=ABOVE, fedvisit=ABOVE)
    fedavg, fedskd, fedvisit = plain.rows
    less = replace(fedvisit, local_test=MeasuredGain(*AROUND))
    rows = (*plain.rows, noisy(less, 1), noisy(fedavg, 3), noisy(fedavg, 0.5), noisy(fedskd, 1))
    shipped = [replace(plain, rows=(*rows, noisy(fedavg, 1, shared_noise=True)))]
    answer = advise(question("fedavg", **ONE, **NOISE), [], shipped)
    assert (answer["answer"], answer["row"], answer["epsilon"]) == ("does not know", "fedvisit-1", 2.0)
    assert answer["noise_costs"] == ["fedvisit-1 in scans: 3.0 points of AUC on Local Test at ε = 1"]
    excluded = answer["excluded"]
    assert excluded.keys() == {"fedavg", "fedskd", "fedvisit", "fedavg-3", "fedavg-0.5", "fedskd-1", "fedavg-1"}
    assert excluded["fedvisit"] == "was measured without noise"
    assert excluded["fedavg-3"] == "was measured at ε = 3"
    assert excluded["fedavg-0.5"] == "was measured at ε = 0.5"
    assert "cannot train with noise" in excluded["fedskd-1"]
    assert "[aggregate] secure" in excluded["fedavg-1"]
    answer = advise(question("fedavg", **ONE), [], shipped)
    assert answer["excluded"]["fedvisit-1"] == "was measured with noise"
    assert answer["noise_costs"] == []

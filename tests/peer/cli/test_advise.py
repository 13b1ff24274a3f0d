"""`advise` as an operator calls it: the files that it reads, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run, run_json
from fakes.drafts import draft, site_text

SITES = [{"name": name} for name in ("africa", "asia", "europe")]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text(draft("trial", site=SITES))
    return path


def statistics(folder: Path, difference: float | None, *, own: int = 60, kind: str = "category") -> Path:
    """A file of statistics of so many people at the site and 140 at the others, by the labels' difference."""
    target: dict[str, Any] = {"role": "target", "kind": kind, "difference": difference, "cells": ["no", "yes"]}
    sizes = {"own": {"known": own}, "all": {"known": own + 140}}
    times = {"role": "target", "kind": "time", "difference": 3.0, "cells": ["0 to 6"], **sizes}
    column = {"role": "column", "kind": "flag", "difference": 3.0, "cells": ["no", "yes"], **sizes}
    document = {"site": "asia", "own": {"people": own}, "variables": [column, {**target, **sizes}, times]}
    path = folder / "statistics.json"
    path.write_text(json.dumps(document))
    return path


def test_a_person_reads_the_answer_its_evidence_and_the_next_commands(plan: Path, tmp_path: Path) -> None:
    result = run("advise", plan, "--statistics", statistics(tmp_path, 0.1))
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    text = " ".join(lines)
    assert (
        "trial: classification, 3 sites, 60 people a site (the statistics of asia, which count test people too)" in text
    )
    assert "does joining pay likely: 2 of 2 like studies measured the method below" in text
    assert "method fedvisit, visits = 1 (the row fedvisit-tuned): the highest mean gain on Local Test" in lines
    assert "lung nodules 6 20 fedvisit-tuned +5.0 (+1.0 to +8.9) +4.7 (+0.8 to +8.6) 99 % best" in lines
    assert any(line.startswith("dflmoe -2.0") and line.endswith("harmed") for line in lines)
    assert any(line.startswith("fedskd +1.5") and line.endswith("the plan's") for line in lines)
    assert f"mhfl-peer advise {plan} --results runs" in text


def test_without_statistics_it_says_what_it_cannot_say(plan: Path) -> None:
    document = run_json("advise", plan)
    assert (document["answer"], document["people"], len(document["not_stated"])) == ("does not know", None, 2)


@pytest.mark.parametrize(
    ("difference", "own", "kind", "alike"),
    [
        (0.09, 100_000, "category", True),
        (0.30, 60, "category", True),  # two standard errors are 2 (1 / 60 + 1 / 140) ** 0.5 = 0.309
        (0.32, 60, "category", False),
        (0.32, 60, "number", False),
        (None, 60, "category", None),
    ],
)
def test_labels_are_unlike_beyond_chance_alone(
    plan: Path, tmp_path: Path, difference: float | None, own: int, kind: str, alike: bool | None
) -> None:
    file = statistics(tmp_path, difference, own=own, kind=kind)
    assert run_json("advise", plan, "--statistics", file)["classes_alike"] is alike


def test_people_are_those_of_the_datalist_for_training(plan: Path, tmp_path: Path) -> None:
    entries = [{"image": f"{index}.npy", "label": index % 2, "subject": f"s{index // 2}"} for index in range(30)]
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries, "test": []}))
    (tmp_path / "site.toml").write_text(site_text(egress={"kinds": ["proxy"]}))
    words = ("advise", plan, "--site-file", tmp_path / "site.toml", "--statistics", statistics(tmp_path, 0.0))
    document = run_json(*words)
    assert (document["people"], document["people_from"]) == (15, "the site's datalist, for training")
    assert document["row"] == "proxyfl"
    assert "[egress]" in document["excluded"]["fedvisit-tuned"]


def test_people_of_the_plan_are_the_last_choice(tmp_path: Path) -> None:
    noise = {"mechanism": "noise", "epsilon": 1.0, "people": 40}
    (tmp_path / "federation.toml").write_text(draft("trial", method="fedvisit", site=SITES, privacy=noise))
    document = run_json("advise", tmp_path / "federation.toml")
    assert (document["people"], document["people_from"]) == (40, "[privacy] people of the plan")
    assert (document["answer"], document["row"]) == ("does not know", None)


def test_a_site_of_this_machine_is_asked_about_with_its_own_files(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "trial" / "asia"
    folder.mkdir(parents=True)
    plan.rename(folder / "federation.toml")
    (folder / "site.toml").write_text(site_text(egress={"kinds": ["proxy"]}))
    document = run_json("advise", "--site", "asia", "--home", tmp_path / "home")
    assert (document["federation"], document["row"], document["people"]) == ("trial", "proxyfl", None)


def test_files_and_a_site_are_not_asked_about_together(plan: Path, tmp_path: Path) -> None:
    for words in ((plan, "--site", "asia"), ("--site-file", plan), ("--site-file", plan, "--site", "asia")):
        assert "two things" in refused("UsageError", "advise", *words, "--home", tmp_path)
    assert "no results" in refused("UsageError", "advise", plan, "--results", tmp_path)

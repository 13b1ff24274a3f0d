"""`statistics` as an operator calls it: own figures beside all members', a page, and why there are none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.cli import refused, run, run_json
from peer.core.columns import TableColumn
from peer.core.targets import Target, TimeToEvent
from peer.methods.method import Record
from peer.methods.statistics.counts import count_records
from peer.methods.statistics.noisy_summary import summarise_people
from peer.methods.statistics.person_sums import list_places, sum_people, unit_in_people
from peer.methods.statistics.summary import summarise
from peer.methods.statistics.variables import list_variables, values_of

TARGET = Target("survival", times=(6.0, 12.0), unit="months", horizon=12.0)
COLUMNS = (TableColumn("age", "number", (20.0, 90.0), unit="years"), TableColumn("smoker", "flag"))
SHOWN = """
federation  trial
europe      60 samples of 60 people
all         120 samples of 120 people: asia, europe
 variable                         known   missing                    mean ± sd       distribution   difference
 age years                  own   50      10, 17 % (some left out)   46.26 ± 9.653   ·████···       1.54 !
                            all   100     20, 17 % (some left out)   53.66 ± 12.11   ·▅▅██▄··
 smoker                     own   60      0, 0 %                     -               █·             -
                            all   120     0, 0 %                     -               █▂
 event                      own   60      0, 0 %                     -               ██             0.00
                            all   120     0, 0 %                     -               ██
 time of event months       own   30      -                          -               ██             0.00
                            all   60      -                          -               ██
 time of censoring months   own   30      -                          -               ·█             -
                            all   60      -                          -               ·█
 variable   value   own        all
 smoker     no      50, 83 %   90, 75 %
            yes     withheld   20, 17 %; withheld by 1
 event      no      30, 50 %   60, 50 %
            yes     30, 50 %   60, 50 %
survival, own
 interval   at risk   events   censored   survival
 0 to 6     60        15       0          0.75
 6 to 12    45        15       30         0.5
survival, all
 interval   at risk   events   censored   survival
 0 to 6     120       30       0          0.75
 6 to 12    90        30       60         0.5
difference: standardised mean difference of europe from the others; from 0.1 on (!), groups count as unlike. Counts of \
fewer than 10 people did not leave
europe.
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    variables = list_variables(COLUMNS, TARGET, (), 2, bins=8)
    tables = []
    for name, first, smokers in (("europe", 30, 4), ("asia", 45, 20)):
        records = [
            Record(
                f"{name} {index}",
                (math.nan if index == 0 else first + (index * 7) % 33, float(index < smokers)),
                TimeToEvent(3.0 + 6 * (index // 2 % 2) if index % 2 else 9.0, index % 2 == 1),
            )
            for index in range(60)
        ]
        values = np.array([values_of(record, TARGET) for record in records])
        tables.append(count_records(variables, records, values, 10))
    (count, own), (more, other) = tables
    head: dict[str, Any] = {"federation": "trial", "site": "europe", "round": 1, "members": ["asia", "europe"]}
    document = {**head, "count_min": 10, **summarise(variables, (count, own), (count + more, own + other))}
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps(document))
    return path


def test_it_shows_own_figures_beside_those_of_all(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("statistics", "--file", file, "--out", page)
    assert result.exit_code == 0, result.stderr
    lines = [line.rstrip() for line in result.stdout.splitlines() if line.strip(" ─")]
    assert [*lines, ""] == [*SHOWN.splitlines()[1:], f"{page} shows it in a browser.", ""]
    text = page.read_text("utf-8")
    assert "<script" not in text
    assert "://" not in text
    for words in ("Statistics", "age", "standardised mean difference", "Survival, all", "withheld"):
        assert words in text
    document = run_json("statistics", "--file", file)
    assert document == json.loads(file.read_text())
    assert run("statistics", "--file", file, "--out", page).exit_code == 0
    (tmp_path / "other.html").write_text("{}")
    assert "exists" in refused("StateError", "statistics", "--file", file, "--out", tmp_path / "other.html")
    assert "name a file that ends with .html" in refused("UsageError", "statistics", "--out", tmp_path / "page.pdf")


def test_with_noise_each_figure_of_all_has_its_error_and_what_is_hidden_is_left_out(tmp_path: Path) -> None:
    variables = list_variables(COLUMNS, TARGET, (), 2, bins=8)
    records = [
        Record(f"{index}", (math.nan if index == 0 else 30.0 + index % 40, float(index < 4)), TimeToEvent(3.0, True))
        for index in range(60)
    ]
    values = np.array([values_of(record, TARGET) for record in records])
    own = sum_people(variables, records, values) * unit_in_people(variables)
    total = 2 * own + 2.0
    total[list_places(variables)[0][1].cells + 1] = -7.0
    head: dict[str, Any] = {"federation": "trial", "site": "europe", "round": 1, "members": ["asia", "europe"]}
    document = {**head, "count_min": 10, **summarise_people(variables, own, total, 16.0)}
    document["noise"] |= {"epsilon": 1.0, "delta": 1e-4}
    path, page = tmp_path / "statistics.json", tmp_path / "page.html"
    path.write_text(json.dumps(document))
    shown = " ".join(run("statistics", "--file", path, "--out", page).stdout.split())
    text = page.read_text("utf-8")
    for words in (
        "all 122 (16) people: asia, europe",
        "age years own 59 1, 2 %",
        "all 118 (23) 4 (16), 3 %",
        "yes 4, 7 % -7 (16), 0 %",
        "0 to 6 124 (16) 122 (16)",
        "lost in noise",
        "(ε 1, δ 0.0001): a number in brackets is the standard error that noise alone gives to the figure before it",
        "The figures of europe have none",
    ):
        assert words in shown, words
    assert "Counts of fewer than" not in shown + text
    assert "-7 (16), 0 %" in text
    assert "122 (16) people" in text
    assert "standard error that noise alone gives" in text


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{}", "no JSON"):
        (tmp_path / "other.json").write_text(text)
        assert "is no file of statistics" in refused("StateError", "statistics", "--file", tmp_path / "other.json")

"""Tables in real daemons: every target comes to the last round, to the simulator's bits, and to predictions."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run, run_json
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 2
DRAFT = """
name = "trial"
rounds = {rounds}
[task]
kind = "tabular"
{target}
[[task.column]]
name = "age"
kind = "number"
range = [20, 90]
[[task.column]]
name = "sex"
kind = "category"
levels = ["female", "male"]
[method]
name = "fedvisit"
[stages.train]
count = 4
learning_rate = 1e-3
[pace]
linger_s = 20
"""
SITE = """
[data]
datalist = "{datalist}"
[model]
name = "{network}"
[training]
device = "cpu"
"""
TARGETS: dict[str, tuple[str, Callable[[int], Any], list[str]]] = {
    "survival": (
        'target = "survival"\ntimes = [6, 12, 24]',
        lambda age: {"time": age - 28, "event": age % 2 == 0},
        ["survival(6)", "survival(12)", "survival(24)", "median"],
    ),
    "number": ('target = "number"\nrange = [0, 60]', lambda age: age - 20.5, ["value"]),
    "labels": (
        'target = "labels"\nclass_names = ["pain", "fever"]',
        lambda age: [age % 2, None if age % 3 else 1],
        ["p(pain)", "p(fever)"],
    ),
}


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=() if name == "survival" else pytest.mark.nightly) for name in TARGETS]
)
def test_every_target_comes_to_the_simulators_bits_and_to_predictions(
    warm: type[LocalFederation],
    tools: Any,
    assert_simulated: Callable[[LocalFederation], None],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    target: str,
) -> None:
    keys, label, columns = TARGETS[target]
    root, texts = tmp_path_factory.mktemp("tables"), {}
    for name, network, first in (("asia", "mlp", 30), ("europe", "tabular_resnet", 50)):
        rows = [
            {"image": f"row {age}", "label": label(age), "row": {"age": age, "sex": "male" if age % 3 else None}}
            for age in range(first, first + 18)
        ]
        path = root / f"{name}.json"
        path.write_text(json.dumps({"training": rows[:12], "test": rows[12:]}))
        texts[name] = SITE.format(datalist=path, network=network)
    with warm.create(root, DRAFT.format(rounds=ROUNDS, target=keys), texts) as loopback:
        tools.start(loopback, ("asia", "europe"))
        tools.finish_well(loopback)
    for name in ("asia", "europe"):
        assert [record["round"] for record in tools.records(loopback, name)] == [1, 2]
        assert not any(record["missing"] for record in tools.records(loopback, name))
    assert_simulated(loopback)
    table = tmp_path / "new.csv"
    table.write_text("age;sex\n41,5;male\n66;female\n120;male\n")
    answer = run_json("predict", "--home", loopback.home, "--site", "asia", table, "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        header, *lines = csv.reader(file)
    assert header == ["file", *columns]
    assert [line[0] for line in lines] == ["new.csv line 2", "new.csv line 3"]
    (skipped,) = answer["skipped"]
    assert skipped["reason"] == "column age: new.csv line 4: 120 is outside 20 to 90"


STATISTICS = """
[egress]
training_set_size = true
count_min = 3
"""


def test_sites_count_together_and_have_no_model(
    warm: type[LocalFederation],
    tools: Any,
    assert_simulated: Callable[[LocalFederation], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root, texts = tmp_path_factory.mktemp("statistics"), {}
    keys, label, _ = TARGETS["survival"]
    for name, first in (("asia", 30), ("europe", 50)):
        rows = [
            {"image": f"row {age}", "label": label(age), "row": {"age": age, "sex": "male" if age % 3 else None}}
            for age in range(first, first + 18)
        ]
        path = root / f"{name}.json"
        path.write_text(json.dumps({"training": rows[:12], "test": rows[12:]}))
        texts[name] = SITE.format(datalist=path, network="linear") + STATISTICS
    draft = DRAFT.format(rounds=1, target=keys).replace(
        '"fedvisit"\n[stages.train]\ncount = 4', '"statistics"\nbins = 7\n[stages.count]'
    )
    with warm.create(root, draft, texts) as loopback:
        options = ("--home", loopback.home, "--site", "asia")
        assert "the round is not over" in refused("StateError", "statistics", *options)
        tools.start(loopback, ("asia", "europe"))
        tools.finish_well(loopback)
    assert_simulated(loopback)
    documents = {name: run_json("statistics", "--home", loopback.home, "--site", name) for name in texts}
    asia, europe = documents["asia"], documents["europe"]
    assert (asia["all"], asia["members"]) == (europe["all"], ["asia", "europe"])
    assert asia["all"] == {"samples": 36, "people": 36}
    for variable, other in zip(asia["variables"], europe["variables"], strict=True):
        assert variable["all"] == other["all"]
        added = [one + two for one, two in zip(variable["own"]["counts"], other["own"]["counts"], strict=True)]
        assert variable["all"]["counts"] == added
    age, sex = asia["variables"][:2]
    assert age["all"]["mean"] == pytest.approx(48.5, abs=1e-5)
    assert (sex["own"]["known"], sex["own"]["counts"]) == (12, [0, 12])
    (record,) = tools.records(loopback, "asia")
    assert all(name.startswith("count_") for name in record["metrics"]), "nothing is evaluated"
    assert "has no model" in refused("StateError", "predict", *options, root / "asia.json", "--out", root / "out.csv")
    assert "has no model" in refused("StateError", "export", *options, "--format", "onnx", "--out", root / "out.onnx")
    assert run("status", *options).exit_code == run("rounds", *options).exit_code == 0

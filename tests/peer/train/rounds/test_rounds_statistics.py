"""Rounds of statistics on signals: labels alone are counted, equal tables count twice, and impossible ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.core import commands, events
from peer.core.worker_protocol import WorkerSetting
from peer.files import STATISTICS_FILE
from peer.methods.statistics.stages import SUMS
from peer.train.trainer import Trainer


def document(together: Any, site: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((Path(together.settings[site].home) / STATISTICS_FILE).read_text())
    return read


def test_equal_tables_of_labels_are_added_up_and_written(sites: Any, equal: Any) -> None:
    together = sites("statistics", egress={"count_min": 1})
    together.round(1)
    samples = {
        site: sum(trainer.data.counts[split] for split in ("training", "test"))
        for site, trainer in together.trainers.items()
    }
    assert len(set(samples.values())) == 1, "the sites have the same samples"
    read = document(together, "beta")
    assert (read["site"], read["round"], read["members"]) == ("beta", 1, ["alpha", "beta", "gamma"])
    assert read["all"]["samples"] == sum(samples.values())
    (label,) = read["variables"]
    assert (label["name"], label["kind"], label["cells"]) == ("class", "category", ["class_0", "class_1"])
    assert label["all"]["counts"] == [3 * count for count in label["own"]["counts"]]
    assert label["difference"] == 0
    assert equal(together.state_of("alpha", SUMS), together.state_of("gamma", SUMS))
    assert together.evaluated("alpha") == {}
    left = together.artifact_state("alpha")
    assert {name: value.dtype for name, value in left.items()} == dict.fromkeys(left, torch.int64)


def test_below_its_own_threshold_a_site_sends_zeros(sites: Any) -> None:
    together = sites("statistics", egress={"count_min": 1000})
    together.train_all("count")
    assert not any(value.any() for value in together.artifact_state("alpha").values())


def test_a_table_that_no_samples_give_is_refused(sites: Any) -> None:
    together = sites("statistics")
    together.train_all("count")
    together.receive("alpha", 1)
    source = together.forge(together.sources_of["alpha"]["beta"], lambda state: state["network.table"].fill_(-1))
    event = together.do(commands.Aggregate(1, 1, 1, together.state["alpha"], (source,)), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert "it claims -1 people" in event.reason


@pytest.mark.parametrize("method", ["statistics", "local"])
def test_a_site_with_one_class_alone_can_be_counted_but_not_trained_on(
    make_setting: Callable[..., WorkerSetting], signals: Path, method: str
) -> None:
    path = signals / "datalist.json"
    listed = json.loads(path.read_text())
    path.write_text(json.dumps({split: [entry for entry in listed[split] if entry["label"] == 1] for split in listed}))
    trainer = Trainer(make_setting(method={"name": method}))
    if method == "local":
        with pytest.raises(Exception, match="one class only"):
            trainer.perform(commands.Initialise(1, 1))
        return
    assert isinstance(trainer.perform(commands.Initialise(1, 1)), events.Initialised)

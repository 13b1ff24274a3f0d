"""FedDAL between real trainers: both networks learn, switches, bad proxies, and that the proxy learns the task."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from peer.core import commands, events
from peer.core.roster import SiteName
from peer.training.artifact import write_artifact

SITES = ("alpha", "beta", "gamma")


def test_feddal_reports_its_consensus_and_trains_both(sites: Any, equal: Any) -> None:
    together = sites("feddal")
    before = {name: together.state_of("alpha", name) for name in ("dam", "proxy")}
    event = together.train("alpha", "train")
    assert isinstance(event, events.Trained)
    assert 0 <= event.metrics["train_consensus"] <= 1
    assert {"train_forward_kl", "train_feeding", "train_ce_dam"} <= set(event.metrics)
    assert "train_ce_proxy" not in event.metrics
    assert not any(equal(before[name], together.state_of("alpha", name)) for name in before)


def test_the_optimiser_of_what_is_averaged_begins_anew_and_that_of_what_stays_goes_on(sites: Any) -> None:
    together = sites("feddal")
    together.round(1)
    moments = together.folder("alpha").glob("*.adam.safetensors")
    assert sorted(path.name for path in moments) == ["dam.adam.safetensors"]


def test_a_proxy_with_bad_values_is_refused(sites: Any, equal: Any) -> None:
    together = sites("feddal")
    for site in SITES:
        event = together.train(site, "train")
        assert isinstance(event, events.Trained)
        together.artifact[site] = event.artifact
    together.receive("alpha", 1)
    source = together.sources_of["alpha"]["beta"]
    state = together.artifact_state("beta")
    state["fc.bias"].fill_(float("nan"))
    bad = write_artifact(
        Path(together.settings["alpha"].home) / "artifacts",
        state,
        spec=source.artifact.spec,
        kind="proxy",
        owner=SiteName("beta"),
        steps=2,
        training_samples=None,
    )
    before = together.state_of("alpha", "proxy")
    command = commands.Aggregate(1, 1, 1, together.state["alpha"], (dataclasses.replace(source, artifact=bad),))
    event = together.trainers["alpha"].perform(command)
    assert isinstance(event, events.ArtifactRejected)
    assert event.origin == "beta"
    assert "holds a NaN or an infinity" in event.reason
    assert equal(before, together.state_of("alpha", "proxy"))


@pytest.mark.nightly
def test_the_proxy_itself_has_learnt_the_task(readers: Any, accuracy: Any) -> None:
    together = readers("feddal", {"name": "resnet10", "width": 8}, learning_rate=1e-3, rounds=5)
    for site, trainer in together.trainers.items():
        trainer.site_networks.load(together.state[site])
        proxy = trainer.site_networks.networks["proxy"].eval()
        assert accuracy(trainer, lambda images, proxy=proxy: proxy(images).prediction) > 0.3  # chance is 0.1
        assert together.evaluated(site)["accuracy"] > 0.5

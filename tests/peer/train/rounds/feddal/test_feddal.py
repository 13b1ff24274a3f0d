"""FedDAL between real trainers: both networks learn, switches, bad proxies, and that the proxy learns the task."""

from typing import Any

import pytest

from peer.core import commands, events


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
    together.train_all("train")
    together.receive("alpha", 1)
    bad = together.forge(together.sources_of["alpha"]["beta"], lambda state: state["fc.bias"].fill_(float("nan")))
    before = together.state_of("alpha", "proxy")
    event = together.trainers["alpha"].perform(commands.Aggregate(1, 1, 1, together.state["alpha"], (bad,)))
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

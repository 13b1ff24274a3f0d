"""Received models and heads are tried on own samples before they are used."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peer.core import commands, events
from peer.core.roster import SiteName
from peer.training.errors import UnusableArtifact
from peer.training.own_data_probe import OwnDataProbe
from peer.training.trainer import Trainer

Change = Callable[[Tensor], Tensor]


@pytest.fixture
def probe(make_setting: Any) -> tuple[Trainer, OwnDataProbe, commands.Source]:
    """A trained site, its probe, and a source of its peer."""
    trainer = Trainer(make_setting(site="alpha", steps=40))
    start = trainer.perform(commands.Initialise(1, 1))
    assert isinstance(start, events.Initialised)
    trained = trainer.perform(commands.Train(1, 1, 2, "train", start.state, ()))
    assert isinstance(trained, events.Trained)
    assert trained.artifact is not None
    source = commands.Source(SiteName("beta"), 1, dataclasses.replace(trained.artifact, owner=SiteName("beta")))
    return trainer, OwnDataProbe(trainer.settings, lambda: trainer.data, trainer.device), source


def changed(network: nn.Module, change: Change) -> nn.Module:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(change(parameter))
    return network


def received(trainer: Trainer, change: Change) -> nn.Module:
    return changed(copy.deepcopy(trainer.site_networks.dam), change)


def test_a_trained_model_passes(probe: Any) -> None:
    trainer, check, source = probe
    check.check_model(source, trainer.site_networks.dam, trainer.site_networks.dam)
    assert check.loss_ratio(trainer.site_networks.dam) < 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value * -30 if value.ndim == 2 else value, "times that of no knowledge, above"),
        (lambda value: value * 1e30, "its predictions on this site's samples are no numbers up to 10000"),
        (torch.zeros_like, "all its weights are zero"),
    ],
)
def test_a_model_that_training_cannot_give_is_refused(probe: Any, change: Change, reason: str) -> None:
    trainer, check, source = probe
    with pytest.raises(UnusableArtifact, match=reason):
        check.check_model(source, received(trainer, change), trainer.site_networks.dam)


def test_a_return_that_lost_half_of_what_a_model_may_lose_is_refused(probe: Any) -> None:
    trainer, check, source = probe
    sent = trainer.site_networks.dam
    before = check.loss_ratio(sent)
    for factor in range(1, 60):
        returned = changed(
            copy.deepcopy(sent), lambda value, factor=factor: value * -factor / 8 if value.ndim == 2 else value
        )
        if before + 2 < check.loss_ratio(returned) < 4:
            break
    check.check_model(source, returned)
    with pytest.raises(UnusableArtifact, match=r"rose from .* to .* times that of no knowledge, by more than 2"):
        check.check_return(source, returned, sent)
    check.check_return(source, sent, returned)


def test_a_head_of_another_scale_is_refused_and_one_of_another_width_passes(probe: Any) -> None:
    trainer, check, source = probe
    own = trainer.site_networks.dam
    classes = trainer.settings.task.classes
    check.check_head(source, nn.Linear(7, classes), own)
    check.check_head(source, nn.Linear(300, classes), own)
    with pytest.raises(UnusableArtifact, match="times as widely as those of the own head"):
        check.check_head(source, changed(nn.Linear(7, classes), lambda value: value * 1000), own)


def test_the_site_s_own_copies_and_a_bound_of_zero_are_never_refused(probe: Any) -> None:
    trainer, check, source = probe
    own, scaled = trainer.site_networks.dam, received(trainer, lambda value: value * 1000)
    check.check_model(dataclasses.replace(source, origin=SiteName("alpha")), scaled, own)
    switched_off = dataclasses.replace(trainer.settings, probe_ratio_max=0.0)
    OwnDataProbe(switched_off, lambda: trainer.data, trainer.device).check_model(source, scaled, own)


@pytest.mark.parametrize(
    "spoil",
    [lambda images: images * float("nan"), lambda images: images * 1e30],
    ids=["images that are no numbers", "images of another scale"],
)
def test_a_site_whose_own_data_are_broken_refuses_nobody(
    probe: Any, spoil: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """The own network fails on them as well, so they say nothing of what was received."""
    trainer, check, source = probe
    images, targets = check._samples()
    own, sent = trainer.site_networks.dam, received(trainer, lambda value: value * 1.01)
    check.check_model(source, sent, own)
    assert not caplog.records
    check._batch = spoil(images), targets
    check.check_model(source, sent, own)
    check.check_head(source, nn.Linear(7, trainer.settings.task.classes), own)
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "look at the data" in caplog.text


def test_an_own_head_that_predicts_the_same_for_all_refuses_nobody(probe: Any) -> None:
    trainer, check, source = probe
    own = changed(trainer.site_networks.dam, torch.zeros_like)
    check.check_head(source, nn.Linear(7, trainer.settings.task.classes), own)

"""Received models and heads are tried on own samples before they are used."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.roster import SiteName
from peer.files import artifact_path
from peer.train.artifact import write_artifact
from peer.train.errors import UnusableArtifact
from peer.train.own_data_probe import OwnDataProbe, _limited, _lower_end, largest_change
from peer.train.tensors import unpack
from peer.train.trainer import Trainer

Change = Callable[[Tensor], Tensor]


@pytest.fixture
def probe(make_setting: Any) -> tuple[Trainer, OwnDataProbe, Source]:
    """A trained site, its probe, and a source of its peer."""
    trainer = Trainer(make_setting(site="alpha", steps=40))
    start = trainer.perform(commands.Initialise(1, 1))
    assert isinstance(start, events.Initialised)
    trained = trainer.perform(commands.Train(1, 1, 2, "train", start.state, ()))
    assert isinstance(trained, events.Trained)
    assert trained.artifact is not None
    source = Source(SiteName("beta"), 1, dataclasses.replace(trained.artifact, owner=SiteName("beta")))
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
    """Some returns pass as a model, but not as what this site sent, however the processor rounds."""
    trainer, check, source = probe
    sent = trainer.site_networks.dam
    reasons = []
    for factor in range(1, 240):
        returned = changed(
            copy.deepcopy(sent), lambda value, factor=factor: value * -factor / 32 if value.ndim == 2 else value
        )
        try:
            check.check_model(source, returned, sent)
        except UnusableArtifact:
            break
        try:
            check.check_return(source, returned, sent)
        except UnusableArtifact as error:
            reasons.append(str(error))
            check.check_return(source, sent, returned)
    assert reasons
    assert all(re.search("rose from .* to .* times that of no knowledge, by more than 2", each) for each in reasons)


@pytest.mark.parametrize(
    ("wrong", "samples", "refused"), [(2, 18, False), (6, 18, False), (10, 32, False), (16, 18, True), (32, 32, True)]
)
def test_some_confident_errors_among_few_samples_are_no_proof(wrong: int, samples: int, refused: bool) -> None:
    """A class that the visitor's host lacks is forgotten with a loss of tens for each of its samples."""
    rise = _limited(torch.tensor([40.0] * wrong + [0.1] * (samples - wrong), dtype=torch.float64), bound=4.0) - 0.1
    assert (_lower_end(rise) > 2.0) == refused


@pytest.mark.parametrize("samples", [8, 18, 32])
def test_the_lower_end_is_that_of_student_s_distribution(samples: int) -> None:
    values = torch.linspace(0.0, 1.0, samples, dtype=torch.float64) ** 2
    error = float(values.std()) / math.sqrt(samples)
    quantile = (float(values.mean()) - _lower_end(values)) / error
    assert quantile == pytest.approx(scipy.stats.t.ppf(0.999, samples - 1), rel=0.03)
    assert _lower_end(torch.tensor([math.inf, 1.0])) == math.inf


def test_a_head_of_another_scale_is_refused_and_one_of_another_width_passes(probe: Any) -> None:
    trainer, check, source = probe
    own = trainer.site_networks.dam
    classes = trainer.settings.task.classes
    check.check_head(source, nn.Linear(7, classes), own)
    check.check_head(source, nn.Linear(300, classes), own)
    with pytest.raises(UnusableArtifact, match="all its weights are zero"):
        check.check_head(source, changed(nn.Linear(7, classes), torch.zeros_like), own)
    with pytest.raises(UnusableArtifact, match="times as widely as those of the own head"):
        check.check_head(source, changed(nn.Linear(7, classes), lambda value: value * 1000), own)


def test_the_site_s_own_copies_and_a_bound_of_zero_are_never_refused(probe: Any) -> None:
    trainer, check, source = probe
    own, scaled = trainer.site_networks.dam, received(trainer, lambda value: value * 1000)
    check.check_model(dataclasses.replace(source, origin=SiteName("alpha")), scaled, own)
    training = trainer.settings.training.model_copy(update={"probe_ratio_max": 0.0})
    switched_off = dataclasses.replace(trainer.settings, training=training)
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


# --- copies of circulating models -----------------------------------------------------------------------------------
FORGED: dict[str, Change] = {
    "signs": torch.neg,
    "random": lambda value: (
        value.mean() + value.std(correction=0) * torch.randn(value.shape, generator=torch.Generator().manual_seed(3))
    ),
    "zero": torch.zeros_like,
}


def forged(network: nn.Module, act: str) -> nn.Module:
    return changed(copy.deepcopy(network), FORGED[act])


@pytest.mark.parametrize("act", FORGED)
def test_a_copy_that_no_training_makes_of_an_earlier_one_is_refused(probe: Any, act: str) -> None:
    trainer, check, source = probe
    earlier = trainer.site_networks.dam
    with pytest.raises(UnusableArtifact, match=r"no training has made it of the copy before: .* was moved by"):
        check.check_copy(source, forged(earlier, act), earlier, rounds=1, own_change=0.1, final=True)


def test_a_copy_is_judged_by_its_weights_where_other_samples_have_made_it_worse_here(probe: Any) -> None:
    trainer, check, source = probe
    earlier = trainer.site_networks.dam
    worse = changed(copy.deepcopy(earlier), lambda value: value * 0.5)
    assert check.loss_ratio(worse) > check.loss_ratio(earlier)
    check.check_copy(source, worse, earlier, rounds=1, own_change=0.1, final=True)
    with pytest.raises(UnusableArtifact, match="worse on this site's samples"):
        check.check_copy(source, worse, earlier, rounds=1, own_change=0.1, final=False)


def test_a_copy_is_judged_by_how_far_the_own_training_goes_and_by_an_earlier_one(probe: Any) -> None:
    trainer, check, source = probe
    honest = trainer.site_networks.dam
    far = forged(honest, "signs")
    check.check_copy(source, far, honest, rounds=1, own_change=1.1, final=True)
    check.check_copy(source, far, honest, rounds=11, own_change=0.1, final=True)
    with pytest.raises(UnusableArtifact, match="no training has made it"):
        check.check_copy(source, far, honest, rounds=2, own_change=0.1, final=True)
    # An earlier copy that was forged makes nobody guilty, and what is far from it is suspicious.
    check.check_copy(source, honest, far, rounds=1, own_change=0.1, final=True)
    with pytest.raises(UnusableArtifact, match="far from an earlier copy"):
        check.check_copy(source, honest, far, rounds=1, own_change=0.1, final=False)
    check.check_copy(source, honest, None, rounds=1, own_change=0.0, final=True)
    with pytest.raises(UnusableArtifact, match="there is no earlier copy here"):
        check.check_copy(source, honest, None, rounds=1, own_change=0.0, final=False)
    assert largest_change(nn.Linear(2, 3), honest) == ("its architecture", math.inf)


def test_a_trainer_refuses_a_forged_visitor_and_makes_up_for_the_lost_round(make_setting: Any) -> None:
    trainer = Trainer(make_setting(site="alpha", steps=40, method={"name": "fedcross"}))
    start = trainer.perform(commands.Initialise(1, 1))
    trained = trainer.perform(commands.Train(1, 1, 2, "train", start.state, (), SiteName("alpha")))
    earlier = Source(SiteName("gamma"), 2, dataclasses.replace(trained.artifact, owner=SiteName("beta")))
    state = unpack(artifact_path(trainer.settings.artifacts, earlier.artifact.sha256).read_bytes())
    state = {name: -value if value.ndim and "running" not in name else value for name, value in state.items()}
    kept = {name: getattr(earlier.artifact, name) for name in ("spec", "kind", "owner", "steps", "training_samples")}
    bad = Source(SiteName("beta"), 3, write_artifact(trainer.settings.artifacts, state, **kept))
    order = commands.Train(1, 3, 3, "train", start.state, (bad,), SiteName("beta"), earlier=earlier)
    rejected = trainer.perform(order)
    assert isinstance(rejected, events.ArtifactRejected), rejected
    assert (rejected.origin, rejected.sha256) == ("beta", bad.artifact.sha256)
    made_up = trainer.perform(dataclasses.replace(order, sources=(earlier,), earlier=None, rounds=2))
    assert isinstance(made_up, events.Trained)
    assert made_up.artifact.steps == earlier.artifact.steps + 80

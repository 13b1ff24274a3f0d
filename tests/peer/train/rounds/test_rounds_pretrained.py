"""Rounds of pretrained networks whose encoder is frozen: only what learns travels, and all sites go on."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import models
from fakes.training import initialise, tensor_names
from models.learning import base_tensors
from models.spec import LEARNING_KEYS
from peer.core import events
from peer.train.errors import UnusableWeightsError
from peer.train.inference.export.predictor import build, build_predictor
from peer.train.trainer import Trainer

pytestmark = pytest.mark.e2e

SITES = ("alpha", "beta", "gamma")
SIZES = {"spatial_dims": 1, "in_channels": 2, "classes": 2}
LIKE_THESE = (
    "fedvisit", "dflmoe", "fedprox", "fedbn", "fedrep", "scaffold", "ditto", "apfl", "lg_fedavg", "dfml",
    "dflmoe_models", "fedvisit_twin",
)  # fmt: skip
ADAPTERS = {"layers": ["layer1", "layer2"], "rank": 2, "alpha": 4.0}


@pytest.fixture
def pretrained(signals: Path) -> Callable[..., dict[str, Any]]:
    """Writes a file of weights beside the data; the keys of ``[model]`` that name it."""

    def write(seed: int = 3) -> dict[str, Any]:
        torch.manual_seed(seed)
        network = models.build({"name": "resnet10", **SIZES, "hyper": {"width": 4}})
        path = signals / f"weights{seed}.safetensors"
        safetensors.torch.save_file(network.state_dict(), path)
        return {"weights": path.name, "weights_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    return write


@pytest.fixture
def alike(sites: Any) -> Callable[..., Any]:
    """Makes three sites that all have one network, whatever the method."""

    def make(method: str, model: Mapping[str, Any], *, rounds: int = 0) -> Any:
        whole = {"name": "resnet10", "parameters": {"width": 4}, **model}
        together = sites(method, models=dict.fromkeys(SITES, whole))
        for number in range(1, rounds + 1):
            together.round(number)
        return together

    return make


def check_artifacts(together: Any, *, base: str) -> None:
    """What every site sent last: no frozen tensor, and a manifest that names the base."""
    for site in SITES:
        artifact = together.artifact[site]
        if artifact is None:
            continue
        assert artifact.spec["base"] == base
        network = models.build(artifact.spec)
        frozen = base_tensors(network)
        names = tensor_names(together.settings[site], artifact)
        assert frozen
        assert not names & frozen
        assert names <= network.state_dict().keys() or any("/" in name for name in names)


@pytest.mark.parametrize(
    "method",
    [
        "fedskd",
        "fedavg",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in LIKE_THESE),
    ],
)
@pytest.mark.parametrize("limit", ["adapters", pytest.param("freeze", marks=pytest.mark.nightly)])
def test_a_frozen_encoder_with_what_learns_goes_through_rounds(
    alike: Any, pretrained: Any, method: str, limit: str
) -> None:
    weights = pretrained()
    limits = {"adapters": ADAPTERS} if limit == "adapters" else {"freeze": ["layer1", "layer2"]}
    together = alike(method, {**weights, **limits}, rounds=2)
    check_artifacts(together, base=weights["weights_sha256"])
    files = together.trainers["alpha"].settings.base_weights
    file = safetensors.torch.load_file(files[weights["weights_sha256"]])
    starts = {site: safetensors.torch.load_file(initial(together, site)) for site in SITES}
    for site in SITES:
        network, state = together.trainers[site].site_networks.dam, together.state_of(site, "dam")
        for name in base_tensors(network):
            assert torch.equal(state[name], starts[site][name]), f"{name} has moved"
        frozen = next(name for name in base_tensors(network) if name.startswith("layer2.0.conv1"))
        assert torch.equal(state[frozen], file["layer2.0.conv1.weight"])
        moved = [name for name in state if not torch.equal(state[name], starts[site][name])]
        assert any(name.startswith("fc.") for name in moved)
        assert any(".up" in name for name in moved) == (limit == "adapters")
    rejected = [event for event in together.events if isinstance(event, events.ArtifactRejected)]
    assert not rejected
    finished = {site: together.evaluated(site) for site in SITES}
    together.restart()
    assert {site: together.evaluated(site) for site in SITES} == finished


def initial(together: Any, site: str) -> Path:
    return Path(together.settings[site].home) / "checkpoints" / "round-000000" / "initial" / "dam.safetensors"


def test_a_receiver_without_the_base_refuses_and_names_the_key(make_setting: Any, sites: Any, pretrained: Any) -> None:
    weights = pretrained()
    plain = {"name": "resnet10", "parameters": {"width": 4}}
    model = {**plain, **weights, "adapters": ADAPTERS}
    together = sites("fedskd", models={"alpha": plain, "beta": model, "gamma": plain})
    together.receive("alpha", 1)
    event = together.train("alpha", "train", together.sources("alpha"))
    assert isinstance(event, events.ArtifactRejected)
    assert f"it builds on weights with SHA-256 {weights['weights_sha256']}, which this site does not" in event.reason
    assert "[base_weights] of site.toml" in event.reason
    setting = together.settings["alpha"]
    setting.site["base_weights"] = {weights["weights_sha256"]: weights["weights"]}
    together.trainers["alpha"] = Trainer(setting)
    assert isinstance(together.train("alpha", "train", together.sources("alpha")), events.Trained)


def test_a_base_that_changed_on_this_site_s_disk_is_this_site_s_fault(
    sites: Any, signals: Path, pretrained: Any
) -> None:
    weights = pretrained()
    plain, file = {"name": "resnet10", "parameters": {"width": 4}}, signals / weights["weights"]
    model = {**plain, **weights, "adapters": ADAPTERS}
    together = sites("fedskd", models={"alpha": plain, "beta": model, "gamma": plain})
    together.receive("alpha", 1)
    together.settings["alpha"].site["base_weights"] = {weights["weights_sha256"]: file.name}
    key = rf"^\[base_weights\] {weights['weights_sha256'][:12]}: .*"
    for damage, reason in (
        (lambda: file.write_bytes(b""), "is another file, or it changed"),
        (file.unlink, "cannot be"),
    ):
        damage()
        together.trainers["alpha"] = Trainer(together.settings["alpha"])
        with pytest.raises(UnusableWeightsError, match=key + reason):
            together.train("alpha", "train", together.sources("alpha"))


def test_pretrained_weights_alone_travel_whole(alike: Any, pretrained: Any) -> None:
    together = alike("fedskd", pretrained())
    artifact = together.artifact["alpha"]
    assert "base" not in artifact.spec
    state = safetensors.torch.load_file(initial(together, "alpha"))
    assert tensor_names(together.settings["alpha"], artifact) == state.keys()


def test_an_adapter_is_a_small_artifact(alike: Any, pretrained: Any) -> None:
    whole = alike("fedskd", {}).artifact["alpha"].bytes
    assert alike("fedskd", {**pretrained(), "adapters": ADAPTERS}).artifact["alpha"].bytes < whole / 2


def test_the_worker_says_how_the_weights_fit(make_setting: Any, pretrained: Any) -> None:
    setting = make_setting(model={**pretrained(), "parameters": {"width": 4, "projection": 6}})
    event = initialise(Trainer(setting))
    assert "tensors fit" in str(event.weights)
    assert "of another shape: fc.weight is [2, 32], not [2, 6]" in str(event.weights)
    assert initialise(Trainer(setting)) == event, "also where the model was there already"
    assert initialise(Trainer(make_setting(site="beta"))).weights is None


def test_an_export_has_the_adapters_in_its_weights(alike: Any, pretrained: Any) -> None:
    together = alike("fedskd", {**pretrained(), "adapters": ADAPTERS}, rounds=1)
    trainer, images = together.trainers["alpha"], torch.randn(3, 2, 24)
    trainer.load(together.state["alpha"])
    expected = trainer.predict(images)
    predictor, description = build_predictor(trainer, together.state["alpha"], ())
    assert not description["network"].keys() & LEARNING_KEYS
    again = build(**description)
    again.load_state_dict(predictor.state_dict())
    with torch.no_grad():
        assert torch.equal(predictor(images), expected)
        assert torch.equal(again(images), expected)

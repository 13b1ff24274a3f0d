"""dFLMoE between real trainers: what each stage freezes, absent and stale heads, and mixtures that are averaged."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.core import events
from peer.training.artifact import write_artifact

pytestmark = pytest.mark.e2e

SITES = ("alpha", "beta", "gamma")


def test_stages_of_dflmoe_freeze_each_other(sites: Any, equal: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    before = {name: together.state_of("alpha", name) for name in ("dam", "mixture")}
    sources = together.sources("alpha")
    heads = [together.path_of(source.artifact, "alpha") for source in sources]
    bytes_before = [head.read_bytes() for head in heads]
    together.train("alpha", "local", sources, number=2)
    after = {name: together.state_of("alpha", name) for name in before}
    assert not equal(before["dam"], after["dam"])
    assert equal(before["mixture"], after["mixture"])
    together.train("alpha", "decide", sources, number=2)
    decided = {name: together.state_of("alpha", name) for name in before}
    assert equal(after["dam"], decided["dam"])
    assert not equal(after["mixture"], decided["mixture"])
    assert [head.read_bytes() for head in heads] == bytes_before


def test_with_no_other_head_the_mixture_says_what_the_own_head_says(sites: Any) -> None:
    together = sites("dflmoe")
    trainer = together.trainers["alpha"]
    trainer.load(together.state["alpha"])
    images = torch.randn(3, 2, 24)
    assert torch.equal(trainer.predict(images), trainer.site_networks.dam(images).prediction)


def test_the_order_in_which_heads_came_changes_nothing_and_a_lost_link_keeps_the_old_one(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    old = together.sources_of["alpha"]["beta"]
    together.round(2, lost=frozenset({("beta", "alpha")}))
    assert together.sources_of["alpha"]["beta"] == old
    assert together.sources_of["gamma"]["beta"].artifact != old.artifact
    trainer, images = together.trainers["alpha"], torch.randn(3, 2, 24)
    predictions = []
    for sources in (together.sources("alpha"), together.sources("alpha")[::-1]):
        trainer.load(together.state["alpha"], sources)
        predictions.append(trainer.predict(images))
    assert torch.equal(*predictions)
    assert not torch.equal(predictions[0], trainer.site_networks.dam(images).prediction)


def test_the_ablations_of_dflmoe(sites: Any) -> None:
    gate = sites("dflmoe", parameters={"mixing": "gate"})
    gate.round(1)
    assert {"mixing.rows.site:alpha.weight", "mixing.rows.site:beta.weight"} <= set(gate.state_of("alpha", "mixture"))


def test_a_head_whose_input_does_not_fit_is_refused_by_name(sites: Any) -> None:
    together = sites("dflmoe", parameters={"transform": False})
    for site in ("alpha", "beta"):
        event = together.train(site, "local")
        assert isinstance(event, events.Trained)
        together.artifact[site] = event.artifact
    together.receive("alpha", 1, lost=frozenset({("gamma", "alpha")}))
    event = together.train("alpha", "decide", together.sources("alpha"))
    assert isinstance(event, events.ArtifactRejected)
    assert event.reason == "its head takes 10 features, this body gives 32, and transform = false"


def test_a_head_that_was_lost_since_is_left_out_of_the_measurement(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    whole = together.evaluated("alpha")
    together.path_of(together.sources_of["alpha"]["beta"].artifact, "alpha").unlink()
    without = together.evaluated("alpha")
    assert without["samples"] == whole["samples"]
    assert without["loss"] != whole["loss"]
    del together.sources_of["alpha"]["beta"]
    assert together.evaluated("alpha") == without


# --- table 9: transform and attention averaged ----------------------------------------------------------------------
def stage_a(sites: Any, **options: Any) -> Any:
    """Three sites in their second round, after their local stage and the exchange."""
    together = sites("dflmoe_averaged", **options)
    together.round(1)
    for site in SITES:
        event = together.train(site, "local", together.sources(site), number=2)
        assert isinstance(event, events.Trained)
        together.artifact[site] = event.artifact
    return together


def test_what_is_sent_is_the_head_and_the_mixture_as_the_last_round_left_it(sites: Any, equal: Any) -> None:
    together = sites("dflmoe_averaged")
    together.round(1)
    mixture = together.state_of("alpha", "mixture")
    event = together.train("alpha", "local", together.sources("alpha"), number=2)
    together.artifact["alpha"] = event.artifact
    state = together.artifact_state("alpha")
    assert {name for name in state if not name.startswith("mixture/")} == {"fc.weight", "fc.bias"}
    assert equal({name.removeprefix("mixture/"): state[name] for name in state if name.startswith("mixture/")}, mixture)
    assert {"transform.own.site:beta.weight", "transform.own.site:gamma.weight"} <= mixture.keys()


def test_mixtures_start_alike_and_every_site_comes_to_the_same_mean(sites: Any, equal: Any) -> None:
    together = sites("dflmoe_averaged")
    first, *others = (together.state_of(site, "mixture") for site in SITES)
    assert all(equal(first, other) for other in others)
    together.forget()
    together, states = stage_a(sites), {}
    for site in SITES:
        together.receive(site, 2)
        states[site] = together.artifact_state(site)
    for site, trainer in together.trainers.items():
        trainer.site_networks.load(together.state[site])
        mixture, received = (
            trainer.site_networks.networks["mixture"],
            trainer.artifact_exchange.receive_all(together.sources(site)),
        )
        mixture.average({origin: expert.mixture for origin, expert in received.items()})
        for name, value in mixture.state_dict().items():
            of = [states[each][f"mixture/{name}"].double() for each in SITES if f"mixture/{name}" in states[each]]
            assert len(of) == (2 if "site:" in name else 3)
            assert torch.equal(value, (sum(of[1:], of[0]) / len(of)).float()), name


def test_an_older_mixture_is_in_no_mean_and_its_head_is_still_an_expert(sites: Any) -> None:
    together = stage_a(sites)
    together.receive("alpha", 2, lost=frozenset({("beta", "alpha")}))
    alpha = together.trainers["alpha"]
    received = alpha.artifact_exchange.receive_all(together.sources("alpha"))
    assert {origin: hasattr(expert, "mixture") for origin, expert in received.items()} == {"beta": False, "gamma": True}
    together.train("alpha", "decide", together.sources("alpha"), number=2)
    alpha.load(together.state["alpha"], together.sources("alpha"))
    images = torch.randn(3, 2, 24)
    mixed = alpha.predict(images)
    alpha.load(together.state["alpha"], together.sources("alpha")[1:])
    assert not torch.equal(alpha.predict(images), mixed)


def test_what_is_averaged_has_a_fresh_adam_and_the_local_model_keeps_its_own(sites: Any) -> None:
    together = sites("dflmoe_averaged")
    together.round(1)
    moments = together.folder("alpha").glob("*.adam.safetensors")
    assert [path.name for path in moments] == ["dam.adam.safetensors"]


CHANGES: Sequence[tuple[Callable[[dict[str, Tensor]], object], str]] = (
    (lambda state: state.pop("mixture/mixing.query.bias"), "'mixture/mixing.query.bias' is only in the spec"),
    (lambda state: state.update({"mixture/extra": torch.zeros(1)}), "'mixture/extra' is only in the manifest"),
    (
        lambda state: state.update({"mixture/transform.own.site:zeta.weight": torch.zeros(7, 512)}),
        "'mixture/transform.own.site:zeta.bias' is only in the spec",
    ),
    (
        lambda state: state.update({"mixture/transform.own.site:gamma.weight": torch.zeros(7, 512)}),
        "is F32 [7, 512] in the manifest, F32 [10, 512] in the spec",
    ),
    (
        lambda state: state.update({"mixture/mixing.query.weight": torch.zeros(2, 10).half()}),
        "is F16 [2, 10] in the manifest, F32 [2, 10] in the spec",
    ),
    (
        lambda state: state["mixture/transform.shared.weight"].fill_(float("nan")),
        "'mixture/transform.shared.weight' holds a NaN or an infinity",
    ),
    (lambda state: [state.pop(name) for name in list(state) if "/" in name], "is only in the spec"),
)


def test_a_mixture_that_is_not_like_this_one_is_refused(sites: Any, equal: Any) -> None:
    together = stage_a(sites)
    together.receive("alpha", 2)
    source, before = together.sources_of["alpha"]["beta"], together.state_of("alpha", "mixture")
    honest = source.artifact
    facts = {"spec": honest.spec, "kind": "head", "owner": honest.owner, "steps": 1, "training_samples": None}
    for change, reason in CHANGES:
        state = together.artifact_state("beta")
        change(state)
        artifact = write_artifact(together.path_of(honest, "alpha").parent, state, **facts)
        event = together.train("alpha", "decide", (dataclasses.replace(source, artifact=artifact),), number=2)
        assert isinstance(event, events.ArtifactRejected)
        assert (event.origin, event.sha256) == ("beta", artifact.sha256)
        assert reason in event.reason
        assert equal(before, together.state_of("alpha", "mixture"))


def test_a_mixture_of_a_body_of_another_width_is_refused_with_its_head(sites: Any) -> None:
    models = {
        site: {"name": "resnet10", "parameters": {"width": 4, "projection": width}}
        for site, width in zip(SITES, (10, 7, 10), strict=True)
    }
    together = sites("dflmoe_averaged", models=models)
    for site in SITES:
        event = together.train(site, "local")
        assert isinstance(event, events.Trained)
        together.artifact[site] = event.artifact
    together.receive("alpha", 1)
    event = together.train("alpha", "decide", together.sources("alpha"))
    assert isinstance(event, events.ArtifactRejected)
    assert (event.origin, event.reason) == (
        "beta",
        "its head takes 7 features, this body gives 10, and mixtures are averaged",
    )

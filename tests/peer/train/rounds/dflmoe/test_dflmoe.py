"""dFLMoE between real trainers: absent and stale heads, and mixtures that are averaged."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.core import events

pytestmark = pytest.mark.e2e


def test_a_lost_link_keeps_the_old_head(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    old = together.sources_of["alpha"]["beta"]
    together.round(2, lost=frozenset({("beta", "alpha")}))
    assert together.sources_of["alpha"]["beta"] == old
    assert together.sources_of["gamma"]["beta"].artifact != old.artifact
    trainer, images = together.trainers["alpha"], torch.randn(3, 2, 24)
    trainer.load(together.state["alpha"], together.sources("alpha"))
    assert not torch.equal(trainer.predict(images), trainer.site_networks.dam(images).prediction)


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
def stage_a(sites: Any) -> Any:
    """Three sites in their second round, after their local stage and the exchange."""
    together = sites("dflmoe_averaged")
    together.round(1)
    together.train_all("local", number=2)
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
    (
        lambda state: state.update({"mixture/transform.own.site:zeta.weight": torch.zeros(7, 512)}),
        "'mixture/transform.own.site:zeta.bias' is only in the spec",
    ),
    (
        lambda state: state.update({"mixture/transform.own.site:gamma.weight": torch.zeros(7, 512)}),
        "is F32 [7, 512] in the manifest, F32 [10, 512] in the spec",
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
    for change, reason in CHANGES:
        forged = together.forge(source, change)
        event = together.train("alpha", "decide", (forged,), number=2)
        assert isinstance(event, events.ArtifactRejected)
        assert (event.origin, event.sha256) == ("beta", forged.artifact.sha256)
        assert reason in event.reason
        assert equal(before, together.state_of("alpha", "mixture"))

"""dFLMoE: both losses in float64, the frozen parts of each stage, ablations, maps, images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
from fakes.small_sites import BATCH, DRAW, MAPS
from models import Network, Output
from models.moe import Expert, Mixture
from models.network import head_width
from peer.methods.dflmoe.stages import build_received_mixture, check_local, check_received, check_received_model
from peer.methods.method import DAM, MIXTURE, Batch, BuildContext, Method
from peer.methods.registry import PLANS
from peer.methods.supervised import supervised_loss

IMAGES = Batch(torch.rand(2, 1, 6, 6, generator=DRAW), torch.rand(2, 1, 12, 12, generator=DRAW))
BATCHES = {"classification": BATCH, "segmentation": MAPS, "super_resolution": IMAGES}
EXPERTS = ("alpha", "gamma")


def network(task: str, which: int, *, seed: int = 0) -> models.Network:
    """Three networks for a task, with heads of different widths; the first is the local one."""
    torch.manual_seed(10 * seed + which)
    if task == "classification":
        name = ("resnet10", "tcn", "resnet10")[which]
        hyper = ({"width": 4}, {"width": 6, "projection": 10}, {"width": 2})[which]
        return models.create_model(name, spatial_dims=1, in_channels=2, classes=3, **hyper)
    if task == "segmentation":
        name, hyper = (("unet", {"width": 3, "depth": 2}), ("unet", {"width": 2, "depth": 1}), ("fcn8s", {"width": 2}))[
            which
        ]
        return models.create_model(name, spatial_dims=2, in_channels=1, classes=3, **hyper)
    name, width = (("srresnet6", 2), ("srcnn", 6), ("srresnet6", 4))[which]
    return models.create_model(name, spatial_dims=2, in_channels=1, classes=1, width=width, scale=2)


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes site beta, by default with two experts from elsewhere."""

    def make(
        method: str = "dflmoe",
        task: str = "classification",
        *,
        experts: int = 2,
        alike: bool = False,
        **parameters: Any,
    ) -> Any:
        others = {
            origin: network(task, 0 if alike else number, seed=number)
            for number, origin in enumerate(EXPERTS[:experts], start=1)
        }
        received = others if method == "dflmoe_models" else {origin: other.head for origin, other in others.items()}
        dam, images = network(task, 0), BATCHES[task].images
        return make_site(method, dam, images, received=received, task=task, **parameters)

    return make


def double(batch: Batch) -> Batch:
    floating = batch.targets.is_floating_point()
    return Batch(batch.images.double(), batch.targets.double() if floating else batch.targets)


# --- the losses -------------------------------------------------------------------------------------------------------
def mixed_of(at: Any, output: Output, images: Tensor) -> Any:
    """The mixture of the experts' predictions; ``tests/models/test_moe.py`` has its equations."""
    mixture, own = at.networks[MIXTURE], at.networks[DAM].head(output.penultimate)
    received = at.context.received
    if not any(isinstance(expert, Network) for expert in received.values()):
        return mixture(output.penultimate, own, received)
    predictions = {origin: expert(images).prediction for origin, expert in received.items()} | {"beta": own}
    return mixture.mixing(output.penultimate, dict(sorted(predictions.items())))


CASES = [
    ("dflmoe", "classification", {}),
    ("dflmoe", "classification", {"mixing": "gate"}),
    ("dflmoe", "classification", {"transform": False, "alike": True}),
    ("dflmoe", "classification", {"experts": 1}),
    ("dflmoe", "segmentation", {}),
    ("dflmoe", "segmentation", {"attention": "per_sample"}),
    ("dflmoe", "segmentation", {"attention": "per_sample", "mixing": "gate"}),
    ("dflmoe", "super_resolution", {}),
    ("dflmoe", "super_resolution", {"attention": "per_sample"}),
    ("dflmoe_models", "classification", {}),
    ("dflmoe_models", "classification", {"mixing": "gate"}),
    ("dflmoe_models", "segmentation", {}),
    ("dflmoe_models", "super_resolution", {}),
]


@pytest.mark.parametrize(("method", "task", "options"), CASES)
def test_the_losses_and_the_prediction_are_those_of_the_own_head_and_the_mixture(
    site: Any, method: str, task: str, options: dict[str, Any]
) -> None:
    at, batch, loss = site(method, task, **options), double(BATCHES[task]), supervised_loss(task)
    name = loss.name
    at.method.stages["local"](at.context)  # adds the received experts
    at.exact()
    local, decide = at.terms("local", batch), at.terms("decide", batch)
    output = at.networks[DAM](batch.images)
    mixed = mixed_of(at, output, batch.images)
    assert {key: term.weight for key, term in local.items()} == {f"{name}_dam": 0.5, f"{name}_mixture": 0.5}
    assert {key: term.weight for key, term in decide.items()} == {f"{name}_mixture": 1.0}
    own, together = (loss.loss(x, batch.targets).item() for x in (output.prediction, mixed))
    assert local[f"{name}_dam"].value.item() == pytest.approx(own, rel=1e-5)
    assert local[f"{name}_mixture"].value.item() == pytest.approx(together, rel=1e-5)
    assert decide[f"{name}_mixture"].value.item() == pytest.approx(together, rel=1e-5)
    torch.testing.assert_close(at.method.predict(at.context, batch.images), mixed)
    assert own != pytest.approx(together, rel=1e-4)


def test_received_heads_align_the_body(site: Any) -> None:
    """The mean of the received heads' losses on the own feature, which reaches the body alone."""
    at = site(alike=True, transform=False, alignment=0.5).exact()
    batch = double(BATCH)
    term = at.terms("local", batch)["alignment"]
    feature = at.networks[DAM](batch.images).penultimate
    losses = [F.cross_entropy(head(feature), batch.targets).item() for head in at.context.received.values()]
    assert term.weight == 0.5
    assert term.value.item() == pytest.approx(np.mean(losses), rel=1e-5)
    torch.autograd.backward(term.value)
    assert {name.partition(".")[0] for name in at.learns(DAM)} >= {"conv1", "layer4"}
    assert not any(name.startswith("fc.") for name in at.learns(DAM))
    assert "alignment" not in site(experts=0, transform=False, alignment=0.5).terms("local", BATCH)
    assert "alignment" not in site(alike=True, transform=False).terms("local", BATCH)


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("task", BATCHES)
def test_alone_the_mixture_is_the_local_model(site: Any, method: str, task: str) -> None:
    at, batch, name = site(method, task, experts=0).exact(), double(BATCHES[task]), supervised_loss(task).name
    terms = at.terms("local", batch)
    assert torch.equal(terms[f"{name}_dam"].value, terms[f"{name}_mixture"].value)
    assert torch.equal(at.method.predict(at.context, batch.images), at.networks[DAM](batch.images).prediction)


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("mixing", ["attention", "gate"])
def test_the_order_of_arrival_changes_no_bit(site: Any, method: str, mixing: str) -> None:
    at = site(method, mixing=mixing)
    last = network("classification", 1, seed=9)
    at.context.received["zeta"] = last if method == "dflmoe_models" else last.head
    at.method.stages["local"](at.context)
    for each in at.networks.values():
        each.eval()
    before, predictions = at.state(), at.method.predict(at.context, BATCH.images)
    received = dict(at.context.received)
    at.context.received.clear()
    at.context.received.update(reversed(received.items()))
    assert torch.equal(at.method.predict(at.context, BATCH.images), predictions)
    assert not at.moved(before)


# --- trained parts ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("task", BATCHES)
def test_the_local_stage_trains_the_local_model_alone(site: Any, method: str, task: str) -> None:
    at = site(method, task)
    at.method.stages["local"](at.context)
    before = at.state()
    loop = at.step("local", BATCHES[task])
    assert set(loop.optimisers) == set(loop.moments()) == {DAM}
    assert at.moved(before) == {DAM}
    assert all(at.untouched(name) for name in (MIXTURE, *EXPERTS))
    assert at.learns(DAM) == dict(at.networks[DAM].named_parameters()).keys()
    models_run = method == "dflmoe_models"
    assert at.modes == {
        DAM: [True],
        MIXTURE: [] if models_run else [False],  # of models its part that mixes is called alone
        "expert-alpha": [False],
        "expert-gamma": [False],
    }


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("mixing", ["attention", "gate"])
@pytest.mark.parametrize("task", BATCHES)
def test_the_deciding_stage_trains_transforms_and_attention_alone(
    site: Any, method: str, task: str, mixing: str
) -> None:
    at = site(method, task, mixing=mixing)
    at.method.stages["decide"](at.context)
    before = at.state()
    loop = at.step("decide", BATCHES[task])
    assert set(loop.optimisers) == set(loop.moments()) == {MIXTURE}
    assert at.moved(before) == {MIXTURE}
    assert all(at.untouched(name) for name in (DAM, *EXPERTS))
    assert at.learns(MIXTURE) == dict(at.networks[MIXTURE].named_parameters()).keys()
    assert at.modes[DAM] == [False]


def test_the_mixture_teaches_the_body_through_its_frozen_parts(site: Any) -> None:
    """As query, as key and as value; through the heads of others alone, too."""
    at = site().exact()
    torch.autograd.backward(at.terms("local", double(BATCH))["ce_mixture"].value)
    assert at.learns(DAM) == dict(at.networks[DAM].named_parameters()).keys()
    through_others = site().exact()
    with torch.no_grad():
        through_others.networks[DAM].head.weight.zero_()
    torch.autograd.backward(through_others.terms("local", double(BATCH))["ce_mixture"].value)
    assert "conv1.weight" in through_others.learns(DAM)


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
def test_detached_the_mixture_teaches_the_head_alone(site: Any, method: str) -> None:
    at = site(method, detach=True).exact()
    terms = at.terms("local", double(BATCH))
    torch.autograd.backward(terms["ce_mixture"].value)
    assert at.learns(DAM) == {"fc.weight", "fc.bias"}
    attached = site(method).exact().terms("local", double(BATCH))
    assert terms["ce_mixture"].value.item() == pytest.approx(attached["ce_mixture"].value.item())


def test_a_local_stage_that_received_nothing_is_training_by_the_labels(site: Any) -> None:
    alone, detached = site(experts=0), site(experts=0, detach=True)
    losses = alone.step("local", BATCH).losses()
    assert losses["ce_mixture"] == pytest.approx(losses["ce_dam"])
    assert losses["total"] == pytest.approx(losses["ce_dam"])
    detached.step("local", BATCH)
    whole, half = (at.networks[DAM].conv1.weight.grad for at in (alone, detached))
    torch.testing.assert_close(whole, 2 * half)


@pytest.mark.parametrize("mixing", ["attention", "gate"])
def test_alone_there_is_nothing_to_decide(site: Any, mixing: str) -> None:
    """The gradient would be exactly 0, and weight decay would take the query to 0 in some hundred steps."""
    at = site(experts=0, mixing=mixing)
    before = at.state()
    loop = at.step("decide", BATCH, steps=3)
    assert not at.moved(before)
    assert (loop.optimisers, loop.moments()) == ({}, {})
    expected = F.cross_entropy(at.networks[DAM].eval()(BATCH.images).prediction, BATCH.targets)
    assert loop.means()["ce_mixture"] == pytest.approx(expected.item())


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("stage", ["local", "decide"])
def test_losses_in_bf16_are_near_those_in_fp32(site: Any, method: str, stage: str) -> None:
    for task, batch in BATCHES.items():
        exact, rough = (
            site(method, task).step(stage, batch, precision=precision).losses() for precision in ("fp32", "bf16")
        )
        assert rough == pytest.approx(exact, rel=0.1)
        assert rough != exact


# --- the own head speaks once ----------------------------------------------------------------------------------------
class Normed(Network):
    """A head that begins with batch norm, whose statistics show how often it ran."""

    head_name = "last"

    def __init__(self) -> None:
        super().__init__(name="tests:Normed", spatial_dims=1, in_channels=2, classes=3, hyper={}, head="last")
        self.body = nn.Conv1d(2, 4, 3)
        self.last = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Output:
        feature = self.body(x).mean(2)
        return Output(self.last(feature), (), feature, feature)


@pytest.fixture
def normed(make_site: Any) -> Any:
    """Makes site beta with such a head, and two experts from elsewhere, all in float64."""

    def make(method: str = "dflmoe", **parameters: Any) -> Any:
        others = {origin: network("classification", number) for number, origin in enumerate(EXPERTS, start=1)}
        received = others if method == "dflmoe_models" else {origin: other.head for origin, other in others.items()}
        torch.manual_seed(0)
        at = make_site(method, Normed(), BATCH.images, received=received, **parameters)
        at.method.stages["local"](at.context)
        at.exact().networks[DAM].train()
        return at

    return make


@pytest.mark.parametrize("mixing", ["attention", "gate"])
def test_losses_and_gradients_are_those_of_a_head_that_runs_twice(normed: Any, mixing: str) -> None:
    """Eqs. 3 and 6 to the letter: p_i = F_h(I) is one pass for the local loss and one more as an expert."""
    at, literal, batch = normed(mixing=mixing), normed(mixing=mixing), double(BATCH)
    terms = at.terms("local", batch)
    dam, mixture = literal.networks[DAM], literal.networks[MIXTURE]
    output = dam(batch.images)
    mixed = mixture(output.penultimate, dam.head(output.penultimate), literal.context.received)
    losses = [F.cross_entropy(prediction.float(), batch.targets) for prediction in (output.prediction, mixed)]
    assert [term.value.item() for term in terms.values()] == [loss.item() for loss in losses]
    torch.autograd.backward(0.5 * terms["ce_dam"].value + 0.5 * terms["ce_mixture"].value)
    torch.autograd.backward(0.5 * losses[0] + 0.5 * losses[1])
    for (name, twice), once in zip(dam.named_parameters(), at.networks[DAM].parameters(), strict=True):
        torch.testing.assert_close(once.grad, twice.grad, rtol=1e-6, atol=1e-9, msg=name)
    assert dam.last[0].num_batches_tracked == 2
    assert at.networks[DAM].last[0].num_batches_tracked == 1


@pytest.mark.parametrize("method", ["dflmoe", "dflmoe_models"])
@pytest.mark.parametrize("detach", [False, True])
def test_a_batch_counts_once_in_the_statistics_of_the_head(normed: Any, method: str, detach: bool) -> None:
    at, batch = normed(method, detach=detach), double(BATCH)
    norm = at.networks[DAM].last[0]
    before = norm.running_mean.clone()
    with torch.no_grad():
        feature = at.networks[DAM].body(batch.images).mean(2)
    at.terms("local", batch)
    torch.testing.assert_close(norm.running_mean, 0.9 * before + 0.1 * feature.mean(0))
    assert norm.num_batches_tracked == 1
    assert norm.track_running_stats


# --- table 9: transform and attention averaged ----------------------------------------------------------------------
def expert_of(at: Any, origin: str, head: nn.Module) -> Expert:
    """The artifact of a site of the same width: its head, and a mixture with experts for the two
    other sites.
    """
    torch.manual_seed(len(origin))
    mixture = Mixture(own=origin, features=at.networks[MIXTURE].features, classes=3)
    for other in {*EXPERTS, "beta"} - {origin}:
        mixture.add_expert(other, mixture.features)
    return Expert(head, mixture)


def test_the_deciding_stage_begins_with_the_mean_of_the_mixtures_that_came(site: Any) -> None:
    at = site("dflmoe_averaged", alike=True)
    own = {name: value.clone() for name, value in at.networks[MIXTURE].state_dict().items()}
    for origin, head in at.context.received.items():
        at.context.received[origin] = expert_of(at, origin, head)
    states = {origin: expert.mixture.state_dict() for origin, expert in at.context.received.items()}
    at.method.stages["local"](at.context)
    at.networks[MIXTURE].load_state_dict(own, strict=False)
    before = at.state()
    at.method.stages["local"](at.context)
    assert not at.moved(before), "the local stage averages nothing"
    known = {name: value.clone() for name, value in at.networks[MIXTURE].state_dict().items()}
    at.method.stages["decide"](at.context)
    state = at.networks[MIXTURE].state_dict()
    for name, value in state.items():
        of = [state[name].double() for _, state in sorted({**states, "beta": known}.items()) if name in state]
        assert torch.equal(value, (sum(of[1:], of[0]) / len(of)).float()), name
    assert not torch.equal(state["mixing.query.weight"], own["mixing.query.weight"])


def test_a_head_without_its_mixture_is_an_expert_and_in_no_mean(site: Any) -> None:
    at = site("dflmoe_averaged", alike=True)
    at.method.stages["local"](at.context)
    before = at.state()
    at.method.stages["decide"](at.context)
    assert not at.moved(before)
    both = site("dflmoe_averaged", alike=True)
    both.context.received["alpha"] = expert_of(both, "alpha", both.context.received["alpha"])
    losses = both.step("decide", BATCH).losses()
    assert np.isfinite(losses["total"])
    assert "expert-alpha" in both.modes
    assert all(both.untouched(name) for name in (DAM, "alpha", "gamma"))


def test_another_site_s_mixture_must_be_one_of_a_body_as_wide() -> None:
    feature = output((1, 3), (1, 8))
    build_context = BuildContext(
        "beta", "classification", 3, PLANS["dflmoe_averaged"].defaults(), feature, None, lambda: None
    )
    names = ["mixing.query.weight", "transform.own.site:beta.weight", "transform.own.site:gamma.weight"]
    mixture = build_received_mixture(build_context, "alpha", nn.Linear(8, 3), names)
    assert (mixture.own, set(mixture.transform.own)) == ("alpha", {"site:beta", "site:gamma"})
    assert mixture.transform.own["site:gamma"].weight.shape == (8, 512)
    with pytest.raises(ValueError, match="its head takes 5 features, this body gives 8, and mixtures are averaged"):
        build_received_mixture(build_context, "alpha", nn.Linear(5, 3), names)


# --- invitations ------------------------------------------------------------------------------------------------------
def test_a_transform_is_drawn_from_a_seed_of_its_site_and_width(site: Any) -> None:
    at = site()
    at.method.stages["local"](at.context)
    assert at.seeds == [(MIXTURE, "alpha", 10), (MIXTURE, "gamma", 16)]
    first = at.state()
    torch.manual_seed(999)
    again = site()
    again.method.stages["decide"](again.context)
    assert not again.moved(first)
    later = site(experts=1)
    later.method.stages["local"](later.context)
    later.context.received["gamma"] = network("classification", 2, seed=2).head
    later.method.stages["decide"](later.context)
    assert not later.moved(first)


def test_a_head_of_another_width_gets_a_new_transform_and_the_others_keep_theirs(site: Any) -> None:
    at = site()
    at.step("decide", BATCH)
    own, before = at.networks[MIXTURE].transform.own, at.state()
    at.context.received["alpha"] = nn.Linear(7, 3)
    losses = at.step("decide", BATCH).losses()
    assert np.isfinite(losses["total"])
    assert own["site:alpha"].weight.shape == (7, 512)
    assert own["site:gamma"].weight.shape == before["mixture/transform.own.site:gamma.weight"].shape
    at.context.received["alpha"] = network("classification", 1, seed=1).head
    at.method.stages["local"](at.context)
    assert own["site:alpha"].weight.shape == (10, 512)
    assert at.seeds[-2] == (MIXTURE, "alpha", 10)


# --- artifacts and checks ---------------------------------------------------------------------------------------------
def output(prediction: tuple[int, ...], feature: tuple[int, ...]) -> Output:
    return Output(torch.zeros(prediction), (), torch.zeros(feature), torch.zeros(feature))


def test_what_does_not_fit_is_said() -> None:
    own, defaults = output((1, 3), (1, 8)), PLANS["dflmoe"].defaults()
    assert check_received(own, output((1, 3), (1, 5)), defaults) is None
    assert check_received(own, output((1, 3), (1, 5)), {**defaults, "transform": False}) == (
        "its head takes 5 features, this body gives 8, and transform = false"
    )
    assert check_received(own, output((1, 3), (1, 5, 4, 4)), defaults) == (
        "its head takes features of 2 spatial dimensions, this body gives 0"
    )
    for judge in (check_received, check_received_model):
        assert judge(own, output((1, 4), (1, 8)), defaults) == "it predicts (4,), this site (3,)"
    assert check_received_model(own, output((1, 3), (1, 5, 4, 4)), PLANS["dflmoe_models"].defaults()) is None


def test_a_feature_must_be_on_the_grid_of_the_prediction() -> None:
    for method in ("dflmoe", "dflmoe_models"):
        defaults = PLANS[method].defaults()
        assert Method.of(PLANS[method]).check_local is check_local
        assert check_local(output((1, 3, 8, 8), (1, 4, 8, 8)), None, defaults, masks=False) is None
        assert check_local(output((1, 3, 8, 8), (1, 4, 2, 2)), None, defaults, masks=False) == (
            "the model's head takes a feature on the grid (2, 2), but predicts on (8, 8)"
        )
        assert check_local(output((1, 3), (1, 4, 2, 2)), None, defaults, masks=False) == (
            "the model's head takes a feature on the grid (2, 2), but predicts on ()"
        )


def test_a_body_is_aligned_with_heads_that_no_transform_precedes() -> None:
    wanted = {**PLANS["dflmoe"].defaults(), "alignment": 0.5}
    own = output((1, 3), (1, 8))
    assert check_local(own, None, wanted, masks=False) == (
        "[method] alignment takes received heads without a transform: set transform = false, or alignment = 0"
    )
    assert check_local(own, None, {**wanted, "transform": False}, masks=False) is None


def test_every_head_of_a_task_says_its_width() -> None:
    widths = {task: [head_width(network(task, which).head) for which in range(3)] for task in BATCHES}
    assert widths == {"classification": [32, 10, 16], "segmentation": [3, 2, 1], "super_resolution": [2, 3, 4]}

"""Ranks: what several processes compute on shares of a batch is what one computes on all of it, for every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from fakes.rank_threads import run_ranks
from models import Output
from peer.core.plan import Work
from peer.core.seeds import derive
from peer.methods.method import DAM, Batch, BuildContext, Method, Stage, StageContext
from peer.methods.registry import PLANS
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import Loop
from peer.train.ranks import Ranks

CPU = torch.device("cpu")
SAMPLES = 7
IMAGES = torch.randn(SAMPLES, 2, 12, generator=torch.Generator().manual_seed(0))
CLASSES = Batch(IMAGES, torch.arange(SAMPLES) % 3)
LABEL_MAPS = Batch(IMAGES, torch.arange(SAMPLES * 12).reshape(SAMPLES, 12) % 3)
REGIONS = torch.rand(3, 12, generator=torch.Generator().manual_seed(1))
TEACHERS = {
    "fedskd": 1, "fedvisit": 2, "fedvisit_twin": 2, "feddf": 2, "dfml": 2, "dflmoe": 2, "dflmoe_models": 2,
    "dflmoe_averaged": 2,
}  # fmt: skip


class Plain(models.Network):
    """Two convolutions and a head, on maps or on their mean; each sample is computed by itself."""

    def __init__(self, seed: int, width: int = 4, *, dense: bool = False, norm: nn.Module | None = None) -> None:
        super().__init__(
            name=f"{__name__}:Plain", spatial_dims=1, in_channels=2, classes=3, hyper={"width": width}, head="last"
        )
        torch.manual_seed(seed)
        self.head_name, self.bottleneck_layer, self.dense = "last", "second", dense
        self.first, self.second = nn.Conv1d(2, width, 3, padding=1), nn.Conv1d(width, width + 1, 3, padding=1)
        self.norm = norm or nn.Identity()
        self.last = nn.Conv1d(width + 1, 3, 1) if dense else nn.Linear(width + 1, 3)

    def forward(self, x: Tensor) -> Output:
        near = self.norm(self.first(x)).tanh()
        far = self.second(near).tanh()
        feature = far if self.dense else far.mean(2)
        return Output(self.head(feature), (near, far), far if self.dense else feature, feature)


def is_dense(method: str) -> bool:
    return "classification" in PLANS[method].not_for


def build(method: str, stage: str, *, masks: bool = False, norm: nn.Module | None = None) -> tuple[Stage, Batch]:
    """A stage of a site in float64, and its batch."""
    plan, dense = PLANS[method], is_dense(method)
    task = "segmentation" if dense else "classification"
    parameters = {**plan.defaults(), **({"width": 4} if method == "fedproto" else {})}
    dam, shared = Plain(1, dense=dense, norm=norm), lambda: Plain(2, dense=dense)
    received: dict[str, Any] = {f"site-{seed}": Plain(seed, 6, dense=dense) for seed in range(TEACHERS.get(method, 0))}
    if plan.artifact == "head":
        received = {site: network.head for site, network in received.items()}
    with torch.no_grad():
        own, other = dam.eval()(IMAGES[:1]), shared().eval()(IMAGES[:1])
    context = BuildContext(
        "alpha", task, 3, parameters, own, other, shared, sites=("alpha", "beta"),
        public_images=lambda: IMAGES.flip(0), in_channels=IMAGES.shape[1],
    )  # fmt: skip
    networks: dict[str, nn.Module] = {}
    for name, make in Method.of(plan).local_networks.items():
        torch.manual_seed(5)
        networks[name] = make(context, {DAM: dam, **networks})
    seed = lambda *purpose: torch.manual_seed(derive(*map(str, purpose)))  # noqa: E731
    for network in (dam, *networks.values(), *received.values()):
        network.double()
    scene = StageContext("alpha", task, parameters, {DAM: dam, **networks}, received, seed, round=3)
    built = Method.of(plan).stages[stage](scene)
    for network in built.networks.values():
        network.double()  # the stage may have added layers
    batch = LABEL_MAPS if dense else CLASSES
    return built, Batch(batch.images.double(), batch.targets, REGIONS.double() if masks else None)


class Shares:
    """The same batch at every step; a rank loads its share."""

    def __init__(self, batch: Batch, ranks: Ranks | None) -> None:
        self._batch, self._ranks = batch, ranks

    def __getitem__(self, step: int) -> Batch:
        if self._ranks is None or self._ranks.share(SAMPLES) is None:
            return self._batch
        own = self._ranks.own(range(SAMPLES))
        images, targets = self._batch.images[list(own)], self._batch.targets[list(own)]
        return Batch(self._ranks.join(images, SAMPLES), self._ranks.join(targets, SAMPLES), self._batch.masks)


def train(stage: Stage, batch: Batch, ranks: Ranks | None, *, steps: int = 1) -> tuple[dict[str, Tensor], bool]:
    """Gradients of the last step, states and losses after these steps, and whether batches were divided."""
    seed = lambda *parts: derive("stage", *parts)  # noqa: E731
    loop = Loop(stage, Work("step", 1, 0.01), steps=steps, device=CPU, precision="fp32", seed=seed, ranks=ranks)
    for _ in loop.run(Shares(batch, ranks)):  # type: ignore[arg-type]
        pass
    gradients = {
        f"gradient of {name}/{key}": parameter.grad.clone()
        for name, network in stage.networks.items()
        for key, parameter in network.named_parameters()
        if parameter.grad is not None
    }
    states = {f"{name}/{key}": value for name, state in loop.networks().items() for key, value in state.items()}
    losses = {f"loss {name}": torch.tensor(value) for name, value in loop.losses().items()}
    return {**gradients, **states, **losses}, loop.is_divided


def agree(results: list[dict[str, Tensor]], expected: Mapping[str, Tensor]) -> None:
    for result in results:
        assert result.keys() == expected.keys()
        for name, value in result.items():
            torch.testing.assert_close(
                value, expected[name], rtol=1e-5, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}"
            )


STAGES = [(method, stage) for method, plan in PLANS.items() for stage in plan.stages]


@pytest.mark.parametrize(("method", "stage"), STAGES)
def test_gradients_and_weights_are_those_of_one_process_with_the_joint_batch(method: str, stage: str) -> None:
    """Losses are float32: hence the tolerance. Shares are of 4 and 3 samples."""
    built, batch = build(method, stage)
    scenes = [build(method, stage)[0] for _ in range(2)]
    expected, _ = train(built, batch, None, steps=len(built.passes) + 1)
    results = run_ranks(2, lambda ranks: train(scenes[ranks.rank], batch, ranks, steps=len(built.passes) + 1))
    assert all(divided for _, divided in results)
    agree([result for result, _ in results], expected)


@pytest.mark.parametrize("count", [2, 3])
def test_similarity_with_regions_is_that_of_the_joint_batch_over_unequal_shares(count: int) -> None:
    built, batch = build("fedskd", "train", masks=True)
    scenes = [build("fedskd", "train")[0] for _ in range(count)]
    expected, _ = train(built, batch, None)
    assert {"loss batch", "loss position", "loss region"} <= expected.keys()
    results = run_ranks(count, lambda ranks: train(scenes[ranks.rank], batch, ranks))
    agree([result for result, _ in results], expected)


NORMS = [lambda: nn.BatchNorm1d(4), lambda: nn.InstanceNorm1d(4, track_running_stats=True)]


@pytest.mark.parametrize("norm", NORMS, ids=["batch", "instance"])
def test_a_network_with_running_statistics_runs_whole_batches_at_every_rank_of_a_processor(
    norm: Callable[[], nn.Module],
) -> None:
    built, batch = build("fedavg", "train", norm=norm())
    scenes = [build("fedavg", "train", norm=norm())[0] for _ in range(2)]
    expected, _ = train(built, batch, None, steps=2)
    results = run_ranks(2, lambda ranks: train(scenes[ranks.rank], batch, ranks, steps=2))
    assert not any(divided for _, divided in results)
    agree([result for result, _ in results], expected)


@pytest.mark.parametrize(
    ("norm", "device", "refused"),
    [
        (nn.BatchNorm1d(4), "cpu", "batch normalisation, .* GPUs alone"),
        (nn.BatchNorm1d(4), "cuda", ""),
        (nn.InstanceNorm1d(4, track_running_stats=True), "cpu", "track_running_stats = True"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "cuda", "track_running_stats = True"),
        (nn.InstanceNorm1d(4), "cuda", ""),
    ],
)
def test_own_networks_with_statistics_that_would_differ_by_rank_are_refused(
    norm: nn.Module, device: str, refused: str
) -> None:
    ranks, networks = Ranks(0, 2, None), {DAM: Plain(1, norm=norm)}  # type: ignore[arg-type]
    if not refused:
        ranks.check_norms(networks, torch.device(device))
        return
    with pytest.raises(UnusableConfigurationError, match=rf"processes = 2: .*Plain has .*{refused}.*processes = 1"):
        ranks.check_norms(networks, torch.device(device))


def test_a_batch_with_too_few_samples_is_not_divided() -> None:
    """Some layers cannot train on one sample."""
    ranks = Ranks(1, 4, None)  # type: ignore[arg-type]
    assert (ranks.share(SAMPLES), ranks.share(8)) == (None, slice(2, 4))
    assert list(ranks.own(range(SAMPLES))) == list(range(SAMPLES))
    assert ranks.divide((IMAGES,)) is None
    assert ranks.divide((torch.tensor(1.0), "alone")) is None


def test_shares_are_whole_and_in_order() -> None:
    for count in range(8, 20):
        shares = [list(Ranks(rank, 4, None).own(range(count))) for rank in range(4)]  # type: ignore[arg-type]
        assert [row for share in shares for row in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_network_whose_output_is_not_by_sample_is_refused() -> None:
    def work(ranks: Ranks) -> None:
        share = ranks.divide((IMAGES,))
        assert share is not None
        share.join(share.inputs[0].mean(0))

    with pytest.raises(
        UnusableConfigurationError, match=r"processes = 2: a network of the method gives a tensor \(2, 12\)"
    ):
        run_ranks(2, work)


def test_every_type_travels() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64):
        values = (torch.arange(5 * 3).reshape(5, 3) % 2).to(dtype)
        joint = run_ranks(2, lambda ranks, values=values: ranks.join(values[ranks.share(5)], 5))  # type: ignore[misc]
        assert all(torch.equal(each, values) and each.dtype == dtype for each in joint)


def test_gradients_of_features_in_bf16_add_up_in_float32() -> None:
    values = torch.full((4, 1), 1.0, dtype=torch.bfloat16)

    def work(ranks: Ranks) -> Tensor:
        own = values[ranks.share(4)].clone().requires_grad_(True)
        torch.autograd.backward(ranks.join(own, 4).float().sum())
        assert own.grad is not None
        return own.grad

    assert all(torch.equal(gradient, torch.full((2, 1), 2.0, dtype=torch.bfloat16)) for gradient in run_ranks(2, work))


def test_only_the_fields_that_losses_read_are_exchanged() -> None:
    joined: list[int] = []

    class Counting(Ranks):
        def join(self, own: Tensor, count: int) -> Tensor:
            joined.append(count)
            return own

    share = Counting(0, 2, None).divide((IMAGES,))  # type: ignore[arg-type]
    assert share is not None
    feature = share.inputs[0]
    output = share.join(Output(feature + 1, (feature, feature), feature, feature))
    assert joined == []
    assert output.penultimate is output.taps[0] is output.taps[1] is output.bottleneck
    assert len(joined) == 1
    assert output.prediction is output.prediction
    assert len(joined) == 2
    with pytest.raises(AttributeError, match="Output has no field 'logits'"):
        _ = output.logits

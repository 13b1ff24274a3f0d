"""The artifacts that a site sends and receives: heads, states to average, and all that it refuses."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import models
from fakes.training import initialise, perform, tensor_names
from models import Network
from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.method import Method
from peer.methods.registry import PLANS
from peer.train.artifact import read_tensors, write_artifact
from peer.train.artifact_exchange import ArtifactExchange
from peer.train.checkpoint import Checkpoints
from peer.train.errors import UnusableArtifact, UnusableConfigurationError
from peer.train.samples import site_seed
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.tensors import State, describe, state_of
from peer.train.trainer import Trainer

SHARED = {"name": "resnet10", "width": 2}
ALIKE = {"name": "resnet10", "width": 4}
PACKAGE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, in_channels, out_channels, width):
        super().__init__()
        self.body, self.last = nn.Conv1d(in_channels, width, 5), nn.Linear(width, out_channels)

    def forward(self, x):
        return self.last(self.body(x).mean(2))

class Hidden(Small):
    def __init__(self, in_channels, out_channels, width):
        super().__init__(in_channels, out_channels, width)
        self.last.register_buffer("scale", torch.ones(2), persistent=False)
"""
"""A package that one site has installed, and others may lack."""
FOREIGN = {"name": "elsewhere:Small", "parameters": {"width": 3}, "features": ["body"], "head": "last"}
HUGE = {
    "name": "vgg19", "spatial_dims": 1, "in_channels": 2, "classes": 2, "hyper": {"width": 4096, "projection": 8},
}  # fmt: skip
"""A network whose body would have 27 thousand million parameters, and whose head has 18."""


@dataclasses.dataclass
class Site:
    """One site's recipe, networks and parcels."""

    settings: TrainingSettings
    site_networks: SiteNetworks
    artifact_exchange: ArtifactExchange

    def send(self, samples: int = 10) -> Artifact:
        """Its artifact, as it is now."""
        return self.artifact_exchange.send(
            self.site_networks.artifact_network, owner=self.settings.site, steps=3, samples=samples
        )

    def to(self, other: Site, artifact: Artifact | None = None, *, round: int = 1) -> Source:
        """The artifact, where the other site's worker looks for it."""
        artifact = artifact or self.send()
        name = f"{artifact.sha256}.safetensors"
        if not (other.settings.artifacts / name).exists():
            shutil.copy(self.settings.artifacts / name, other.settings.artifacts / name)
        return Source(self.settings.site, round, artifact)


@pytest.fixture
def make_site(make_setting: Callable[..., WorkerSetting]) -> Callable[..., Site]:
    """Makes sites of a method."""

    def make(method: str, site: str = "alpha", *, allow: tuple[str, ...] = (), **parts: Any) -> Site:
        setting = make_setting(site=site, method={"name": method, **parts.pop("parameters", {})}, **parts)
        settings = dataclasses.replace(TrainingSettings.of(setting), allow_models=allow)
        networks = SiteNetworks(
            settings, Method.of(PLANS[method]), site_seed(settings), Checkpoints(settings.home / "checkpoints")
        )
        return Site(settings, networks, ArtifactExchange(settings, Method.of(PLANS[method]), networks))

    return make


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed here."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "elsewhere.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)


def write_state(site: Site, state: State, spec: Mapping[str, Any], *, kind: Any = "head") -> Artifact:
    """An artifact of any state, with a true manifest."""
    owner = SiteName("beta")
    return write_artifact(
        site.settings.artifacts, state, spec=spec, kind=kind, owner=owner, steps=1, training_samples=None
    )


def source(artifact: Artifact) -> Source:
    return Source(SiteName("beta"), 1, artifact)


def fill(networks: SiteNetworks, value: float, count: int = 0) -> None:
    """Set all floating values of the artifact's network, and all counts."""
    for tensor in networks.artifact_network.state_dict().values():
        tensor.fill_(value if tensor.is_floating_point() else count)


# --- sent -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "kind", "parts", "prefixes"),
    [
        ("dflmoe", "head", {}, {"fc"}),
        ("dflmoe_models", "model", {}, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"}),
        ("mh_pflid", "messenger", {"shared_model": {"name": "messenger_classification", "width": 2}}, None),
        ("feddal", "proxy", {"shared_model": SHARED}, None),
    ],
)
def test_what_is_sent_is_the_named_part_of_the_state(
    make_site: Any, method: str, kind: str, parts: dict[str, Any], prefixes: set[str] | None
) -> None:
    site = make_site(method, **parts)
    artifact = site.send()
    state = safetensors.torch.load_file(site.settings.artifacts / f"{artifact.sha256}.safetensors")
    assert (artifact.kind, artifact.owner, artifact.steps) == (kind, "alpha", 3)
    assert artifact.spec == site.site_networks.artifact_network.spec
    assert read_tensors(site.settings.artifacts, artifact) == describe(state)
    own = site.site_networks.artifact_network.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in state.items())
    if prefixes is None:
        assert state.keys() == own.keys()
    else:
        assert {name.partition(".")[0] for name in state} == prefixes


def test_samples_are_told_only_where_federation_and_site_agree(make_site: Any) -> None:
    sample_counts = []
    for weighting in ("samples", "uniform"):
        for egress in (True, False):
            parts = {"weighting": weighting, "egress": {"training_set_size": egress}}
            sample_counts.append(make_site("fedavg", shared_model=ALIKE, **parts).send(samples=12).training_samples)
    assert sample_counts == [12, None, None, None]


def test_a_method_that_shares_nothing_sends_nothing(make_site: Any) -> None:
    with pytest.raises(UnusableConfigurationError, match="method 'local' shares no model"):
        make_site("local").send()


@pytest.mark.parametrize("method", ["fedavg", "dflmoe", "fedskd"])
def test_what_others_would_refuse_is_named_at_the_start(make_site: Any, method: str) -> None:
    site = make_site(method, shared_model=ALIKE)
    site.artifact_exchange.self_check(site.send())
    with torch.no_grad():
        site.site_networks.dam.head.bias.fill_(float("nan"))
    refusal = r"^\[model\] resnet10 would be refused by other sites: tensor 'fc.bias' holds a NaN or an infinity$"
    with pytest.raises(UnusableConfigurationError, match=refusal):
        site.artifact_exchange.self_check(site.send())


def test_the_shared_model_is_named_where_it_is_what_would_be_refused(make_site: Any) -> None:
    site = make_site("feddal", shared_model=SHARED)
    fill(site.site_networks, float("inf"))
    with pytest.raises(UnusableConfigurationError, match=r"^\[shared_model\] resnet10 would be refused"):
        site.artifact_exchange.self_check(site.send())


# --- heads ------------------------------------------------------------------------------------------------------------
def test_heads_come_by_origin_with_their_weights_and_without_a_body(make_site: Any) -> None:
    alpha = make_site("dflmoe")
    beta = make_site("dflmoe", "beta", model={"name": "tcn", "parameters": {"width": 6, "projection": 10}})
    gamma = make_site("dflmoe", "gamma", model={"parameters": {"width": 2}})
    received = alpha.artifact_exchange.receive_all([beta.to(alpha), gamma.to(alpha)])
    assert list(received) == ["beta", "gamma"]
    for site in (beta, gamma):
        head, own = received[site.settings.site], site.site_networks.dam.head
        assert isinstance(head, nn.Linear)
        assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in head.state_dict().items())
        assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in head.parameters())


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Limit the address space to two GiB more than is in use, where the system tells it."""
    statm = Path("/proc/self/statm")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def test_of_a_head_whose_body_would_fill_any_machine_the_body_is_not_built(make_site: Any, little_memory: None) -> None:
    alpha, state = make_site("dflmoe"), {"fc.weight": torch.randn(2, 8), "fc.bias": torch.randn(2)}
    (head,) = alpha.artifact_exchange.receive_all([source(write_state(alpha, state, HUGE))]).values()
    assert sum(parameter.numel() for parameter in head.parameters()) == 18
    assert torch.equal(head(torch.eye(8)), state["fc.weight"].T + state["fc.bias"])


def head_state(change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    state = {"fc.weight": torch.randn(2, 16), "fc.bias": torch.randn(2)}
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.pop("fc.bias"), "tensor 'fc.bias' is only in the spec"),
        (lambda state: state.update({"fc.extra": torch.zeros(1)}), "tensor 'fc.extra' is only in the manifest"),
        (lambda state: state.update({"conv1.weight": torch.zeros(2, 2, 7)}), "'conv1.weight' is only in the manifest"),
        (lambda state: state["fc.weight"].fill_(float("nan")), "tensor 'fc.weight' holds a NaN or an infinity"),
        (lambda state: state["fc.bias"].fill_(float("-inf")), "tensor 'fc.bias' holds a NaN or an infinity"),
        (lambda state: state.update({"fc.weight": torch.zeros(2, 7)}), r"is F32 \[2, 7\] in the manifest"),
        (lambda state: state.update({"fc.weight": torch.zeros(2, 16).half()}), r"is F16 \[2, 16\] in the manifest"),
    ],
)  # fmt: skip
def test_a_head_is_what_its_spec_says_or_nothing(make_site: Any, change: Any, reason: str) -> None:
    alpha = make_site("dflmoe")
    spec = models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=2, width=2).spec
    received = source(write_state(alpha, head_state(change), spec))
    with pytest.raises(UnusableArtifact, match=reason) as caught:
        alpha.artifact_exchange.receive_all([received])
    assert caught.value.source is received


def test_a_head_with_values_outside_its_state_is_refused(make_site: Any, elsewhere: None) -> None:
    hidden = {**FOREIGN, "name": "elsewhere:Hidden"}
    alpha = make_site("dflmoe", allow=("elsewhere:Hidden",))
    beta = make_site("dflmoe", "beta", model=hidden)
    with pytest.raises(UnusableArtifact, match="its head has values that its state does not hold"):
        alpha.artifact_exchange.receive_all([beta.to(alpha)])
    with pytest.raises(
        UnusableConfigurationError, match=r"^\[model\] elsewhere:Hidden would be refused by other sites: its head"
    ):
        beta.artifact_exchange.self_check(beta.send())


# --- models -----------------------------------------------------------------------------------------------------------
def test_a_plain_head_needs_no_class_of_its_body(make_site: Any, elsewhere: None) -> None:
    beta, alpha = make_site("dflmoe", "beta", model=FOREIGN), make_site("dflmoe")
    beta.artifact_exchange.self_check(beta.send())
    source_of_beta = beta.to(alpha)
    described = {"type": "linear", "features": 3, "bias": True}
    assert source_of_beta.artifact.spec["head_layer"] == described
    unknown = replace_spec(source_of_beta, name="nowhere:Unknown", hyper={"depth": 3})
    (head,) = alpha.artifact_exchange.receive_all([unknown]).values()
    assert isinstance(head, nn.Linear)
    own = beta.site_networks.dam.head
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in head.state_dict().items())


def replace_spec(source: Source, **changes: Any) -> Source:
    artifact = dataclasses.replace(source.artifact, spec={**source.artifact.spec, **changes})
    return dataclasses.replace(source, artifact=artifact)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_layer": {"type": "linear", "features": 4, "bias": True}}, r"'network.last.weight' is F32 \[2, 3\]"),
        ({"head_layer": {"type": "linear", "features": 3, "bias": False}}, "'network.last.bias' is only in the man"),
        ({"head_layer": {"type": "exec", "features": 2, "bias": True}}, "head_layer must have type"),
        ({"head_layer": {"type": "linear", "features": 0, "bias": True}}, "head_layer.features must be from 1 to"),
        ({"head_layer": {"type": "linear", "features": 2, "bias": 1}}, "head_layer.bias must be true or false"),
        ({"head_layer": None}, "head_layer must have type"),
        ({"head": ""}, "head_layer needs head"),
        ({"classes": 3}, "classes = 3 is not this federation's 2"),
    ],
)
def test_a_described_head_is_checked(make_site: Any, elsewhere: None, changes: Any, message: str) -> None:
    beta, alpha = make_site("dflmoe", "beta", model=FOREIGN), make_site("dflmoe")
    with pytest.raises(UnusableArtifact, match=message):
        alpha.artifact_exchange.receive_all([replace_spec(beta.to(alpha), **changes)])


def test_a_whole_network_is_no_described_head(make_site: Any, elsewhere: None) -> None:
    beta, alpha = make_site("fedskd", "beta", model=FOREIGN), make_site("fedskd")
    whole = beta.to(alpha)
    assert "head_layer" not in whole.artifact.spec
    layer = {"type": "linear", "features": 3, "bias": True}
    with pytest.raises(UnusableArtifact, match="head_layer describes a head, and this is a whole network"):
        alpha.artifact_exchange.receive_all([replace_spec(whole, head_layer=layer)])


@pytest.mark.parametrize("method", ["fedskd", "dflmoe_models"])
def test_a_class_from_elsewhere_must_be_allowed_here(make_site: Any, elsewhere: None, method: str) -> None:
    beta, alpha = make_site(method, "beta", model=FOREIGN), make_site(method)
    beta.artifact_exchange.self_check(beta.send())
    source_of_beta = beta.to(alpha)
    with pytest.raises(UnusableArtifact, match=r"'elsewhere:Small' is not one .*add it to allow_models in"):
        alpha.artifact_exchange.receive_all([source_of_beta])
    allowing = make_site(method, allow=("elsewhere:Small",))
    assert set(allowing.artifact_exchange.receive_all([source_of_beta])) == {"beta"}


def test_a_model_of_this_site_s_own_spec_comes_home_without_permission(make_site: Any, elsewhere: None) -> None:
    owner, host = make_site("fedcross", model=FOREIGN), make_site("fedcross", "beta", model=FOREIGN)
    network, output = owner.artifact_exchange.receive(host.to(owner))
    assert isinstance(network, Network)
    assert output.prediction.shape == (1, 2)
    stranger = make_site("fedcross", "gamma", model={**FOREIGN, "parameters": {"width": 4}})
    with pytest.raises(UnusableArtifact, match="may name here"):
        owner.artifact_exchange.receive(stranger.to(owner))


def test_the_first_that_cannot_be_used_is_named(make_site: Any) -> None:
    parts = {"parameters": {"transform": False}}
    alpha, gamma = make_site("dflmoe", **parts), make_site("dflmoe", "gamma", **parts)
    beta = make_site("dflmoe", "beta", model={"parameters": {"width": 2}}, **parts)
    narrow = beta.to(alpha)
    assert set(alpha.artifact_exchange.receive_all([gamma.to(alpha)])) == {"gamma"}
    with pytest.raises(UnusableArtifact, match="its head takes 16 features, this body gives 32") as caught:
        alpha.artifact_exchange.receive_all([gamma.to(alpha), narrow])
    assert caught.value.source is narrow


def test_a_model_whose_prediction_is_no_number_is_refused(make_site: Any) -> None:
    alpha, beta = make_site("fedskd"), make_site("fedskd", "beta")
    with torch.no_grad():
        beta.site_networks.dam.bn1.bias.fill_(3e38)
    with pytest.raises(UnusableArtifact, match="predicts a NaN or an infinity for an image of zeros"):
        alpha.artifact_exchange.receive_all([beta.to(alpha)])


def test_who_makes_training_diverge_is_named_and_not_who_comes_first(make_site: Any, make_setting: Any) -> None:
    alpha, beta, gamma = (make_site("dflmoe", name) for name in ("alpha", "beta", "gamma"))
    with torch.no_grad():
        gamma.site_networks.dam.head.weight.fill_(3e38)
    trainer = Trainer(make_setting(method={"name": "dflmoe"}))
    state = trainer.perform(commands.Initialise(1, 1)).state
    sources = beta.to(alpha), gamma.to(alpha)
    event = trainer.perform(commands.Train(1, 1, 1, "local", state, sources))
    assert isinstance(event, events.ArtifactRejected)
    assert event.origin == "gamma"


def test_what_is_extreme_are_weights_and_not_counts(three: Any) -> None:
    alpha, beta, _ = three()
    fill(beta.site_networks, -7.0, count=10**6)
    assert alpha.artifact_exchange.max_abs(beta.to(alpha)) == 7.0
    flags = {"mask": torch.tensor([True]), "fc.bias": torch.tensor([-0.5, 0.25]), "none": torch.zeros(0)}
    assert alpha.artifact_exchange.max_abs(source(write_state(alpha, flags, beta.site_networks.dam.spec))) == 0.5


# --- averaged ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def three(make_site: Any) -> Callable[..., list[Site]]:
    """Alpha, beta and gamma under FedAvg, with values whose float32 sum depends on the order, and
    which no bound would permit.
    """

    def make(method: str = "fedavg", **parts: Any) -> list[Site]:
        sites = [
            make_site(method, name, **{"shared_model": ALIKE, "aggregate": {"bounds": False}, **parts})
            for name in ("alpha", "beta", "gamma")
        ]
        for site, value, count in zip(sites, (1e8, 1.0, -1e8), (3, 9, 5), strict=True):
            fill(site.site_networks, value, count)
        return sites

    return make


def averaged(site: Any, sources: list[Source], *, samples: int = 1) -> tuple[State, list[SiteName]]:
    """The mean and its contributors."""
    aggregation = site.artifact_exchange.average(sources, samples=samples)
    return aggregation.state, aggregation.contributors


def test_every_order_of_arrival_and_every_site_gives_the_same_bits(three: Any) -> None:
    sites = three()
    means = []
    for mine in sites:
        others = [site.to(mine) for site in sites if site is not mine]
        for order in (others, others[::-1]):
            mean, contributors = averaged(mine, order, samples=1)
            assert contributors == ["alpha", "beta", "gamma"]
            means.append({name: tensor.numpy().tobytes() for name, tensor in mean.items()})
    assert all(each == means[0] for each in means)
    assert mean["fc.bias"].tolist() == [pytest.approx(1 / 3)] * 2
    assert mean["bn1.running_mean"][0] == mean["fc.bias"][0]
    assert mean["bn1.num_batches_tracked"] == 9


def test_every_site_averages_what_the_others_received_although_it_has_finer_values(three: Any) -> None:
    sites = three(wire="bfloat16")
    for site, value in zip(sites, (1.001, 2.003, 4.007), strict=True):
        fill(site.site_networks, value)
    means = [averaged(mine, [site.to(mine) for site in sites if site is not mine])[0] for mine in sites]
    assert len({tuple(mean["fc.bias"].tolist()) for mean in means}) == 1
    assert means[0]["fc.bias"].dtype == torch.float32
    assert means[0]["fc.bias"].tolist() == [pytest.approx((1.0 + 2.0 + 4.0) / 3, abs=1e-6)] * 2


def test_with_the_own_artifact_at_hand_the_mean_is_of_it_and_not_of_the_state(three: Any) -> None:
    sites = three()
    own = [mine.to(mine) for mine in sites]
    received = [[site.to(mine) for site in sites if site is not mine] for mine in sites]
    for mine in sites:
        fill(mine.site_networks, 7.0)  # trained on since
    means = [
        mine.artifact_exchange.average(sources, samples=1, sent=sent).state["fc.bias"].tolist()
        for mine, sources, sent in zip(sites, received, own, strict=True)
    ]
    assert means == [[pytest.approx(1 / 3)] * 2] * 3


def test_samples_weigh_if_everybody_tells_them(three: Any) -> None:
    parts = {"weighting": "samples", "egress": {"training_set_size": True}}
    sites = three(**parts)
    for site, value in zip(sites, (1.0, 2.0, 4.0), strict=True):
        fill(site.site_networks, value)
    alpha, beta, gamma = sites
    sources = [beta.to(alpha, beta.send(samples=30)), gamma.to(alpha, gamma.send(samples=60))]
    mean, _ = averaged(alpha, sources, samples=10)
    assert mean["fc.bias"].tolist() == [pytest.approx((10 + 60 + 240) / 100)] * 2
    for count in (None, 0):
        uncounted = dataclasses.replace(
            sources[1], artifact=dataclasses.replace(sources[1].artifact, training_samples=count)
        )
        mean, _ = averaged(alpha, [sources[0], uncounted], samples=10)
        assert mean["fc.bias"].tolist() == [pytest.approx(7 / 3)] * 2


def test_a_site_that_receives_its_own_proxy_keeps_it(three: Any) -> None:
    alpha, beta, _ = three("proxyfl", shared_model=SHARED)
    mean, contributors = averaged(alpha, [alpha.to(alpha)], samples=1)
    assert contributors == ["alpha"]
    assert all(
        torch.equal(tensor, alpha.site_networks.artifact_network.state_dict()[name]) for name, tensor in mean.items()
    )
    pair, contributors = averaged(alpha, [beta.to(alpha)])
    assert contributors == ["alpha", "beta"]
    assert pair["fc.bias"].tolist() == [50000000.0, 50000000.0]


def test_only_the_same_spec_is_averaged(three: Any, make_site: Any) -> None:
    alpha, *_ = three()
    other = make_site("fedavg", "delta", model={"parameters": {"width": 2}}, shared_model=SHARED)
    with pytest.raises(UnusableArtifact, match="its spec is not this site's resnet10, with which it is averaged"):
        alpha.artifact_exchange.average([other.to(alpha)], samples=1)


def test_norms_neither_travel_nor_are_averaged_under_fedbn(three: Any) -> None:
    alpha, beta, _ = three("fedbn")
    received = beta.to(alpha)
    mean, _ = averaged(alpha, [received])
    assert mean.keys() == {tensor.name for tensor in read_tensors(alpha.settings.artifacts, received.artifact)}
    assert not any("bn" in name or "downsample.1" in name for name in mean)
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "fc.bias"} <= mean.keys()
    whole = write_state(alpha, state_of(beta.site_networks.dam), beta.site_networks.dam.spec, kind="model")
    with pytest.raises(UnusableArtifact, match=r"tensor 'bn1\.bias' is only in the manifest"):
        alpha.artifact_exchange.average([source(whole)], samples=1)


def test_a_lent_model_comes_without_what_travels_beside_it(make_setting: Any) -> None:
    chosen = {"method": {"name": "scaffold"}, "shared_model": {"name": "resnet10", "width": 4}}
    setting = make_setting(site="alpha", **chosen)
    trainer = Trainer(setting)
    initial = initialise(trainer)
    lent = perform(trainer, commands.Evaluate(1, 1, 1, initial.state, (), True)).artifact
    names = tensor_names(setting, lent)
    assert names == set(trainer.site_networks.dam.state_dict())
    sent = trainer.artifact_exchange.send(trainer.site_networks.dam, owner=SiteName("alpha"), steps=0, samples=1)
    beside = tensor_names(setting, sent) - names
    assert beside
    assert all(name.startswith("control/") for name in beside)

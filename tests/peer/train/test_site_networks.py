"""A site's networks: their starts, one checkpoint, the same bits after interruptions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.training import checkpoint_files, copy_artifact, initialise, interrupt, train
from peer.core import commands
from peer.core.artifacts import Source
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.method import DAM, GLOBAL, MESSENGER, MIXTURE, PROXY, RECEIVER, TRANSMITTER, Method
from peer.methods.registry import PLANS
from peer.train.checkpoint import Checkpoints
from peer.train.errors import UnusableConfigurationError
from peer.train.samples import site_seed
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.trainer import Trainer

SHARED = {"name": "resnet10", "width": 2}
MESSENGER_MODEL = {"name": "messenger_classification", "width": 2}
DROPPING = {"name": "tcn", "parameters": {"width": 6, "projection": 10}}
"""A model with dropout, which would show a step's wrong randomness."""

State = dict[str, Tensor]


@pytest.fixture
def make_networks(make_setting: Callable[..., WorkerSetting]) -> Callable[..., SiteNetworks]:
    """Makes a site's networks; a second object of the same site and method reads the same folder."""

    def make(method: str, site: str = "alpha", **parts: Any) -> SiteNetworks:
        named = {"name": method, **parts.pop("parameters", {})}
        settings = TrainingSettings.of(make_setting(site=site, method=named, **parts))
        checkpoints = Checkpoints(settings.home / "checkpoints")
        return SiteNetworks(settings, Method.of(PLANS[method]), site_seed(settings), checkpoints)

    return make


def states(networks: SiteNetworks) -> dict[str, State]:
    return {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in networks.networks.items()}


def equal(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def changed(networks: SiteNetworks, by: float) -> None:
    """Add a number to every parameter."""
    with torch.no_grad():
        for network in networks.networks.values():
            for parameter in network.parameters():
                parameter += by


# --- built ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "shared", "alike"),
    [
        ("mh_pflid", MESSENGER_MODEL, {MESSENGER}),
        ("feddal", SHARED, {PROXY}),
        ("proxyfl", SHARED, {PROXY}),
        ("dflmoe", None, set()),
        ("fedskd", None, set()),
        ("fedskd", {"name": "resnet10", "width": 4}, {DAM}),
        ("fedcross", {"name": "resnet10", "width": 4}, {DAM}),
        ("dflmoe_models", {"name": "resnet10", "width": 4}, {DAM}),
        ("ditto", {"name": "resnet10", "width": 4}, {DAM, GLOBAL}),
    ],
)
def test_what_is_shared_starts_alike_at_all_sites_and_nothing_else_does(
    make_networks: Any, method: str, shared: Mapping[str, Any] | None, alike: set[str]
) -> None:
    first, second = (states(make_networks(method, site, shared_model=shared)) for site in ("alpha", "beta"))
    assert {name for name, state in first.items() if equal(state, second[name])} == alike
    torch.manual_seed(4711)
    again = states(make_networks(method, "alpha", shared_model=shared))
    assert all(equal(state, again[name]) for name, state in first.items())


@pytest.mark.parametrize(("alignment", "alike"), [(0.0, False), (0.5, True)])
def test_heads_start_alike_where_bodies_are_aligned_with_them(
    make_networks: Any, alignment: float, alike: bool
) -> None:
    parameters = {"alignment": alignment, "transform": False}
    first, second = (make_networks("dflmoe", site, parameters=parameters).dam for site in ("alpha", "beta"))
    assert equal(first.head.state_dict(), second.head.state_dict()) == alike
    assert not equal(first.state_dict(), second.state_dict())


def test_networks_are_the_same_whatever_was_looked_at_first(make_networks: Any) -> None:
    straight, probed = (make_networks("mh_pflid", shared_model=MESSENGER_MODEL) for _ in range(2))
    assert probed.build_context.output.prediction.shape == (1, 2)
    assert all(equal(state, states(probed)[name]) for name, state in states(straight).items())


def test_what_is_kept_fits_the_local_and_the_shared_model(make_networks: Any) -> None:
    networks = make_networks("mh_pflid", shared_model=MESSENGER_MODEL)
    assert list(networks.networks) == [DAM, MESSENGER, RECEIVER, TRANSMITTER]
    assert networks.artifact_network is networks.networks[MESSENGER]
    project = networks.networks[RECEIVER].project
    assert (project.in_features, project.out_features) == (32, 16)
    assert make_networks("fedskd").networks.keys() == {DAM}
    mixture = make_networks("dflmoe", model=DROPPING).networks[MIXTURE]
    assert (mixture.transform.shared.in_features, mixture.mixing.query.out_features) == (10, 2)


def test_a_shared_model_that_does_not_fit_is_named_each_time(make_networks: Any) -> None:
    networks = make_networks("mh_pflid", shared_model={"name": "messenger_segmentation", "width": 2})
    for _ in range(2):
        reason = r"^\[shared_model\]: messenger_segmentation takes sides that are"
        with pytest.raises(UnusableConfigurationError, match=reason):
            _ = networks.networks


# --- loaded and written -----------------------------------------------------------------------------------------------
def test_what_is_held_equals_the_checkpoint_until_it_is_let_go(make_networks: Any) -> None:
    networks = make_networks("feddal", shared_model=SHARED)
    before, moments = states(networks), {DAM: {"fc.bias/exp_avg": torch.ones(2)}}
    networks.write("round-000001/train", {"work": "a"}, moments)
    dam, proxy = networks.networks[DAM], networks.networks[PROXY]
    networks.load("round-000001/train")
    assert networks.networks[PROXY] is proxy
    networks.invalidate()
    changed(networks, 1.0)
    networks.moments = {}
    networks.load("round-000001/train")
    assert networks.networks[DAM] is dam
    assert all(equal(state, states(networks)[name]) for name, state in before.items())
    assert torch.equal(networks.moments[DAM]["fc.bias/exp_avg"], torch.ones(2))
    other = make_networks("feddal", shared_model=SHARED)
    other.load("round-000001/train")
    assert all(equal(state, states(other)[name]) for name, state in before.items())
    assert other.moments.keys() == {DAM}


def test_writing_holds_what_was_written(make_networks: Any) -> None:
    networks = make_networks("feddal", shared_model=SHARED)
    networks.write("round-000001/train", {}, {})
    first = states(networks)
    networks.invalidate()
    changed(networks, 1.0)
    networks.write("round-000002/train", {}, {PROXY: {"fc.bias/step": torch.tensor(3.0)}})
    second, proxy = states(networks), networks.networks[PROXY]
    networks.load("round-000002/train")
    assert networks.networks[PROXY] is proxy
    networks.load("round-000001/train")
    assert equal(states(networks)[PROXY], first[PROXY])
    assert networks.moments == {}
    networks.load("round-000002/train")
    assert equal(states(networks)[PROXY], second[PROXY])
    assert networks.moments[PROXY]["fc.bias/step"] == 3.0


@pytest.mark.parametrize("mixing", ["attention", "gate"])
def test_a_mixture_has_the_experts_of_the_checkpoint_and_no_others(make_networks: Any, mixing: str) -> None:
    networks = make_networks("dflmoe", parameters={"mixing": mixing})
    networks.write("round-000000/initial", {}, {})
    alone = states(networks)[MIXTURE]
    networks.invalidate()
    networks.networks[MIXTURE].add_expert("beta", 10)
    networks.networks[MIXTURE].add_expert("gamma", 7)
    networks.write("round-000001/decide", {}, {MIXTURE: {"transform.own.site:beta.bias/exp_avg": torch.ones(10)}})
    three = states(networks)[MIXTURE]
    assert {"transform.own.site:beta.weight", "transform.own.site:gamma.weight"} <= three.keys() - alone.keys()
    networks.load("round-000000/initial")
    assert equal(states(networks)[MIXTURE], alone)
    assert networks.networks[MIXTURE].transform.widths == {}
    assert networks.moments == {}
    for again in (networks, make_networks("dflmoe", parameters={"mixing": mixing})):
        again.load("round-000001/decide")
        assert equal(states(again)[MIXTURE], three)
        assert not again.networks[MIXTURE].add_expert("beta", 10)
        assert again.moments[MIXTURE].keys() == {"transform.own.site:beta.bias/exp_avg"}


def test_tied_adapters_are_one_module_after_a_checkpoint_was_read(make_networks: Any) -> None:
    networks = make_networks("mh_pflid", shared_model=MESSENGER_MODEL, parameters={"tie": True})
    networks.write("round-000001/distill", {}, {})
    before = states(networks)
    networks.invalidate()
    changed(networks, 1.0)
    networks.load("round-000001/distill")
    assert networks.networks[RECEIVER].project is networks.networks[TRANSMITTER].project
    assert all(equal(state, states(networks)[name]) for name, state in before.items())


def test_a_checkpoint_of_other_networks_is_named(make_networks: Any, tmp_path: Path) -> None:
    networks = make_networks("feddal", shared_model=SHARED)
    networks.write("round-000001/train", {}, {})
    wider = make_networks("feddal", shared_model=SHARED, model={"parameters": {"width": 5}})
    size_mismatch = r"checkpoint round-000001/train does not fit \[model\]: [^\n]*\n\tsize mismatch for conv1"
    for _ in range(2):
        with pytest.raises(UnusableConfigurationError, match=size_mismatch):
            wider.load("round-000001/train")
    (tmp_path / "alpha" / "checkpoints" / "round-000001" / "train" / "proxy.safetensors").unlink()
    with pytest.raises(UnusableConfigurationError, match=r"round-000001/train does not fit \[model\]: 'proxy'"):
        make_networks("feddal", shared_model=SHARED).load("round-000001/train")
    with pytest.raises(UnusableConfigurationError, match="'round-000009/train' is not in"):
        networks.load("round-000009/train")


# --- an interrupted stage continues -----------------------------------------------------------------------------------
class InitialArtifacts:
    """What alpha's peers sent at the beginning, by origin."""

    def __init__(self, make_setting: Callable[..., WorkerSetting], method: Mapping[str, Any], **parts: Any) -> None:
        self.make, self.method, self.parts = make_setting, method, parts

    def source(self, site: str, receiver: WorkerSetting, **parts: Any) -> Source:
        """The site's first artifact, where the receiver's worker looks for it."""
        home = Path(receiver.home).with_name(f"{site}-{len(parts)}")
        setting = self.make(site=site, home=home, method=self.method, **{**self.parts, **parts})
        trainer = Trainer(setting)
        network = trainer.site_networks.artifact_network
        artifact = trainer.artifact_exchange.send(network, owner=SiteName(site), steps=0, samples=10)
        return copy_artifact(setting, receiver, Source(SiteName(site), 1, artifact))


CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[str], tuple[int, ...]]] = [
    ("fedskd", {}, {}, ["train"], (1, 2)),
    ("feddal", {"alternating": False}, {"shared_model": SHARED}, ["train"], (3, 5)),
    ("mh_pflid", {"tie": True}, {"shared_model": MESSENGER_MODEL}, ["inject", "distill"], (2,)),
    ("proxyfl", {}, {"shared_model": SHARED}, ["train"], (2,)),
    ("fedprox", {"mu": 50.0}, {}, ["train", "train"], (2,)),
    ("fedproto", {}, {}, ["train", "prototypes"], (1, 2)),
    ("fedtgp", {}, {}, ["train", "prototypes", "refine"], (1, 2)),
    ("scaffold", {}, {}, ["train", "train"], (1, 2)),
    ("kt_pfl", {}, {}, ["train", "predict", "digest"], (1, 2)),
    ("feddf", {}, {}, ["train", "fuse"], (1, 2)),
    ("dflmoe", {"mixing": "gate"}, {}, ["local", "decide", "decide"], (1, 2)),
    ("dflmoe_models", {}, {}, ["decide", "local"], (2,)),
]


@pytest.mark.parametrize(("method", "parameters", "parts", "stages", "stops"), CASES)
def test_an_interrupted_stage_is_the_undisturbed_one_bit_by_bit(
    make_setting: Any,
    method: str,
    parameters: dict[str, Any],
    parts: dict[str, Any],
    stages: list[str],
    stops: tuple[int, ...],
) -> None:
    """The last of the stages is interrupted, with all networks and moments that those before it left."""
    chosen = {"name": method, **parameters}
    options = {"method": chosen, "steps": 3, "model": DROPPING, **parts}
    if method in ("fedprox", "scaffold"):
        options["shared_model"] = {"name": "tcn", **DROPPING["parameters"]}
    straight = make_setting(site="alpha", **options)
    halted = make_setting(site="alpha", home=Path(straight.home).with_name("halted"), **options)
    peers, results, reports = InitialArtifacts(make_setting, chosen, **parts), {}, list[Any]()
    for setting in (straight, halted):
        sources: tuple[Source, ...] = ()
        if method == "fedskd":
            sources = (peers.source("beta", setting),)
        if method.startswith("dflmoe") or method == "feddf":
            sources = peers.source("beta", setting), peers.source("gamma", setting, model={"parameters": {"width": 2}})
        trainer = Trainer(setting)
        state = initialise(trainer).state
        for round, stage in enumerate(stages[:-1], start=1):
            state = train(trainer, state, *sources, round=round, stage=stage).state
        if setting is halted:
            for step in stops:
                interrupt(setting, commands.Train(1, len(stages), 1, stages[-1], state, sources), after=step)
            torch.manual_seed(4242)
            trainer = Trainer(setting, report=reports.append)
        event = train(trainer, state, *sources, round=len(stages), stage=stages[-1])
        results[setting is halted] = checkpoint_files(setting, event.state), event.metrics, event.artifact
    assert results[True] == results[False]
    assert reports[0].step == stops[-1] + 1
    assert not (Path(halted.home) / "checkpoints" / "partial").exists()
    assert any(name.endswith(".adam.safetensors") for name in results[True][0]) or stages[-1] == "prototypes"


# --- a head of another width ------------------------------------------------------------------------------------------
def test_a_peer_that_comes_back_with_a_wider_head_is_learnt_anew(make_setting: Any) -> None:
    chosen = {"name": "dflmoe"}
    setting, peers = make_setting(site="alpha", method=chosen), InitialArtifacts(make_setting, chosen)
    before, other = peers.source("beta", setting, model=DROPPING), peers.source("gamma", setting)
    wider = peers.source("beta", setting, model={**DROPPING, "parameters": {"width": 6, "projection": 12}}, steps=4)
    trainer = Trainer(setting)
    state = initialise(trainer).state
    state = train(trainer, state, before, other, round=1, stage="decide").state
    known = states(trainer.site_networks)[MIXTURE]
    state = train(trainer, state, wider, other, round=2, stage="local").state
    with_experts = states(trainer.site_networks)[MIXTURE]
    others = ({name: value for name, value in of.items() if "site:beta" not in name} for of in (known, with_experts))
    assert equal(*others)
    assert with_experts["transform.own.site:beta.weight"].shape == (12, 512)
    state = train(trainer, state, wider, other, round=2, stage="decide").state
    moments = trainer.site_networks.moments[MIXTURE]
    assert moments["transform.own.site:beta.weight/exp_avg"].shape == (12, 512)
    steps = {name: moments[f"transform.own.site:{name}.weight/step"].item() for name in ("beta", "gamma")}
    assert steps == {"beta": 4.0, "gamma": 8.0}

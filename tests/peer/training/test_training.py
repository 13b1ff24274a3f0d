"""Whole rounds of every method between real trainers: what leaves, what is frozen, what is equal at all sites."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import models
from peer.core import commands, events
from peer.core.commands import Source
from peer.core.facts import Artifact
from peer.core.plan import PLANS, Plan
from peer.core.roster import SiteName
from peer.core.work import Setting
from peer.training.trainer import Trainer

SITES = ("alpha", "beta", "gamma")
MODELS: Mapping[str, Mapping[str, Any]] = {
    "alpha": {"name": "resnet10", "parameters": {"width": 4}},
    "beta": {"name": "tcn", "parameters": {"width": 6, "projection": 10}},
    "gamma": {"name": "rnn", "parameters": {"width": 4}},
}
"""Three families: convolutions with residues, dilated ones, and an LSTM."""
ALIKE = {"name": "resnet10", "parameters": {"width": 4}}
SHARED = {"name": "resnet10", "width": 4}
MESSENGER = {"name": "messenger_classification", "width": 4}
CASES: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "fedskd": {},
    "mh_pflid": {"shared_model": MESSENGER},
    "feddal": {"shared_model": SHARED},
    "dflmoe": {},
    "dflmoe_models": {},
    "proxyfl": {"shared_model": SHARED},
    "fedavg": {"shared_model": SHARED},
    "fedprox": {"shared_model": SHARED},
    "fedbn": {"shared_model": SHARED},
}

State = dict[str, Tensor]


class Sites:
    """Three sites whose rounds are driven by hand, as the daemons drive them: by the plan's phases."""

    def __init__(self, make_setting: Callable[..., Setting], method: str, **options: Any) -> None:
        alike = PLANS[method].shared == "itself"
        parameters = options.pop("parameters", {})
        settings = {
            site: make_setting(
                site=site,
                method={"name": method, **parameters},
                model=ALIKE if alike else MODELS[site],
                steps=2,
                **options,
            )
            for site in SITES
        }
        self.begin(PLANS[method], settings)

    def begin(self, plan: Plan, settings: Mapping[str, Setting]) -> None:
        """Make every site's first model."""
        self.plan, self.settings = plan, settings
        self.trainers = {site: Trainer(setting) for site, setting in settings.items()}
        self.state: dict[str, str] = {}
        self.artifact: dict[str, Artifact | None] = {}
        self.held: dict[str, dict[str, Source]] = {site: {} for site in SITES}
        self.events: list[events.Event] = []
        for site, trainer in self.trainers.items():
            event = trainer.perform(commands.Initialise(1, 1))
            assert isinstance(event, events.Initialised)
            self.state[site], self.artifact[site] = event.state, event.artifact

    def round(self, number: int, *, lost: frozenset[tuple[str, str]] = frozenset()) -> None:
        """One round; ``lost`` are directed links, (from, to), over which nothing comes."""
        for phase in self.plan.phases:
            if phase == "exchange":
                for receiver in SITES:
                    self._receive(receiver, number, lost)
            elif phase == "aggregate":
                for site in SITES:
                    self._do(commands.Aggregate(1, number, 1, self.state[site], self.sources(site)), site)
            else:
                for site in SITES:
                    stage = phase.removeprefix("train:")
                    command = commands.Train(1, number, 1, stage, self.state[site], self.sources(site))
                    event = self._do(command, site)
                    assert isinstance(event, events.Trained), event
                    self.artifact[site] = event.artifact or self.artifact[site]
            if not self.plan.cached and phase == self.plan.phases[-1]:
                self.held = {site: {} for site in SITES}

    def sources(self, site: str) -> tuple[Source, ...]:
        return tuple(self.held[site][origin] for origin in sorted(self.held[site]))

    def state_of(self, site: str, network: str) -> State:
        folder = Path(self.settings[site].home) / "checkpoints" / self.state[site]
        return safetensors.torch.load_file(folder / f"{network}.safetensors")

    def evaluated(self, site: str) -> Mapping[str, float]:
        sources = self.sources(site) if self.plan.cached else ()
        event = self.trainers[site].perform(commands.Evaluate(1, 9, 1, self.state[site], sources))
        assert isinstance(event, events.Evaluated)
        return event.metrics

    def _receive(self, receiver: str, number: int, lost: frozenset[tuple[str, str]]) -> None:
        origins = [site for site in SITES if site != receiver]
        if self.plan.pattern == "permutation":
            origins = [SITES[(SITES.index(receiver) + 1) % 3]]
        for origin in origins:
            artifact = self.artifact[origin]
            if artifact is None or (origin, receiver) in lost or self.plan.pattern == "none":
                continue
            name = f"{artifact.sha256}.safetensors"
            there, here = (Path(self.settings[site].home) / "artifacts" / name for site in (origin, receiver))
            if not here.exists():
                shutil.copy(there, here)
            self.held[receiver][origin] = Source(SiteName(origin), number, artifact)

    def _do(self, command: commands.Command, site: str) -> events.Event:
        event = self.trainers[site].perform(command)
        self.events.append(event)
        if isinstance(event, events.Trained | events.Aggregated):
            self.state[site] = event.state
        return event


@pytest.fixture
def sites(make_setting: Callable[..., Setting]) -> Callable[..., Sites]:
    def make(method: str, **options: Any) -> Sites:
        return Sites(make_setting, method, **{**CASES[method], **options})

    return make


def equal(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


# --- every method ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", CASES)
def test_three_families_train_predict_and_go_on_from_disk_with_the_same_bits(sites: Any, method: str) -> None:
    together = sites(method)
    together.round(1)
    together.round(2)
    names = {"auc", "auc_undefined", "accuracy", "f1_macro", "loss", "samples"}
    assert all(set(together.evaluated(site)) == names for site in SITES)
    finished = {site: together.state_of(site, "dam") for site in SITES}
    together.trainers = {site: Trainer(setting) for site, setting in together.settings.items()}
    metrics = {site: together.evaluated(site) for site in SITES}
    for setting in together.settings.values():
        shutil.rmtree(Path(setting.home) / "checkpoints")
        (Path(setting.home) / "checkpoints").mkdir()
    again = sites(method)
    for number in (1, 2):
        again.trainers = {site: Trainer(setting) for site, setting in again.settings.items()}
        again.round(number)
    assert all(equal(again.state_of(site, "dam"), finished[site]) for site in SITES)
    assert {site: again.evaluated(site) for site in SITES} == metrics


def test_what_is_averaged_starts_alike_and_the_rest_does_not(sites: Any) -> None:
    for method, network in (("mh_pflid", "messenger"), ("feddal", "proxy"), ("proxyfl", "proxy"), ("fedavg", "dam")):
        first, *others = (sites(method).state_of(site, network) for site in SITES)
        assert all(equal(first, other) for other in others)
    assert not equal(sites("dflmoe").state_of("alpha", "dam"), sites("fedavg").state_of("alpha", "dam"))


@pytest.mark.parametrize("method", ["mh_pflid", "feddal", "fedavg", "fedprox", "fedbn"])
def test_equal_contributors_give_equal_bits_and_a_missing_one_the_mean_of_the_rest(sites: Any, method: str) -> None:
    together = sites(method)
    together.round(1)
    averaged = [event for event in together.events if isinstance(event, events.Aggregated)]
    assert {event.contributors for event in averaged} == {SITES}
    assert len({event.sha256 for event in averaged}) == 1
    together.events.clear()
    together.round(2, lost=frozenset({("beta", "alpha")}))
    alpha, beta, gamma = (event for event in together.events if isinstance(event, events.Aggregated))
    assert (alpha.contributors, beta.contributors) == (("alpha", "gamma"), SITES)
    assert alpha.sha256 != beta.sha256 == gamma.sha256
    network = together.trainers["alpha"].method.sends
    sent = [artifact_state(together, site) for site in ("alpha", "gamma")]
    mine = together.state_of("alpha", network)
    for name, tensor in sent[0].items():
        if tensor.is_floating_point():
            expected = ((tensor.double() + sent[1][name].double()) / 2).to(tensor.dtype)
        else:
            expected = torch.maximum(tensor, sent[1][name])
        assert torch.equal(mine[name], expected), name


def artifact_state(together: Sites, site: str) -> State:
    artifact = together.artifact[site]
    assert artifact is not None
    return safetensors.torch.load_file(
        Path(together.settings[site].home) / "artifacts" / f"{artifact.sha256}.safetensors"
    )


def test_samples_weigh_where_all_tell_them(sites: Any) -> None:
    together = sites("fedavg", weighting="samples", egress={"training_set_size": True})
    parcels = together.trainers["alpha"].parcels
    artifact = together.trainers["beta"].parcels.send(
        together.trainers["beta"].kept.sent, owner=SiteName("beta"), steps=1, samples=10
    )
    with torch.no_grad():
        for parameter in together.trainers["alpha"].kept.dam.parameters():
            parameter.add_(1.0)
    name = f"{artifact.sha256}.safetensors"
    shutil.copy(
        Path(together.settings["beta"].home) / "artifacts" / name,
        Path(together.settings["alpha"].home) / "artifacts" / name,
    )
    told = dataclasses.replace(artifact, training_samples=30)
    mean, who = parcels.averaged([Source(SiteName("beta"), 1, told)], samples=10)
    uniform, _ = parcels.averaged(
        [Source(SiteName("beta"), 1, dataclasses.replace(artifact, training_samples=None))], samples=10
    )
    before = safetensors.torch.load_file(Path(together.settings["beta"].home) / "artifacts" / name)["fc.bias"]
    assert who == ["alpha", "beta"]
    assert torch.allclose(mean["fc.bias"], before + 0.25)
    assert torch.allclose(uniform["fc.bias"], before + 0.5)


@pytest.mark.parametrize(
    ("method", "kind", "foreign"),
    [
        ("fedskd", "model", "mixture"),
        ("dflmoe", "head", "mixture"),
        ("feddal", "proxy", "dam"),
        ("proxyfl", "proxy", "dam"),
        ("mh_pflid", "messenger", "dam"),
    ],
)
def test_only_what_the_plan_says_ever_leaves(sites: Any, method: str, kind: str, foreign: str) -> None:
    together = sites(method)
    together.round(1)
    together.round(2)
    for site in SITES:
        artifact = together.artifact[site]
        assert artifact is not None
        assert (artifact.kind, artifact.owner) == (kind, site)
        private = Path(together.settings[site].home) / "checkpoints" / together.state[site] / f"{foreign}.safetensors"
        secret = (
            []
            if not private.exists()
            else [
                tensor.numpy().tobytes()
                for tensor in safetensors.torch.load_file(private).values()
                if tensor.numel() > 16
            ]
        )
        if method == "dflmoe":
            dam, head = together.state_of(site, "dam"), together.trainers[site].kept.dam.head_name
            secret += [
                tensor.numpy().tobytes()
                for name, tensor in dam.items()
                if not name.startswith(f"{head}.") and tensor.numel() > 16
            ]
        for path in (Path(together.settings[site].home) / "artifacts").iterdir():
            content = path.read_bytes()
            assert not any(values in content for values in secret)


# --- MH-pFLID -------------------------------------------------------------------------------------------------------
def test_each_stage_of_mh_pflid_moves_what_it_trains_and_nothing_else(sites: Any) -> None:
    together = sites("mh_pflid")
    names = ("dam", "messenger", "receiver", "transmitter")
    seen = [{name: together.state_of("alpha", name) for name in names}]
    for stage in ("inject", "distill"):
        together._do(commands.Train(1, 1, 1, stage, together.state["alpha"], ()), "alpha")
        seen.append({name: together.state_of("alpha", name) for name in names})
    moved = [
        {name for name in names if not equal(before[name], after[name])} for before, after in itertools.pairwise(seen)
    ]
    assert moved == [{"dam", "receiver"}, {"messenger", "transmitter"}]


def test_the_switches_of_mh_pflid(sites: Any) -> None:
    tied = sites("mh_pflid", parameters={"tie": True})
    tied.round(1)
    assert equal(tied.state_of("alpha", "receiver"), tied.state_of("alpha", "transmitter"))
    added = sites("mh_pflid", parameters={"receiver": "addition", "transmitter": "addition"})
    assert set(added.state_of("alpha", "receiver")) == {"project.weight", "project.bias"}
    part = sites("mh_pflid", parameters={"average": "head"})
    part.round(1)
    heads, bodies = set(), set()
    for site in SITES:
        state = part.state_of(site, "messenger")
        heads.add(state["classifier.2.weight"].numpy().tobytes())
        bodies.add(state["body.0.weight"].numpy().tobytes())
    assert (len(heads), len(bodies)) == (1, 3)
    sent = part.artifact["alpha"]
    assert sent is not None
    assert all(tensor.name.startswith("classifier.") for tensor in sent.tensors)


# --- FedDAL ---------------------------------------------------------------------------------------------------------
def test_feddal_reports_its_consensus_and_trains_both(sites: Any) -> None:
    together = sites("feddal")
    before = {name: together.state_of("alpha", name) for name in ("dam", "proxy")}
    event = together._do(commands.Train(1, 1, 1, "train", together.state["alpha"], ()), "alpha")
    assert isinstance(event, events.Trained)
    assert 0 <= event.metrics["train_consensus"] <= 1
    assert {"train_forward_kl", "train_feeding", "train_ce_dam"} <= set(event.metrics)
    assert "train_ce_proxy" not in event.metrics
    assert not any(equal(before[name], together.state_of("alpha", name)) for name in before)


def test_the_switches_of_feddal_change_what_is_learnt(sites: Any) -> None:
    found = {}
    for name, parameters in {
        "plain": {},
        "apart": {"alternating": False},
        "one": {"consensus": "one"},
        "supervised": {"proxy_supervision": 1.0},
        "composite": {"forward_kl_updates_private": True},
    }.items():
        together = sites("feddal", parameters=parameters)
        together.round(1)
        found[name] = {network: together.state_of("alpha", network) for network in ("dam", "proxy")}
        for setting in together.settings.values():
            shutil.rmtree(Path(setting.home))
    assert not any(equal(found["plain"]["proxy"], found[name]["proxy"]) for name in ("apart", "supervised"))
    assert not any(equal(found["plain"]["dam"], found[name]["dam"]) for name in ("apart", "composite"))


# --- dFLMoE ---------------------------------------------------------------------------------------------------------
def test_stages_of_dflmoe_freeze_each_other(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    before = {name: together.state_of("alpha", name) for name in ("dam", "mixture")}
    sources = together.sources("alpha")
    heads = [
        (Path(together.settings["alpha"].home) / "artifacts" / f"{s.artifact.sha256}.safetensors") for s in sources
    ]
    bytes_before = [head.read_bytes() for head in heads]
    together._do(commands.Train(1, 2, 1, "local", together.state["alpha"], sources), "alpha")
    after = {name: together.state_of("alpha", name) for name in before}
    assert not equal(before["dam"], after["dam"])
    assert equal(before["mixture"], after["mixture"])
    together._do(commands.Train(1, 2, 1, "decide", together.state["alpha"], sources), "alpha")
    decided = {name: together.state_of("alpha", name) for name in before}
    assert equal(after["dam"], decided["dam"])
    assert not equal(after["mixture"], decided["mixture"])
    assert [head.read_bytes() for head in heads] == bytes_before


def test_with_no_other_head_the_mixture_says_what_the_own_head_says(sites: Any) -> None:
    together = sites("dflmoe")
    trainer = together.trainers["alpha"]
    trainer.hold(together.state["alpha"])
    images = torch.randn(3, 2, 24)
    assert torch.equal(trainer.predict(images), trainer.kept.dam(images).prediction)


def test_the_order_in_which_heads_came_changes_nothing_and_a_lost_link_keeps_the_old_one(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    old = together.held["alpha"]["beta"]
    together.round(2, lost=frozenset({("beta", "alpha")}))
    assert together.held["alpha"]["beta"] == old
    assert together.held["gamma"]["beta"].artifact != old.artifact
    trainer, images = together.trainers["alpha"], torch.randn(3, 2, 24)
    said = []
    for sources in (together.sources("alpha"), together.sources("alpha")[::-1]):
        trainer.hold(together.state["alpha"], sources)
        said.append(trainer.predict(images))
    assert torch.equal(*said)
    assert not torch.equal(said[0], trainer.kept.dam(images).prediction)


def test_the_ablations_of_dflmoe(sites: Any) -> None:
    gate = sites("dflmoe", parameters={"mixing": "gate"})
    gate.round(1)
    assert {"mixing.rows.site:alpha.weight", "mixing.rows.site:beta.weight"} <= set(gate.state_of("alpha", "mixture"))


def test_a_head_whose_input_does_not_fit_is_refused_by_name(sites: Any) -> None:
    together = sites("dflmoe", parameters={"transform": False})
    for site in ("alpha", "beta"):
        together._do(commands.Train(1, 1, 1, "local", together.state[site], ()), site)
    event = together.trainers["beta"].perform(commands.Train(1, 1, 1, "decide", together.state["beta"], ()))
    assert isinstance(event, events.Trained)
    together.artifact["beta"] = together.artifact["beta"]
    first = [event for event in together.events if isinstance(event, events.Trained)][1].artifact
    assert first is not None
    together.artifact["beta"] = first
    together._receive("alpha", 1, frozenset({("gamma", "alpha")}))
    event = together.trainers["alpha"].perform(
        commands.Train(1, 1, 1, "decide", together.state["alpha"], together.sources("alpha"))
    )
    assert isinstance(event, events.ArtifactRejected)
    assert event.reason == "its head takes 10 features, this body gives 32, and transform = false"


def test_a_head_that_was_lost_since_is_left_out_of_the_measurement(sites: Any) -> None:
    together = sites("dflmoe")
    together.round(1)
    whole = together.evaluated("alpha")
    lost = together.held["alpha"]["beta"].artifact.sha256
    (Path(together.settings["alpha"].home) / "artifacts" / f"{lost}.safetensors").unlink()
    assert together.evaluated("alpha")["samples"] == whole["samples"]
    del together.held["alpha"]["beta"]
    assert together.evaluated("alpha") == together.evaluated("alpha")


# --- averaging ------------------------------------------------------------------------------------------------------
def test_fedbn_neither_sends_nor_averages_normalisation(sites: Any) -> None:
    together = sites("fedbn")
    together.round(1)
    sent = together.artifact["alpha"]
    assert sent is not None
    norms = {
        name for name, module in models.build(sent.spec).named_modules() if isinstance(module, torch.nn.BatchNorm1d)
    }
    assert norms
    assert not any(tensor.name.rpartition(".")[0] in norms for tensor in sent.tensors)
    states = [together.state_of(site, "dam") for site in SITES]
    assert torch.equal(states[0]["conv1.weight"], states[1]["conv1.weight"])
    assert not torch.equal(states[0]["bn1.running_mean"], states[1]["bn1.running_mean"])


def test_fedprox_stays_nearer_to_the_mean(sites: Any) -> None:
    gaps = []
    for mu in (0.0, 100.0):
        together = sites("fedprox", parameters={"mu": mu})
        before = together.state_of("alpha", "dam")["fc.weight"]
        together._do(commands.Train(1, 1, 1, "train", together.state["alpha"], ()), "alpha")
        gaps.append((together.state_of("alpha", "dam")["fc.weight"] - before).norm())
        for setting in together.settings.values():
            shutil.rmtree(Path(setting.home))
    assert gaps[1] < gaps[0]


def test_the_optimiser_of_what_is_averaged_begins_anew_and_that_of_what_stays_goes_on(sites: Any) -> None:
    together = sites("feddal")
    together.round(1)
    folder = Path(together.settings["alpha"].home) / "checkpoints" / together.state["alpha"]
    assert sorted(path.name for path in folder.glob("*.adam.safetensors")) == ["dam.adam.safetensors"]


@pytest.mark.parametrize("change", ["spec", "tensors", "values"])
def test_a_proxy_of_another_spec_or_with_bad_values_is_refused(sites: Any, change: str) -> None:
    together = sites("feddal")
    for site in SITES:
        event = together._do(commands.Train(1, 1, 1, "train", together.state[site], ()), site)
        assert isinstance(event, events.Trained)
        together.artifact[site] = event.artifact
    together._receive("alpha", 1, frozenset())
    source = together.held["alpha"]["beta"]
    reason = ""
    if change == "spec":
        spec = {**source.artifact.spec, "hyper": {**source.artifact.spec["hyper"], "width": 8}}
        bad = dataclasses.replace(source.artifact, spec=spec)
        reason = "its spec is not this site's resnet10"
    elif change == "tensors":
        bad = dataclasses.replace(source.artifact, tensors=source.artifact.tensors[1:])
        reason = "is only in the spec"
    else:
        from peer.training.artifact import write_artifact

        state = artifact_state(together, "beta")
        state["fc.bias"].fill_(float("nan"))
        bad = write_artifact(
            Path(together.settings["alpha"].home) / "artifacts",
            state,
            spec=source.artifact.spec,
            kind="proxy",
            owner=SiteName("beta"),
            steps=2,
            training_samples=None,
        )
        reason = "holds a NaN or an infinity"
    before = together.state_of("alpha", "proxy")
    command = commands.Aggregate(1, 1, 1, together.state["alpha"], (dataclasses.replace(source, artifact=bad),))
    event = together.trainers["alpha"].perform(command)
    assert isinstance(event, events.ArtifactRejected)
    assert (event.origin, reason in event.reason) == ("beta", True)
    assert equal(before, together.state_of("alpha", "proxy"))


def test_a_finished_mean_is_answered_at_once(sites: Any) -> None:
    together = sites("fedavg")
    together.round(1)
    first = next(event for event in together.events if isinstance(event, events.Aggregated))
    record = Path(together.settings["alpha"].home) / "checkpoints" / first.state / "record.json"
    assert json.loads(record.read_text())["contributors"] == list(SITES)
    for path in (Path(together.settings["alpha"].home) / "artifacts").iterdir():
        path.unlink()
    assert first.sha256 == json.loads(record.read_text())["sha256"]


# --- real data ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Handwritten digits (scikit-learn's, 8 x 8), 150 for training and 60 for test at each of three sites."""
    images, labels = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits")
    order = np.random.default_rng(0).permutation(len(labels))
    for site, part in zip(SITES, np.array_split(order[:630], 3), strict=True):
        (folder / site).mkdir()
        entries = []
        for index in part:
            np.save(folder / site / f"{index}.npy", (images[index].reshape(1, 8, 8) / 16).astype(np.float32))
            entries.append({"image": f"{index}.npy", "label": int(labels[index])})
        datalist = {"training": entries[:150], "test": entries[150:]}
        (folder / site / "datalist.json").write_text(json.dumps(datalist))
    return folder


def accuracy(trainer: Trainer, predict: Callable[[Tensor], Tensor]) -> float:
    with torch.no_grad():
        hits = [(predict(images).argmax(1) == targets).float() for images, targets in trainer.data.test.batches(30)]
    return float(torch.cat(hits).mean())


@pytest.fixture
def readers(make_setting: Callable[..., Setting], digits: Path) -> Callable[..., Sites]:
    """Three sites of three families that have learnt digits for some rounds."""

    def run(method: str, shared: Mapping[str, Any], *, learning_rate: float, rounds: int) -> Sites:
        together = Sites.__new__(Sites)
        settings = {}
        for site, name in zip(SITES, ("resnet10", "vgg11", "se_resnet18"), strict=True):
            made = make_setting(
                site=site,
                method={"name": method},
                model={"name": name, "parameters": {"width": 8}},
                shared_model=shared,
                task={"kind": "classification", "spatial_dims": 2, "in_channels": 1, "classes": 10},
                data={"input_size": [16, 16], "augmentation": {"flip": 0.0, "probability": 0.0}},
                steps=20,
                learning_rate=learning_rate,
                training={"batch_size": 16},
            )
            settings[site] = dataclasses.replace(made, base_folder=str(digits / site))
        together.begin(PLANS[method], settings)
        for number in range(1, rounds + 1):
            together.round(number)
        return together

    return run


def test_the_proxy_itself_has_learnt_the_task(readers: Callable[..., Sites]) -> None:
    together = readers("feddal", {"name": "resnet10", "width": 8}, learning_rate=1e-3, rounds=5)
    for site, trainer in together.trainers.items():
        trainer.kept.hold(together.state[site])
        proxy = trainer.kept.networks["proxy"].eval()
        assert accuracy(trainer, lambda images, proxy=proxy: proxy(images).prediction) > 0.3  # chance is 0.1
        assert together.evaluated(site)["accuracy"] > 0.5


def test_the_messenger_with_what_is_transmitted_has_learnt_the_task(readers: Callable[..., Sites]) -> None:
    together = readers("mh_pflid", {"name": "messenger_classification", "width": 32}, learning_rate=3e-3, rounds=5)
    for site, trainer in together.trainers.items():
        trainer.kept.hold(together.state[site])
        networks = {name: network.eval() for name, network in trainer.kept.networks.items()}

        def speak(images: Tensor, networks: Mapping[str, Any] = networks) -> Tensor:
            messenger = networks["messenger"]
            sent = networks["transmitter"](messenger(images).penultimate, networks["dam"](images).bottleneck)
            spoken: Tensor = messenger.head(sent)
            return spoken

        assert accuracy(trainer, speak) > 0.2  # chance is 0.1
        assert together.evaluated(site)["accuracy"] > 0.5

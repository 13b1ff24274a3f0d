"""Rounds in which sites add up under masks: the worker divides the total, and refuses one that cannot be used."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from torch import Tensor

from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.ring import Ring
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import TO_WORKER, decode, encode
from peer.files import STATISTICS_FILE
from peer.methods.method import Method
from peer.methods.registry import PLANS
from peer.site.sums.masked_files import add_masked, mask_file
from peer.train.checkpoint import Checkpoints
from peer.train.errors import UnusableArtifact
from peer.train.site_networks import ACCEPTED
from peer.train.total_trial import TotalTrial

SITES = tuple(map(SiteName, ("alpha", "beta", "gamma")))
State = dict[str, Tensor]


class SecureSites:
    """Three sites; the tests mask and add up as their daemons do."""

    def __init__(self, sites: Callable[..., Any], method: str, *, weighted: bool = False, **options: Any) -> None:
        weighting = {"weighting": "samples", "egress": {"training_set_size": True}} if weighted else {}
        options = {"aggregate": {"secure": True}, "roster": SITES, **weighting, **options}
        self.together = sites(method, **options)
        plan = self.together.plan
        self.ring = Ring.of(members=3, clip=64.0, weighted=weighted, whole=plan.artifact == "sums")
        self.weights = dict(zip(SITES, (1, 20, 300), strict=True))

    def train(self) -> dict[SiteName, Artifact]:
        """The stages before the exchange."""
        for phase in self.together.plan.phases:
            if phase == "exchange":
                break
            self.together.train_all(phase.partition(":")[2] or "train")
        return dict(self.together.artifact)

    def plain(self, site: str) -> Path:
        path: Path = self.together.path_of(self.together.artifact[site], site)
        return path

    def add(self, *contributors: SiteName) -> dict[SiteName, commands.Aggregate]:
        """The command of each contributor, its total on disk."""
        contributors = contributors or SITES
        pair = {frozenset(two): bytes([number] * 32) for number, two in enumerate(itertools.combinations(SITES, 2))}
        own = {site: bytes([100 + number] * 32) for number, site in enumerate(SITES)}
        masked: dict[SiteName, Artifact] = {}
        for site in contributors:
            path, artifact = self.plain(site), self.together.artifact[site]
            pairs = {other: pair[frozenset((site, other))] for other in SITES if other != site}
            file = mask_file(
                path,
                path.parent,
                ring=self.ring,
                weight=self.weights[site],
                site=site,
                own_seed=own[site],
                pair_seeds=pairs,
            )
            commitments = dict.fromkeys(SITES, Sha256("ab" * 32))
            masked[site] = dataclasses.replace(
                artifact, sha256=file.sha256, bytes=file.bytes, training_samples=None, commitments=commitments
            )
        left = {(i, d): pair[frozenset((i, d))] for i in contributors for d in {*SITES} - {*contributors}}
        result = {}
        for site in contributors:
            folder = self.plain(site).parent
            paths = [self.plain(name).with_name(f"{each.sha256}.safetensors") for name, each in masked.items()]
            seeds = {"own_seeds": [own[name] for name in masked], "left_seeds": left}
            digest, size = add_masked(paths, self.plain(site), folder, ring=self.ring, **seeds)
            total = Artifact(self.together.artifact[site].kind, site, digest, size, 2, {"name": "resnet10"})
            sources = tuple(Source(name, 1, each) for name, each in masked.items() if name != site)
            result[site] = commands.Aggregate(1, 1, 1, self.together.state[site], sources, total=total)
        return result

    def aggregate(self, *contributors: SiteName) -> dict[SiteName, events.Aggregated]:
        return {site: self.together.do(command, site) for site, command in self.add(*contributors).items()}

    def states(self, *contributors: SiteName) -> list[State]:
        return [safetensors.torch.load_file(self.plain(site)) for site in contributors or SITES]


@pytest.fixture
def secure_sites(sites: Callable[..., Any]) -> Callable[..., SecureSites]:
    return lambda method, **options: SecureSites(sites, method, **options)


def forge(folder: Path, command: commands.Aggregate, change: Callable[[State], object]) -> commands.Aggregate:
    """The command with a changed total in its file."""
    assert command.total is not None
    state = safetensors.torch.load_file(folder / f"{command.total.sha256}.safetensors")
    change(state)
    content = safetensors.torch.save(state)
    digest = Sha256(hashlib.sha256(content).hexdigest())
    (folder / f"{digest}.safetensors").write_bytes(content)
    return dataclasses.replace(command, total=dataclasses.replace(command.total, sha256=digest, bytes=len(content)))


@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "samples"])
@pytest.mark.parametrize("contributors", [SITES, SITES[:2]], ids=["all", "two"])
def test_every_contributor_has_the_mean_of_them(
    secure_sites: Any, equal: Any, contributors: tuple[SiteName, ...], weighted: bool
) -> None:
    secure = secure_sites("fedavg", weighted=weighted)
    secure.train()
    answers = secure.aggregate(*contributors)
    assert len({answer.sha256 for answer in answers.values()}) == 1
    assert all(answer.contributors == contributors and answer.cut == {} for answer in answers.values())
    states = [secure.together.state_of(site, "dam") for site in contributors]
    assert all(equal(states[0], other) for other in states[1:])
    weights = torch.tensor([secure.weights[site] if weighted else 1 for site in contributors]).double()
    for name, value in states[0].items():
        parts = torch.stack([state[name].double() for state in secure.states(*contributors)])
        mean = torch.tensordot(weights, parts, dims=1) / weights.sum()
        if value.is_floating_point():
            assert value.dtype == torch.float32
            rounding = value.abs().double() * torch.finfo(torch.float32).eps
            assert bool(((value.double() - mean).abs() <= secure.ring.error_max + rounding).all()), name
        else:
            assert torch.equal(value, mean.floor().long()), name
    assert answers["alpha"].sha256 == hashlib.sha256(safetensors.torch.save(states[0])).hexdigest()


def test_the_next_round_begins_with_the_mean_and_a_restart_repeats_the_answer(secure_sites: Any, equal: Any) -> None:
    secure = secure_sites("fedavg")
    secure.train()
    commands_of = secure.add()
    answer = secure.together.do(commands_of["alpha"], "alpha")
    folder = secure.plain("alpha").parent
    (folder / f"{commands_of['alpha'].total.sha256}.safetensors").unlink()
    secure.together.restart()
    again = dataclasses.replace(commands_of["alpha"], attempt=7)
    assert secure.together.do(again, "alpha") == dataclasses.replace(answer, attempt=7)
    assert isinstance(secure.together.train("alpha", "train", number=2), events.Trained)
    assert not equal(secure.together.state_of("alpha", "dam"), secure.states("alpha")[0])


def test_another_total_is_other_work(secure_sites: Any) -> None:
    secure = secure_sites("fedavg")
    secure.train()
    command = secure.add()["alpha"]
    first = secure.together.trainers["alpha"].perform(command)
    other = forge(secure.plain("alpha").parent, command, lambda state: state["fc.bias"].add_(0.003))
    second = secure.together.trainers["alpha"].perform(other)
    assert isinstance(second, events.Aggregated)
    assert second.sha256 != first.sha256


def test_a_command_with_a_total_is_the_same_after_its_way_to_the_worker(secure_sites: Any) -> None:
    secure = secure_sites("fedavg")
    secure.train()
    command = secure.add()["alpha"]
    assert decode(encode(command), TO_WORKER) == command
    assert command.sources[0].artifact.commitments is not None


@pytest.mark.parametrize("damage", ["gone", "damaged", "short"])
def test_a_lost_total_is_named_as_lost(secure_sites: Any, damage: str) -> None:
    secure = secure_sites("fedavg")
    secure.train()
    command = secure.add()["alpha"]
    path = secure.plain("alpha").with_name(f"{command.total.sha256}.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-8] if damage == "short" else content[:-1] + bytes([content[-1] ^ 64]))
    if damage == "gone":
        path.unlink()
    event = secure.together.do(command, "alpha")
    assert event == events.ArtifactRejected(
        1, 1, 1, SITES[0], command.total.sha256, "its file is gone or damaged", lost=True
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.pop("fc.bias"), "tensor 'fc.bias' is only in"),
        (lambda state: state.pop("weight"), "tensor 'weight' is only in"),
        (lambda state: state.update(more=torch.zeros(1)), "tensor 'more' is only in"),
        (lambda state: state.update({"fc.bias": torch.zeros(3, dtype=torch.float64)}), r"tensor 'fc.bias' is F64 [3]"),
        (lambda state: state.update({"fc.bias": torch.zeros(2)}), "tensor 'fc.bias' is F32"),
        (lambda state: state["fc.bias"].fill_(float("nan")), "tensor 'fc.bias' holds a NaN"),
        (lambda state: state["fc.bias"].fill_(1e300), "tensor 'fc.bias' of the mean is too large for its type"),
        (lambda state: state["weight"].zero_(), "the weights of its contributors add up to 0"),
    ],
)
def test_a_total_that_does_not_fit_is_refused(secure_sites: Any, change: Any, reason: str) -> None:
    secure = secure_sites("fedavg")
    secure.train()
    before = secure.together.state["alpha"]
    command = forge(secure.plain("alpha").parent, secure.add()["alpha"], change)
    event = secure.together.do(command, "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert (event.origin, event.sha256, event.lost) == ("alpha", command.total.sha256, False)
    assert reason in event.reason
    assert secure.together.state["alpha"] == before


def test_a_prototype_is_the_mean_of_the_sites_that_have_the_class(secure_sites: Any, signals: Path) -> None:
    """No site has samples of class 2, alpha none of class 1; classes are in any order."""
    task = {"classes": 3}
    document = json.loads((signals / "datalist.json").read_text())
    few = [{**entry, "label": entry["label"] * 2} for entry in document["training"]]
    (signals / "few.json").write_text(json.dumps({**document, "training": few}))
    secure = secure_sites("fedproto", task=task)
    settings = secure.together.settings
    site = {**settings["alpha"].site, "data": {**settings["alpha"].site["data"], "datalist": "few.json"}}
    settings["alpha"] = dataclasses.replace(settings["alpha"], site=site)
    secure.together.forget()
    for folder in (Path(setting.home) for setting in settings.values()):
        (folder / "artifacts").mkdir(parents=True)
    secure.together.begin(secure.together.plan, settings)
    secure.train()
    rows, counts = "network.prototypes", "network.counts"
    states = secure.states()
    assert [state[counts].tolist() for state in states] == [[1, 0, 1], [1, 1, 0], [1, 1, 0]]
    assert all(not state[rows][state[counts] == 0].any() for state in states)
    answers = secure.aggregate()
    assert len({answer.sha256 for answer in answers.values()}) == 1
    mean = secure.together.state_of("beta", "prototypes")
    assert mean[counts].tolist() == [1, 1, 1]
    for number, holders in enumerate(((0, 1, 2), (1, 2), (0,))):
        due = torch.stack([states[index][rows][number].double() for index in holders]).mean(0)
        assert torch.allclose(mean[rows][number].double(), due, rtol=1e-6, atol=secure.ring.error_max * 3), number


def test_a_class_that_nobody_has_keeps_no_prototype(secure_sites: Any) -> None:
    secure = secure_sites("fedproto", task={"classes": 3}, aggregate={"secure": True, "clip": 50.0})
    secure.ring = dataclasses.replace(secure.ring, clip=50.0)
    secure.train()
    secure.aggregate()
    mean = secure.together.state_of("alpha", "prototypes")
    assert mean["network.counts"].tolist() == [1, 1, 0], "a clip that 1 does not divide rounds the counts"
    assert not mean["network.prototypes"][2].any()


def test_a_table_of_prototypes_has_zeros_for_the_classes_that_a_site_lacks(secure_sites: Any) -> None:
    """Also of the mean that a site has loaded, whose rows are other sites'."""
    secure = secure_sites("fedproto", task={"classes": 3})
    exchange = secure.together.trainers["alpha"].artifact_exchange
    network = secure.together.trainers["alpha"].site_networks.networks["prototypes"]
    network.network.prototypes.fill_(2.0)
    network.network.counts.copy_(torch.tensor([7, 0, 1]))
    artifact = exchange.send(network, owner=SITES[0], steps=0, samples=10)
    state = safetensors.torch.load_file(secure.together.path_of(artifact, "alpha"))
    assert state["network.counts"].tolist() == [1, 0, 1]
    assert state["network.prototypes"].unique(dim=1).flatten().tolist() == [2, 0, 2]


def test_sums_are_the_total_itself_and_its_check_is_that_of_all_sites(secure_sites: Any, equal: Any) -> None:
    secure = secure_sites("statistics", egress={"count_min": 7, "training_set_size": True})
    secure.train()
    states = secure.states()
    answers = secure.aggregate()
    assert len({answer.sha256 for answer in answers.values()}) == 1
    total = secure.together.state_of("alpha", "sums")
    assert equal(total, {name: sum(state[name] for state in states) for name in total})
    assert int(total["network.table"].max()) > 1
    document = json.loads((Path(secure.together.settings["beta"].home) / STATISTICS_FILE).read_text())
    assert (document["members"], document["all"]["samples"]) == ([*SITES], int(total["network.count"]))


def test_a_total_that_no_samples_give_is_refused(secure_sites: Any) -> None:
    secure = secure_sites("statistics", egress={"training_set_size": True})
    secure.train()
    command = secure.add()["alpha"]
    forged = forge(secure.plain("alpha").parent, command, lambda state: state["network.count"].fill_(-1))
    event = secure.together.do(forged, "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert "it claims -1 samples" in event.reason


def test_what_travels_beside_the_model_is_divided_too(secure_sites: Any) -> None:
    secure = secure_sites("scaffold")
    secure.train()
    states = secure.states()
    beside = {name for name in states[0] if "/" in name}
    assert beside
    command = secure.add()["alpha"]
    secure.together.do(command, "alpha")
    network = next(iter(beside)).partition("/")[0]
    mean = secure.together.state_of("alpha", network)
    for name in beside:
        parts = torch.stack([state[name].double() for state in states])
        assert torch.allclose(mean[name.partition("/")[2]].double(), parts.mean(0), rtol=1e-6, atol=1e-6)


def test_no_stage_takes_masked_artifacts(secure_sites: Any) -> None:
    assert not secure_sites("fedmd").together.trainers["alpha"].artifact_exchange.stages_receive


def test_the_methods_that_use_what_each_site_sends_say_so_in_their_plan() -> None:
    methods: Mapping[str, Method] = {name: Method.of(plan) for name, plan in PLANS.items()}
    each = {name for name, method in methods.items() if method.kept or method.averaged_with_head}
    assert each == {"lc_fed", "fedsm", "dflmoe_averaged"}
    assert all(PLANS[name].uses_each for name in each)


Total = Callable[[State, State], object]
"""A change of a total, given the state that the site started from."""
ACTS: dict[str, Total] = {
    "negated": lambda total, start: [total[name].neg_() for name in start],
    "zero": lambda total, start: [total[name].zero_() for name in start],
    "larger": lambda total, start: [total[name].mul_(20) for name in start],
    "statistics": lambda total, start: [total[name].fill_(1e6) for name in total if name.endswith("running_mean")],
    "no training": lambda total, start: [total[name].copy_(3 * value) for name, value in start.items()],
}


def ordered(secure: SecureSites, act: str, *, number: int = 1) -> commands.Aggregate:
    """Alpha's command, with a changed total."""
    start = Path(secure.together.settings["alpha"].home) / "checkpoints/round-000000/initial/dam.safetensors"
    state = safetensors.torch.load_file(start)
    weights = {name: value for name, value in state.items() if value.is_floating_point() and "running" not in name}
    command = secure.add()["alpha"]
    if act:
        command = forge(secure.plain("alpha").parent, command, lambda total: ACTS[act](total, weights))
    return dataclasses.replace(command, round=number)


@pytest.fixture
def trained(secure_sites: Any) -> Callable[..., SecureSites]:
    """Three sites that have trained long enough to know more than at their start."""

    def train(**options: Any) -> SecureSites:
        secure: SecureSites = secure_sites("fedavg", steps=20, **options)
        secure.train()
        return secure

    return train


@pytest.mark.parametrize("act", ["negated", "larger", "statistics"])
def test_a_mean_that_training_cannot_give_is_refused(trained: Any, act: str) -> None:
    secure = trained()
    before = secure.together.state["alpha"]
    event = secure.together.do(ordered(secure, act), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert "times as far from the last mean as own training" in event.reason
    assert "times that of no knowledge, the own network's" in event.reason
    assert not event.lost
    assert secure.together.state["alpha"] == before


def test_an_honest_mean_is_used_also_after_one_was_refused(trained: Any) -> None:
    secure = trained()
    secure.together.do(ordered(secure, "negated"), "alpha")
    secure.together.restart()
    assert isinstance(secure.together.do(ordered(secure, "", number=2), "alpha"), events.Aggregated)


def test_after_a_refused_mean_one_without_progress_is_refused_too(trained: Any) -> None:
    """It is near, so an insider could hide behind the drift of sites that train alone."""
    secure = trained()
    state = secure.together.state["alpha"]
    assert isinstance(secure.together.do(ordered(secure, "no training"), "alpha"), events.Aggregated)
    secure.together.state["alpha"] = state
    assert isinstance(secure.together.do(ordered(secure, "negated", number=2), "alpha"), events.ArtifactRejected)
    secure.together.restart()
    event = secure.together.do(ordered(secure, "no training", number=3), "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert "that of the last mean before one was refused" in event.reason


def test_the_mean_that_a_site_used_stays_in_its_checkpoints(trained: Any, equal: Any) -> None:
    secure = trained()
    secure.aggregate()
    mean = secure.together.state_of("alpha", "dam")
    secure.together.train("alpha", "train", number=2)
    accepted = secure.together.state_of("alpha", ACCEPTED)
    assert equal(accepted, {name: mean[name] for name in accepted})
    secure.together.restart()
    networks = secure.together.trainers["alpha"].site_networks
    networks.load(secure.together.state["alpha"])
    assert (networks.accepted_round, equal(networks.accepted, accepted)) == (1, True)


def test_a_mean_with_the_untrained_weights_of_a_new_member_is_used(trained: Any) -> None:
    """It looks like a forged one; after it the distance decides again."""
    secure = trained()
    joined = dataclasses.replace(ordered(secure, "negated", number=5), joined=5)
    assert isinstance(secure.together.do(joined, "alpha"), events.Aggregated)
    later = dataclasses.replace(ordered(secure, "larger", number=6), joined=5)
    assert isinstance(secure.together.do(later, "alpha"), events.ArtifactRejected)


def test_a_mean_of_zeros_is_refused_whoever_joined(trained: Any) -> None:
    secure = trained()
    command = dataclasses.replace(ordered(secure, "zero", number=5), joined=5)
    event = secure.together.do(command, "alpha")
    assert isinstance(event, events.ArtifactRejected)
    assert event.reason == "all its weights are zero"


def test_where_stages_count_epochs_distance_tells_nothing(trained: Any) -> None:
    """A site with few samples takes few steps in an epoch, so that every mean is far from it."""
    secure = trained()
    trainer = secure.together.trainers["alpha"]
    epochs = {name: dataclasses.replace(work, unit="epoch") for name, work in trainer.settings.works.items()}
    trainer._total_trial._settings = dataclasses.replace(trainer.settings, works=epochs)
    assert isinstance(secure.together.do(ordered(secure, "negated"), "alpha"), events.Aggregated)


def test_a_site_without_probes_uses_any_mean_and_measures_from_it_later(trained: Any) -> None:
    """So sites that a refused sum has parted come together again by one round without the trial."""
    secure = trained(training={"probe_ratio_max": 0})
    assert isinstance(secure.together.do(ordered(secure, "negated"), "alpha"), events.Aggregated)
    networks = secure.together.trainers["alpha"].site_networks
    networks.load(secure.together.state["alpha"])
    assert networks.accepted_round == 1


def test_with_noise_distance_alone_decides_from_the_second_mean_on(trained: Any) -> None:
    """A person must not decide what a site uses: the trial has no samples."""
    secure = trained()
    trainer, folder = secure.together.trainers["alpha"], secure.plain("alpha").parent
    trainer.site_networks.load(secure.together.state["alpha"])
    settings, no_samples = dataclasses.replace(trainer.settings, noise=cast(Any, object())), SimpleNamespace()
    checkpoints = Checkpoints(folder.parent / "checkpoints")
    trial = TotalTrial(
        settings, trainer.site_networks, trainer.artifact_exchange, cast(Any, no_samples), checkpoints, Mock()
    )
    totals = {act: ordered(secure, act, number=2) for act in ("negated", "larger", "")}

    def divide(act: str) -> object:
        return trial.divide(Source(SITES[0], 2, cast(Artifact, totals[act].total)), totals[act].sources, joined=1)

    divide("negated")
    assert trainer.site_networks.accepted_round == 2
    with pytest.raises(UnusableArtifact, match="times as far from the last mean as own training"):
        divide("larger")
    divide("negated")

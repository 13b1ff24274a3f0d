"""Three real trainers, and a fixture that runs their rounds on signals and on digits."""

import dataclasses
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

from fakes.training import artifact_path, initialise, perform
from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.plan import Plan
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import PLANS
from peer.train.artifact import write_artifact
from peer.train.trainer import Trainer

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
PROJECTED = {site: {**model, "parameters": {**model["parameters"], "projection": 10}} for site, model in MODELS.items()}
"""The same families, whose heads all take ten features."""
CASES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"shared_model": SHARED} for name, plan in PLANS.items() if plan.shared in ("beside", "itself")},
    "mh_pflid": {"shared_model": MESSENGER}, "dflmoe_averaged": {"models": PROJECTED},
    "lg_fedavg": {"models": PROJECTED}, "fedsm": {"shared_model": SHARED, "roster": SITES},
    "lc_fed": {},
}  # fmt: skip
"""What a method needs beside its parameters."""

State = dict[str, Tensor]


class Sites:
    """Three sites; the tests run their rounds as the daemons do, by the plan's phases.

    ``events`` has the event of every command, ``ordered`` the newest command of every site.
    """

    def __init__(self, make_setting: Callable[..., WorkerSetting], method: str, **options: Any) -> None:
        alike = PLANS[method].shared == "itself"
        parameters, models = options.pop("parameters", {}), options.pop("models", None)
        options = {"steps": 2, **options, "method": {"name": method, **parameters}}
        models = models or (dict.fromkeys(SITES, ALIKE) if alike else MODELS)
        self.begin(PLANS[method], {site: make_setting(site=site, model=models[site], **options) for site in SITES})

    def begin(self, plan: Plan, settings: Mapping[str, WorkerSetting]) -> None:
        """Make every site's first model."""
        self.plan, self.settings = plan, settings
        self.trainers = {site: Trainer(setting) for site, setting in settings.items()}
        self.state: dict[str, str] = {}
        self.artifact: dict[str, Artifact | None] = {}
        self.sources_of: dict[str, dict[str, Source]] = {site: {} for site in SITES}
        self.returned: dict[str, tuple[Artifact, ...]] = {}
        self.sent: dict[str, Source] = {}
        self.events: list[events.Event] = []
        self.ordered: dict[str, commands.Command] = {}
        for site, trainer in self.trainers.items():
            event = initialise(trainer)
            self.state[site], self.artifact[site] = event.state, event.artifact

    def round(self, number: int, *, lost: frozenset[tuple[str, str]] = frozenset()) -> None:
        """One round; ``lost`` are directed links, (from, to), over which nothing comes."""
        for phase in self.plan.phases:
            if phase == "exchange":
                for receiver in SITES:
                    self.receive(receiver, number, lost=lost)
            elif phase == "returns":
                self.come_home(number, lost=lost)
            elif phase == "aggregate":
                for site in SITES:
                    sent = self.sent.get(site)
                    self.do(commands.Aggregate(1, number, 1, self.state[site], self.sources(site), sent=sent), site)
            else:
                self.train_all(phase.removeprefix("train:"), number=number)
        for site, sources in self.sources_of.items():
            last_received = sources if self.plan.keeps_last_received else {}
            self.sources_of[site] = {
                origin: dataclasses.replace(source, fallback="stale") for origin, source in last_received.items()
            }

    def sources(self, site: str) -> tuple[Source, ...]:
        """The artifacts that the site has received."""
        return tuple(self.sources_of[site][origin] for origin in sorted(self.sources_of[site]))

    def folder(self, site: str) -> Path:
        """The site's newest checkpoint."""
        return Path(self.settings[site].home) / "checkpoints" / self.state[site]

    def state_of(self, site: str, network: str) -> State:
        """A network in the site's newest checkpoint."""
        return safetensors.torch.load_file(self.folder(site) / f"{network}.safetensors")

    def path_of(self, artifact: Artifact, site: str) -> Path:
        """Where the site has an artifact."""
        return artifact_path(self.settings[site], artifact)

    def artifact_state(self, site: str) -> State:
        """The state in the site's last artifact."""
        artifact = self.artifact[site]
        return safetensors.torch.load_file(self.path_of(artifact, site))

    def forge(self, source: Source, change: Callable[[State], object]) -> Source:
        """The source with a changed state in its file, as alpha has it."""
        artifact, path = source.artifact, self.path_of(source.artifact, "alpha")
        state = safetensors.torch.load_file(path)
        change(state)
        facts = {name: getattr(artifact, name) for name in ("spec", "kind", "owner", "steps", "training_samples")}
        return dataclasses.replace(source, artifact=write_artifact(path.parent, state, **facts))

    def restart(self) -> None:
        """New trainers, which read the folders of the old ones."""
        self.trainers = {site: Trainer(setting) for site, setting in self.settings.items()}

    def forget(self) -> None:
        """Remove all files, for other sites of the same names."""
        for setting in self.settings.values():
            shutil.rmtree(Path(setting.home))

    def evaluated(self, site: str) -> Mapping[str, float]:
        """The metrics of the site as it is."""
        sources = self.sources(site) if self.plan.keeps_last_received else ()
        return perform(self.trainers[site], commands.Evaluate(1, 9, 1, self.state[site], sources)).metrics

    def receive(self, receiver: str, number: int, *, lost: frozenset[tuple[str, str]] = frozenset()) -> None:
        """Fetch the last artifacts of the others."""
        origins = [site for site in SITES if site != receiver]
        if self.plan.pattern == "permutation":
            origins = [SITES[(SITES.index(receiver) + 1) % 3]]
        for origin in origins:
            artifact = self.artifact[origin]
            if artifact is None or (origin, receiver) in lost or self.plan.pattern == "none":
                continue
            if not (copy := self.path_of(artifact, receiver)).exists():
                shutil.copy(self.path_of(artifact, origin), copy)
            self.sources_of[receiver][origin] = Source(SiteName(origin), number, artifact)

    def come_home(self, number: int, *, lost: frozenset[tuple[str, str]] = frozenset()) -> None:
        """Fetch what the others have trained of each site's model."""
        for site in SITES:
            artifact = self.artifact[site]
            self.sent[site] = Source(SiteName(site), number, artifact)
            self.sources_of[site] = {}
            for host in SITES:
                for copy in self.returned[host]:
                    if copy.owner == site and (host, site) not in lost:
                        if not (path := self.path_of(copy, site)).exists():
                            shutil.copy(self.path_of(copy, host), path)
                        self.sources_of[site][host] = Source(SiteName(host), number, copy)

    def train_all(self, stage: str, *, number: int = 1) -> None:
        """One stage of every site, with what it has received."""
        for site in SITES:
            event = self.train(site, stage, self.sources(site), number=number)
            assert isinstance(event, events.Trained), event
            self.artifact[site] = event.artifact or self.artifact[site]
            self.returned[site] = event.returned

    def train(self, site: str, stage: str, sources: tuple[Source, ...] = (), *, number: int = 1) -> events.Event:
        """One stage of one site alone."""
        return self.do(commands.Train(1, number, 1, stage, self.state[site], sources), site)

    def do(self, command: commands.Command, site: str) -> events.Event:
        """Have the site carry out an order."""
        self.ordered[site] = command
        event = self.trainers[site].perform(command)
        self.events.append(event)
        if isinstance(event, events.Trained | events.Aggregated):
            self.state[site] = event.state
        if isinstance(event, events.Aggregated):
            self.artifact[site] = event.artifact or self.artifact[site]
        return event


@pytest.fixture
def sites(make_setting: Callable[..., WorkerSetting]) -> Callable[..., Sites]:
    """Makes the three sites of a method."""

    def make(method: str, **options: Any) -> Sites:
        return Sites(make_setting, method, **{**CASES.get(method, {}), **options})

    return make


@pytest.fixture(scope="session")
def equal() -> Callable[[State, State], bool]:
    """Whether two states are the same, bit by bit."""

    def equal(first: State, second: State) -> bool:
        return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())

    return equal


# --- real data ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def accuracy() -> Callable[..., float]:
    """The share of the test images whose class a function of images finds."""

    def accuracy(trainer: Trainer, predict: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            hits = [(predict(images).argmax(1) == targets).float() for images, targets in trainer.data.test.batches(30)]
        return float(torch.cat(hits).mean())

    return accuracy


@pytest.fixture
def readers(make_setting: Callable[..., WorkerSetting], digits: Path) -> Callable[..., Sites]:
    """Three sites of three families that have learnt digits for some rounds."""

    def run(method: str, shared: Mapping[str, Any], *, learning_rate: float, rounds: int) -> Sites:
        together = Sites.__new__(Sites)
        settings = {}
        for site, name in zip(SITES, ("resnet10", "vgg11", "se_resnet18"), strict=True):
            setting = make_setting(
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
            settings[site] = dataclasses.replace(setting, base_folder=str(digits / site))
        together.begin(PLANS[method], settings)
        for number in range(1, rounds + 1):
            together.round(number)
        return together

    return run

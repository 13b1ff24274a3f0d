"""One federation in one process: every site's worker, and the sites' state machines.

A simulation may be interrupted at any moment. Its rows, checkpoints and artifacts are those of
daemons, and another ``Simulation`` of the same folder resumes from them and ends with the same
bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from peer.core import commands, events, site_memory
from peer.core.artifacts import Artifact
from peer.core.machine import SiteMachine
from peer.core.phases import Phase
from peer.core.roster import RoundKey, SiteName
from peer.core.seeds import derive
from peer.core.worker_protocol import WorkerSetting
from peer.errors import DataError, ModelError, PeerError, WorkerFailed
from peer.lab.experiments.insider import Insider
from peer.lab.experiments.simulated_epochs import Change, SimulatedEpochs
from peer.lab.experiments.simulated_network import LinkDown, SimulatedNetwork, restore_site
from peer.methods.method import Method
from peer.site.config.rules import make_rules, worker_setting
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.records.journal import Journal
from peer.train.checkpoint import Checkpoints
from peer.train.errors import DivergenceError, UnusableConfigurationError, fault_of, reason_of, work_failed
from peer.train.samples import site_seed
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.tensors import pack, state_of
from peer.train.trainer import Trainer

GENERATION = "gen-0001"
FAULTS: Mapping[str, type[PeerError]] = {"data": DataError, "configuration": ModelError, "divergence": ModelError}


@dataclass(frozen=True)
class FinishedSite:
    """A site of a finished run, ready to be evaluated.

    Attributes:
        site: its configuration.
        trainer: the worker with its networks.
        memory: the state recovered from its rows.
        rows: all rows of its journal.
    """

    site: SiteConfig
    trainer: Trainer
    memory: site_memory.Memory
    rows: tuple[site_memory.Row, ...]

    def load_final_state(self) -> None:
        """Load the site's last checkpoint into the trainer, so that it predicts with it."""
        self.trainer.load(self.memory.state, site_memory.used_sources(self.rows))

    @property
    def steps(self) -> int:
        record = Checkpoints(self.trainer.settings.home / "checkpoints").record(self.memory.state) or {}
        return int(record.get("steps", 0))

    @property
    def digest(self) -> str:
        return hashlib.sha256(pack(state_of(self.trainer.site_networks.dam))).hexdigest()


class Simulation:
    """A federation whose sites' folders lie under one folder.

    Args:
        folder: holds ``federation.toml`` and ``sites/<site>/`` with ``site.toml`` and
            ``datalist.json``.
        round_key: the shared secret from which the sites compute the schedule of the rounds.
        loss: probability with which each directed link is down in a round.
        epochs: the changes of members; see ``peer.lab.experiments.simulated_epochs``.
        insider: the Byzantine site and its act.
        pooled: all sites have the same training data; of the sites with one network and one input
            size, the simulation trains the first and shares its result.
        noise_keys: of sites that are to have the noise of their daemons.

    Raises:
        ConfigError: a file is wrong.
    """

    def __init__(
        self,
        folder: Path,
        *,
        round_key: bytes,
        loss: float = 0.0,
        pooled: bool = False,
        insider: Insider | None = None,
        epochs: Sequence[Change] = (),
        noise_keys: Mapping[SiteName, bytes] = MappingProxyType({}),
    ) -> None:
        self.folder, self.noise_keys = folder, noise_keys
        self.federation = FederationConfig.load(folder / "federation.toml")
        names = sorted({*self.federation.roster, *(name for change in epochs for name in change["add"])})
        self.sites = {SiteName(name): SiteConfig.load(folder / "sites" / name / "site.toml") for name in names}
        self._changes = epochs
        self._key, self._loss = RoundKey(round_key), loss
        self._insider = insider
        first_of: dict[str, SiteName] = {}
        self._representatives = {
            name: first_of.setdefault(str(_network_and_input(site)) if pooled else name, name)
            for name, site in self.sites.items()
        }

    def home(self, name: SiteName) -> Path:
        return self.folder / "sites" / name / GENERATION

    def run(self, watch: Callable[[int, int], None] = lambda committed, rounds: None) -> dict[SiteName, FinishedSite]:
        """Run every site from the state of its rows to its end.

        Args:
            watch: called after each event with the committed rounds of all sites together, and
                their total.

        Raises:
            PeerError: a site cannot train; the message names it.
        """
        trainers = {name: self.trainer(name) for name in self.sites}
        if self._insider is not None:
            self._insider.poison(trainers[SiteName(self._insider.site)])
        trained = sorted(set(self._representatives.values()))
        rounds = dict.fromkeys(trained, 0)

        def report_progress(name: SiteName, machine: SiteMachine) -> None:
            if machine.phase == Phase.FAILED:
                raise ModelError(f"site {name}: {machine.failure}")
            rounds[name] = machine.memory.committed
            watch(sum(rounds.values()), len(rounds) * self.federation.rounds)

        with self._journals(trained) as journals:
            sites = {
                name: restore_site(
                    make_rules(self.federation, name, self._key),
                    tuple(journals[name].rows()),
                    _make_worker(name, trainers[name]),
                    journals[name],
                    self.home(name) / "artifacts",
                )
                for name in trained
            }

            def forge(name: SiteName, artifact: Artifact) -> Artifact:
                insider = self._insider
                if insider is None or insider.site != name:
                    return artifact
                return insider.forge(artifact, trainers[name].settings, sites=len(self.sites))

            epochs = SimulatedEpochs(sites[trained[0]].rules.epochs.genesis, self._changes) if self._changes else None
            failures = self._link_failures()
            SimulatedNetwork(sites, link_down=failures, forge=forge, watch=report_progress, epochs=epochs).run()
            for name, site in sites.items():
                if site.exit is not None and site.exit.fault:
                    raise FAULTS.get(site.exit.fault, WorkerFailed)(f"{name}: {site.exit.reason}")
            rows = {name: tuple(journals[name].rows()) for name in trained}
        finished_sites = {}
        for name, representative in self._representatives.items():
            memory = site_memory.recover(rows[representative])
            finished_sites[name] = FinishedSite(
                self.sites[name], trainers[representative], memory, rows[representative]
            )
        return finished_sites

    def clear(self) -> None:
        """Delete journals, checkpoints and artifacts."""
        for home in self.folder.glob(f"sites/*/{GENERATION}"):
            shutil.rmtree(home, ignore_errors=True)

    def check_networks(self) -> None:
        """Build every site's networks, and train nothing.

        Raises:
            ModelError: the method cannot use them; the message names the site.
        """
        for name in self.sites:
            settings = TrainingSettings.of(self._worker_setting(name))
            method, checkpoints = Method.of(settings.plan), Checkpoints(settings.home / "checkpoints", clean=False)
            try:
                SiteNetworks(settings, method, site_seed(settings), checkpoints).check()
            except UnusableConfigurationError as error:
                hint = "take other networks in [models], or say in the row's `models` which ones it is for"
                raise ModelError(f"{self.folder.name}: site {name}: {error}", hint) from error

    def trainer(self, name: SiteName) -> Trainer:
        """Build a new worker with the site's own data, also for a shared network or a site that is left out."""
        return Trainer(self._worker_setting(name))

    def _worker_setting(self, name: SiteName) -> WorkerSetting:
        site = self.sites[name] if name in self.sites else SiteConfig.load(self.folder / "sites" / name / "site.toml")
        for part in ("artifacts", "checkpoints"):
            (self.home(name) / part).mkdir(parents=True, exist_ok=True)
        key = self.noise_keys.get(name) or hashlib.sha256(f"simulated noise of {name}".encode()).digest()
        setting = worker_setting(self.federation, site, name, home=self.home(name), folder=site.folder)
        return replace(setting, noise_key=key.hex())

    @contextlib.contextmanager
    def _journals(self, names: list[SiteName]) -> Iterator[dict[SiteName, Journal]]:
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(contextlib.closing(Journal(self.home(name) / "journal.db"))) for name in names
            }

    def _link_failures(self) -> LinkDown:
        seed, bound = self.federation.seed, self._loss * (1 << 63)

        def link_down(round: int, sender: SiteName, receiver: SiteName) -> bool:
            return derive("link", seed, round, sender, receiver) < bound

        return link_down


def _network_and_input(site: SiteConfig) -> tuple[object, ...]:
    """Return the settings that two sites must have in common to share one trained network."""
    return site.model, site.data.input_size, site.data.scale


def _make_worker(name: SiteName, trainer: Trainer) -> Callable[[commands.Command], events.Event]:
    """Build a function that commands the site's trainer; its errors name the site.

    Only a divergence goes to the state machine, which may recover from it; another error would recur.
    """

    def perform(command: commands.Command) -> events.Event:
        try:
            return trainer.perform(command)
        except Exception as error:
            if isinstance(error, DivergenceError) and isinstance(command, commands.Train):
                return work_failed(error, generation=command.generation, attempt=command.attempt)
            raise FAULTS.get(fault_of(error), WorkerFailed)(f"site {name}: {reason_of(error)}") from error

    return perform

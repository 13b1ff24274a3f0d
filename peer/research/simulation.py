"""One federation in one process: every site's worker, and the sites' course in memory.

It may be interrupted at any moment: rows, checkpoints and artifacts are what a daemon's are, and another ``Simulation``
of the same folder goes on from them to the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peer.config.rules import make_rules
from peer.config.schema import FederationConfig, SiteConfig
from peer.core import commands, events, site_memory
from peer.core.machine import SiteMachine
from peer.core.roster import RoundKey, SiteName
from peer.core.seeds import derive
from peer.core.worker_protocol import WorkerSetting
from peer.errors import DataError, ModelError, PeerError, WorkerFailed
from peer.records.journal import Journal
from peer.research.simulated_network import Lost, SimulatedNetwork, place
from peer.training.checkpoint import Checkpoints
from peer.training.errors import fault_of, reason_of
from peer.training.tensors import pack, state_of
from peer.training.trainer import Trainer

GENERATION = "gen-0001"
FAULTS: Mapping[str, type[PeerError]] = {"data": DataError, "configuration": ModelError}


@dataclass(frozen=True)
class Member:
    """A site of a run that is over, ready to be looked at.

    Attributes:
        site: its configuration.
        trainer: holds what the site predicts with.
        memory: what its rows say.
        rows: all of them.
    """

    site: SiteConfig
    trainer: Trainer
    memory: site_memory.Memory
    rows: tuple[site_memory.Row, ...]

    def hold(self) -> None:
        """Have the trainer predict with the site's last state."""
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
        folder: holds ``federation.toml`` and ``sites/<site>/`` with ``site.toml`` and ``datalist.json``.
        round_key: decides the order of the rounds.
        loss: probability with which each directed link is down in a round.
        pooled: all sites have the same data: of those with one network and one input, one is trained for all.
    """

    def __init__(self, folder: Path, *, round_key: bytes, loss: float = 0.0, pooled: bool = False) -> None:
        self.folder = folder
        self.federation = FederationConfig.load(folder / "federation.toml")
        self.sites = {name: SiteConfig.load(folder / "sites" / name / "site.toml") for name in self.federation.roster}
        self._key, self._loss = RoundKey(round_key), loss
        leaders: dict[str, SiteName] = {}
        self._leader = {
            name: leaders.setdefault(str(_fitted(site)) if pooled else name, name) for name, site in self.sites.items()
        }

    def home(self, name: SiteName) -> Path:
        return self.folder / "sites" / name / GENERATION

    def run(self, watch: Callable[[int, int], None] = lambda committed, rounds: None) -> dict[SiteName, Member]:
        """From where the rows stand to the end of every site.

        Args:
            watch: called now and then with the rounds that all sites together have committed, and how many there are.

        Raises:
            PeerError: a site cannot train; the message names it.
        """
        trainers = {name: self._trainer(name) for name in self.sites}
        trained = sorted(set(self._leader.values()))
        rounds = dict.fromkeys(trained, 0)

        def look(name: SiteName, round: SiteMachine) -> None:
            rounds[name] = round.memory.committed
            watch(sum(rounds.values()), len(rounds) * self.federation.rounds)

        with self._journals(trained) as journals:
            places = {
                name: place(
                    make_rules(self.federation, name, self._key),
                    tuple(journals[name].rows()),
                    _worker(name, trainers[name]),
                    journals[name],
                    self.home(name) / "artifacts",
                )
                for name in trained
            }
            SimulatedNetwork(places, lost=self._lost(), watch=look).run()
            for name, site in places.items():
                if site.exit is not None and site.exit.fault:
                    raise FAULTS.get(site.exit.fault, WorkerFailed)(f"{name}: {site.exit.reason}")
            rows = {name: tuple(journals[name].rows()) for name in trained}
        found = {}
        for name, leader in self._leader.items():
            memory = site_memory.recover(rows[leader])
            found[name] = Member(self.sites[name], trainers[leader], memory, rows[leader])
        return found

    def data(self, name: SiteName) -> Trainer:
        """A worker of the site itself, for its data; in a pooled run another's may have been trained for it."""
        return self._trainer(name)

    def clear(self) -> None:
        """Delete journals, checkpoints and artifacts."""
        for name in self.sites:
            shutil.rmtree(self.home(name), ignore_errors=True)

    def _trainer(self, name: SiteName) -> Trainer:
        for part in ("artifacts", "checkpoints"):
            (self.home(name) / part).mkdir(parents=True, exist_ok=True)
        return Trainer(
            WorkerSetting(
                site_name=name,
                federation_digest=self.federation.digest,
                federation=self.federation.model_dump(mode="json"),
                site=self.sites[name].model_dump(mode="json"),
                home=str(self.home(name)),
                base_folder=str(self.sites[name].folder),
            )
        )

    @contextlib.contextmanager
    def _journals(self, names: list[SiteName]) -> Iterator[dict[SiteName, Journal]]:
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(contextlib.closing(Journal(self.home(name) / "journal.db"))) for name in names
            }

    def _lost(self) -> Lost:
        seed, bound = self.federation.seed, self._loss * (1 << 63)

        def lost(round: int, sender: SiteName, receiver: SiteName) -> bool:
            return derive("link", seed, round, sender, receiver) < bound

        return lost


def _fitted(site: SiteConfig) -> tuple[object, ...]:
    """What decides whether one site's network could be another's: with other inputs it would learn something else."""
    return site.model, site.data.input_size, site.data.scale


def _worker(name: SiteName, trainer: Trainer) -> Callable[[commands.Command], events.Event]:
    """The site's trainer; what it cannot do ends the run, with the site's name."""

    def perform(command: commands.Command) -> events.Event:
        try:
            return trainer.perform(command)
        except Exception as error:
            raise FAULTS.get(fault_of(error), WorkerFailed)(f"site {name}: {reason_of(error)}") from error

    return perform

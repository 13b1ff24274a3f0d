"""A site's training: one command in, its event out. What matters is on disk; memory only saves reading it again."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models import Network
from peer.core import commands, events
from peer.core.commands import Source
from peer.core.messages import Artifact
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import WorkerSetting, from_json, to_json
from peer.files import artifact_path
from peer.methods.method import DAM, VISITOR, Method, Stage, StageContext
from peer.methods.supervised import supervised_stage
from peer.training.artifact_exchange import ArtifactExchange
from peer.training.checkpoint import Checkpoints, checkpoint_name
from peer.training.data import Batches, DataSplit, Seed, SiteData, load_data, site_seed
from peer.training.device import choose_device, describe_device, make_reproducible, precision, release_memory
from peer.training.errors import UnusableArtifact, UnusableConfigurationError, WorkInterrupted
from peer.training.guest import measured
from peer.training.loop import Diverged, Loop, StageRunner
from peer.training.optimiser import fitting
from peer.training.rehearsal import rehearsed
from peer.training.settings import TrainingSettings
from peer.training.site_networks import SiteNetworks
from peer.training.tensors import non_finite, pack

logger = logging.getLogger(__name__)

INITIAL = checkpoint_name(0, "initial")


class Trainer:
    """Carries out the commands of ``peer.core.commands`` that go to a worker.

    Args:
        setting: the site, its federation, its folder.
        report: gets every ``Progressed``.
        halted: asked between steps; once it is true, the work in hand ends in ``WorkInterrupted``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        setting: WorkerSetting,
        *,
        report: Callable[[events.Event], None] = lambda event: None,
        halted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings = TrainingSettings.of(setting)
        self.method = Method.of(settings.plan)
        self._report, self._halted, self._clock = report, halted, clock
        self._seed: Seed = site_seed(settings)
        self.device = choose_device(settings.device)
        make_reproducible(self.device, threads=settings.threads)
        self._checkpoints = Checkpoints(settings.home / "checkpoints")
        self.kept = SiteNetworks(settings, self.method, self._seed, self._checkpoints)
        self.artifact_exchange = ArtifactExchange(settings, self.method, self.kept)
        self._scene: StageContext | None = None  # what a prediction starts from

    def perform(self, command: commands.Command) -> events.Event:
        """Carry out one command; the event answers it.

        Raises:
            Interrupted: a halt came; what was trained so far is in a partial checkpoint.
            Exception: whatever made it impossible; ``peer.training.errors`` says whose fault that is.
        """
        handlers: dict[type, Callable[[Any], events.Event]] = {
            commands.Initialise: self._initialise,
            commands.Train: self._train,
            commands.Aggregate: self._aggregate,
            commands.Adopt: self._adopt,
            commands.Evaluate: self._evaluate,
            commands.Rehearse: lambda order: rehearsed(self, order),
        }
        return handlers[type(command)](command)

    @cached_property
    def data(self) -> SiteData:
        """The site's data, checked and read."""
        return load_data(self.settings, self._seed, pulse=self._heed_halt)

    # --- commands ---------------------------------------------------------------------------------------------------
    def _initialise(self, command: commands.Initialise) -> events.Initialised:
        work = self._digest("initialise", command.generation)
        record = self._finished(INITIAL, work)
        if record is None:
            masks, place = self.settings.data.regions is not None, self.kept.place
            problem = self.method.unfit(place.output, place.shared_output, self.settings.parameters, masks=masks)
            if problem is not None:
                raise UnusableConfigurationError(problem)
            record = {"work": work, "steps": 0, "artifact": None, "samples": self.data.counts}
            if self.settings.plan.artifact is not None:
                artifact = self._send(self.kept.sent, owner=self.settings.site, steps=0)
                self.artifact_exchange.judge_own(artifact)
                record["shared"] = artifact.sha256
                if self.settings.plan.published == "commit":
                    record["artifact"] = to_json(artifact)
            self.kept.write(INITIAL, record, {})
        return events.Initialised(
            generation=command.generation,
            attempt=command.attempt,
            state=INITIAL,
            artifact=_artifact(record),
            samples=record["samples"],
            threads=self.settings.threads,
            device=describe_device(self.device),
        )

    def _train(self, command: commands.Train) -> events.Event:
        name = checkpoint_name(command.round, command.stage)
        base = self._base(command.base)
        work = self._digest(name, base["work"], *map(_identity, command.sources), command.circulate)
        record = self._finished(name, work)
        if record is None:
            try:
                record = self._run_stage(command, name, work, steps_before=base["steps"])
            except UnusableArtifact as error:
                return _rejected(command, error)
            finally:
                release_memory(self.device)
        return events.Trained(
            generation=command.generation,
            round=command.round,
            attempt=command.attempt,
            stage=command.stage,
            state=name,
            artifact=_artifact(record),
            metrics=record["metrics"],
            threads=record["threads"],
            duration_s=record["duration_s"],
        )

    def _aggregate(self, command: commands.Aggregate) -> events.Event:
        name = checkpoint_name(command.round, "aggregate")
        base = self._base(command.base)
        work = self._digest(name, base["work"], *map(_identity, command.sources))
        record = self._finished(name, work)
        if record is None:
            self.kept.hold(command.base)
            try:
                averaged, contributors = self.artifact_exchange.averaged(
                    command.sources, samples=len(self.data.training)
                )
            except UnusableArtifact as error:
                return _rejected(command, error)
            self.kept.let_go()
            self.kept.sent.load_state_dict(averaged, strict=False)
            digest = hashlib.sha256(pack(averaged)).hexdigest()
            record = {"work": work, "steps": base["steps"], "artifact": None, "sha256": digest}
            record["contributors"] = contributors
            private = {name: state for name, state in self.kept.moments.items() if name != self.method.sends}
            self.kept.write(name, record, private)
            self._checkpoints.prune([command.base])
        order = (command.generation, command.round, command.attempt, name)
        return events.Aggregated(*order, Sha256(record["sha256"]), tuple(map(SiteName, record["contributors"])))

    def _adopt(self, command: commands.Adopt) -> events.Event:
        name = checkpoint_name(command.round, "adopt")
        work = self._digest(name, self._base(command.base)["work"], _identity(command.source))
        record = self._finished(name, work)
        if record is None:
            self.kept.hold(command.base)
            dam = self.kept.dam
            try:
                returned, _ = self.artifact_exchange.receive(command.source)
                if not isinstance(returned, Network) or returned.spec != dam.spec:
                    raise UnusableArtifact(command.source, "it is not of this site's [model]")
            except UnusableArtifact as error:
                return _rejected(command, error)
            steps = command.source.artifact.steps
            artifact = self._send(returned, owner=self.settings.site, steps=steps)
            record = {"work": work, "steps": steps, "artifact": to_json(artifact)}
            self.kept.let_go()
            dam.load_state_dict(returned.state_dict())
            self.kept.write(name, record, {})
        return events.Adopted(command.generation, command.round, command.attempt, name, _artifact(record))

    def _evaluate(self, command: commands.Evaluate) -> events.Evaluated:
        sources = command.sources
        while True:
            try:
                self.hold(command.base, sources)
                break
            except UnusableArtifact as error:  # the round is trained; what became unusable since is left out here
                logger.warning("artifact left out of the measurement: peer=%s reason=%s", error.source.origin, error)
                sources = tuple(source for source in sources if source != error.source)
        found = self.measured(self.data.test)
        found |= {f"validation_{name}": value for name, value in self.measured(self.data.validation).items()}
        lent = None
        if command.lent:
            lent = self._send(self.kept.dam, owner=self.settings.site, steps=self._base(command.base)["steps"])
        return events.Evaluated(command.generation, command.round, command.attempt, found, lent)

    # --- what the site can do with a finished state -----------------------------------------------------------------
    def hold(self, state: str, sources: tuple[Source, ...] = ()) -> None:
        """Have the site's networks as they were in a checkpoint, with what its round had received, ready to predict."""
        self.kept.hold(state)
        received = self.artifact_exchange.received(sources) if self.settings.plan.keeps_last_received else {}
        self._scene = self._make_scene(received)
        for network in (*self._scene.networks.values(), *received.values()):
            network.to(self.device).eval()

    def predict(self, images: Tensor) -> Tensor:
        """The prediction of the networks in hand for prepared images ``(b, c, *space)``, on the CPU, float32.

        Returns:
            Logits ``(b, classes)`` or ``(b, classes, *space)``, or the images of super-resolution.
        """
        if self._scene is None:
            raise UnusableConfigurationError("nothing to predict with: hold a checkpoint first")
        with torch.inference_mode(), precision(self.settings.precision, self.device):
            return self.method.predict(self._scene, images.to(self.device)).float().cpu()

    def measured(self, split: DataSplit) -> dict[str, float]:
        """The metrics of the networks in hand on a split, which may be another site's."""

        def predict(images: Tensor) -> Tensor:
            self._heed_halt()
            return self.predict(images)

        return measured(predict, split, self.settings)

    # --- one stage --------------------------------------------------------------------------------------------------
    def _run_stage(self, command: commands.Train, name: str, work: str, *, steps_before: int) -> dict[str, Any]:
        """Train to the end, keep the result, and give its record."""
        loop, batches = self.prepare(command)
        stage, steps = loop.stage, loop.pass_steps
        kept = [network for network in stage.trains if network in self.kept.networks]
        for network in kept:
            loop.load({}, {network: fitting(self.kept.moments.get(network, {}), stage.networks[network])})
        try:
            duration_s = self._drive(command).run(loop, batches, work=work)
            artifact = self._outcome(command, stage, steps=steps, steps_before=steps_before)
        except Diverged as error:
            raise self._blamed(command, str(error)) from error
        finally:
            loop.thaw()
            batches.close()
        record = {
            "work": work,
            "steps": steps_before + (steps if DAM in kept else 0),
            "artifact": to_json(artifact),
            "metrics": _stage_metrics(command.stage, loop),
            "threads": self.settings.threads,
            "duration_s": duration_s,
        }
        self.kept.write(name, record, {**self.kept.moments, **{key: loop.moments()[key] for key in kept}})
        self._checkpoints.clear_partial()
        self._checkpoints.prune([command.base])
        return record

    def prepare(self, command: commands.Train) -> tuple[Loop, Batches]:
        """A stage before its first step: what came is read, the networks are as in the base and on the device.

        Whoever runs it lets the loop thaw and closes the batches.
        """
        settings = self.settings
        to_do = settings.works[command.stage].in_round(command.round)
        self.kept.hold(command.base)
        self.kept.let_go()  # a stage may make what a head that came needs, before its first step
        self._scene = None
        stage = self._stage(command)
        seed = functools.partial(self._seed, command.round, command.stage)
        batches = Batches(
            self.data,
            batch_size=settings.batch_size,
            augmentation=settings.data.augmentation,
            seed=seed,
            device=self.device,
        )
        steps = batches.steps(to_do)
        return Loop(stage, to_do, steps=steps, device=self.device, precision=settings.precision, seed=seed), batches

    def _stage(self, command: commands.Train) -> Stage:
        """What to run: the method's stage, or a visitor's supervised training in a round that only moves models on."""
        owner = command.circulate
        if owner is None:
            return self.method.stages[command.stage](self._make_scene(self.artifact_exchange.received(command.sources)))
        if not command.sources and owner != self.settings.site:
            raise UnusableConfigurationError(
                f"round {command.round} moves {owner}'s model, of which there is no copy here"
            )
        visitor = (
            self.artifact_exchange.receive(command.sources[0])[0] if command.sources else copy.deepcopy(self.kept.dam)
        )
        return supervised_stage(self._make_scene({}), VISITOR, visitor)

    def _make_scene(self, received: Mapping[str, nn.Module]) -> StageContext:
        settings = self.settings
        return StageContext(
            settings.site,
            settings.task.kind,
            settings.parameters,
            self.kept.networks,
            received,
            lambda *purpose: _sow(self._seed("init", *purpose)),
        )

    def _drive(self, command: commands.Train) -> StageRunner:
        order = (command.generation, command.round, command.attempt, command.stage)
        return StageRunner(
            checkpoints=self._checkpoints,
            checkpoint_s=self.settings.checkpoint_s,
            report=lambda step, steps, losses: self._report(events.Progressed(*order, step, steps, losses)),
            halted=self._halted,
            clock=self._clock,
        )

    def _outcome(self, command: commands.Train, stage: Stage, *, steps: int, steps_before: int) -> Artifact | None:
        """What the stage gives away: the visitor, or the site's own artifact where the plan publishes here."""
        plan, owner = self.settings.plan, command.circulate
        for name in stage.trains:
            if (bad := non_finite(stage.networks[name].state_dict())) is not None:
                raise Diverged(f"tensor {bad!r} is not finite after step {steps}")
        if owner is not None:
            before = command.sources[0].artifact.steps if command.sources else steps_before
            return self._send(stage.networks[VISITOR], owner=owner, steps=before + steps)
        last = plan.phases[-1] in ("train", f"train:{command.stage}")
        if plan.published == command.stage or (plan.published == "commit" and last):
            return self._send(self.kept.sent, owner=self.settings.site, steps=steps_before + steps)
        return None

    def _blamed(self, command: commands.Train, reason: str) -> Exception:
        """Whose doing a divergence: what came is blamed, of several the most extreme; alone, the site was it itself."""
        if command.sources:
            blamed = max(command.sources, key=self.artifact_exchange.extreme)
            return UnusableArtifact(blamed, f"training with it diverged: {reason}")
        return UnusableConfigurationError(
            f"training diverged in round {command.round}: {reason}; lower [stages.{command.stage}] learning_rate, or "
            "look for extreme values in the data"
        )

    # --- artifacts and checkpoints ----------------------------------------------------------------------------------
    def _send(self, network: nn.Module, *, owner: SiteName, steps: int) -> Artifact:
        return self.artifact_exchange.send(network, owner=owner, steps=steps, samples=len(self.data.training))

    def _base(self, name: str) -> dict[str, Any]:
        """The record of a checkpoint that must be there."""
        record = self._checkpoints.record(name)
        return record if record is not None else dict(self._checkpoints.read(name).record)

    def _finished(self, name: str, work: str) -> dict[str, Any] | None:
        """The record of this very work, if it was done before and what it gave away is still there."""
        record = self._checkpoints.record(name)
        if record is None or record["work"] != work:
            return None
        artifact = _artifact(record)
        there = artifact is None or artifact_path(self.settings.artifacts, artifact.sha256).exists()
        return record if there else None

    def _digest(self, *parts: object) -> str:
        """What identifies a piece of work: the same digest is the same result."""
        settings = self.settings
        fixed_by = (
            settings.parameters,
            settings.works,
            settings.model,
            settings.data,
            settings.batch_size,
            settings.precision,
        )
        text = json.dumps([settings.federation, settings.site, *map(repr, fixed_by), *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    def _heed_halt(self) -> None:
        if self._halted():
            raise WorkInterrupted


def _sow(seed: int) -> None:
    torch.manual_seed(seed)


def _identity(source: Source) -> tuple[str, str, str, int]:
    """What of a source changes a result."""
    return source.origin, source.artifact.sha256, source.artifact.owner, source.artifact.steps


def _artifact(record: Mapping[str, Any]) -> Artifact | None:
    found = record["artifact"]
    return None if found is None else from_json(Artifact, found)


def _rejected(
    command: commands.Train | commands.Aggregate | commands.Adopt, error: UnusableArtifact
) -> events.ArtifactRejected:
    source = error.source
    order = (command.generation, command.round, command.attempt)
    return events.ArtifactRejected(*order, source.origin, source.artifact.sha256, str(error))


def _stage_metrics(stage: str, loop: Loop) -> dict[str, float]:
    """A stage's numbers: mean terms, ``_last`` ones, what the method adds, steps; each begins with the stage's name."""
    means = loop.means()
    numbers = means | {f"{name}_last": value for name, value in loop.losses().items()}
    numbers |= {**loop.stage.summary(means), "steps": float(loop.step)}
    return {f"{stage}_{name}": value for name, value in numbers.items()}

"""A site's training: each command yields an event; memory only caches the content of the disk."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models import Network
from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.metrics import VALIDATION
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.files import artifact_path
from peer.methods.method import DAM, VISITOR, Batch, Method, Stage, StageContext, visitor_name
from peer.methods.supervised import supervised_stage
from peer.train.aggregation import Aggregation
from peer.train.artifact import is_whole
from peer.train.artifact_exchange import ArtifactExchange
from peer.train.checkpoint import Checkpoints, artifact_of, checkpoint_name, returned_of
from peer.train.device import (
    choose_device,
    describe_device,
    device_id,
    make_reproducible,
    precision,
    rank_device,
    release_memory,
)
from peer.train.device_queue import DeviceQueue
from peer.train.errors import DivergenceError, UnusableArtifact, UnusableConfigurationError, WorkInterrupted
from peer.train.guest import evaluate_split
from peer.train.leak_meter import LeakMeter
from peer.train.loop import Diverged, Loop, resume_stage, run_stage
from peer.train.noise import stage_noise
from peer.train.optimiser import fitting_moments
from peer.train.own_data_probe import OwnDataProbe, largest_change
from peer.train.person_batches import open_batches
from peer.train.privacy_meter import PrivacyMeter
from peer.train.rank_processes import RankProcesses
from peer.train.ranks import Ranks
from peer.train.rehearsal import rehearse
from peer.train.samples import Batches, DataSplit, Seed, SiteData, load_data, site_seed
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.tensors import State, non_finite, pack, state_of
from peer.train.total_trial import TotalTrial
from peer.train.valve import Valve

logger = logging.getLogger(__name__)

INITIAL = checkpoint_name(0, "initial")


class Trainer:
    """Carries out the commands of ``peer.core.commands`` that are for a worker.

    Args:
        report: gets every ``Progressed``.
        halted: called between steps; once it returns true, the current work ends with
            ``WorkInterrupted``.
        lead: the data-parallel processes that train every stage with this one, which is rank 0.
        ranks: in such a process, the ranks that it belongs to.
    """

    def __init__(
        self,
        setting: WorkerSetting,
        *,
        report: Callable[[events.Event], None] = lambda event: None,
        halted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        lead: RankProcesses | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.settings = settings = TrainingSettings.of(setting)
        self.method = Method.of(settings.plan)
        self._report, self._halted, self._clock = report, halted, clock
        self._seed: Seed = site_seed(settings)
        device = choose_device(settings.training.device)
        self.device = rank_device(device, ranks.rank) if ranks is not None else device
        make_reproducible(self.device, threads=settings.training.threads)
        self._checkpoints = Checkpoints(settings.home / "checkpoints", clean=ranks is None)
        self.site_networks = SiteNetworks(settings, self.method, self._seed, self._checkpoints)
        self.artifact_exchange = ArtifactExchange(settings, self.method, self.site_networks)
        self._probe = OwnDataProbe(settings, lambda: self.data, self.device)
        exchange, data = self.artifact_exchange, lambda: self.data
        new = functools.partial(SiteNetworks, settings, self.method, self._seed, self._checkpoints)
        self._total_trial = TotalTrial(settings, self.site_networks, exchange, self._probe, self._checkpoints, new)
        self._leak_meter = LeakMeter(settings, self._seed, data, exchange, self.device, self._check_halt)
        self._privacy_meter, self._valve = PrivacyMeter(settings, data), Valve(settings, self.method)
        self._prediction_context: StageContext | None = None
        self._ahead = 0
        self._queue = DeviceQueue(settings.gpu_folder / device_id(self.device)) if settings.gpu_folder else None
        self._lead, self._ranks = lead, lead.ranks if lead is not None else ranks

    def perform(self, command: commands.Command) -> events.Event:
        """Carry out one command; return the event that answers it.

        Raises:
            WorkInterrupted: the daemon sent a halt; a partial checkpoint holds the training so far.
            Exception: the command cannot be carried out; ``peer.train.errors`` tells whose fault
                that is.
        """
        handlers: dict[type, Callable[[Any], events.Event]] = {
            commands.Initialise: self._initialise,
            commands.Train: self._train,
            commands.Aggregate: self._aggregate,
            commands.Adopt: self._adopt,
            commands.Evaluate: self._evaluate,
            commands.Rehearse: lambda rehearsal: rehearse(self, rehearsal),
        }

        def answer() -> events.Event:
            event = self._leak_meter.measure(command, handlers[type(command)](command))
            return self._privacy_meter.label(event)

        if self._queue is None or isinstance(command, commands.Initialise):  # it computes on the processor
            return answer()
        with self._queue.turn(lambda ahead: self._wait(command, ahead)):
            try:
                return answer()
            finally:
                self._prediction_context = None
                self.site_networks.leave_device()
                release_memory(self.device)

    @cached_property
    def data(self) -> SiteData:
        """The site's data, checked and read."""
        beside = self._ranks is not None and self._ranks.rank > 0
        return load_data(self.settings, self._seed, check_halt=self._check_halt, training_only=beside)

    # --- commands ---------------------------------------------------------------------------------------------------
    def _initialise(self, command: commands.Initialise) -> events.Initialised:
        work = self.settings.digest("initialise", command.generation)
        record = self._checkpoints.finished_record(INITIAL, work)
        if record is None:
            if self._lead is not None:
                self._lead.check(self.site_networks.networks)
            self.site_networks.check()
            record = {"work": work, "steps": 0, "artifact": None, "samples": self.data.counts}
            if self.settings.plan.artifact is not None:
                artifact = self._send(self.site_networks.artifact_network, owner=self.settings.site, steps=0)
                self.artifact_exchange.self_check(artifact)
                record["shared"] = artifact.sha256
                if self.settings.plan.published == "commit":
                    record["artifact"] = to_json(artifact)
                else:  # it is not sent, so no row of the journal would name it
                    artifact_path(self.settings.artifacts, artifact.sha256).unlink()
            record["weights"] = self.site_networks.weights_summary
            if record["weights"] is not None:
                logger.info("weights loaded: file=%s fit=%s", self.settings.model["weights"], record["weights"])
            self.site_networks.write(INITIAL, record, {})
        return events.Initialised(
            generation=command.generation,
            attempt=command.attempt,
            state=INITIAL,
            artifact=artifact_of(record),
            samples=record["samples"],
            threads=self.settings.training.threads,
            device=describe_device(self.device, self._ranks.count if self._ranks is not None else 1),
            weights=record.get("weights"),
        )

    def _train(self, command: commands.Train) -> events.Event:
        name = checkpoint_name(command.round, command.stage)
        base = self._checkpoints.existing_record(command.base)
        longer = (command.rounds,) if command.rounds > 1 else ()
        work = self.settings.digest(name, base["work"], *map(_source_key, command.sources), command.circulate, *longer)
        record = self._checkpoints.finished_record(name, work)
        if record is None:
            try:
                record = self._run_stage(command, name, work, steps_before=base["steps"])
            except UnusableArtifact as error:
                return self._reject(command, error)
            finally:
                release_memory(self.device)
        return events.Trained(
            generation=command.generation,
            round=command.round,
            attempt=command.attempt,
            stage=command.stage,
            state=name,
            artifact=artifact_of(record),
            metrics=record["metrics"],
            threads=record["threads"],
            duration_s=record["duration_s"],
            returned=returned_of(record),
            cohort=record.get("cohort"),
        )

    def _aggregate(self, command: commands.Aggregate) -> events.Event:
        name = checkpoint_name(command.round, "aggregate")
        base = self._checkpoints.existing_record(command.base)
        sent = [] if command.sent is None else [_source_key(command.sent)]
        total = [] if command.total is None else [command.total.sha256]
        work = self.settings.digest(name, base["work"], *map(_source_key, command.sources), *sent, *total)
        record = self._checkpoints.finished_record(name, work)
        if record is None and self.settings.plan.pattern == "visit":
            try:
                record = self._merge(command, name, work, steps=base["steps"])
            except UnusableArtifact as error:
                return self._reject(command, error)
        elif record is None:
            self.site_networks.load(command.base)
            try:
                aggregate = self._combine(command)
            except UnusableArtifact as error:
                return self._reject(command, error)
            self.site_networks.invalidate()
            self.artifact_exchange.load(aggregate, round=command.round)
            digest = hashlib.sha256(pack(aggregate.state)).hexdigest()
            record = {"work": work, "steps": base["steps"], "artifact": None, "sha256": digest}
            record |= {"contributors": aggregate.contributors, "cut": aggregate.cut}
            averaged = (self.method.artifact_network, *self.method.sent_beside)
            moments = {name: state for name, state in self.site_networks.moments.items() if name not in averaged}
            self.site_networks.write(name, record, moments)
            self._checkpoints.prune([command.base, *command.kept])
        return events.Aggregated(
            generation=command.generation,
            round=command.round,
            attempt=command.attempt,
            state=name,
            sha256=Sha256(record["sha256"]),
            contributors=tuple(map(SiteName, record["contributors"])),
            cut=record.get("cut", {}),
            artifact=artifact_of(record),
        )

    def _combine(self, command: commands.Aggregate) -> Aggregation:
        """Aggregate the artifacts of the sources, or divide their total."""
        exchange, site = self.artifact_exchange, self.settings.site
        if command.total is not None:
            total = Source(site, command.round, command.total)
            return self._total_trial.divide(total, command.sources, joined=command.joined)
        if self.settings.plan.pattern != "all_to_all":
            for source in command.sources:
                self._probe.check_model(source, exchange.receive(source)[0], self.site_networks.artifact_network)
        samples = None if command.shadow else len(self.data.training)
        return exchange.average(command.sources, samples=samples, sent=command.sent)

    def _merge(self, command: commands.Aggregate, name: str, work: str, *, steps: int) -> dict[str, Any]:
        """Average the model that travels with its copies that other sites trained; keep its optimiser's moments."""
        self.site_networks.load(command.base)
        own, returned, left = self.site_networks.artifact_network, list[tuple[Source, Network]](), State()
        if command.sources and command.sent is not None:
            sent, _ = self.artifact_exchange.receive(command.sent)
            left = state_of(sent)
            for source in command.sources:
                network, _ = self.artifact_exchange.receive(source)
                if not isinstance(network, Network) or network.spec != own.spec:
                    raise UnusableArtifact(source, "it is not of this site's [model]")
                self._probe.check_return(source, network, sent)
                returned.append((source, network))
        state = self.artifact_exchange.merge(returned, left)
        self.site_networks.invalidate()
        own.load_state_dict(state, strict=False)
        artifact = self._send(own, owner=self.settings.site, steps=steps)
        contributors = sorted({self.settings.site, *(source.origin for source, _ in returned)})
        record = {"work": work, "steps": steps, "artifact": to_json(artifact), "sha256": artifact.sha256}
        record |= {"contributors": contributors, "cut": {}}
        self.site_networks.write(name, record, self.site_networks.moments)
        self._checkpoints.prune([command.base, *command.kept])
        return record

    def _adopt(self, command: commands.Adopt) -> events.Event:
        name = checkpoint_name(command.round, "adopt")
        work = self.settings.digest(
            name, self._checkpoints.existing_record(command.base)["work"], _source_key(command.source)
        )
        record = self._checkpoints.finished_record(name, work)
        if record is None:
            self.site_networks.load(command.base)
            dam = self.site_networks.dam
            try:
                returned, _ = self.artifact_exchange.receive(command.source)
                if not isinstance(returned, Network) or returned.spec != dam.spec:
                    raise UnusableArtifact(command.source, "it is not of this site's [model]")
                self._probe_copy(self._probe, command, command.source, returned)
            except UnusableArtifact as error:
                return self._reject(command, error)
            steps = command.source.artifact.steps
            artifact = self._send(returned, owner=self.settings.site, steps=steps)
            record = {"work": work, "steps": steps, "artifact": to_json(artifact)}
            self.site_networks.invalidate()
            dam.load_state_dict(returned.state_dict())
            self.site_networks.write(name, record, {})
        return events.Adopted(command.generation, command.round, command.attempt, name, artifact_of(record))

    def _evaluate(self, command: commands.Evaluate) -> events.Evaluated:
        sources = command.sources
        while True:
            try:
                self.load(command.base, sources)
                break
            except UnusableArtifact as error:  # its round is trained: omit an artifact that became unusable since
                logger.warning("artifact left out of the evaluation: peer=%s reason=%s", error.source.origin, error)
                sources = tuple(source for source in sources if source != error.source)
        metrics = self.evaluate(self.data.test)
        metrics |= {f"{VALIDATION}{name}": value for name, value in self.evaluate(self.data.validation).items()}
        lent = None
        if command.lent:
            steps = self._checkpoints.existing_record(command.base)["steps"]
            lent = self._send(self.site_networks.dam, owner=self.settings.site, steps=steps, lent=True)
        return events.Evaluated(command.generation, command.round, command.attempt, metrics, lent)

    # --- predictions of a finished state ----------------------------------------------------------------------------
    def load(self, state: str, sources: tuple[Source, ...] = ()) -> None:
        """Load a checkpoint's networks, and the artifacts that its round used, for predictions."""
        self.site_networks.load(state)
        received = self.artifact_exchange.receive_all(sources) if self.settings.plan.keeps_last_received else {}
        self._prediction_context = self._stage_context(received)
        for network in (*self._prediction_context.networks.values(), *received.values()):
            network.to(self.device).eval()

    def predict(self, images: Tensor) -> Tensor:
        """Predict prepared images ``(b, c, *space)`` with the loaded networks; the result is on the CPU, float32.

        Returns:
            Logits ``(b, classes)`` or ``(b, classes, *space)``, or the images of super-resolution.
        """
        if self._prediction_context is None:
            raise UnusableConfigurationError("nothing to predict with: load a checkpoint first")
        with torch.inference_mode(), precision(self.settings.training.precision, self.device):
            return self.method.predict(self._prediction_context, images.to(self.device)).float().cpu()

    def evaluate(self, split: DataSplit) -> dict[str, float]:
        """Compute the metrics of the loaded networks on a split, which may be another site's."""

        def predict(images: Tensor) -> Tensor:
            self._check_halt()
            return self.predict(images)

        return evaluate_split(predict, split, self.settings)

    # --- one stage --------------------------------------------------------------------------------------------------
    def _run_stage(self, command: commands.Train, name: str, work: str, *, steps_before: int) -> dict[str, Any]:
        """Train to the last step, write the checkpoint, and return its record."""
        cohort = self.data.cohort  # a stage that began with other people begins anew
        resumed = work if cohort is None else f"{work}/{cohort}"
        loop, batches = self.prepare(command, work=resumed)
        # Artifacts count a stage in the federation's unit: steps per pass reveal the size of the training set.
        stage, steps = loop.stage, self.settings.works[command.stage].count * command.rounds
        local = [network for network in stage.trains if network in self.site_networks.networks]
        self._load_moments(loop)
        order = (command.generation, command.round, command.attempt, command.stage)
        base = self._checkpoints.existing_record(command.base)
        bare = self._privacy_meter.charge(command, loop, resumed, base)
        try:
            duration_s = run_stage(
                loop,
                batches,
                work=resumed,
                checkpoints=self._checkpoints,
                checkpoint_s=self.settings.training.checkpoint_s,
                report=lambda step, steps, losses: self._report(events.Progressed(*order, step, steps, losses)),
                halted=self._halted,
                clock=self._clock,
            )
            batches.warn_of_waits(command.stage, duration_s)
            self._valve.confirm(command, loop, self.site_networks.artifact_network)
            artifact = self._write_stage_artifact(command, stage, steps=steps, steps_before=steps_before)
            returned = self._write_returns(command, stage, steps=steps)
        except Diverged as error:
            raise self._blame(command, str(error)) from error
        finally:
            loop.close()
            batches.close()
        record = {
            "work": work,
            "steps": steps_before + (steps if DAM in local else 0),
            "artifact": to_json(artifact),
            "metrics": loop.metrics(command.stage),
            "threads": self.settings.training.threads,
            "duration_s": duration_s,
            **bare,
        }
        record |= {} if cohort is None else {"cohort": cohort}
        if command.circulate is not None:
            record["change"] = self._change(command, stage)
        if returned:
            record["returned"] = to_json(returned)
        self.site_networks.write(
            name, record, {**self.site_networks.moments, **{key: loop.moments()[key] for key in local}}
        )
        self._checkpoints.clear_partial()
        self._checkpoints.prune([command.base, *command.kept])
        return record

    def follow(self, command: commands.Train, work: str, *, ready: Callable[[str], None], steps: Iterable[int]) -> None:
        """Train a stage beside rank 0: call ``ready`` with the digest of the samples, and take its steps."""
        loop, batches = self.prepare(command, probes=False)
        try:
            self._load_moments(loop)
            resume_stage(loop, self._checkpoints, work)
            ready(self.data.training.digest)
            loop.follow(steps, batches)
        finally:
            loop.close()
            batches.close()
        release_memory(self.device)

    def prepare(self, command: commands.Train, *, probes: bool = True, work: str = "") -> tuple[Loop, Batches]:
        """Build the loop and the batches of a stage, before its first step.

        Received artifacts are tested on own samples, unless ``probes`` is false. The other ranks prepare the stage,
        too, and resume that of ``work``.

        Received artifacts are loaded, the networks are those of ``command.base``, and all are on the device. The caller
        must call ``loop.close()`` and ``batches.close()``.
        """
        settings = self.settings
        if self._lead is not None:  # `processes` may have changed since the first start
            self._lead.check(self.site_networks.networks)
        stage_work = settings.works[command.stage].in_round(command.round)
        stage_work = dataclasses.replace(stage_work, count=stage_work.count * command.rounds)
        self.site_networks.load(command.base)
        self.site_networks.invalidate()  # before its first step, a stage may add layers for a received head
        self._prediction_context = None
        stage = self._build_stage(command, self._probe if probes else None)
        seed = functools.partial(self._seed, command.round, command.stage)
        self._privacy_meter.check()
        noise = stage_noise(settings, command, stage)
        options = {"seed": seed, "device": self.device, "ranks": self._ranks}
        batches = open_batches(self.data, settings, noise, check_halt=self._check_halt, **options)
        loop = Loop(
            stage,
            stage_work,
            steps=batches.steps(stage_work),
            device=self.device,
            precision=settings.training.precision,
            seed=seed,
            channels_last=settings.training.channels_last,
            clip_norm=settings.training.clip_norm,
            noise=noise,
            ranks=self._ranks,
            lead=self._lead,
        )
        if self._lead is not None:
            self._lead.begin(command, work, loop, self.data.training.digest)
        return loop, batches

    def _load_moments(self, loop: Loop) -> None:
        """Load the optimisers' moments of the site's own networks, as far as they fit."""
        for network in loop.stage.trains:
            if network in self.site_networks.networks:
                moments = self.site_networks.moments.get(network, {})
                loop.load({}, {network: fitting_moments(moments, loop.stage.networks[network])})

    def _build_stage(self, command: commands.Train, probe: OwnDataProbe | None) -> Stage:
        """Build the method's stage, or a visitor's supervised training in a circulating round."""
        owner, settings = command.circulate, self.settings
        if owner is None:
            exchange = self.artifact_exchange
            received = exchange.receive_all(command.sources) if exchange.stages_receive else {}
            if probe is not None and received and self.settings.plan.artifact not in ("prediction", "prototype"):
                probe.check_received(command.sources, received, self.site_networks.dam)
            context = self._stage_context(received, round=command.round, **self.data.context_fields(settings))
            return self._valve.build(command, context, lambda: Batch(*self.data.training.read([0]), self.data.masks))
        if not command.sources and owner != self.settings.site:
            raise UnusableConfigurationError(
                f"round {command.round} moves {owner}'s model, of which there is no copy here"
            )
        if command.sources:
            visitor, _ = self.artifact_exchange.receive(command.sources[0])
            if probe is not None:
                self._probe_copy(probe, command, command.sources[0], visitor)
        else:
            visitor = copy.deepcopy(self.site_networks.dam)
        context = self._stage_context({}, **self.data.training.context_fields(settings))
        return supervised_stage(context, VISITOR, visitor)

    def _probe_copy(
        self, probe: OwnDataProbe, command: commands.Train | commands.Adopt, source: Source, copy: nn.Module
    ) -> None:
        probe.check_model(source, copy, self.site_networks.dam)
        earlier: nn.Module | None = None
        if command.earlier is not None:
            try:
                earlier, _ = self.artifact_exchange.receive(command.earlier)
            except UnusableArtifact as error:
                logger.warning("earlier copy unusable: peer=%s reason=%s", error.source.origin, error)
        probe.check_copy(
            source,
            copy,
            earlier,
            rounds=source.round - command.earlier.round if command.earlier is not None else 1,
            own_change=self._checkpoints.existing_record(command.base).get("change", 0.0),
            final=command.final,
        )

    def _stage_context(self, received: Mapping[str, nn.Module], **training: Any) -> StageContext:
        settings = self.settings
        return StageContext(
            settings.site,
            settings.task.objective,
            settings.parameters,
            self.site_networks.networks,
            received,
            lambda *purpose: torch.manual_seed(self._seed("init", *purpose)),
            **training,
        )

    def _write_stage_artifact(
        self, command: commands.Train, stage: Stage, *, steps: int, steps_before: int
    ) -> Artifact | None:
        """Write the visitor's artifact, or this site's if the plan publishes now."""
        plan, owner = self.settings.plan, command.circulate
        visitors = {visitor_name(source.origin): source for source in command.sources}
        is_private = self.settings.noise is not None  # then no error tells of one person, and no artifact lacks noise
        if is_private and command.stage not in plan.noised_stages:
            return None
        for name in () if is_private else stage.trains:
            if (bad := non_finite(stage.networks[name].state_dict())) is not None:
                if name in visitors:
                    raise UnusableArtifact(visitors[name], f"its tensor {bad!r} is not finite after the last step")
                raise Diverged(f"tensor {bad!r} is not finite after the last step")
        if owner is not None:
            before = command.sources[0].artifact.steps if command.sources else steps_before
            return self._send(stage.networks[VISITOR], owner=owner, steps=before + steps)
        last = plan.phases[-1] in ("train", f"train:{command.stage}")
        if plan.published == command.stage or (plan.published == "commit" and last):
            return self._send(self.site_networks.artifact_network, owner=self.settings.site, steps=steps_before + steps)
        return None

    def _change(self, command: commands.Train, stage: Stage) -> float:
        """Measure how far a round's work moved the visitor's tensors here, to compare other sites' training with."""
        before = self.artifact_exchange.receive(command.sources[0])[0] if command.sources else self.site_networks.dam
        return largest_change(stage.networks[VISITOR], before)[1] / command.rounds

    def _write_returns(self, command: commands.Train, stage: Stage, *, steps: int) -> list[Artifact]:
        """Write each visitor's artifact for its owner, if models visit.

        It counts the steps of the whole stage, as shares differ, and omits the number of samples.
        """
        if self.settings.plan.pattern != "visit":
            return []
        return [
            self.artifact_exchange.send(
                stage.networks[visitor_name(source.origin)],
                owner=source.artifact.owner,
                steps=source.artifact.steps + steps,
                samples=None,
                kind="return",
            )
            for source in command.sources
        ]

    def _blame(self, command: commands.Train, reason: str) -> Exception:
        """Blame a divergence on the received artifact with the largest values, or on this site."""
        if command.sources and self.artifact_exchange.stages_receive:
            source = max(command.sources, key=self.artifact_exchange.max_abs)
            return UnusableArtifact(source, f"training with it diverged: {reason}")
        return DivergenceError(
            f"training diverged in round {command.round}: {reason}; lower [stages.{command.stage}] learning_rate, or "
            "look for extreme values in the data"
        )

    # --- artifacts and checkpoints ----------------------------------------------------------------------------------
    def _send(self, network: nn.Module, *, owner: SiteName, steps: int, lent: bool = False) -> Artifact:
        samples = len(self.data.training)
        return self.artifact_exchange.send(network, owner=owner, steps=steps, samples=samples, lent=lent)

    def _reject(
        self, command: commands.Train | commands.Aggregate | commands.Adopt, error: UnusableArtifact
    ) -> events.ArtifactRejected:
        source, order = error.source, (command.generation, command.round, command.attempt)
        lost = not is_whole(self.settings.artifacts, source.artifact)
        reason = "its file is gone or damaged" if lost else str(error)
        return events.ArtifactRejected(*order, source.origin, source.artifact.sha256, reason, lost, error.short)

    def _wait(self, command: commands.Command, ahead: int) -> None:
        """Report how many turns at the device come first; a halt also ends the wait."""
        self._check_halt()
        if ahead != self._ahead:
            self._ahead = ahead
            self._report(events.Queued(getattr(command, "generation", 0), getattr(command, "attempt", 0), ahead))

    def _check_halt(self) -> None:
        if self._halted():
            raise WorkInterrupted


def _source_key(source: Source) -> tuple[str, str, str, int]:
    """Return the fields of a source that change a result."""
    return source.origin, source.artifact.sha256, source.artifact.owner, source.artifact.steps

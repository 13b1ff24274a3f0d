"""A site's training: one command in, its event out. What matters is on disk; memory only saves reading it again."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models import Network, Output
from peer.core import commands, events
from peer.core.commands import Source
from peer.core.facts import Artifact
from peer.core.roster import SiteName
from peer.core.work import Setting, from_json, to_json
from peer.methods import METHODS
from peer.methods.method import DAM, VISITOR, Scene, Stage
from peer.methods.supervised import SUPERVISED, supervised_stage
from peer.training.artifact import artifact_path, read_artifact, write_artifact
from peer.training.checkpoint import Checkpoint, Checkpoints, checkpoint_name
from peer.training.data import Batches, Seed, SiteData, Split, load_data, site_seed
from peer.training.device import choose_device, describe_device, make_reproducible, precision, release_memory
from peer.training.drive import Diverged, Drive
from peer.training.fault import ConfigurationError, Interrupted, UnusableArtifact
from peer.training.loop import Loop
from peer.training.metrics import measure
from peer.training.network import build_local, probe
from peer.training.recipe import Recipe
from peer.training.tensors import State, non_finite, state_of

INITIAL = checkpoint_name(0, "initial")


class Trainer:
    """Carries out the commands of ``peer.core.commands`` that go to a worker.

    Args:
        setting: the site, its federation, its folder.
        report: gets every ``Progressed``.
        halted: asked between steps; once it is true, the work in hand ends in ``Interrupted``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        report: Callable[[events.Event], None] = lambda event: None,
        halted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe = recipe = Recipe.of(setting)
        if recipe.task.kind not in SUPERVISED:
            kinds = ", ".join(SUPERVISED)
            raise ConfigurationError(f'[task] kind = "{recipe.task.kind}" cannot be trained yet; these can: {kinds}')
        self.method = METHODS[recipe.method]
        self._report, self._halted, self._clock = report, halted, clock
        self._seed: Seed = site_seed(recipe)
        self.device = choose_device(recipe.device)
        make_reproducible(self.device, threads=recipe.threads)
        self._checkpoints = Checkpoints(recipe.home / "checkpoints")
        self._held = ""  # the checkpoint that the DAM and its moments equal, bit for bit
        self._moments: Mapping[str, State] = {}

    def perform(self, command: commands.Command) -> events.Event:
        """Carry out one command; the event answers it.

        Raises:
            Interrupted: a halt came; what was trained so far is in a partial checkpoint.
            Exception: whatever made it impossible; ``peer.training.fault`` says whose fault that is.
        """
        handlers: dict[type, Callable[[Any], events.Event]] = {
            commands.Initialise: self._initialise,
            commands.Train: self._train,
            commands.Aggregate: self._aggregate,
            commands.Adopt: self._adopt,
            commands.Evaluate: self._evaluate,
        }
        return handlers[type(command)](command)

    # --- made at first use ------------------------------------------------------------------------------------------
    @cached_property
    def data(self) -> SiteData:
        """The site's data, checked and read."""
        return load_data(self.recipe, self._seed, pulse=self._heed_halt)

    @cached_property
    def dam(self) -> Network:
        """The local model: initial until a checkpoint is loaded into it."""
        return build_local(self.recipe, seed=self._seed("init"))

    @cached_property
    def _own_output(self) -> Output:
        """What the local model makes of one image of zeros: proof that it fits the task, and its stages."""
        try:
            return probe(self.dam.cpu(), self.recipe.task, self.recipe.data.input_size)
        except Exception as error:
            raise ConfigurationError(f"[model] {self.recipe.model['name']}: {error}") from error

    # --- commands ---------------------------------------------------------------------------------------------------
    def _initialise(self, command: commands.Initialise) -> events.Initialised:
        work = self._digest("initialise", command.generation)
        record = self._finished(INITIAL, work)
        if record is None:
            masks = self.recipe.data.regions is not None
            problem = self.method.unfit(self._own_output, self.recipe.parameters, masks=masks)
            if problem is not None:
                raise ConfigurationError(problem)
            record = {"work": work, "steps": 0, "artifact": None, "samples": self.data.counts}
            if self.recipe.plan.published == "commit":
                artifact = self._write_artifact(self.dam, owner=self.recipe.site, steps=0)
                self._judge_own(artifact)
                record["artifact"] = to_json(artifact)
            self._checkpoints.write(INITIAL, Checkpoint(record, {DAM: state_of(self.dam)}))
        return events.Initialised(
            generation=command.generation,
            attempt=command.attempt,
            state=INITIAL,
            artifact=_artifact(record),
            samples=record["samples"],
            threads=self.recipe.threads,
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
        raise ConfigurationError(f"method {self.recipe.method!r} averages nothing")

    def _adopt(self, command: commands.Adopt) -> events.Event:
        name = checkpoint_name(command.round, "adopt")
        work = self._digest(name, self._base(command.base)["work"], _identity(command.source))
        record = self._finished(name, work)
        if record is None:
            try:
                returned, _ = self._receive(command.source)
                if returned.spec != self.dam.spec:
                    raise UnusableArtifact(command.source, "it is not of this site's [model]")
            except UnusableArtifact as error:
                return _rejected(command, error)
            steps = command.source.artifact.steps
            artifact = self._write_artifact(returned, owner=self.recipe.site, steps=steps)
            record = {"work": work, "steps": steps, "artifact": to_json(artifact)}
            self._checkpoints.write(name, Checkpoint(record, {DAM: state_of(returned)}))
        return events.Adopted(command.generation, command.round, command.attempt, name, _artifact(record))

    def _evaluate(self, command: commands.Evaluate) -> events.Evaluated:
        self._hold(command.base)
        self.dam.to(self.device).eval()
        found = self.measured(self.data.test)
        found |= {f"validation_{name}": value for name, value in self.measured(self.data.validation).items()}
        return events.Evaluated(command.generation, command.round, command.attempt, found)

    # --- one stage --------------------------------------------------------------------------------------------------
    def _run_stage(self, command: commands.Train, name: str, work: str, *, steps_before: int) -> dict[str, Any]:
        """Train to the end, keep the result, and give its record."""
        recipe, to_do = self.recipe, self.recipe.works[command.stage]
        self._hold(command.base)
        stage = self._stage(command)
        seed = functools.partial(self._seed, command.round, command.stage)
        loop = Loop(stage, to_do, device=self.device, precision=recipe.precision, seed=seed)
        own = DAM in stage.networks
        if own:
            loop.load({}, self._moments)
            self._held = ""
        batches = Batches(
            self.data,
            batch_size=recipe.batch_size,
            augmentation=recipe.data.augmentation,
            seed=seed,
            device=self.device,
        )
        steps = batches.steps(to_do)
        try:
            duration_s = self._drive(command).run(loop, batches, steps=steps, work=work)
            artifact = self._outcome(command, stage, steps=steps, steps_before=steps_before)
        except Diverged as error:
            raise self._blamed(command, str(error)) from error
        finally:
            batches.close()
        record = {
            "work": work,
            "steps": steps_before + (steps if own else 0),
            "artifact": to_json(artifact),
            "metrics": _stage_metrics(command.stage, loop),
            "threads": recipe.threads,
            "duration_s": duration_s,
        }
        moments = {DAM: loop.moments()[DAM]} if own else self._moments
        self._checkpoints.write(name, Checkpoint(record, {DAM: state_of(self.dam)}, moments))
        self._checkpoints.clear_partial()
        self._checkpoints.prune([command.base])
        self._held, self._moments = name, moments
        return record

    def _stage(self, command: commands.Train) -> Stage:
        """What to run: the method's stage, or a visitor's supervised training in a round that only moves models on."""
        task, owner = self.recipe.task.kind, command.circulate
        if owner is None:
            received = tuple(self._matching(source) for source in command.sources)
            return self.method.stages[command.stage](Scene(task, self.recipe.parameters, self.dam, received))
        if not command.sources and owner != self.recipe.site:
            raise ConfigurationError(f"round {command.round} moves {owner}'s model, of which there is no copy here")
        visitor = self._receive(command.sources[0])[0] if command.sources else copy.deepcopy(self.dam)
        return supervised_stage(VISITOR, visitor, task=task)

    def _drive(self, command: commands.Train) -> Drive:
        order = (command.generation, command.round, command.attempt, command.stage)
        return Drive(
            checkpoints=self._checkpoints,
            checkpoint_s=self.recipe.checkpoint_s,
            report=lambda step, steps, losses: self._report(events.Progressed(*order, step, steps, losses)),
            halted=self._halted,
            clock=self._clock,
        )

    def _outcome(self, command: commands.Train, stage: Stage, *, steps: int, steps_before: int) -> Artifact | None:
        """What the stage gives away: the visitor, or the local model where the plan publishes here."""
        plan, owner = self.recipe.plan, command.circulate
        kept = stage.networks[DAM if owner is None else VISITOR]
        if (bad := non_finite(kept.state_dict())) is not None:
            raise Diverged(f"tensor {bad!r} is not finite after step {steps}")
        if owner is not None:
            before = command.sources[0].artifact.steps if command.sources else steps_before
            return self._write_artifact(kept, owner=owner, steps=before + steps)
        last = plan.phases[-1] in ("train", f"train:{command.stage}")
        if plan.published == command.stage or (plan.published == "commit" and last):
            return self._write_artifact(kept, owner=self.recipe.site, steps=steps_before + steps)
        return None

    def _blamed(self, command: commands.Train, reason: str) -> Exception:
        """Whose doing a divergence: what came is blamed; alone, the site shows if it was its own."""
        if command.sources:
            return UnusableArtifact(command.sources[0], f"training with it diverged: {reason}")
        return ConfigurationError(
            f"training diverged in round {command.round}: {reason}; lower [stages.{command.stage}] learning_rate, or "
            "look for extreme values in the data"
        )

    # --- artifacts, checkpoints, measures ---------------------------------------------------------------------------
    def _receive(self, source: Source) -> tuple[Network, Output]:
        """The source's model, on the CPU, and its output for one image of zeros.

        A model of this site's own spec comes home, and needs no entry in ``allow_models``.
        """
        allow = {*self.recipe.allow_models, *([self.dam.spec["name"]] if source.artifact.spec == self.dam.spec else [])}
        network = read_artifact(self.recipe.artifacts, source, self.recipe.task, allow=allow)
        try:
            return network, probe(network, self.recipe.task, self.recipe.data.input_size)
        except Exception as error:
            raise UnusableArtifact(source, str(error)) from error

    def _matching(self, source: Source) -> Network:
        """The source's model, if the method can use it beside the local one."""
        network, output = self._receive(source)
        reason = self.method.mismatch(self._own_output, output, self.recipe.parameters)
        if reason is not None:
            raise UnusableArtifact(source, reason)
        return network

    def _write_artifact(self, network: nn.Module, *, owner: SiteName, steps: int) -> Artifact:
        kind = self.recipe.plan.artifact
        if kind is None or not isinstance(network, Network):
            raise ConfigurationError(f"method {self.recipe.method!r} shares no model")
        samples = len(self.data.training) if self.recipe.tells_samples else None
        return write_artifact(
            self.recipe.artifacts,
            state_of(network),
            spec=network.spec,
            kind=kind,
            owner=owner,
            steps=steps,
            training_samples=samples,
        )

    def _judge_own(self, artifact: Artifact) -> None:
        """Refuse at the start a model that every other site would refuse in round 1."""
        own = Source(self.recipe.site, 1, artifact)
        try:
            read_artifact(self.recipe.artifacts, own, self.recipe.task, allow={self.dam.spec["name"]})
        except UnusableArtifact as error:
            raise ConfigurationError(
                f"[model] {self.dam.spec['name']} would be refused by other sites: {error}"
            ) from error

    def _base(self, name: str) -> dict[str, Any]:
        """The record of a checkpoint that must be there."""
        record = self._checkpoints.record(name)
        return record if record is not None else dict(self._checkpoints.read(name).record)

    def _hold(self, name: str) -> None:
        """Have the DAM and its moments equal a checkpoint."""
        if self._held == name:
            return
        self._held = ""
        checkpoint = self._checkpoints.read(name)
        try:
            self.dam.load_state_dict(checkpoint.networks[DAM])
        except (KeyError, RuntimeError) as error:
            raise ConfigurationError(f"checkpoint {name} does not fit [model]: {error}") from error
        self._held, self._moments = name, checkpoint.optimisers

    def _finished(self, name: str, work: str) -> dict[str, Any] | None:
        """The record of this very work, if it was done before and what it gave away is still there."""
        record = self._checkpoints.record(name)
        if record is None or record["work"] != work:
            return None
        artifact = _artifact(record)
        there = artifact is None or artifact_path(self.recipe.artifacts, artifact.sha256).exists()
        return record if there else None

    def _digest(self, *parts: object) -> str:
        """What identifies a piece of work: the same digest is the same result."""
        recipe = self.recipe
        settings = (recipe.parameters, recipe.works, recipe.model, recipe.data, recipe.batch_size, recipe.precision)
        text = json.dumps([recipe.federation, recipe.site, *map(repr, settings), *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    def measured(self, split: Split) -> dict[str, float]:
        """The metrics of the networks in hand on a split, which may be another site's."""

        def predict(images: Tensor) -> Tensor:
            self._heed_halt()
            with torch.inference_mode(), precision(self.recipe.precision, self.device):
                return self.method.predict({DAM: self.dam}, images.to(self.device))

        loss = SUPERVISED[self.recipe.task.kind].loss
        return measure(predict, loss, split.batches(self.recipe.batch_size))

    def _heed_halt(self) -> None:
        if self._halted():
            raise Interrupted


def _identity(source: Source) -> tuple[str, str, str, int]:
    """What of a source changes a result."""
    return source.origin, source.artifact.sha256, source.artifact.owner, source.artifact.steps


def _artifact(record: Mapping[str, Any]) -> Artifact | None:
    found = record["artifact"]
    return None if found is None else from_json(Artifact, found)


def _rejected(command: commands.Train | commands.Adopt, error: UnusableArtifact) -> events.ArtifactRejected:
    source = error.source
    order = (command.generation, command.round, command.attempt)
    return events.ArtifactRejected(*order, source.origin, source.artifact.sha256, str(error))


def _stage_metrics(stage: str, loop: Loop) -> dict[str, float]:
    """A stage's numbers: mean terms, ``_last`` ones, what the method adds, steps; each begins with the stage's name."""
    means = loop.means()
    numbers = means | {f"{name}_last": value for name, value in loop.losses().items()}
    numbers |= {**loop.stage.summary(means), "steps": float(loop.step)}
    return {f"{stage}_{name}": value for name, value in numbers.items()}

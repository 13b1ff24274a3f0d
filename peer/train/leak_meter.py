"""Measures the leak of each artifact that a worker has written, before the daemon may send it.

The worker attacks the artifact's file with its own people: those of the training split against those of the validation
and test splits. A measurement is a function of files on disk, so a restarted worker repeats the same figures.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import StatisticsError, correlation
from typing import Any

import torch
from torch import Tensor

from models import Network
from peer.cohorts import Cohorts, person_of
from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.json_codec import from_json, to_json
from peer.core.leak import PREDICTING, Attack, Leak, area_under_curve, count_detected
from peer.core.tasks import CLASSIFYING
from peer.files import write_file
from peer.methods.supervised import supervised_loss
from peer.train.artifact_exchange import ArtifactExchange
from peer.train.errors import UnusableArtifact
from peer.train.membership_attack import likelihood_ratio_scores, mean_by_person, sample_losses, standardise
from peer.train.samples import DataSplit, Seed, SiteData
from peer.train.settings import TrainingSettings

logger = logging.getLogger(__name__)

FILE = "leak.json"
"""In the folder of checkpoints, which never leaves: the standardised scores, and the people with the highest ones."""
SHARE_MAX = 0.1
"""Share of a round's computation that measurements may take before the last round."""
STEP_PASSES = 3
"""What training costs for a sample, in forward passes: the backward pass counts as two."""
SAMPLES_MAX = 10_000
"""Samples of a measurement: enough for an interval of one hundredth, few enough to compare each with all others."""
NETWORKS = 2
"""Networks that predict each sample of a measurement: the artifact and its reference."""
HIGHEST_SHOWN = 10
"""People with the highest scores whose names stay in the file."""
CLASSES_MIN = 3
"""Classes from which the correlation of two of their figures says anything."""
DIGITS = 4
"""Decimal places of figures in journal and ledger."""


@dataclass(frozen=True)
class AttackedPeople:
    """The samples of a measurement.

    Attributes:
        parts: splits, each with the indices of its samples.
        names: the person of each sample.
        members: the people that were trained on; all others were not.
    """

    parts: Sequence[tuple[DataSplit, Sequence[int]]]
    names: Sequence[str]
    members: frozenset[str]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and targets in order."""
        for split, indices in self.parts:
            for first in range(0, len(indices), size):
                yield split.read(indices[first : first + size])


@dataclass(frozen=True)
class Channel:
    """The standardised scores of the artifacts of one kind and owner: sums over the earlier rounds, and the newest.

    ``highest`` are the people with the highest mean scores.
    """

    round: int = 0
    newest: Mapping[str, float] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    artifacts: int = 0
    highest: tuple[str, ...] = ()

    def before(self, round: int) -> Channel:
        """Return the channel without the scores of a round, if those are the newest."""
        return replace(self, round=0, newest={}) if self.round == round else self

    def with_newest(self, round: int, scores: Mapping[str, float]) -> Channel:
        """Return the channel with the scores of a later round."""
        sums, counts = dict(self.sums), dict(self.counts)
        for person, score in self.newest.items():
            sums[person] = sums.get(person, 0.0) + score
            counts[person] = counts.get(person, 0) + 1
        return Channel(round, dict(scores), sums, counts, self.all_artifacts)

    def total(self, person: str) -> tuple[float, int]:
        """Return the sum and the number of a person's scores."""
        total, count = self.sums.get(person, 0.0), self.counts.get(person, 0)
        return total + self.newest.get(person, 0.0), count + (person in self.newest)

    @property
    def all_artifacts(self) -> int:
        return self.artifacts + bool(self.newest)


@dataclass(frozen=True)
class LeakFile:
    """What the file remembers: the figures of the newest round by digest, and the scores by channel."""

    round: int = 0
    figures: Mapping[str, Leak | None] = field(default_factory=dict)
    channels: Mapping[str, Channel] = field(default_factory=dict)


class LeakMeter:
    """Attacks the artifacts of one site's answers.

    Args:
        settings: the site's settings; ``leak`` says in which rounds artifacts are measured.
        seed: the site's seed, which orders the people.
        data: reads the site's data.
        exchange: reads artifacts.
        device: where networks predict.
        check_halt: called before each batch; its exception ends the measurement.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        seed: Seed,
        data: Callable[[], SiteData],
        exchange: ArtifactExchange,
        device: torch.device,
        check_halt: Callable[[], None],
    ) -> None:
        self._settings, self._seed, self._data, self._exchange = settings, seed, data, exchange
        self._device, self._check_halt = device, check_halt
        self._path = settings.home / "checkpoints" / FILE

    def measure(self, command: commands.Command, event: events.Event) -> events.Event:
        """Return the answer to a command, each of its artifacts with its leak where that is measured now.

        An artifact that cannot be attacked stays without one, and the log says why.
        """
        if not isinstance(event, events.Trained | events.Aggregated | events.Adopted | events.Evaluated):
            return event
        artifacts = events.made_artifacts(event)
        if not artifacts or not self._is_due(event.round):
            return event
        earlier = _read(self._path)
        figures = dict(earlier.figures) if earlier.round == event.round else {}
        if not all(artifact.sha256 in figures for artifact in artifacts):
            figures |= self._measure_all(command, event, earlier, figures)
        changes: dict[str, Any] = {}
        if event.artifact is not None:
            changes["artifact"] = replace(event.artifact, leak=figures[event.artifact.sha256])
        if isinstance(event, events.Trained):
            changes["returned"] = tuple(replace(each, leak=figures[each.sha256]) for each in event.returned)
        return replace(event, **changes)

    def _measure_all(
        self, command: commands.Command, event: events.WorkResult, earlier: LeakFile, figures: Mapping[str, Leak | None]
    ) -> dict[str, Leak | None]:
        """Measure the artifacts of an event, and write the file: scores and figures at once."""
        round, lent = getattr(event, "round", 0), isinstance(event, events.Evaluated)
        names = {each.sha256: _channel_name(each, lent=lent) for each in events.made_artifacts(event)}
        channels = dict(earlier.channels)
        for name in {*names.values()} & channels.keys():  # a round that is repeated replaces its scores
            channels[name] = channels[name].before(round)
        self._exchange.load_state(getattr(event, "state", ""))
        measured: dict[str, Leak | None] = {}
        for artifact in events.made_artifacts(event):
            measured[artifact.sha256] = None
            if artifact.kind not in PREDICTING:
                continue
            try:
                leak = self._measure(command, round, artifact, channels, names[artifact.sha256])
                measured[artifact.sha256] = leak
            except (UnusableArtifact, ValueError) as error:
                logger.warning("leak not measured: kind=%s round=%d reason=%s", artifact.kind, round, error)
        document = to_json(LeakFile(round, {**figures, **measured}, channels))
        write_file(self._path, json.dumps(document, sort_keys=True).encode(), 0o600)
        return measured

    def _is_due(self, round: int) -> bool:
        """Return whether artifacts of the round are measured."""
        return self._settings.leak == "every" or (self._settings.leak == "last" and self._is_last(round))

    def _is_last(self, round: int) -> bool:
        """Return whether a round makes the last artifacts that leave: some plans send them in the round after."""
        return round >= self._settings.rounds - (self._settings.plan.published == "commit")

    def _measure(
        self, command: commands.Command, round: int, artifact: Artifact, channels: dict[str, Channel], name: str
    ) -> Leak:
        """Attack an artifact, and add its scores to the channel of that name unless the policy refuses it.

        Raises:
            UnusableArtifact: it, or the reference, cannot be read.
            ValueError: there are no people to compare, or a loss is no number.
        """
        network = self._exchange.read_predicting(Source(self._settings.site, round, artifact))
        reference = self._reference(command, artifact)
        people = self._choose(round)
        reference_losses = None if reference is None else self._losses(reference, people)
        attack, scores = best_attack(self._losses(network, people), reference_losses, people)
        pseudonym = Cohorts(self._settings.home).pseudonym
        names = {pseudonym(person): person for person in scores}
        standardised = {pseudonym(person): score for person, score in standardise(scores).items()}
        members = frozenset(key for key, person in names.items() if person in people.members)
        channel = channels.get(name, Channel()).with_newest(round, standardised)
        together = {**channels, name: channel}
        of_receiver, of_all = (_mean_scores(each, standardised) for each in ([channel], together.values()))
        leak = Leak(
            attack=attack,
            auc=round_figure(_auc(scores, people.members)),
            members=len(members),
            others=len(names) - len(members),
            detected=count_detected(*_divide(scores, people.members)),
            receiver_auc=round_figure(_auc(of_receiver, members)),
            all_auc=round_figure(_auc(of_all, members)),
            artifacts=sum(each.all_artifacts for each in together.values()),
            class_mix=self._class_mix(network, reference),
            bound=self._settings.egress.leak_auc_max,
        )
        if not self._settings.egress.refuses(leak):  # what never leaves adds nothing to what others have
            highest = sorted(members, key=lambda key: -of_receiver[key])[:HIGHEST_SHOWN]
            channels[name] = replace(channel, highest=tuple(names[key] for key in highest))
        return leak

    def _reference(self, command: commands.Command, artifact: Artifact) -> Network | None:
        """Return a network like the artifact's that this round has not trained here, if there is one.

        Of a model of another site that is the copy that came; where sites average, the mean received before; else the
        first artifact that a peer sent.
        """
        own = self._settings.site
        sources: Sequence[Source] = getattr(command, "sources", ())
        copies = [source for source in sources if source.artifact.owner == artifact.owner != own]
        base = command.base if isinstance(command, commands.Train) and not copies else ""
        if self._exchange.averages and base.endswith("/aggregate"):
            return self._exchange.read_checkpoint(base)
        for source in copies or [source for source in sources if source.origin != own]:
            if source.artifact.kind in PREDICTING:
                return self._exchange.read_predicting(source)
        return None

    def _choose(self, round: int) -> AttackedPeople:
        """Choose the people: before the last round as many as ``SHARE_MAX`` permits, always the same first.

        Raises:
            ValueError: there are no samples of people that were not trained on.
        """
        data = self._data()
        members = _samples_by_person([data.training])
        others = _samples_by_person([data.validation, data.test])
        others = {person: samples for person, samples in others.items() if person not in members}
        if not members or not others:
            raise ValueError("there are no validation and test samples of people that were not trained on")
        limit = SAMPLES_MAX if self._is_last(round) else min(SAMPLES_MAX, self._samples_max(len(data.training)))
        queues = [sorted(each.items(), key=lambda item: self._seed("leak", item[0])) for each in (members, others)]
        chosen: set[str] = set()
        for person, samples in _alternate(*queues):
            limit -= len(samples)
            if len(chosen) >= len(queues) and limit < 0:
                break
            chosen.add(person)
        parts, names = [], []
        for split in (data.training, data.validation, data.test):
            people = _people(split)
            indices = [
                index
                for index, person in enumerate(people)
                if person in chosen and (split is data.training or person in others)
            ]
            parts.append((split, indices))
            names += [people[index] for index in indices]
        return AttackedPeople(parts, names, frozenset(members) & chosen)

    def _samples_max(self, samples: int) -> int:
        """Return how many samples a measurement may read before the last round."""
        settings = self._settings
        size = min(settings.training.batch_size, samples)
        epoch = samples // size
        steps = sum(work.count * (epoch if work.unit == "epoch" else 1) for work in settings.works.values())
        visits = settings.parameters.get(settings.plan.visits or "", 0)
        artifacts = 1 + (visits if isinstance(visits, int) else 0)
        return int(SHARE_MAX * STEP_PASSES * steps * size / NETWORKS / artifacts)

    def _losses(self, network: Network, people: AttackedPeople) -> Tensor:
        settings = self._settings
        loss = supervised_loss(
            settings.task.objective, str(settings.parameters.get("segmentation_loss", "dice_ce"))
        ).loss
        network.to(self._device).eval()

        def predict(images: Tensor) -> Tensor:
            self._check_halt()
            prediction: Tensor = network(images.to(self._device)).prediction
            return prediction.float().cpu()

        return sample_losses(predict, people.batches(settings.training.batch_size), loss)

    def _class_mix(self, network: Network, reference: Network | None) -> float | None:
        """Return how the change of the head's bias correlates with the classes' numbers of training samples."""
        counts, classes = self._data().training.class_counts, self._settings.task.classes
        if reference is None or self._settings.task.objective not in CLASSIFYING or classes < CLASSES_MIN:
            return None
        try:
            after, before = (each.head.get_parameter("bias").detach().cpu() for each in (network, reference))
            change = (after - before).tolist()
            return round_figure(correlation(change, [float(counts.get(index, 0)) for index in range(classes)]))
        except (AttributeError, RuntimeError, StatisticsError):  # no bias, another number of classes, or no change
            return None


def best_attack(
    losses: Tensor, reference_losses: Tensor | None, people: AttackedPeople
) -> tuple[Attack, dict[str, float]]:
    """Return the better attack and its score of each person.

    Args:
        losses: of the artifact on each sample, ``(samples,)``.
        reference_losses: of the reference network, if there is one.
        people: whose samples they are.

    Raises:
        ValueError: a loss is no finite number.
    """
    if not bool(losses.isfinite().all()):
        raise ValueError("a loss on this site's samples is no finite number")
    scores: dict[Attack, dict[str, float]] = {"loss": mean_by_person(-losses, people.names)}
    if reference_losses is not None:
        population = torch.tensor([person not in people.members for person in people.names])
        ratios = likelihood_ratio_scores(losses, reference_losses, population, people.names)
        scores["likelihood_ratio"] = mean_by_person(ratios, people.names)
    best = max(scores, key=lambda name: _auc(scores[name], people.members))
    return best, scores[best]


def round_figure(value: float) -> float:
    """Round a figure for journal and ledger."""
    return round(value, DIGITS)


def _channel_name(artifact: Artifact, *, lent: bool) -> str:
    return f"{'lent' if lent else artifact.kind}/{artifact.owner}"


def _people(split: DataSplit) -> list[str]:
    """Return the person of each sample."""
    return [person_of(sample.name, sample.subject) for sample in split.samples]


def _samples_by_person(splits: Sequence[DataSplit]) -> dict[str, list[int]]:
    people: dict[str, list[int]] = {}
    for split in splits:
        for index, person in enumerate(_people(split)):
            people.setdefault(person, []).append(index)
    return people


def _alternate(*queues: Sequence[Any]) -> Iterator[Any]:
    """Yield the first of each queue, then the second of each; the rest of the longer one comes last."""
    for turn in range(max(map(len, queues))):
        for each in queues:
            yield from each[turn : turn + 1]


def _divide(scores: Mapping[str, float], members: frozenset[str]) -> tuple[list[float], list[float]]:
    """Return the scores of members and of others."""
    return [scores[person] for person in scores if person in members], [
        scores[person] for person in scores if person not in members
    ]


def _auc(scores: Mapping[str, float], members: frozenset[str]) -> float:
    return area_under_curve(*_divide(scores, members))


def _mean_scores(channels: Collection[Channel], people: Iterable[str]) -> dict[str, float]:
    """Return each person's mean over the artifacts of these channels, 0 for a person without any."""
    means = {}
    for person in people:
        totals = [channel.total(person) for channel in channels]
        means[person] = sum(total for total, _ in totals) / max(1, sum(count for _, count in totals))
    return means


def _read(path: Path) -> LeakFile:
    """Read the file; an empty one if it is missing or damaged."""
    try:
        document: LeakFile = from_json(LeakFile, json.loads(path.read_bytes()))
        return document
    except FileNotFoundError:
        return LeakFile()
    except ValueError as error:
        logger.warning("scores of earlier artifacts lost: reason=%s", error)
        return LeakFile()

"""Membership inference on every kind of artifact: ``python tests/privacy/membership.py [--quick] [METHOD ...]``.

What a site gets in several rounds of FedVisit is added up, too, and ``--small`` also compares what a visit changes in
the head's bias, and in the mean prediction, with the host's classes. ``--options`` does so with settings that limit it,
and ``--noise`` compares federations with noise at several epsilon.

Each run is a federation in the simulator. A curious receiver has labelled samples: training samples
of the site that sent the artifact, and test samples of that site, on which nobody trained. It sorts
them by their loss under the artifact (Yeom et al. 2018, "Privacy Risk in Machine Learning"); the
owner of a model that visited, who has both, also by how much the visit has lowered it. The AUC says
how well that separates the two. ``deploy/guarantees.md`` has the table.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

import models
from peer.core import commands, events
from peer.core.artifacts import Source
from peer.core.leak import area_under_curve
from peer.core.privacy import auc_max, mu_of
from peer.core.roster import SiteName
from peer.lab.datasets import digits
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.runs import Run
from peer.lab.experiments.simulation import Simulation
from peer.lab.experiments.sweep import prepare
from peer.methods.fedproto.stages import pool
from peer.methods.method import DAM, MIXTURE, TRANSMITTER
from peer.methods.public_distillation.stages import PUBLIC
from peer.methods.registry import find_plan
from peer.methods.scaffold.stages import CONTROL
from peer.site.config.privacy_table import NoiseConfig
from peer.train.artifact import read_network, read_state
from peer.train.data.datalist import inspect_datalist
from peer.train.membership_attack import sample_losses
from peer.train.public_set import digest_images
from peer.train.samples import DataSplit
from peer.train.trainer import Trainer

METHODS = (
    *("fedskd", "fedvisit", "fedcross", "fedavg", "scaffold", "dflmoe", "proxyfl", "mh_pflid", "feddal"),
    *("fedproto", "fedmd"),
)
# With --fitted: a reference, and what hardly predicts else.
FITTED_METHODS = ("fedavg", "dflmoe", "mh_pflid", "feddal", "fedproto", "fedmd")
AUGMENTED = ("fedskd", "fedavg")  # these are measured with augmentation, too
EXPERIMENT = """
name = "membership"
rounds = {rounds}
seeds = {seeds}
test_share = {test_share}
classes_min = 2
data.pool = {pool}
{public}data.input_size = [8, 8]
training.device = "cpu"
training.batch_size = 16
{training}
budget.steps = {steps}
budget.minor_steps = {minor_steps}
budget.learning_rate = {learning_rate}
task = {{kind = "classification", spatial_dims = 2, in_channels = 1, classes = 10}}
partitions.parted = {{{partition}, sites = ["africa", "america", "asia", "europe"]}}
models.small."*" = {{name = "resnet10", width = 4, max_pool = false, norm = "{norm}"}}
proxy = {{name = "resnet10", width = 4, max_pool = false}}
messenger = {{name = "messenger_classification", width = 8}}
methods.{method} = {{{parameters}}}

[data.augmentation]             # off where the probability is 0
flip = 0.0
rotate_degrees = 10.0
translate_share = 0.1
scale_share = 0.1
probability = {probability}
"""
POOL = 449  # images of a site
SMALL_SITES = (20, 40, 150)
EQUAL = 'kind = "equal"'
DIRICHLET_SITES = {"partition": 'kind = "dirichlet", alpha = 0.5'}
SHORT = {"partition": EQUAL, "test_share": 0.67, "learning_rate": 1e-3}  # a site trains on about 149 images
FULL: dict[str, Any] = {"rounds": 12, "seeds": [0, 1, 2], "steps": 30, "minor_steps": 10, **SHORT}
QUICK: dict[str, Any] = {"rounds": 3, "seeds": [0], "steps": 10, "minor_steps": 5, **SHORT}
FITTED: dict[str, Any] = {"rounds": 6, "seeds": [0], "steps": 60, "minor_steps": 60}
FITTED |= {
    "partition": EQUAL,
    "test_share": 0.85,
    "learning_rate": 3e-3,
}  # about 67 images, so often that a network knows them by heart
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "visits = 2": {"parameters": "visits = 2"},
    'header = "frozen"': {"parameters": 'header = "frozen"'},
    "merge_weight = 0.1": {"parameters": "merge_weight = 0.1"},
    'class_weights = "balanced"': {"training": 'training.class_weights = "balanced"'},
}
"""What a federation of FedVisit, or each of its sites, can set."""
RATE = "stages.train = {learning_rate = 6e-3}"
"""FedVisit's own, which falls to a tenth."""
FIXED = {"parameters": 'header = "fixed_bias"'}
BALANCED = {"training": 'training.class_sampling = "balanced"'}
CLASS_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    'header = "fixed_bias"': FIXED,
    'class_sampling = "balanced"': BALANCED,
    "both": FIXED | BALANCED,
}
"""What they can set against telling the host's classes."""
EPSILONS = (8.0, 3.0, 1.0)
PEOPLE = 67
"""Of a site with ``FITTED``, each image a person."""
STUDENT_EPOCHS = 30
THROUGH_RECEIVER = ("head", "messenger", "prototype")  # kinds that predict through networks of the receiver
LINE = "| {:<9} | {:<19} | {:<31} | {:>5} | {:>6} | {:>4} | {:>12} | {:>8} |"


@dataclass(frozen=True)
class Figure:
    """One attack on an artifact with so many rounds of training behind it."""

    kind: str
    method: str
    victim: str
    rounds: int
    auc: float
    accuracy: float  # of the artifact on samples that nobody trained on: at chance the AUC says nothing


def accuracy(predict: Callable[[Tensor], Tensor], samples: DataSplit) -> float:
    """The share of the samples whose class is predicted."""
    images, labels = samples.read(range(len(samples)))
    with torch.inference_mode():
        return float((predict(images).argmax(dim=1) == labels).float().mean())


def mean_prediction(predict: Callable[[Tensor], Tensor], samples: DataSplit) -> Tensor:
    """The mean probability of each class for these samples."""
    with torch.inference_mode():
        return predict(samples.read(range(len(samples)))[0]).float().softmax(dim=1).mean(dim=0)


def losses_of(predict: Callable[[Tensor], Tensor], members: DataSplit, others: DataSplit) -> Tensor:
    """The cross-entropy of each sample, first of the members."""
    return sample_losses(predict, (split.read(range(len(split))) for split in (members, others)), F.cross_entropy)


def auc_of(scores: Tensor, members: int) -> float:
    """The AUC of "the higher its score, the likelier was the sample trained on"; the members come first."""
    return area_under_curve(scores[:members].tolist(), scores[members:].tolist())


def membership_auc(predict: Callable[[Tensor], Tensor], members: DataSplit, others: DataSplit) -> float:
    """The AUC of "the lower its cross-entropy, the likelier was the sample trained on"."""
    return auc_of(-losses_of(predict, members, others), len(members))


@dataclass(frozen=True)
class ClassFigure:
    """What a change in visits tells of the host's classes: its correlation with the numbers of training samples, and
    the AUC of which classes the host has; without any change 0 and none.
    """

    source: str  # the head's bias, or the mean prediction for the owner's test samples
    visits: str
    correlation: float
    auc: float | None


class CuriousSimulation(Simulation):
    """A federation in which every receiver attacks each artifact that it received, once."""

    def __init__(self, run: Run, *, membership: bool = True) -> None:
        super().__init__(run.folder, round_key=bytes.fromhex(run.document["round_key"]))
        self.figures: list[Figure] = []
        self._membership = membership
        self._trainers: dict[SiteName, Trainer] = {}
        self._attacked: set[tuple[str, ...]] = set()
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self.class_changes: dict[SiteName, list[tuple[Tensor, Tensor]]] = {}
        self._last_trained_at: dict[SiteName, SiteName] = {}

    def trainer(self, name: SiteName) -> Trainer:
        trainer = self._trainers[name] = super().trainer(name)
        perform = trainer.perform

        def perform_and_attack(command: commands.Command) -> events.Event:
            event = perform(command)
            if isinstance(command, commands.Train | commands.Aggregate):
                for source in command.sources:
                    self._attack(trainer, source, getattr(command, "sent", None))
            return event

        trainer.perform = perform_and_attack  # type: ignore[method-assign]
        return trainer

    def _attack(self, receiver: Trainer, source: Source, sent: Source | None) -> None:
        settings, artifact = receiver.settings, source.artifact
        if artifact.kind == "return" and sent is not None:
            self._attack_host(receiver, source, sent)
            return
        rounds = source.round - (settings.plan.published == "commit")  # a commit publishes for the next round
        # Every artifact of another kind gives all receivers the same figure.
        key = (source.origin, artifact.sha256, settings.site if artifact.kind in THROUGH_RECEIVER else "")
        if rounds == 0 or key in self._attacked:
            return
        self._attacked.add(key)
        victims = {"the sender": source.origin}
        earlier = self._last_trained_at.get(artifact.owner, source.origin)
        if earlier != source.origin:  # a model that travels
            victims["the site that trained it before"] = earlier
        self._last_trained_at[artifact.owner] = source.origin
        if settings.site == source.origin or not self._membership:  # it did not leave
            return
        predict = make_predict(receiver, source)
        for victim, site in victims.items():
            data = self._trainers[site].data
            scores = -losses_of(predict, data.training, data.test)
            right = accuracy(predict, data.test)
            self._add(Figure(artifact.kind, settings.method, victim, rounds, 0.0, right), scores, data.training)
            if settings.plan.pattern == "visit":
                summed = Figure(artifact.kind, settings.method, f"{victim}, added up", rounds, 0.0, right)
                self._add(summed, scores, data.training, site)

    def _attack_host(self, owner: Trainer, source: Source, sent: Source) -> None:
        """The owner of a model that visited knows what it was before, and what the host made of it."""
        host = source.origin
        data, after, before = self._trainers[host].data, make_predict(owner, source), make_predict(owner, sent)
        biases = [read_bias(owner, each) for each in (source, sent)]
        means = [mean_prediction(predict, owner.data.test) for predict in (after, before)]
        self.class_changes.setdefault(host, []).append((biases[0] - biases[1], means[0] - means[1]))
        if not self._membership:
            return
        right = accuracy(after, data.test)
        losses, losses_before = (losses_of(predict, data.training, data.test) for predict in (after, before))
        for victim, scores, key in (
            ("the host", -losses, ()),
            ("the host, by the pair", losses_before - losses, ()),
            ("the host, added up by one owner", losses_before - losses, (owner.settings.site, host)),
            ("the host, added up by all", losses_before - losses, (host,)),
        ):
            figure = Figure("return", owner.settings.method, victim, source.round, 0.0, right)
            self._add(figure, scores, data.training, *key)

    def _add(self, figure: Figure, scores: Tensor, members: DataSplit, *key: str) -> None:
        """Add a figure with the AUC of the scores, or with a key of the sum of all scores of that key so far."""
        if key:
            key = (figure.victim, *key)
            scores = self._sums[key] = self._sums.get(key, torch.zeros_like(scores)) + scores
        self.figures.append(replace(figure, auc=auc_of(scores, len(members))))

    def class_figures(self) -> Iterator[ClassFigure]:
        """What the changes in visits tell of each host's classes, by one visit and by all together."""
        for host, visits in self.class_changes.items():
            samples = self._trainers[host].data.training
            for source, changes in zip(("bias", "predictions"), zip(*visits, strict=True), strict=True):
                counts = torch.bincount(samples.read(range(len(samples)))[1], minlength=len(changes[0])).double()
                labelled = [*(("one visit", change) for change in changes), ("all", torch.stack(changes).mean(0))]
                for label, each in labelled:
                    both = 0 < int((counts > 0).sum()) < len(counts) and float(each.std()) > 0
                    auc = float(roc_auc_score(counts > 0, each)) if both else None
                    correlation = float(torch.corrcoef(torch.stack([each.double(), counts]))[0, 1])
                    yield ClassFigure(source, label, 0.0 if math.isnan(correlation) else correlation, auc)

    def own_accuracies(self) -> list[float]:
        """The accuracy of each site's last model on its own test samples."""
        return [
            accuracy(lambda images, own=trainer: own.site_networks.networks[DAM].eval()(images).prediction, data.test)
            for trainer in self._trainers.values()
            for data in [trainer.data]
        ]


def read_bias(receiver: Trainer, source: Source) -> Tensor:
    """The bias of the head of a received network."""
    settings = receiver.settings
    network = read_network(settings.artifacts, source, settings.task, allow={source.artifact.spec["name"]})
    bias: Tensor = network.head.get_parameter("bias").detach()
    return bias


def make_predict(receiver: Trainer, source: Source) -> Callable[[Tensor], Tensor]:
    """What the receiver predicts with the artifact, from images to logits.

    A head and the prototypes get the feature of the receiver's own body, a head's through the
    transform that the receiver trained for it. A messenger's head gets the messenger's feature and
    the local model's through the receiver's transmitter. From predictions of the public set, the
    receiver trains a network of its own. Every other artifact predicts by itself.
    """
    if source.artifact.kind == "head":
        head = receiver.artifact_exchange.receive(source)[0].eval()
        networks = receiver.site_networks.networks
        body, transform = networks["dam"].eval(), networks[MIXTURE].eval().transform
        return lambda images: head(transform(body(images).penultimate, source.origin))
    settings, networks = receiver.settings, receiver.site_networks.networks
    allow = {source.artifact.spec["name"]}
    if settings.method == "scaffold":  # its control variate travels beside the model
        beside = {f"{CONTROL}/{name}": tensor for name, tensor in networks[CONTROL].state_dict().items()}
        own, names = networks[DAM], [*networks[DAM].state_dict()]
        state = read_state(
            settings.artifacts, source, settings.task,
            own=own, artifact_tensors=lambda _: names, allow=allow, beside=beside,
        )  # fmt: skip
        network = copy.deepcopy(own).eval()
        network.load_state_dict({name: state[name] for name in names})
        return lambda images: network(images).prediction
    network = read_network(settings.artifacts, source, settings.task, allow=allow).eval()
    if source.artifact.kind == "prototype":
        body = networks[DAM].eval()
        table = network.network
        return lambda images: table(pool(body(images).penultimate.float(), int(settings.parameters["width"])))
    if source.artifact.kind == "prediction":
        return fit_predictions(receiver, network.network.get_buffer("logits"))
    if source.artifact.kind == "messenger":
        local, transmitter = (networks[name].eval() for name in (DAM, TRANSMITTER))
        return lambda images: network.head(transmitter(network(images).penultimate, local(images).bottleneck))
    return lambda images: network(images).prediction


def fit_predictions(receiver: Trainer, logits: Tensor) -> Callable[[Tensor], Tensor]:
    """A new network like the receiver's, trained until it predicts the public images ``(n, c)`` as the sender does."""
    networks = receiver.site_networks.networks
    images: Tensor = networks[PUBLIC].get_buffer("images")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = models.build(networks[DAM].spec)
        optimiser = torch.optim.Adam(student.parameters(), lr=3e-3)
        for _ in range(STUDENT_EPOCHS):
            for chosen in torch.randperm(len(images)).split(64):
                optimiser.zero_grad()
                F.mse_loss(student(images[chosen]).prediction, logits[chosen]).backward()
                optimiser.step()
    student.eval()
    return lambda images: student(images).prediction


def write_pools(folder: Path, *, public: bool) -> dict[str, str]:
    """The digits as the sites' pool; with a public set, that gets every third image, and the sites the others."""
    digits.prepare(folder / "digits")
    entries = json.loads((folder / "digits" / "pool.json").read_text())["training"]
    part = folder / "digits" / "public.json"
    part.write_text(json.dumps({"training": entries[2::3], "test": []}))
    pinned = digest_images(inspect_datalist(part).training)
    return {
        "pool": json.dumps(str(folder / "digits" / "pool.json")),
        "public": f'data.public = {json.dumps(str(part))}\ndata.part = "reported"\n' if public else "",
        "parameters": f'public_sha256 = "{pinned}"' if public else "",
    }


def measure(method: str, *, augmented: bool, scale: dict[str, Any]) -> list[Figure]:
    """Run the method with each seed, in a folder of its own."""
    return [
        figure for simulation in simulate(method, augmented=augmented, scale=scale) for figure in simulation.figures
    ]


def simulate(
    method: str, *, augmented: bool, scale: dict[str, Any], membership: bool = True
) -> list[CuriousSimulation]:
    """Run the method with each seed, in a folder of its own."""
    simulations: list[CuriousSimulation] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "membership.toml"
        public = find_plan(method).public
        chosen = {"training": "", "norm": "batch"} | write_pools(Path(folder), public=public) | scale
        if public:  # a third of the images is public: this leaves as many to train on
            chosen["test_share"] = 1 - 1.5 * (1 - scale["test_share"])
        if method == "fedvisit":
            chosen["parameters"] = ", ".join(filter(None, [chosen.get("parameters"), RATE]))
        path.write_text(EXPERIMENT.format(**chosen, method=method, probability=0.5 if augmented else 0.0))
        for run in prepare(Experiment.load(path), Path(folder) / "out"):
            simulation = CuriousSimulation(run, membership=membership)
            simulation.run()
            simulations.append(simulation)
    return simulations


def table_rows(figures: Sequence[Figure], variant: str = "") -> Iterator[str]:
    """A line for each victim: the means of the first, the middle and the last round, and the range of all figures."""
    for kind, victim in dict.fromkeys((figure.kind, figure.victim) for figure in figures):
        chosen = [figure for figure in figures if (figure.kind, figure.victim) == (kind, victim)]
        rounds = sorted({figure.rounds for figure in chosen})
        shown = (rounds[0], rounds[len(rounds) // 2], rounds[-1])
        means = [fmean(figure.auc for figure in chosen if figure.rounds == number) for number in shown]
        aucs = [figure.auc for figure in chosen]
        method = chosen[0].method + variant
        right = fmean(figure.accuracy for figure in chosen if figure.rounds == rounds[-1])
        cells = [f"{mean:.2f}" for mean in means] + [f"{min(aucs):.2f} to {max(aucs):.2f}", f"{right:.2f}"]
        yield LINE.format(chosen[0].kind, method, victim, *cells)


def print_classes(scale: dict[str, Any]) -> None:
    """Print the mean figures of ``class_figures``, by one visit and by all together."""
    simulations = simulate("fedvisit", augmented=False, scale=scale, membership=False)
    figures = [figure for simulation in simulations for figure in simulation.class_figures()]
    print(
        "| by | visits | correlation with the shares | AUC of which classes | figures |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    for source, label in dict.fromkeys((figure.source, figure.visits) for figure in figures):
        chosen = [figure for figure in figures if (figure.source, figure.visits) == (source, label)]
        aucs = [figure.auc for figure in chosen if figure.auc is not None]
        cells = f"{fmean(figure.correlation for figure in chosen):.2f} | {fmean(aucs) if aucs else 0.5:.2f}"
        print(f"| {source} | {label} | {cells} | {len(chosen)} |", flush=True)


def print_options(scale: dict[str, Any]) -> None:
    """Print what each of ``OPTIONS`` changes: membership at the last round, and the classes, by all visits together."""
    titles = ("set", "accuracy", "one visit", "one owner", "all owners", "classes by bias", "classes by predictions")
    print(f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), sep="\n", flush=True)
    victims = ("the host, by the pair", "the host, added up by one owner", "the host, added up by all")
    for name, changes in OPTIONS.items():
        equal = simulate("fedvisit", augmented=False, scale=scale | changes)
        figures = [figure for simulation in equal for figure in simulation.figures if figure.rounds == scale["rounds"]]
        cells = [fmean(value for simulation in equal for value in simulation.own_accuracies())]
        cells += [fmean(figure.auc for figure in figures if figure.victim == victim) for victim in victims]
        other = simulate("fedvisit", augmented=False, scale=scale | DIRICHLET_SITES | changes, membership=False)
        classes = [figure for simulation in other for figure in simulation.class_figures() if figure.visits == "all"]
        for source in ("bias", "predictions"):
            cells.append(fmean(figure.correlation for figure in classes if figure.source == source))
        print(f"| `{name}` | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def print_class_options(scale: dict[str, Any]) -> None:
    """Print what each of ``CLASS_OPTIONS`` changes in the figures of ``class_figures``, and in the accuracy."""
    titles = ("set", "accuracy", "by", "correlation, one visit", "all visits", "AUC, one visit", "all visits")
    print(f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), sep="\n", flush=True)
    for name, changes in CLASS_OPTIONS.items():
        runs = simulate("fedvisit", augmented=False, scale=scale | DIRICHLET_SITES | changes, membership=False)
        right = fmean(value for simulation in runs for value in simulation.own_accuracies())
        figures = [figure for simulation in runs for figure in simulation.class_figures()]
        for source in ("bias", "predictions"):
            of_visits = [
                [figure for figure in figures if (figure.source, figure.visits) == (source, visits)]
                for visits in ("one visit", "all")
            ]
            aucs = [[figure.auc for figure in chosen if figure.auc is not None] for chosen in of_visits]
            cells = [fmean(figure.correlation for figure in chosen) for chosen in of_visits]
            cells += [fmean(values) if values else 0.5 for values in aucs]
            print(f"| `{name}` | {right:.3f} | {source} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def print_table(methods: Sequence[str], scale: dict[str, Any], *, augmented: bool = True) -> None:
    """Print the table of figures, also with augmentation for those methods that it is measured for."""
    print_header()
    for method in methods:
        for with_augmentation in (False, True) if method in AUGMENTED and augmented else (False,):
            figures = measure(method, augmented=with_augmentation, scale=scale)
            print(*table_rows(figures, ", augmented" if with_augmentation else ""), sep="\n", flush=True)


def print_header() -> None:
    header = LINE.format("kind", "method", "whose samples", "first", "middle", "last", "range", "accuracy")
    print(header, "|" + "---|" * (header.count("|") - 1), sep="\n", flush=True)


def noised(epsilon: float | None, people: int = PEOPLE) -> dict[str, str]:
    """What a scale changes for noise at this epsilon, ``None`` for none, with the same network."""
    if epsilon is None:
        return {"norm": "group"}
    noise = f'privacy = {{mechanism = "noise", epsilon = {epsilon}, people = {people}}}'
    return {"norm": "group", "parameters": noise}


def print_noise(methods: Sequence[str]) -> None:
    """Print the table of figures with and without noise, and which AUC no attack exceeds."""
    print_header()
    for method in methods:
        for epsilon in (None, *EPSILONS):
            figures = measure(method, augmented=False, scale=FITTED | noised(epsilon))
            print(*table_rows(figures, ", no noise" if epsilon is None else f", ε {epsilon:g}"), sep="\n", flush=True)
    bounds = ", ".join(f"ε {epsilon:g}: {auc_max(mu_of(epsilon, NoiseConfig().delta)):.3f}" for epsilon in EPSILONS)
    print(f"No attack exceeds {bounds}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []], metavar="METHOD", help=f"of {', '.join(METHODS)}")
    scales = parser.add_mutually_exclusive_group()
    scales.add_argument("--quick", action="store_true", help="few rounds, one seed")
    scales.add_argument("--fitted", action="store_true", help="few samples, trained on for long, one seed")
    scales.add_argument(
        "--small", nargs="*", type=int, metavar="N", help="FedVisit at N images a site and 12 steps a round, one seed"
    )
    scales.add_argument(
        "--options", type=int, metavar="N", help="the same with each setting that limits it, three seeds"
    )
    scales.add_argument(
        "--classes", type=int, metavar="N", help="what tells the host's classes, at sites where they differ, six rounds"
    )
    scales.add_argument("--noise", action="store_true", help="of fedavg and fedvisit, as --fitted, with noise")
    arguments = parser.parse_args()
    if arguments.noise:
        print_noise(arguments.methods or ("fedavg", "fedvisit"))
        return
    if arguments.small is not None:
        for samples in arguments.small or SMALL_SITES:
            scale = FULL | {"seeds": [0], "steps": 12, "test_share": 1 - samples / POOL}
            print(f"\n{samples} images a site", flush=True)
            print_table(["fedvisit"], scale)
            print_classes(scale | DIRICHLET_SITES)
        return
    if arguments.options is not None:
        print_options(FULL | {"steps": 12, "test_share": 1 - arguments.options / POOL})
        return
    if arguments.classes is not None:
        print_class_options(FULL | {"rounds": 6, "steps": 12, "test_share": 1 - arguments.classes / POOL})
        return
    scale = QUICK if arguments.quick else FITTED if arguments.fitted else FULL
    methods = arguments.methods or (FITTED_METHODS if arguments.fitted else METHODS)
    print_table(methods, scale, augmented=not arguments.fitted)


if __name__ == "__main__":
    main()

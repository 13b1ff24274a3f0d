"""The runs of an experiment: the folder of each, with checked configuration files and datalists.

A run's folder holds what daemons would need for the same federation: ``federation.toml``, and for
every site ``site.toml`` and ``datalist.json``. ``run.json`` holds a digest of them. A folder with
another digest or version is refused, not overwritten.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from peer import __version__
from peer.core.roster import RoundKey, SiteName
from peer.core.targets import Target, check_targets
from peer.core.tasks import CLASSIFYING
from peer.errors import DataError, StateError
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.experiment_tables import Links
from peer.lab.experiments.pool import SPLIT, Entry, SamplePool
from peer.lab.experiments.result_files import FORMAT
from peer.lab.experiments.simulated_epochs import SimulatedEpochs
from peer.lab.partition.divide import divide
from peer.lab.partition.folds import folds, holdout
from peer.lab.partition.groups import SUBJECT, class_of, image_names
from peer.lab.partition.leakage import leaks
from peer.site.config import toml
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_folder import write_atomically
from peer.train.data.datalist import SELF_LABELLED

RUN, RESULT = "run.json", "result.json"

Splits = Mapping[str, Mapping[str, Sequence[Entry]]]
"""Entries by site, then by split: ``training`` and ``test``."""


@dataclass(frozen=True)
class Run:
    """One federation of an experiment.

    Attributes:
        files: the content of every other file by its path in the folder.
    """

    folder: Path
    document: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.folder.name

    def is_finished(self) -> bool:
        return (self.folder / RESULT).exists()

    def check_unchanged(self) -> None:
        """Raise ``StateError`` if the folder's run has other settings or another version."""
        path = self.folder / RUN
        if not path.exists():
            return
        stored = json.loads(path.read_text())
        changed = [key for key in ("format", "version", "digest") if stored.get(key) != self.document[key]]
        if changed:
            other = (
                f"other settings ({self._first_difference()})"
                if changed == ["digest"]
                else f"mhfl-peer {stored.get('version')}"
            )
            raise StateError(
                f"{self.folder} holds a run of {other}; this is {__version__}, digest {self.document['digest'][:12]}",
                "name another folder with --out, or delete this run's",
            )

    def _first_difference(self) -> str:
        """Describe the first difference between the folder's files and this run's."""
        for name, content in self.files.items():
            path = self.folder / name
            old_lines = path.read_text().splitlines() if path.exists() else []
            for old_line, new_line in itertools.zip_longest(old_lines, content.splitlines(), fillvalue=""):
                if old_line != new_line:
                    excerpt = (
                        f": {old_line.strip()[:60]!r}, now {new_line.strip()[:60]!r}" if name.endswith(".toml") else ""
                    )
                    return f"{name} differs{excerpt}"
        return "the same files, but another fold, seed, round key or loss"

    def write(self) -> None:
        """Write the folder; ``run.json`` last, so that a folder with ``run.json`` is complete."""
        for name, content in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        write_atomically(self.folder / RUN, json.dumps(self.document, indent=1).encode(), 0o644)


def build_runs(experiment: Experiment, pool: SamplePool, folder: Path) -> list[Run]:
    """Build and check every run of the experiment; nothing is written.

    Raises:
        DataError: a partition, fold or split is impossible, or a subject or image leaks.
        ConfigError: a daemon would refuse the configuration of a federation or site.
        StateError: the folder holds a run of other settings.
    """

    @cache
    def splits_of(name: str, seed: int) -> Sequence[Splits]:
        return _divide(experiment, name, pool, seed)

    runs = []
    for (partition, network_set, links, label), seed in itertools.product(experiment.combinations(), experiment.seeds):
        for fold, splits in enumerate(splits_of(partition, seed)):
            run = _build_run(experiment, pool, folder, (partition, network_set, links, label), seed, fold, splits)
            run.check_unchanged()
            runs.append(run)
    return runs


def _divide(experiment: Experiment, name: str, pool: SamplePool, seed: int) -> list[Splits]:
    rule = experiment.partitions[name]
    by = str(rule.__pydantic_extra__.get("by", SUBJECT))
    where = f"{experiment.path}: partitions.{name}"
    try:
        sites = divide(pool.entries, rule.kind, sites=rule.sites, seed=seed, **rule.__pydantic_extra__)
        splits_by_fold = list(_split_folds(experiment, name, sites, seed, by))
    except DataError as error:
        raise DataError(f"{where}: {error.message}", error.remedy) from error
    for splits in splits_by_fold:
        _check_splits(experiment, splits, where)
        problems = leaks(
            splits, pool.root, across_sites=rule.kind != "resolution", by=by, values=experiment.data.compares_values
        )
        if problems:
            raise DataError(f"{where}: {'; '.join(problems[:3])}", "give these samples one subject, or drop them")
    return splits_by_fold


def _check_splits(experiment: Experiment, splits: Splits, where: str) -> None:
    """Refuse splits that no site can train or test with, before any run starts."""
    kind, classes = experiment.task.kind, experiment.task.classes
    for site, splits_of_site in splits.items():
        test_entries = [entry for entry in splits_of_site["test"] if kind in SELF_LABELLED or "label" in entry]
        if not test_entries or not splits_of_site["training"]:
            purpose = "training" if test_entries else "test"
            raise DataError(
                f"{where}: {site!r} has no sample for {purpose}",
                "give folds or test_share, or a pool with samples for both",
            )
        if kind not in CLASSIFYING:
            continue
        if experiment.task.target != "class":
            _check_answers(experiment.task.to_target(), splits_of_site["training"], test_entries, f"{where}: {site!r}")
            continue
        for entry in (*splits_of_site["training"], *test_entries):
            label = class_of(entry)
            if label is None or not 0 <= label < classes:
                raise DataError(
                    f"{where}: {image_names(entry)[0]} of {site!r} has the label {entry.get('label')!r}, which is none "
                    f"of the {classes} classes from 0",
                    "correct it, or [task] classes",
                )
        if len({class_of(entry) for entry in splits_of_site["training"]}) < 2:
            raise DataError(
                f"{where}: all samples that {site!r} would train on have one class",
                "divide the samples otherwise, or leave this site out",
            )


def _check_answers(target: Target, training: Sequence[Entry], test: Sequence[Entry], where: str) -> None:
    """Refuse labels that are none of the target, or from which a site could learn nothing."""
    labels = []
    for entry in (*training, *test):
        try:
            labels.append(target.parse(entry.get("label")))
        except ValueError as error:
            reason = f"{where}: the label of {image_names(entry)[0]} {error}"
            raise DataError(reason, "correct it, or the target in [task]") from error
    for problem in check_targets(target, labels[: len(training)]):
        raise DataError(f"{where}: {problem}", "divide the samples otherwise, or leave this site out")


def _split_folds(
    experiment: Experiment, partition: str, sites: Mapping[str, Sequence[Entry]], seed: int, by: str
) -> Iterator[Splits]:
    """Split the entries for every fold; there is one if the data or a share splits them."""
    share = experiment.test_share_of(partition)
    if not experiment.folds and share is None:
        yield _split(sites, {site: [entry[SPLIT] == "test" for entry in entries] for site, entries in sites.items()})
        return
    parts: dict[str, list[int]] = {}
    for site, entries in sites.items():
        try:
            parts[site] = _assign_parts(experiment, share, entries, seed, by)
        except DataError as error:
            raise DataError(f"{site}: {error.message}", error.remedy) from error
    for fold in range(max(1, experiment.folds)):
        yield _split(sites, {site: [part == fold for part in site_parts] for site, site_parts in parts.items()})


def _assign_parts(
    experiment: Experiment, share: float | None, entries: Sequence[Entry], seed: int, by: str
) -> list[int]:
    """Return the fold that tests each entry; with a test share, 0 for test entries."""
    classes_min = experiment.classes_min
    if experiment.folds:
        return folds(entries, experiment.folds, seed=seed, by=by, classes_min=classes_min)
    assert share is not None
    return [0 if is_tested else 1 for is_tested in holdout(entries, share, seed=seed, by=by, classes_min=classes_min)]


def _split(sites: Mapping[str, Sequence[Entry]], is_tested: Mapping[str, Sequence[bool]]) -> Splits:
    return {
        site: {
            "training": [entry for entry, tested in zip(entries, is_tested[site], strict=True) if not tested],
            "test": [entry for entry, tested in zip(entries, is_tested[site], strict=True) if tested],
        }
        for site, entries in sites.items()
    }


def _build_run(
    experiment: Experiment,
    pool: SamplePool,
    folder: Path,
    combination: tuple[str, str, str, str],
    seed: int,
    fold: int,
    splits: Splits,
) -> Run:
    partition, network_set, links, label = combination
    name = f"{partition}.{network_set}.{links}.{label}.fold-{fold}.seed-{seed}"
    link_settings = experiment.links_by_name[links]
    present = [site for site in experiment.partitions[partition].sites if site not in link_settings.removed]
    if not present:
        raise DataError(f"{experiment.path}: links.{links} removes every site of partition {partition}")
    whole = FederationConfig.parse(experiment.federation_text(label, network_set, present, seed=seed), name)
    files = {"federation.toml": _genesis_text(experiment, links, label, network_set, present, seed=seed)}
    pooled = experiment.is_centralised(label)
    pooled_entries = _pooled_entries(splits, present)
    portable_files: dict[str, str] = {}
    for site in present:
        base = folder / name / "sites" / site
        root, masks = _portable_path(pool.root, base), pool.regions if experiment.data.regions else None
        regions = None if masks is None else _portable_path(masks, base)
        content = experiment.site_text(site, network_set, label, root=root, regions=regions)
        where = f"{experiment.path}: {name}/{site}"
        check_site(whole, toml.validate(SiteConfig, toml.parse(content, where), where), SiteName(site))
        files[f"sites/{site}/site.toml"] = content
        # For the digest, the pool's path as the experiment gives it: experiment, pool and runs may
        # move together.
        root = str(experiment.data.pool) if Path(root).is_absolute() else root
        regions = Path(regions).name if regions is not None and Path(regions).is_absolute() else regions
        portable_files[f"sites/{site}/site.toml"] = experiment.site_text(
            site, network_set, label, root=root, regions=regions
        )
        lists = {"training": pooled_entries if pooled else splits[site]["training"], "test": splits[site]["test"]}
        files[f"sites/{site}/datalist.json"] = json.dumps(lists, indent=0)
    left_out = experiment.left_out_by_links.get(links)
    if left_out is not None:  # its files lie beside the others', for the evaluation only
        base = folder / name / "sites" / left_out
        root, masks = _portable_path(pool.root, base), pool.regions if experiment.data.regions else None
        regions = None if masks is None else _portable_path(masks, base)
        files[f"sites/{left_out}/site.toml"] = experiment.site_text(
            left_out, network_set, label, root=root, regions=regions
        )
        files[f"sites/{left_out}/datalist.json"] = json.dumps(splits[left_out], indent=0)
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "id": name,
        "partition": partition,
        "models": network_set,
        "links": links,
        "loss": link_settings.loss,
        "method": label,
        "pooled": pooled,
        "fold": fold,
        "seed": seed,
        "round_key": experiment.round_key or _round_key(experiment.name, seed),
        "metric": experiment.metric,
    }
    if left_out is not None:
        document["left_out"] = left_out
    document |= _further_figures(experiment) | _insider_and_epochs(link_settings)
    content = json.dumps([document, files | portable_files], sort_keys=True)
    document["digest"] = hashlib.sha256(content.encode()).hexdigest()
    return Run(folder / name, document, files)


def _further_figures(experiment: Experiment) -> dict[str, Any]:
    """Return what ``run.json`` says of figures that not every run has."""
    figures: dict[str, Any] = {}
    if experiment.metrics and experiment.task.kind not in CLASSIFYING:  # those of classes need no new run
        figures["further_metrics"] = list(experiment.metrics)
    if any(links.act == "backdoor" for links in experiment.links.values()):
        figures["backdoor"] = True
    return figures


def _insider_and_epochs(links: Links) -> dict[str, Any]:
    """Return what ``run.json`` says of an insider and of changing members; nothing without them."""
    boost = [links.boost] if links.act == "backdoor" else []
    insider = {} if links.insider is None else {"insider": [links.insider, links.act, *boost]}
    return insider | ({"epochs": [change.model_dump(mode="json") for change in links.epochs]} if links.epochs else {})


def _genesis_text(
    experiment: Experiment, links: str, label: str, network_set: str, present: Sequence[str], *, seed: int
) -> str:
    """Build ``federation.toml`` with the members from round 1 on; check the changes of members."""
    settings = experiment.links_by_name[links]
    first = [site for site in present if site not in settings.newcomers]
    if not first:
        raise DataError(f"{experiment.path}: links.{links}.epochs: every site joins later")
    text = experiment.federation_text(label, network_set, first, seed=seed)
    federation = FederationConfig.parse(text, str(experiment.path))
    changes = [change.model_dump(mode="json") for change in settings.epochs]
    try:
        SimulatedEpochs(make_rules(federation, SiteName(first[0]), RoundKey(bytes(32))).epochs.genesis, changes)
    except ValueError as error:
        raise DataError(f"{experiment.path}: links.{links}.epochs: {error}") from error
    return text


def _pooled_entries(splits: Splits, sites: Sequence[str]) -> list[Entry]:
    """Return the training entries of all sites; an entry that several sites share occurs once."""
    entries = {id(entry): entry for site in sites for entry in splits[site]["training"]}
    return list(entries.values())


def _portable_path(path: Path, base: Path) -> str:
    """Return a path relative to ``base`` inside the experiment's folder, absolute outside."""
    experiment = base.parents[3]
    inside = path.resolve().is_relative_to(experiment.resolve())
    return os.path.relpath(path.resolve(), base.resolve()) if inside else str(path.resolve())


def _round_key(name: str, seed: int) -> str:
    return hashlib.sha256(f"mhfl/simulate/round-key/{name}/{seed}".encode()).hexdigest()

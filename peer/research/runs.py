"""From an experiment to its runs: every site's data and both configuration files, checked and written down.

A run's folder holds what daemons would need for the same federation (``federation.toml``, of every site ``site.toml``
and ``datalist.json``), and its digest: a folder in which that of another version lies is refused, not overwritten.
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
from peer.config import toml
from peer.config.schema import FederationConfig, SiteConfig, check_site
from peer.config.site_folder import write_atomically
from peer.core.roster import SiteName
from peer.core.tasks import CLASSIFYING
from peer.data.datalist import SELF_LABELLED
from peer.errors import DataError, StateError
from peer.research.experiment import Experiment
from peer.research.partition.divide import divide
from peer.research.partition.folds import folds, holdout
from peer.research.partition.groups import SUBJECT, class_of, image_names
from peer.research.partition.leakage import leaks
from peer.research.pool import SPLIT, Entry, SamplePool
from peer.research.result_files import FORMAT

RUN, RESULT = "run.json", "result.json"

Splits = Mapping[str, Mapping[str, Sequence[Entry]]]
"""Entries by site and purpose."""


@dataclass(frozen=True)
class Run:
    """One federation of an experiment.

    Attributes:
        folder: its own.
        document: what ``run.json`` says.
        files: path in the folder and content of everything that is written before it runs.
    """

    folder: Path
    document: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.folder.name

    def finished(self) -> bool:
        return (self.folder / RESULT).exists()

    def refuse_other(self) -> None:
        """``StateError`` where the folder holds a run of other settings or of another version."""
        path = self.folder / RUN
        if not path.exists():
            return
        before = json.loads(path.read_text())
        changed = [key for key in ("format", "version", "digest") if before.get(key) != self.document[key]]
        if changed:
            what = (
                f"other settings ({self._difference()})"
                if changed == ["digest"]
                else f"mhfl-peer {before.get('version')}"
            )
            raise StateError(
                f"{self.folder} holds a run of {what}; this is {__version__}, digest {self.document['digest'][:12]}",
                "name another folder with --out, or delete this run's",
            )

    def _difference(self) -> str:
        """Where the folder's files and this run's first differ."""
        for name, content in self.files.items():
            path = self.folder / name
            before = path.read_text().splitlines() if path.exists() else []
            for was, now in itertools.zip_longest(before, content.splitlines(), fillvalue=""):
                if was != now:
                    shown = f": {was.strip()[:60]!r}, now {now.strip()[:60]!r}" if name.endswith(".toml") else ""
                    return f"{name} differs{shown}"
        return "the same files, but another fold, seed, round key or loss"

    def write(self) -> None:
        """Write the folder; ``run.json`` last, so that a folder with it is whole."""
        for name, content in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        write_atomically(self.folder / RUN, json.dumps(self.document, indent=1).encode(), 0o644)


def runs(experiment: Experiment, pool: SamplePool, folder: Path) -> list[Run]:
    """Every run of the experiment.

    Raises:
        DataError: a partition, fold or split cannot be made, or a subject or image is on two sides.
        ConfigError: a federation or a site of it would be refused.
        StateError: the folder holds a run of other settings.
    """

    @cache
    def divided(name: str, seed: int) -> Sequence[Splits]:
        return _divided(experiment, name, pool, seed)

    found = []
    for (division, chosen, links, label), seed in itertools.product(experiment.combinations(), experiment.seeds):
        for fold, splits in enumerate(divided(division, seed)):
            made = _run(experiment, pool, folder, (division, chosen, links, label), seed, fold, splits)
            made.refuse_other()
            found.append(made)
    return found


def _divided(experiment: Experiment, name: str, pool: SamplePool, seed: int) -> list[Splits]:
    rule = experiment.partitions[name]
    by = str(rule.__pydantic_extra__.get("by", SUBJECT))
    where = f"{experiment.where}: partitions.{name}"
    try:
        sites = divide(pool.entries, rule.kind, sites=rule.sites, seed=seed, **rule.__pydantic_extra__)
        divided = list(_folded(experiment, sites, seed, by))
    except DataError as error:
        raise DataError(f"{where}: {error.message}", error.remedy) from error
    for splits in divided:
        _check(experiment, splits, where)
        problems = leaks(splits, pool.root, across_sites=rule.kind != "resolution", by=by)
        if problems:
            raise DataError(f"{where}: {'; '.join(problems[:3])}", "give these samples one subject, or drop them")
    return divided


def _check(experiment: Experiment, splits: Splits, where: str) -> None:
    """Refuse what a site could not be trained or tested on: its worker would, but only once it is its turn."""
    kind, classes = experiment.task.kind, experiment.task.classes
    for site, lists in splits.items():
        tested = [entry for entry in lists["test"] if kind in SELF_LABELLED or "label" in entry]
        if not tested or not lists["training"]:
            purpose = "training" if tested else "test"
            raise DataError(
                f"{where}: {site!r} has no sample for {purpose}",
                "give folds or test_share, or a pool with samples for both",
            )
        if kind not in CLASSIFYING:
            continue
        for entry in (*lists["training"], *tested):
            label = class_of(entry)
            if label is None or not 0 <= label < classes:
                raise DataError(
                    f"{where}: {image_names(entry)[0]} of {site!r} has the label {entry.get('label')!r}, which is none "
                    f"of the {classes} classes from 0",
                    "correct it, or [task] classes",
                )
        if len({class_of(entry) for entry in lists["training"]}) < 2:
            raise DataError(
                f"{where}: all samples that {site!r} would train on have one class",
                "divide the samples otherwise, or leave this site out",
            )


def _folded(experiment: Experiment, sites: Mapping[str, Sequence[Entry]], seed: int, by: str) -> Iterator[Splits]:
    """Of every fold what each site trains on and tests; one where the split is the data's own or a share."""
    if not experiment.folds and experiment.test_share is None:
        yield _split(sites, {site: [entry[SPLIT] == "test" for entry in entries] for site, entries in sites.items()})
        return
    parts: dict[str, list[int]] = {}
    for site, entries in sites.items():
        try:
            parts[site] = _parts(experiment, entries, seed, by)
        except DataError as error:
            raise DataError(f"{site}: {error.message}", error.remedy) from error
    for fold in range(max(1, experiment.folds)):
        yield _split(sites, {site: [part == fold for part in found] for site, found in parts.items()})


def _parts(experiment: Experiment, entries: Sequence[Entry], seed: int, by: str) -> list[int]:
    """In which fold each entry is tested; with a share, 0 for those that are tested."""
    least = experiment.classes_min
    if experiment.folds:
        return folds(entries, experiment.folds, seed=seed, by=by, classes_min=least)
    share = experiment.test_share
    assert share is not None
    return [0 if out else 1 for out in holdout(entries, share, seed=seed, by=by, classes_min=least)]


def _split(sites: Mapping[str, Sequence[Entry]], tested: Mapping[str, Sequence[bool]]) -> Splits:
    return {
        site: {
            "training": [entry for entry, out in zip(entries, tested[site], strict=True) if not out],
            "test": [entry for entry, out in zip(entries, tested[site], strict=True) if out],
        }
        for site, entries in sites.items()
    }


def _run(
    experiment: Experiment,
    pool: SamplePool,
    folder: Path,
    combination: tuple[str, str, str, str],
    seed: int,
    fold: int,
    splits: Splits,
) -> Run:
    division, chosen, links, label = combination
    name = f"{division}.{chosen}.{links}.{label}.fold-{fold}.seed-{seed}"
    lost = experiment.every_link[links]
    present = [site for site in experiment.partitions[division].sites if site not in lost.removed]
    if not present:
        raise DataError(f"{experiment.where}: links.{links} removes every site of partition {division}")
    home = folder / name
    text = experiment.federation_text(label, chosen, present, seed=seed)
    federation = FederationConfig.parse(text, f"{experiment.where}: {name}")
    files = {"federation.toml": text}
    pooled = experiment.centralised(label)
    everybody = _everybody(splits, present)
    moved: dict[str, str] = {}
    for site in present:
        base = home / "sites" / site
        root, masks = _path(pool.root, base), pool.regions if experiment.data.regions else None
        regions = None if masks is None else _path(masks, base)
        content = experiment.site_text(site, chosen, root=root, regions=regions)
        where = f"{experiment.where}: {name}/{site}"
        check_site(federation, toml.validate(SiteConfig, toml.parse(content, where), where), SiteName(site))
        files[f"sites/{site}/site.toml"] = content
        # Not where a pool is now, but what the experiment calls it: all may be moved together.
        root = str(experiment.data.pool) if Path(root).is_absolute() else root
        regions = Path(regions).name if regions is not None and Path(regions).is_absolute() else regions
        moved[f"sites/{site}/site.toml"] = experiment.site_text(site, chosen, root=root, regions=regions)
        lists = {"training": everybody if pooled else splits[site]["training"], "test": splits[site]["test"]}
        files[f"sites/{site}/datalist.json"] = json.dumps(lists, indent=0)
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "id": name,
        "partition": division,
        "models": chosen,
        "links": links,
        "loss": lost.loss,
        "method": label,
        "pooled": pooled,
        "fold": fold,
        "seed": seed,
        "round_key": experiment.round_key or _round_key(experiment.name, seed),
        "metric": experiment.metric,
    }
    document["digest"] = hashlib.sha256(json.dumps([document, files | moved], sort_keys=True).encode()).hexdigest()
    return Run(home, document, files)


def _everybody(splits: Splits, sites: Sequence[str]) -> list[Entry]:
    """What all these sites train on; what several have, as at several resolutions, once."""
    found = {id(entry): entry for site in sites for entry in splits[site]["training"]}
    return list(found.values())


def _path(path: Path, base: Path) -> str:
    """Relative, so that the folder of an experiment can be moved as a whole; a user's own data stays where it is."""
    experiment = base.parents[3]
    inside = path.resolve().is_relative_to(experiment.resolve())
    return os.path.relpath(path.resolve(), base.resolve()) if inside else str(path.resolve())


def _round_key(name: str, seed: int) -> str:
    return hashlib.sha256(f"mhfl/simulate/round-key/{name}/{seed}".encode()).hexdigest()

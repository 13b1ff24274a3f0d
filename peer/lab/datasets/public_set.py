"""Base of the adapters of published data sets: find files, gather samples, compare counts, write datalists.

An adapter reads a set in its publishers' layout, from a folder that the user has downloaded.
Datalists name those files by absolute paths. Files that the adapter itself writes lie below
``<out>``; their paths are relative. The adapter writes

* ``<out>/pool.json``: all samples in MONAI's datalist form. A fold must not divide the samples of
  one ``subject`` between training and test; ``site`` is the centre that a sample comes from. All
  samples are in ``training``, with the published side as ``published_split``, unless the papers use
  a published test set;
* ``<out>/<site>/datalist.json`` where the set's centres are sites of a federation;
* ``<out>/summary.json``: the published counts and those of the source. A difference is a warning,
  no error.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from peer.errors import DataError, DiskError, UsageError
from peer.train.data import prepared_folder
from peer.train.data.file_names import named

Entry: TypeAlias = dict[str, Any]
"""One sample of a datalist: image, label, subject, site and further keys."""

POOL = "pool.json"
DEPTH_MAX = 4  # folders below the source: archives nest them, and BreaKHis lies three below its download
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
DEBRIS = frozenset({"__MACOSX", ".ipynb_checkpoints"})
"""Folders that archivers and editors leave in archives."""


@dataclass(frozen=True, slots=True)
class PublishedCount:
    """A number that the publishers or a paper print.

    Attributes:
        where: keys and values that a sample must have to be counted; ``side`` is "training" or
            "test".
        of: count the different values of this key; "": count samples.
    """

    name: str
    expected: int
    where: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""

    def count(self, splits: Mapping[str, Sequence[Entry]]) -> int:
        """Count in these lists, to compare with ``expected``."""
        entries = [
            entry
            for side, entries in splits.items()
            for entry in entries
            if all((side if key == "side" else entry.get(key)) == value for key, value in self.where.items())
        ]
        return len({entry.get(self.of) for entry in entries} - {None}) if self.of else len(entries)


@dataclass(frozen=True, slots=True)
class Publication:
    """The description of a published data set; by default, its samples are colour pictures.

    Attributes:
        task: its name on the command line.
        kind: ``[task] kind`` of a federation that trains on it.
        spatial_dims: ``[task] spatial_dims`` of that federation.
        classes: names of the classes in the order of their labels; empty where labels are images.
        counts: numbers printed by the publishers, or by a paper that uses the set.
        federated: whether its centres are sites, each with a datalist of its own.
    """

    task: str
    title: str
    classes: tuple[str, ...]
    layout: str
    reference: str
    licence: str
    kind: str = "classification"
    spatial_dims: int = 2
    channels: tuple[str, ...] = ("red", "green", "blue")
    counts: tuple[PublishedCount, ...] = ()
    federated: bool = False

    @property
    def remedy(self) -> str:
        """The remedy for a source folder that does not hold the set."""
        return f"give --source the folder with {self.layout}"


@dataclass(slots=True)
class PublicSet:
    """The samples of a set while an adapter gathers them.

    Attributes:
        training: the samples, or those of the published training set.
        test: the samples of the published test set.
        dropped: number of omitted samples, by reason.
        absent: files that the publishers list but the source lacks.
        warnings: facts that the user must know before trusting a figure.
    """

    publication: Publication
    source: Path
    out: Path
    training: list[Entry] = field(default_factory=list)
    test: list[Entry] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    absent: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, *, side: str = "training", **entry: Any) -> None:
        """Add a sample, without the keys whose value is None."""
        (self.test if side == "test" else self.training).append(
            {key: value for key, value in entry.items() if value is not None}
        )

    def match(self, name: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Match a file's whole name; without a match, count the sample as dropped and return None."""
        match = name.fullmatch(text)
        if match is None:
            self.dropped["a name of another form"] += 1
        return match

    def write(self) -> dict[str, Any]:
        """Write the datalists and ``summary.json``; return the summary.

        Raises:
            DataError: there is no sample.
            DiskError: a file cannot be written.
        """
        splits, out = {"training": self.training, "test": self.test}, self.out
        if not any(splits.values()):
            if self.absent:
                raise DataError(f"none of the listed files is there: {named(self.absent)}", self.publication.remedy)
            raise DataError(f"{self.source} holds no sample of {self.publication.task}", self.publication.remedy)
        summary = self._summary(splits)
        try:
            prepared_folder.write_json(out / POOL, self._document(splits))
            for site in summary["sites"] if self.publication.federated else ():
                own = {
                    side: [_relative_to_site(site, entry) for entry in part if entry["site"] == site]
                    for side, part in splits.items()
                }
                (out / site).mkdir(exist_ok=True)
                prepared_folder.write_json(out / site / prepared_folder.DATALIST, self._document(own, site=site))
            prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
        except OSError as error:
            raise DiskError(f"the datalists in {out} cannot be written: {error.strerror}") from error
        return summary

    def _document(self, splits: Mapping[str, Sequence[Entry]], site: str = "") -> dict[str, Any]:
        publication = self.publication
        return {
            "name": f"{publication.title}, site {site}" if site else publication.title,
            "reference": publication.reference,
            "licence": publication.licence,
            "tensorImageSize": f"{publication.spatial_dims}D",
            "modality": {str(index): name for index, name in enumerate(publication.channels)},
            "labels": {str(label): name for label, name in enumerate(publication.classes)},
            "numTraining": len(splits["training"]),
            "numTest": len(splits["test"]),
            **splits,
        }

    def _summary(self, splits: Mapping[str, Sequence[Entry]]) -> dict[str, Any]:
        publication = self.publication
        counts = [
            {"what": published.name, "expected": published.expected, "found": published.count(splits)}
            for published in publication.counts
        ]
        different = [
            f"{count['what']}: {count['expected']} expected, "
            + (f"{count['found']} found" if count["found"] else f"none found; {publication.remedy}")
            for count in counts
            if count["expected"] != count["found"]
        ]
        absent = [f"{len(self.absent)} listed files are not there: {named(self.absent)}"] if self.absent else []
        sites = dict.fromkeys(entry["site"] for part in splits.values() for entry in part)
        return {
            "task": publication.task,
            "kind": publication.kind,
            "spatial_dims": publication.spatial_dims,
            "in_channels": len(publication.channels),
            "classes": list(publication.classes),
            "reference": publication.reference,
            "licence": publication.licence,
            "sites": {
                site: {
                    side: self._count([entry for entry in part if entry["site"] == site])
                    for side, part in splits.items()
                }
                for site in sites
            },
            "counts": counts,
            "dropped": dict(self.dropped),
            "warnings": [*different, *absent, *self.warnings],
        }

    def _count(self, entries: Sequence[Entry]) -> dict[str, Any]:
        labels = Counter(entry.get("label") for entry in entries)
        counts: dict[str, Any] = {
            "subjects": len({entry["subject"] for entry in entries if "subject" in entry}),
            "samples": len(entries),
        }
        if any(isinstance(label, int) for label in labels):
            counts["classes"] = {name: labels[label] for label, name in enumerate(self.publication.classes)}
        return counts


@dataclass(frozen=True, slots=True)
class Adapter:
    """The reader of a published set.

    Attributes:
        gather: ``gather(pool, *paths, **options)`` adds the samples to the pool, and writes new
            files to ``pool.out``.
        markers: for each of the paths that ``gather`` takes, the markers by which `locate` finds
            it.
        choices: the allowed values of an option, for options that have only some.
    """

    publication: Publication
    gather: Callable[..., None]
    markers: Sequence[Sequence[str]] = ()
    choices: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def prepare(self, out: Path, *, source: Path, **options: Any) -> dict[str, Any]:
        """Write ``pool.json``, ``summary.json``, and, if the set's centres are sites, one datalist a site.

        Args:
            source: the folder that the set was unpacked into, or one above it.

        Raises:
            UsageError: an option has a value that is not among its choices.
            DataError: the source does not hold the set, or a file in it is damaged.
            StateError: ``out`` is not empty.
            DiskError: ``out`` cannot be written.
        """
        for name in options.keys() & self.choices.keys():
            check_choice(name, options[name], self.choices[name])
        if not source.is_dir():
            raise DataError(f"the source {source} is no folder", self.publication.remedy)
        paths = [locate(source, *markers, publication=self.publication) for markers in self.markers]
        prepared_folder.make_empty(out)
        pool = PublicSet(self.publication, source, out)
        self.gather(pool, *paths, **options)
        return pool.write()


def by_class(publication_classes: Sequence[str], expected: Sequence[int], **where: Any) -> tuple[PublishedCount, ...]:
    """Build one `PublishedCount` for each class, of the samples that have these keys."""
    prefix = "".join(f"{value}, " for value in where.values())
    return tuple(
        PublishedCount(f"{prefix}{name}", number, {**where, "label": label})
        for label, (name, number) in enumerate(zip(publication_classes, expected, strict=True))
    )


def by_split(splits: Sequence[str], expected: Sequence[int]) -> tuple[PublishedCount, ...]:
    """Build one `PublishedCount` for each published split."""
    return tuple(
        PublishedCount(f"published split {name}", number, {"published_split": name})
        for name, number in zip(splits, expected, strict=True)
    )


def by_site(sites: Sequence[str], expected: Sequence[tuple[int, int]]) -> tuple[PublishedCount, ...]:
    """Build two `PublishedCount` for each site: of its training samples, and of its test samples."""
    return tuple(
        PublishedCount(f"{site}, {side}", number, {"site": site, "side": side})
        for site, numbers in zip(sites, expected, strict=True)
        for side, number in zip(("training", "test"), numbers, strict=True)
    )


def locate(source: Path, *markers: str, publication: Publication) -> Path:
    """Find the file or folder that marks a set in the source.

    Args:
        markers: relative paths, which may contain wildcards, in the order of preference.

    Returns:
        The path that matches the first marker that exists, at the least depth below the source.

    Raises:
        DataError: the source holds no marker.
    """
    for marker in markers:
        for depth in range(DEPTH_MAX + 1):
            for path in sorted(source.resolve().glob("*/" * depth + marker)):
                if not DEBRIS.intersection(path.parts):
                    return path
    raise DataError(f"{source} holds no {' and no '.join(markers)}", publication.remedy)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ``UsageError`` unless the value is one of the choices."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}, none of {', '.join(map(str, choices))}")


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """Read the rows of a CSV file with a heading; values have no surrounding spaces.

    Raise ``DataError`` if the file cannot be read, or lacks one of these columns.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            reader = csv.DictReader(lines)
            lacking = sorted(set(columns) - set(reader.fieldnames or ()))
            if lacking:
                raise DataError(f"{path} has no column {', '.join(lacking)}", "download it again")
            return [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "download it again") from error
    except csv.Error as error:
        raise DataError(f"{path} is no table: {error}", "download it again") from error


def list_pictures(path: Path) -> list[Path]:
    """List the pictures in a folder, sorted by name, without hidden files; an absent folder has none."""
    if not path.is_dir():
        return []
    return sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES and not p.name.startswith("."))


def site_name(text: str) -> str:
    """Convert the text to a valid site name: lower case, digits, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def parse_number(text: str) -> float | int | None:
    """Parse the finite number in a table's cell, an int if it is whole; None if there is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return int(value) if value.is_integer() else value


def _relative_to_site(site: str, entry: Entry) -> Entry:
    """Convert the entry's paths relative to ``<out>`` to paths relative to the site's folder."""

    def relocate(path: str) -> str:
        return path if os.path.isabs(path) else Path(os.path.relpath(path, site)).as_posix()

    image, label = entry["image"], entry.get("label")
    relocated = {**entry, "image": [relocate(path) for path in image] if isinstance(image, list) else relocate(image)}
    return {**relocated, "label": relocate(label)} if isinstance(label, str) else relocated

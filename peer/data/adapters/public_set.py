"""What the adapters of published data sets share: find, gather, count, compare with what was published, write.

An adapter reads a set in the layout that its publishers gave it, from a folder that the user has downloaded, and refers
to those files by absolute paths; what it has to make lies below ``<out>``, and its paths are relative. It writes

* ``<out>/pool.json``: all samples in MONAI's datalist form. A ``subject`` is what must not be divided between training
  and test, a ``site`` the centre that a sample comes from. All samples are in ``training``, with the published side as
  ``published_split``, unless the papers keep to a published test set;
* ``<out>/<site>/datalist.json`` where the set is a federation by nature;
* ``<out>/summary.json``: what was found beside what was to be expected. Another count is a warning, nothing an error.
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

from peer.data.adapters import prepared_folder
from peer.data.datalist import named
from peer.errors import DataError, DiskError, UsageError

Entry: TypeAlias = dict[str, Any]
"""One sample as the datalist has it: image, label, subject, site and what else is known."""

POOL = "pool.json"
DEPTH_MAX = 4  # archives are unpacked into folders of folders: BreaKHis is three below its download
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
DEBRIS = frozenset({"__MACOSX", ".ipynb_checkpoints"})
"""Folders that archivers and editors leave in what is passed on."""


@dataclass(frozen=True, slots=True)
class PublishedCount:
    """A number that the publishers or a paper print.

    Attributes:
        what: it counts, for a reader.
        expected: the number.
        where: keys and values that a sample must have to be counted; ``side`` is the list that it is in.
        of: count this key's different values; without it, samples.
    """

    what: str
    expected: int
    where: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""

    def found(self, splits: Mapping[str, Sequence[Entry]]) -> int:
        """The number in these lists."""
        entries = [
            entry
            for side, entries in splits.items()
            for entry in entries
            if all((side if key == "side" else entry.get(key)) == value for key, value in self.where.items())
        ]
        return len({entry.get(self.of) for entry in entries} - {None}) if self.of else len(entries)


@dataclass(frozen=True, slots=True)
class Publication:
    """What a data set is.

    Attributes:
        task: its name on the command line.
        title: its name elsewhere.
        kind: ``[task] kind`` of a federation that trains on it.
        spatial_dims: ``[task] spatial_dims``.
        channels: what each channel of an image holds.
        classes: their names in the order of their labels; empty where labels are images.
        layout: what the folder given as source holds.
        reference: where it was published.
        licence: under what terms.
        counts: what was published, or printed by a paper that uses it.
        federated: whether its centres are sites, each with a datalist of its own.
    """

    task: str
    title: str
    kind: str
    spatial_dims: int
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    layout: str
    reference: str
    licence: str
    counts: tuple[PublishedCount, ...] = ()
    federated: bool = False

    @property
    def remedy(self) -> str:
        """What to do where the source is something else."""
        return f"give --source the folder with {self.layout}"


@dataclass(slots=True)
class PublicSet:
    """The samples of a set while they are gathered.

    Attributes:
        publication: what the set is.
        source: the folder that the user named.
        out: the folder to fill.
        training: the samples, or those of the published training set.
        test: those of the published test set.
        dropped: how many samples were left out, by reason.
        absent: files that the publishers list and that are not there.
        warnings: what the user must know before believing a figure.
    """

    publication: Publication
    source: Path
    out: Path
    training: list[Entry] = field(default_factory=list)
    test: list[Entry] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    absent: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, entry: Entry, *, side: str = "training") -> None:
        """Keep a sample; keys whose value is None are left out."""
        (self.test if side == "test" else self.training).append(
            {key: value for key, value in entry.items() if value is not None}
        )

    def match(self, name: re.Pattern[str], text: str) -> re.Match[str] | None:
        """The match of a file's whole name; where there is none, the sample counts as dropped."""
        match = name.fullmatch(text)
        if match is None:
            self.dropped["a name of another form"] += 1
        return match

    def write(self) -> dict[str, Any]:
        """Write the datalists and ``summary.json``; the summary.

        Raises:
            DataError: there is no sample.
            DiskError: something cannot be written.
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
                own = {side: [_seen_from(site, e) for e in part if e["site"] == site] for side, part in splits.items()}
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
            {"what": count.what, "expected": count.expected, "found": count.found(splits)}
            for count in publication.counts
        ]
        wrong = [
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
                site: {side: self._numbers([e for e in part if e["site"] == site]) for side, part in splits.items()}
                for site in sites
            },
            "counts": counts,
            "dropped": dict(self.dropped),
            "warnings": [*wrong, *absent, *self.warnings],
        }

    def _numbers(self, entries: Sequence[Entry]) -> dict[str, Any]:
        labels = Counter(entry.get("label") for entry in entries)
        numbers: dict[str, Any] = {
            "subjects": len({entry["subject"] for entry in entries if "subject" in entry}),
            "samples": len(entries),
        }
        if any(isinstance(label, int) for label in labels):
            numbers["classes"] = {name: labels[label] for label, name in enumerate(self.publication.classes)}
        return numbers


@dataclass(frozen=True, slots=True)
class Adapter:
    """How a published set is read.

    Attributes:
        publication: what the set is.
        gather: ``gather(pool, *places, **options)`` adds the samples, and makes what has to be made in ``pool.out``.
        places: the markers of each path that ``gather`` takes; `locate` finds the first of them that is there.
        choices: the values of each option that has only some.
    """

    publication: Publication
    gather: Callable[..., None]
    places: Sequence[Sequence[str]] = ()
    choices: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def prepare(self, out: Path, *, source: Path, **options: Any) -> dict[str, Any]:
        """Write ``pool.json``, a datalist a site where the set is a federation by nature, and ``summary.json``.

        Args:
            out: a folder that is empty or not there.
            source: the folder that the set was unpacked into, or one above it.
            options: those of the set.

        Returns:
            The summary.

        Raises:
            UsageError: an option has another value than those of the set.
            DataError: the source is something else, or a file in it is damaged.
            StateError: ``out`` is not empty.
            DiskError: ``out`` cannot be written.
        """
        for name in options.keys() & self.choices.keys():
            require(name, options[name], self.choices[name])
        if not source.is_dir():
            raise DataError(f"the source {source} is no folder", self.publication.remedy)
        places = [locate(source, *markers, publication=self.publication) for markers in self.places]
        prepared_folder.make_empty(out)
        pool = PublicSet(self.publication, source, out)
        self.gather(pool, *places, **options)
        return pool.write()


def by_class(publication_classes: Sequence[str], expected: Sequence[int], **where: Any) -> tuple[PublishedCount, ...]:
    """One `Count` a class, of the samples that have these keys."""
    prefix = "".join(f"{value}, " for value in where.values())
    return tuple(
        PublishedCount(f"{prefix}{name}", number, {**where, "label": label})
        for label, (name, number) in enumerate(zip(publication_classes, expected, strict=True))
    )


def by_split(splits: Sequence[str], expected: Sequence[int]) -> tuple[PublishedCount, ...]:
    """One `Count` for each published side."""
    return tuple(
        PublishedCount(f"published split {name}", number, {"published_split": name})
        for name, number in zip(splits, expected, strict=True)
    )


def by_site(sites: Sequence[str], expected: Sequence[tuple[int, int]]) -> tuple[PublishedCount, ...]:
    """Of every site one `Count` of its training samples, and one of its test samples."""
    return tuple(
        PublishedCount(f"{site}, {side}", number, {"site": site, "side": side})
        for site, numbers in zip(sites, expected, strict=True)
        for side, number in zip(("training", "test"), numbers, strict=True)
    )


def locate(source: Path, *markers: str, publication: Publication) -> Path:
    """The file or folder that shows where a set lies in the source.

    Args:
        source: the folder that the user named.
        markers: relative paths, which may hold wildcards; the first that is found anywhere counts.
        publication: says what should be there.

    Returns:
        The path of the marker that lies nearest to the source.

    Raises:
        DataError: no marker is in it.
    """
    for marker in markers:
        for depth in range(DEPTH_MAX + 1):
            for path in sorted(source.resolve().glob("*/" * depth + marker)):
                if not DEBRIS.intersection(path.parts):
                    return path
    raise DataError(f"{source} holds no {' and no '.join(markers)}", publication.remedy)


def require(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse an option that is none of the choices; ``UsageError`` names them."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}, none of {', '.join(map(str, choices))}")


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """The rows of a CSV file with a heading; values without surrounding spaces.

    Raises:
        DataError: it cannot be read, or lacks a column.
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


def pictures(path: Path) -> list[Path]:
    """The pictures in a folder, without hidden files, by name; none where there is no folder."""
    if not path.is_dir():
        return []
    return sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES and not p.name.startswith("."))


def site_name(text: str) -> str:
    """The text as a site may be called: lower case, digits, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def number(text: str) -> float | int | None:
    """The number that a table's cell holds, an int where it is whole; None for none."""
    try:
        value = float(text)
    except ValueError:
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return int(value) if value.is_integer() else value


def _seen_from(site: str, entry: Entry) -> Entry:
    """The entry with its relative paths relative to the site's folder."""

    def moved(path: str) -> str:
        return path if os.path.isabs(path) else Path(os.path.relpath(path, site)).as_posix()

    image, label = entry["image"], entry.get("label")
    seen = {**entry, "image": [moved(path) for path in image] if isinstance(image, list) else moved(image)}
    return {**seen, "label": moved(label)} if isinstance(label, str) else seen

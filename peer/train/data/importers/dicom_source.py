"""A PACS export: a tree of DICOM files in any order, grouped by series, and a table of labels.

A series that has a folder to itself is that folder. For any other, ``make_links`` creates a folder of symbolic links
beside the datalist: no image is copied, moved or renamed.
"""

from __future__ import annotations

import bisect
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pydicom
from pydicom.errors import InvalidDicomError

from peer.errors import DataError, DiskError, UsageError
from peer.train.data.dicom_files import named_like, storage_class
from peer.train.data.dicom_notes import is_hidden_slice
from peer.train.data.file_names import named
from peer.train.data.importers.candidates import Candidate, ImportOptions, SourceContent
from peer.train.data.importers.table_source import SampleTable, read_table

KEYS = ("SeriesInstanceUID", "StudyInstanceUID", "AccessionNumber", "PatientID")
"""Keys by which a row of the table identifies its images, most specific first."""
TAGS = [
    *KEYS, "SOPClassUID", "SOPInstanceUID", "SeriesDescription", "Modality", "ImageType", "Rows", "Columns",
    "InstanceNumber", "ImageOrientationPatient",
]  # fmt: skip
NO_PREAMBLE = "no DICOM file by PS3.10: it has no preamble with DICM"
SLICES = frozenset({"CT", "MR", "PT"})
"""Modalities whose secondary images are screen saves, dose pages or reformatted copies."""
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
"""Class of secondary captures, and the beginning of those with several frames (PS3.4, B.5)."""
SCREEN = re.compile(r"(?<![A-Z])SCREEN(?!ING)")
"""Matches in the image types that stations write into pictures of their screens, whatever the modality."""
PROJECTIONS = frozenset({"CR", "DX", "MG", "RG", "XA", "RF"})
"""Modalities whose images are projections, not slices of a volume."""


@dataclass(slots=True)
class DicomSeries:
    """The image files of one series, and their common properties."""

    uid: str
    identity: Mapping[str, str]
    description: str
    modality: str
    storage_class: str
    instances: dict[str, tuple[int, Path]] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)
    sizes: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def paths(self) -> list[Path]:
        """The files, ordered by their instance numbers."""
        return [path for _, path in sorted(self.instances.values())]

    @property
    def title(self) -> str:
        return f"series {self.uid} ({self.modality or 'no modality'}, {self.description or 'no description'})"


def gather(source: Path, options: ImportOptions, links: Path) -> SourceContent:
    """Gather the labelled series of the tree, one sample each, or one per file with ``each_image``.

    Args:
        links: the folder for links to the files of series that have no folder to themselves.
    """
    content = SourceContent("dicom", options.task or "classification")
    if options.labels is None:
        raise UsageError(
            "--labels is missing: DICOM files have no labels",
            f"give --labels TABLE.csv with a column {', '.join(KEYS[:-1])} or {KEYS[-1]}, and one named label",
        )
    table = read_table(options.labels, options.encoding)
    key, column = _key_column(table, options), table.column("label", options, ("label", "class", "diagnosis"))
    if column is None:
        raise DataError(
            f"{table.path} line 1: none of the columns {', '.join(table.header)} is named label",
            "give --column label=COLUMN",
        )
    content.encoding, content.notes = table.encoding, [*table.notes]
    content.columns = {key[0]: key[1], "label": column}
    split = table.column("split", options, ("split",))
    rows = _rows_by_key(table, key[1], column)
    series, lone_folders = _read_tree(source, content, options)
    matched = _match(rows, {one.identity[key[0]] for one in series}, content, key[0])
    used: set[str] = set()
    for number, one in enumerate(series):
        name = matched.get(one.identity[key[0]])
        if name is None:
            content.left_out.add(f"no label for its {key[0]}", f"{one.identity[key[0]] or 'empty'}: {one.title}")
            continue
        used.add(name)
        line, row = rows[name]
        extra = {keep: row[keep] for keep in options.keep if row.get(keep)}
        where = f"{table.where(line)}, {one.title}"
        split_given = row[split] if split else None
        fault = f"{named(map(str, one.damaged))} cannot be read, and lies among its slices" if one.damaged else ""
        for images, pairs in _images(one, lone_folders, links / f"{number:05}", options):
            subject = one.identity["PatientID"] or one.identity["StudyInstanceUID"]
            candidate = Candidate(where, images, row[column], subject, split_given, extra, pairs, fault=fault)
            content.candidates.append(candidate)
    for name, (line, _) in rows.items():
        if name not in used:
            content.left_out.add("no image", f"{key[0]} {name}: {table.where(line)}")
    _add_notes(content, series, options)
    return content


def make_links(candidates: Iterable[Candidate]) -> None:
    """Create the folders of links that the candidates need."""
    for candidate in candidates:
        for link, target in candidate.links:
            try:
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(target, link.parent.resolve()))
            except OSError as error:
                raise DiskError(f"{link} cannot be made: {error.strerror}") from error


def _images(
    series: DicomSeries, lone_folders: Mapping[Path, str], folder: Path, options: ImportOptions
) -> list[tuple[tuple[Path, ...], tuple[tuple[Path, Path], ...]]]:
    """Return the samples of a series: files or folders, and the links that they need."""
    paths = series.paths
    parents = {path.parent for path in paths}
    if len(paths) > 1 and not options.each_image:
        if len(parents) == 1 and lone_folders.get(paths[0].parent) == series.uid:
            return [((paths[0].parent,), ())]
        pairs = [(folder / f"{index:06}.dcm", path.resolve()) for index, path in enumerate(paths)]
        return [((folder,), tuple(pairs))]
    samples: list[tuple[tuple[Path, ...], tuple[tuple[Path, Path], ...]]] = []
    for index, path in enumerate(paths):
        if path.suffix.lower() in (".dcm", ""):
            samples.append(((path,), ()))
        else:  # its suffix would make the trainer read another format
            link = folder / f"{index:06}.dcm"
            samples.append(((link,), ((link, path.resolve()),)))
    return samples


def _read_tree(
    source: Path, content: SourceContent, options: ImportOptions
) -> tuple[list[DicomSeries], dict[Path, str]]:
    """Return the series of images, and the folders that contain files of one series only."""
    series: dict[str, DicomSeries] = {}
    owners: dict[Path, set[str]] = defaultdict(set)
    files: dict[Path, str] = {}
    without_pixels: dict[Path, pydicom.Dataset] = {}
    broken: list[Path] = []
    for path in sorted(filter(Path.is_file, source.rglob("*"))):
        if is_hidden_slice(path):
            content.left_out.add("hidden file: its name begins with a dot", str(path))
        if path.name.startswith(".") or path.name.upper() == "DICOMDIR":
            continue
        owner = ""
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
        except (InvalidDicomError, OSError, ValueError) as error:
            missing = NO_PREAMBLE if path.suffix.lower() == ".dcm" else "no DICOM file"
            content.left_out.add(missing if isinstance(error, InvalidDicomError) else "cannot be read", str(path))
            broken.append(path)
        else:
            owner = str(header.get("SeriesInstanceUID", "")) or f"file {path}"
            if "Rows" in header:
                files[path] = owner
                _add_file(path, header, series, owner, content, takes_secondary=options.series is not None)
            else:
                without_pixels[path] = header
        owners[path.parent].add(owner)
    broken += _sort_without_pixels(without_pixels, {one.storage_class for one in series.values()}, content)
    if not series:
        reasons = content.left_out.describe()
        raise DataError(
            f"{source} holds no DICOM image{reasons and ': '}{reasons}",
            "name the folder of the export; files without preamble are rewritten by `dcmconv` of DCMTK, compressed "
            "ones by `gunzip`",
        )
    for path in broken:
        for owner in _neighbours(path, files):
            if owner in series:
                series[owner].damaged.append(path)
    kept = []
    for one in series.values():
        if options.series is not None and not fnmatchcase(one.description.casefold(), options.series.casefold()):
            content.left_out.add(f"description is not like {options.series!r}", one.title)
        elif len(one.sizes) > 1 and not options.each_image:
            content.left_out.add("slices of several sizes or directions", one.title)
        else:
            kept.append(one)
    return kept, {folder: next(iter(uids)) for folder, uids in owners.items() if len(uids) == 1}


def _sort_without_pixels(
    headers: Mapping[Path, pydicom.Dataset], kinds: Collection[str], content: SourceContent
) -> list[Path]:
    """Return the files that lost their pixels; count those of another kind than the images as left out."""
    damaged = []
    for path, header in headers.items():
        if storage_class(header) in {"", *kinds}:
            content.left_out.add("lacks its pixels: it is cut short or damaged", str(path))
            damaged.append(path)
        else:
            content.left_out.add(f"no image ({header.get('Modality') or 'no modality'})", str(path))
    return damaged


def _neighbours(path: Path, files: Mapping[Path, str]) -> set[str]:
    """Return the series of the slices next to an unreadable file by name, if it is named like them."""
    slices = sorted(file for file in files if file.parent == path.parent)
    if not named_like(path, slices):
        return set()
    index = bisect.bisect(slices, path)
    return {files[file] for file in slices[max(index - 1, 0) : index + 1]}


def _add_file(
    path: Path,
    header: pydicom.Dataset,
    series: dict[str, DicomSeries],
    uid: str,
    content: SourceContent,
    *,
    takes_secondary: bool,
) -> None:
    modality = str(header.get("Modality", ""))
    parts = header.get("ImageType", None) or []
    image_type = [str(part).upper() for part in ([parts] if isinstance(parts, str) else parts)]
    if "LOCALIZER" in image_type:
        content.left_out.add("localizer", str(path))
        return
    kind = storage_class(header)
    is_secondary = "SECONDARY" in image_type or f"{kind}.".startswith(f"{SECONDARY_CAPTURE}.")
    if modality in SLICES and is_secondary and not takes_secondary:
        content.left_out.add(f"secondary image ({modality}), which only --series takes", str(path))
        return
    if any(SCREEN.search(part) for part in image_type) and not takes_secondary:
        content.left_out.add("picture of a screen, which only --series takes", str(path))
        return
    if uid not in series:
        identity = {name: str(header.get(name, "") or "").strip() for name in KEYS}
        series[uid] = DicomSeries(uid, identity, str(header.get("SeriesDescription", "") or ""), modality, kind)
    one = series[uid]
    instance = str(header.get("SOPInstanceUID", "")) or str(path)
    if instance in one.instances:
        content.left_out.add("the same image twice", str(path))
        return
    one.instances[instance] = (int(header.get("InstanceNumber", 0) or 0), path)
    direction = tuple(round(float(part), 2) for part in header.get("ImageOrientationPatient", None) or [])
    one.sizes.add((header.Rows, header.Columns, direction))


def _key_column(table: SampleTable, options: ImportOptions) -> tuple[str, str]:
    """Return the key by which the table identifies images, and its column."""
    for key in KEYS:
        plain = {name.casefold().replace("_", "").replace(" ", ""): name for name in table.header}
        column = table.column(key, options) or plain.get(key.casefold())
        if column is not None:
            return key, column
    raise DataError(
        f"{table.path} line 1: none of the columns {', '.join(table.header)} is one of {', '.join(KEYS)}",
        "give one, such as --column PatientID=COLUMN",
    )


def _rows_by_key(table: SampleTable, key: str, label: str) -> dict[str, tuple[int, dict[str, str]]]:
    rows: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in table.rows:
        if not row[key]:
            raise DataError(f"{table.where(line)}: {key} is empty", "fill it in, or take the line out")
        earlier_line, earlier = rows.setdefault(row[key], (line, row))
        if earlier[label] != row[label]:
            raise DataError(
                f"{table.where(line)}: {key} {row[key]} has the label {row[label]!r}, in line {earlier_line} "
                f"{earlier[label]!r}",
                "correct one, or give a label to each study or series",
            )
    return rows


def _match(rows: Iterable[str], present: set[str], content: SourceContent, key: str) -> dict[str, str]:
    """Map keys of the images to keys of the rows; spreadsheets strip leading zeros from numbers."""
    names = set(rows)
    matched = {value: value for value in present & names}
    short: defaultdict[str, list[str]] = defaultdict(list)
    for value in present:
        short[value.lstrip("0")].append(value)
    without = Counter(name.lstrip("0") for name in names)
    zeros = {
        short[name.lstrip("0")][0]: name
        for name in names - present
        if len(short[name.lstrip("0")]) == 1 and without[name.lstrip("0")] == 1 and name.lstrip("0")
    }
    if zeros:
        image_key, row_key = min(zeros.items())
        content.notes.append(
            f"{len(zeros)} values of {key} were matched without their leading zeros, such as {row_key} with {image_key}"
        )
    return {**zeros, **matched}


def _add_notes(content: SourceContent, series: Iterable[DicomSeries], options: ImportOptions) -> None:
    subjects = Counter(candidate.subject for candidate in content.candidates)
    several = [name for name, count in subjects.items() if count > 1]
    if several and options.series is None and not options.each_image:
        most = max(subjects.values())
        content.notes.append(f"{len(several)} patients have several series, up to {most}: choose with --series 'TEXT*'")
    captures = [one for one in series if f"{one.storage_class}.".startswith(f"{SECONDARY_CAPTURE}.")]
    if captures and options.series is None:
        kinds = ", ".join(sorted({one.modality or "no modality" for one in captures}))
        content.notes.append(
            f"{len(captures)} series are secondary captures ({kinds}), which may show a report or a screen: look at "
            "them with `data inspect --out sheet.html`, or choose with --series 'TEXT*'"
        )
    projections = sum(one.modality in PROJECTIONS and len(one.instances) > 1 for one in series)
    if projections and not options.each_image:
        content.notes.append(
            f"{projections} series of projections have several images and would be read as volumes: "
            "give --each-image to make each a sample"
        )
    places = [(one, {(path.parent, one.identity["PatientID"], *one.sizes) for path in one.paths}) for one in series]
    volumes = {place for one, own in places if len(one.instances) > 1 for place in own}
    lone = [path for one, own in places if len(one.instances) == 1 and own <= volumes for path in one.paths]
    if lone and not options.each_image:
        content.notes.append(
            f"{len(lone)} images are alone in their series, among slices of their patient that look alike: "
            f"{named(map(str, lone))}; one that belongs to these needs their SeriesInstanceUID"
        )

"""Candidate samples from a source: checked, numbered by class, and divided into training and test."""

from __future__ import annotations

import difflib
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from peer.core.class_numbering import plain_name
from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, stratum
from peer.core.tasks import CLASSIFYING
from peer.documents.data import DrawnSplits, LeftOutSamples
from peer.errors import DataError
from peer.train.data.datalist import SELF_LABELLED, LabelValues
from peer.train.data.file_names import NAMES_SHOWN_MAX, describe_missing, find_file, named
from peer.train.data.image_files import open_image, read_values
from peer.train.data.label_maps import not_classes, propose_map, to_classes
from peer.train.data.prepared_folder import shuffle

TRAINING, TEST = "training", "test"
SPLIT_WORDS = {
    **dict.fromkeys(("training", "train", "tr"), TRAINING),
    **dict.fromkeys(("test", "testing", "ts"), TEST),
    **dict.fromkeys(("validation", "valid", "val", "dev"), TRAINING),
}
NO_LABEL = frozenset({"", "n/a", "na", "nan"})
"""Cells that say that a label is not known; "n/a" is BIDS's."""
UNKNOWN_LABEL = frozenset({"-", "?", "missing", "none", "null", "unknown", "unlabelled", "unlabeled"})
"""Words that mean the same, and might be the name of a class."""
ROW = "row"
"""The key of a table's row, whose candidate has its name in place of an image."""
CLASSES_SHOWN_MAX = 20
CLASS_NUMBER_MAX = 4095
"""A larger number is not a class, but an age in days, a date or a patient's number; other sites would refuse a network
with so many classes (``models.spec.SIZE_MAX``).
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sample as its source describes it.

    Attributes:
        where: the file and line, or the folder, that a message names.
        label: a class in the source's words, a file, or None.
        split: the split in the source's words; None: the source has none.
        links: the links that have to be made for ``images``, each with its target.
        cells: of another target than a class, the cells of its columns.
        answer: what they say, as a datalist has it, once ``read_answers`` has read it.
        class_number: the class that a federation knows, once ``number_classes`` has given it; of survival, whether
            there was an event.
        fault: why the sample cannot be used, as its source shows.
    """

    where: str
    images: tuple[Path, ...]
    label: str | Path | None = None
    subject: str | None = None
    split: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[tuple[Path, Path], ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    answer: Any = None
    class_number: int | None = None
    fault: str = ""


@dataclass(slots=True)
class LeftOut:
    """Omitted samples: places by reason."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, where: str) -> None:
        self.places.setdefault(reason, []).append(where)

    def describe(self) -> str:
        """Describe the omissions and their reasons in one line; empty without omissions."""
        return "; ".join(f"{row['count']} left out ({row['reason']}): {named(row['examples'])}" for row in self.rows())

    def rows(self) -> list[LeftOutSamples]:
        """Return reason, count and the first places, the most frequent first."""
        ordered = sorted(self.places.items(), key=lambda item: (-len(item[1]), item[0]))
        return [
            {"reason": reason, "count": len(places), "examples": places[:NAMES_SHOWN_MAX]} for reason, places in ordered
        ]


@dataclass(slots=True)
class SourceContent:
    """The candidates of a source, the omissions of the reader, and notes for the user."""

    layout: str
    task: str
    candidates: list[Candidate] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    encoding: str | None = None
    class_names: tuple[str, ...] = ()
    subject_remedy: str = "name the column with --column subject=COLUMN"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of ``data import``; see its help.

    ``table``, ``agreed_classes`` and ``target`` are what a federation has agreed on, and ``own_columns`` is
    ``[data] columns`` of site.toml.
    """

    task: str | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    label_values: LabelValues = ()
    root: Path | None = None
    keep: tuple[str, ...] = ()
    encoding: str | None = None
    test_share: float = 0.2
    seed: int = 0
    draws: bool = False
    leaves_out_faulty: bool = False
    suffixes: tuple[str, ...] = ()
    label_suffix: str | None = None
    labels: Path | None = None
    series: str | None = None
    each_image: bool = False
    subject_pattern: str | None = None
    table: tuple[TableColumn, ...] = ()
    agreed_classes: tuple[str, ...] = ()
    target: Target = CLASS
    own_columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Faults:
    """Unusable candidates, which are either refused together or left out."""

    options: ImportOptions
    left_out: LeftOut
    lines: list[str] = field(default_factory=list)

    def add(self, candidate: Candidate, kind: str, detail: str) -> None:
        self.lines.append(f"{candidate.where}: {detail}")
        if self.options.leaves_out_faulty:
            self.left_out.add(kind, candidate.where)

    def refuse(self) -> None:
        """Raise ``DataError`` with the first lines, unless the user wants them left out."""
        if not self.lines or self.options.leaves_out_faulty:
            return
        more = len(self.lines) - NAMES_SHOWN_MAX
        rest = f"; and {more} more" if more > 0 else ""
        raise DataError(
            "; ".join(self.lines[:NAMES_SHOWN_MAX]) + rest,
            "correct them, or leave these samples out with --leave-out",
        )


def check_files(
    candidates: Iterable[Candidate], faults: Faults, shapes: Counter[str], *, label_key: str
) -> Iterator[Candidate]:
    """Yield the candidates whose files exist and have a readable header; count the images' shapes.

    Args:
        label_key: ``label`` if label files are maps, else ``image``.
    """
    for candidate in candidates:
        if ROW in candidate.extra:
            yield candidate
            continue
        files = (*candidate.images, *([candidate.label] if isinstance(candidate.label, Path) else []))
        missing = [path for path in files if not path.exists()]
        if missing:
            faults.add(candidate, "file is missing", f"{describe_missing(missing[0])} is not there")
            continue
        if candidate.fault:
            faults.add(candidate, "a slice is damaged", candidate.fault)
            continue
        stored, problem = [], ""
        for path in files:
            try:
                stored.append(open_image(path, key=label_key if path is candidate.label else "image").shape)
            except ValueError as error:
                problem = f"{path} cannot be read: {error}"
                break
        if problem:
            faults.add(candidate, "file cannot be read", problem)
            continue
        shapes.update("x".join(map(str, shape)) for shape in stored[: len(candidate.images)])
        yield candidate


def check_label_maps(
    candidates: Iterable[Candidate], options: ImportOptions, faults: Faults, classes: int | None
) -> tuple[list[Candidate], int]:
    """Return the candidates whose label maps hold classes alone, and the number of classes.

    Args:
        classes: their number; None: the label maps hold the values 0, 1, ... without a gap.

    Raises:
        DataError: ``classes`` is None, and there is a gap.
    """
    usable: list[Candidate] = []
    stored: set[float] = set()
    places: dict[float, Path] = {}
    for candidate in candidates:
        path = candidate.label
        assert isinstance(path, Path)
        try:
            values = np.unique(read_values(path, open_image(path, key="label")))
        except ValueError as error:
            faults.add(candidate, "file cannot be read", f"{path} cannot be read: {error}")
            continue
        labels = np.unique(to_classes(values, options.label_values))
        wrong = not_classes(labels, classes)
        if wrong:
            proposal = propose_map(wrong)
            which = "no class" if classes is None else f"none of 0 to {classes - 1}"
            remedy = f" ({proposal} maps it)" if proposal else ""
            faults.add(candidate, "label map has other values", f"{path} holds the value {wrong[0]:g}, {which}{remedy}")
            continue
        stored.update(map(float, values))
        places |= {float(label): path for label in labels if label not in places}
        usable.append(candidate)
    if classes is None:
        classes = len({0.0, *places})
        if max(places, default=0.0) >= classes:
            raise _not_counted(stored, places)
    return usable, classes


def _not_counted(stored: Collection[float], places: Mapping[float, Path]) -> DataError:
    """Build the error for label maps whose classes leave a gap, with options that close it.

    Args:
        stored: the values in the files.
        places: a file of each class that they stand for.
    """
    listed, highest = named(f"{label:g}" for label in sorted(places)), max(places)
    reason = f"label maps hold the classes {listed} and not 0, 1, ... without a gap; {places[highest]} has {highest:g}"
    if len(stored) > CLASSES_SHOWN_MAX:
        return DataError(reason, "these look like shades of grey; write label maps in which a value is a class")
    proposal = propose_map(stored)
    options = f"map them, such as with {proposal}, or " if proposal else ""
    return DataError(reason, f"{options}name every class with --classes")


def number_classes(candidates: Sequence[Candidate], options: ImportOptions, faults: Faults) -> list[Candidate]:
    """Return the candidates that have a label, with their class number.

    Without ``options.classes`` labels must be numbers: otherwise their order would differ between sites that have
    different classes.
    """
    known = options.classes or options.agreed_classes
    names = {plain_name(name): number for number, name in enumerate(known)}
    labelled: list[Candidate] = []
    texts: Counter[str] = Counter()
    for candidate in candidates:
        text = str(candidate.label if candidate.label is not None else "").strip()
        if text.casefold() in NO_LABEL and plain_name(text) not in names:
            faults.left_out.add("no label", candidate.where)
            continue
        number = names.get(plain_name(text))
        if number is None and not options.classes:  # whose order only this site knows
            number = _whole_number(text)
            number = None if names and number not in names.values() else number
        if number is None:
            texts[text] += 1
            if names:
                origin = "--classes" if options.classes else "the federation's classes"
                near = _nearest(plain_name(text), tuple(names))
                hint = f" (did you mean {known[names[near[0]]]}?)" if near else ""
                detail = f"the label {text!r} is none of {origin} {', '.join(known)}{hint}"
                faults.add(candidate, "label is no class", detail)
            continue
        labelled.append(replace(candidate, class_number=number))
    if texts and not names:
        raise _no_numbers(texts, {candidate.class_number or 0 for candidate in labelled})
    return labelled


@functools.lru_cache(maxsize=1024)
def _nearest(name: str, names: tuple[str, ...]) -> list[str]:
    """Return the name that is nearest, if one is near: many rows may have the same wrong label."""
    return difflib.get_close_matches(name, names, n=1)


def read_answers(candidates: Sequence[Candidate], target: Target, faults: Faults) -> list[Candidate]:
    """Return the candidates with a label that fits the target, and that label."""
    labelled: list[Candidate] = []
    for candidate in candidates:
        try:
            answer = target.read(candidate.cells)
        except ValueError as error:
            faults.add(candidate, "label does not fit", f"the label {error}")
            continue
        if answer is None:
            faults.left_out.add("no label", candidate.where)
            continue
        labelled.append(replace(candidate, answer=answer, class_number=stratum(target.parse(answer))))
    return labelled


def _no_numbers(texts: Counter[str], numbers: set[int]) -> DataError:
    """Build the error for labels that are no class numbers, given the numbers that were understood."""
    counted = ", ".join(f"{text} ({count})" for text, count in texts.most_common(CLASSES_SHOWN_MAX))
    reason = f"labels are no class numbers: {counted}"
    if numbers and all(text.casefold() in UNKNOWN_LABEL for text in texts):
        return DataError(reason, "these words say that there is no label: leave those cells empty")
    classes = sorted([*texts, *map(str, sorted(numbers))], key=_in_order)
    proposal = ",".join(classes[:CLASSES_SHOWN_MAX])
    equals = "=" if proposal.startswith("-") else " "
    return DataError(reason, f"name the classes in the order that all sites use, such as --classes{equals}{proposal!r}")


def _in_order(text: str) -> tuple[float, str]:
    """Return a sorting key: numbers by value, before words."""
    try:
        return float(text.replace(",", ".")), text
    except ValueError:
        return float("inf"), text


def _whole_number(text: str) -> int | None:
    """Parse a class number; spreadsheets write 1 as 1.0, or 1,0."""
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return None
    return int(value) if value.is_integer() and 0 <= value <= CLASS_NUMBER_MAX else None


def without_repetitions(candidates: Sequence[Candidate], faults: Faults) -> list[Candidate]:
    """Return each image once; lines that contradict each other about an image are faults, and none of them is kept."""
    first: dict[tuple[Path, ...], Candidate] = {}
    contradicted: set[tuple[Path, ...]] = set()
    for candidate in candidates:
        earlier = first.setdefault(candidate.images, candidate)
        if earlier is candidate:
            continue
        if (earlier.label, earlier.split, earlier.subject) == (candidate.label, candidate.split, candidate.subject):
            faults.left_out.add("named twice", candidate.where)
        else:
            name = candidate.images[0].name
            faults.add(candidate, "contradicts another line", f"{name} stands in {earlier.where} with other values")
            contradicted.add(candidate.images)
    return [candidate for images, candidate in first.items() if images not in contradicted]


def divide(
    candidates: Sequence[Candidate], options: ImportOptions, faults: Faults, content: SourceContent
) -> tuple[dict[str, list[Candidate]], DrawnSplits | None]:
    """Divide candidates into ``training`` and ``test``; return how they were drawn, None if the source has splits."""
    unnamed = sum(candidate.subject is None for candidate in candidates)
    if unnamed:
        content.notes.append(
            f"{unnamed} samples have no subject and count as a subject each: a patient with several images may be "
            f"in both splits; {content.subject_remedy}"
        )
    if options.draws or not any(candidate.split for candidate in candidates):
        return _draw(candidates, options)
    splits: dict[str, list[Candidate]] = {TRAINING: [], TEST: []}
    sides: dict[str, tuple[str, str]] = {}
    validation = 0
    for candidate in candidates:
        word = (candidate.split or "").strip().casefold()
        if not word:
            faults.left_out.add("no split", candidate.where)
            continue
        side = SPLIT_WORDS.get(word)
        if side is None:
            detail = f"the split {candidate.split!r} is none of training, validation, test"
            faults.add(candidate, "split is unknown", detail)
            continue
        validation += word.startswith(("val", "dev"))
        splits[side].append(candidate)
        if candidate.subject is not None:
            other, where = sides.setdefault(candidate.subject, (side, candidate.where))
            if other != side:
                raise DataError(
                    f"subject {candidate.subject} is in {other} ({where}) and in {side} ({candidate.where})",
                    "keep each subject on one side, or have the splits drawn by subject with --draw",
                )
    if validation:
        content.notes.append(
            f"{validation} validation samples are in training: each site holds out its own share of training "
            "([data] validation_share)"
        )
    return splits, None


def _draw(candidates: Sequence[Candidate], options: ImportOptions) -> tuple[dict[str, list[Candidate]], DrawnSplits]:
    """Draw splits by subject: the same share of each class's subjects is for testing."""
    labels: dict[str, Counter[int]] = {}
    names = [candidate.subject or f"/{candidate.images[0]}" for candidate in candidates]
    for name, candidate in zip(names, candidates, strict=True):
        labels.setdefault(name, Counter())[candidate.class_number or 0] += 1
    strata: dict[int, list[str]] = {}
    for name, counts in labels.items():
        most_frequent = min(counts, key=lambda number: (-counts[number], number))
        strata.setdefault(most_frequent, []).append(name)
    chosen: set[str] = set()
    for number, members in sorted(strata.items()):
        count = round(options.test_share * len(members))
        count = max(count, 1) if options.test_share > 0 and len(members) > 1 else count
        count = min(count, len(members) - 1)
        chosen.update(shuffle(sorted(members), seed=options.seed, purpose=f"test/{number}")[:count])
    splits: dict[str, list[Candidate]] = {TRAINING: [], TEST: []}
    for name, candidate in zip(names, candidates, strict=True):
        splits[TEST if name in chosen else TRAINING].append(candidate)
    return splits, {"seed": options.seed, "test_share": options.test_share}


def label_kind(task: str) -> str:
    """Return the kind of the task's labels: ``class``, ``file``, or ``file or none``."""
    if task in CLASSIFYING:
        return "class"
    return "file or none" if task in SELF_LABELLED else "file"


def with_label_file(candidate: Candidate, root: Path) -> Candidate:
    """Resolve the candidate's label, which is a file name in a table."""
    text = str(candidate.label or "").strip()
    return replace(candidate, label=None if text.casefold() in NO_LABEL else resolve(root, text))


def resolve(root: Path, text: str) -> Path:
    """Return the path that a table's cell names."""
    return find_file(root / text)

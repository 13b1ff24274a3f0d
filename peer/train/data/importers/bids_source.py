"""BIDS folders: labels in ``participants.tsv``, images in ``sub-*/[ses-*/]<type>/``, label maps in ``derivatives/``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from peer.errors import DataError, UsageError
from peer.train.data.importers.candidates import Candidate, ImportOptions, SourceContent, label_kind
from peer.train.data.importers.table_source import SampleTable, read_table

NAME = re.compile(
    r"(sub-[A-Za-z0-9]+)(?:_(ses-[A-Za-z0-9]+))?(?:_[A-Za-z0-9]+-[A-Za-z0-9+]+)*_([A-Za-z0-9]+)\.nii(\.gz)?"
)
PARTICIPANT = "participant_id"
ALIASES = ("label", "diagnosis", "group", "dx")
Session = tuple[str, str]
"""A subject and its session, which is empty if the folder has none."""


def gather(source: Path, options: ImportOptions) -> SourceContent:
    """Gather one sample per image of the only suffix, or one per session, whose channels are the images of all
    suffixes.
    """
    content = SourceContent("bids", options.task or ("segmentation" if options.label_suffix else "classification"))
    by_class = label_kind(content.task) == "class"
    if not by_class and label_kind(content.task) == "file" and options.label_suffix is None:
        raise UsageError("--label-suffix is missing", "name the suffix of the label maps, such as --label-suffix mask")
    images = _index(source, derived=False)
    suffixes = options.suffixes or _only_suffix(source, images, options.label_suffix)
    participants = read_table(source / "participants.tsv", options.encoding)
    content.encoding, content.notes = participants.encoding, [*participants.notes]
    column = participants.column("label", options, ALIASES) if by_class else None
    if by_class and column is None:
        raise UsageError(
            f"{participants.path}: which column is the label?",
            f"give --column label=COLUMN; it has {', '.join(participants.header)}",
        )
    content.columns = {"subject": PARTICIPANT} | ({"label": column} if column else {})
    rows = _rows(participants)
    maps = _index(source, derived=True) | {
        key: paths for key, paths in images.items() if key[1] == options.label_suffix
    }
    sessions = sorted({session for session, suffix in images if suffix in suffixes})
    for session in sessions:
        subject, _ = session
        line, row = rows.get(subject, (0, {}))
        if not line:
            content.left_out.add("not in participants.tsv", subject)
            continue
        where = f"{participants.where(line)} ({'_'.join(filter(None, session))})"
        label: str | Path | None = row[column] if column else None
        if options.label_suffix is not None and not by_class:
            files = maps.get((session, options.label_suffix), [])
            if len(files) != 1:
                content.left_out.add(f"{len(files)} label maps _{options.label_suffix}", where)
                continue
            label = files[0]
        extra = {name: row[name] for name in options.keep if row.get(name)}
        for channels in _channels(images, session, suffixes, content, where):
            content.candidates.append(Candidate(where, channels, label, subject, extra=extra))
    for subject, (line, _) in rows.items():
        if subject not in {name for name, _ in sessions}:
            content.left_out.add(f"no image _{' or _'.join(suffixes)}", participants.where(line))
    return content


def _channels(
    images: dict[tuple[Session, str], list[Path]],
    session: Session,
    suffixes: tuple[str, ...],
    content: SourceContent,
    where: str,
) -> list[tuple[Path, ...]]:
    """Return the samples of a session, as files."""
    files = [images.get((session, suffix), []) for suffix in suffixes]
    if len(suffixes) == 1:
        return [(path,) for path in files[0]]
    if any(len(paths) != 1 for paths in files):
        counts = ", ".join(f"{len(paths)} _{suffix}" for paths, suffix in zip(files, suffixes, strict=True))
        content.left_out.add("not one image of each suffix", f"{where} has {counts}")
        return []
    return [tuple(paths[0] for paths in files)]


def _index(source: Path, *, derived: bool) -> dict[tuple[Session, str], list[Path]]:
    """Index the images, or those in derivatives, by session and suffix."""
    index: dict[tuple[Session, str], list[Path]] = defaultdict(list)
    for path in sorted(source.glob("derivatives/**/sub-*.nii*" if derived else "sub-*/**/sub-*.nii*")):
        match = NAME.fullmatch(path.name)
        if match is not None:
            index[(match[1], match[2] or ""), match[3]].append(path)
    return dict(index)


def _only_suffix(
    source: Path, images: dict[tuple[Session, str], list[Path]], label_suffix: str | None
) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for (_, suffix), paths in images.items():
        if suffix != label_suffix:
            counts[suffix] += len(paths)
    if not counts:
        raise DataError(f"{source} holds no image sub-*/**/sub-*.nii.gz", "name the folder with participants.tsv")
    if len(counts) > 1:
        listed = ", ".join(f"{suffix} ({count})" for suffix, count in counts.most_common())
        raise UsageError(
            f"{source} has images of several suffixes: {listed}", "choose with --suffix; several are channels"
        )
    return tuple(counts)


def _rows(participants: SampleTable) -> dict[str, tuple[int, dict[str, str]]]:
    if PARTICIPANT not in participants.header:
        raise DataError(f"{participants.path} line 1: there is no column {PARTICIPANT}", "name it as BIDS does")
    rows: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in participants.rows:
        name = row[PARTICIPANT] if row[PARTICIPANT].startswith("sub-") else f"sub-{row[PARTICIPANT]}"
        if name in rows:
            raise DataError(f"{participants.where(line)}: {name} stands in line {rows[name][0]}, too", "take one out")
        rows[name] = line, row
    return rows

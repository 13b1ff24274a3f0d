"""The samples of an experiment as one list, before the simulator divides them among sites."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.errors import DataError, StateError
from peer.extras import missing_package
from peer.lab.datasets import PUBLISHED, dataset_module
from peer.lab.experiments.experiment import Experiment
from peer.lab.partition.groups import SUBJECT, groups_of, image_names
from peer.train.data.copies import same_content
from peer.train.data.datalist import SPLITS, read_json

POOL, DATALIST, REGIONS, PREPARED = "pool.json", "datalist.json", "regions.nii.gz", "prepared.json"
SPLIT = "split"
"""The key of an entry's split in the data set itself: training or test."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SamplePool:
    """The samples of an experiment.

    Attributes:
        root: the folder that their paths are relative to.
        regions: a file of region masks for all images, if there is one.
    """

    entries: Sequence[Entry]
    root: Path
    regions: Path | None = None


def gather(experiment: Experiment, folder: Path, *, source: Path | None = None) -> SamplePool:
    """Read the experiment's samples; a data set is prepared first, once, into ``folder``.

    Args:
        source: the folder of an unpacked public set, which may hold region masks; it overrides the
            experiment's own ``source``.

    Raises:
        DataError: there is no sample, or a datalist cannot be read.
        ConfigError: the data set does not know an option.
    """
    data, base = experiment.data, experiment.path.parent
    if data.pool is not None:
        pool = read(base / data.pool)
    else:
        source = source or (base / data.source if data.source is not None else None)
        _prepare(experiment, folder, source)
        pool = read(folder)
        if pool.regions is None and source is not None:
            pool = replace(pool, regions=_find_regions(source))
    if not pool.entries:
        raise DataError(f"{pool.root} holds no sample", "name another pool in [data]")
    if data.regions and pool.regions is None:
        path = pool.root if source is None else source
        raise DataError(f"{path} holds no {REGIONS}", "put a label map there, or leave [data] regions out")
    entries = _without_duplicates(pool, values=data.compares_values) if data.duplicates == "drop" else pool.entries
    if data.subject != SUBJECT:
        entries = _with_subjects(entries, data.subject)
    return replace(pool, entries=entries if data.part == "all" else _select_part(entries, data.part))


def read(path: Path) -> SamplePool:
    """Read a datalist, or a folder that holds ``pool.json`` or one datalist a site."""
    if path.is_file():
        return SamplePool(_read_entries(path, {}, prefix=""), path.parent)
    if (path / POOL).is_file():
        return SamplePool(_read_entries(path / POOL, {}, prefix=""), path, _find_regions(path))
    entries: list[Entry] = []
    for site in sorted(path.glob(f"*/{DATALIST}")):
        name = site.parent.name
        entries += _read_entries(site, {"site": name}, prefix=f"{name}/")
    if not entries:
        raise DataError(f"{path} holds neither {POOL} nor a folder a site with {DATALIST}", "name another pool")
    return SamplePool(entries, path, _find_regions(path))


def _prepare(experiment: Experiment, folder: Path, source: Path | None) -> None:
    data = experiment.data
    assert data.dataset is not None
    request = {"dataset": data.dataset, "options": data.options}
    marker = folder / PREPARED
    if marker.exists():
        if json.loads(marker.read_text()) != request:
            raise DataError(
                f"{folder} holds other data than [data] asks for", "name another folder with --out, or delete this one"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise StateError(f"{folder} holds something that was not prepared to its end", "delete it and run it again")
    if data.dataset in PUBLISHED and source is None:
        raise DataError(f"{experiment.path}: {data.dataset} is not shipped", "say with --data where it was unpacked")
    try:
        module = dataset_module(data.dataset)
    except ImportError as error:
        raise missing_package(error, f"{experiment.path}: [data] {data.dataset}") from error
    options: dict[str, Any] = dict(data.options)
    if source is not None:
        options["source"] = source
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by an interrupted preparation
    try:
        module.prepare(unfinished, **options)
    except DataError as error:
        raise DataError(error.message, error.remedy.replace("--source", "--data")) from error
    except TypeError as error:
        raise DataError(f"{experiment.path}: [data] {data.dataset}: {error}", "see `data prepare --help`") from error
    (unfinished / PREPARED).write_text(json.dumps(request))
    unfinished.replace(folder)


def _read_entries(path: Path, defaults: Mapping[str, Any], *, prefix: str) -> list[Entry]:
    try:
        document = read_json(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} {error}") from error
    entries: list[Entry] = []
    for split in SPLITS:
        for entry in document.get(split, []) if isinstance(document, dict) else []:
            if not isinstance(entry, dict) or "image" not in entry:
                raise DataError(f"{path}: an entry of {split!r} has no image")
            paths = {key: _prefixed(prefix, entry[key]) for key in ("image", "label") if key in entry}
            # The list that holds the entry decides its split, even if the entry has such a key itself.
            entries.append({**defaults, SPLIT: split, **entry, **paths} | {SPLIT: split})
    return entries


def _without_duplicates(pool: SamplePool, *, values: bool) -> list[Entry]:
    """Return the entries without duplicates; of equal images one is kept, a test image if there is one."""
    files = [[pool.root / name for name in image_names(entry)] for entry in pool.entries]
    try:
        groups = same_content((path for paths in files for path in paths), values=values)
    except OSError as error:
        raise DataError(
            f"image {error.filename} cannot be read: {error.strerror}", "correct the datalist or its root"
        ) from error
    content_of = {path: number for number, paths in enumerate(groups) for path in paths}
    seen_contents: set[object] = set()
    kept_indices = set()
    for index in sorted(range(len(files)), key=lambda index: (pool.entries[index][SPLIT] != "test", index)):
        content = tuple(content_of[path] for path in files[index])
        if content not in seen_contents:
            kept_indices.add(index)
        seen_contents.add(content)
    return [entry for index, entry in enumerate(pool.entries) if index in kept_indices]


def _with_subjects(entries: Sequence[Entry], key: str) -> list[Entry]:
    """Set each entry's subject to the value of ``key``; without a value, remove it."""
    if not any(key in entry for entry in entries):
        raise DataError(f"no entry has the key {key!r}, which is to be its subject", "name another in [data] subject")
    renamed: list[Entry] = []
    for entry in entries:
        value = entry.get(key)
        name = value[0] if isinstance(value, list) else value
        without = {other: value for other, value in entry.items() if other != SUBJECT}
        renamed.append(without if name is None else {**without, SUBJECT: str(name)})
    return renamed


def _select_part(entries: Sequence[Entry], part: str) -> list[Entry]:
    """Select every third subject's entries for tuning, or the others' for the report, regardless of their order."""
    subjects = enumerate(groups_of(entries))
    kept = {index for n, group in subjects if (n % 3 == 2) == (part == "tuning") for index in group.entry_indices}
    return [entry for index, entry in enumerate(entries) if index in kept]


def _prefixed(prefix: str, value: Any) -> Any:
    """Put the prefix before a relative path, or a list of paths; other values stay unchanged."""
    if isinstance(value, list):
        return [_prefixed(prefix, item) for item in value]
    return f"{prefix}{value}" if isinstance(value, str) and not Path(value).is_absolute() else value


def _find_regions(path: Path) -> Path | None:
    masks = sorted((*path.glob(REGIONS), *path.glob(f"*/{REGIONS}")))
    return masks[0] if masks else None

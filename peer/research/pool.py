"""The samples of an experiment as one list, before they are divided among sites."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.data.adapters import PUBLISHED, dataset_module
from peer.data.datalist import SPLITS
from peer.errors import DataError, StateError
from peer.extras import missing_package
from peer.research.experiment import Experiment
from peer.research.partition.groups import SUBJECT, image_names

POOL, DATALIST, REGIONS, PREPARED = "pool.json", "datalist.json", "regions.nii.gz", "prepared.json"
SPLIT = "split"
"""The key of an entry that says on which side the data's own division has it."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SamplePool:
    """Entries of one datalist.

    Attributes:
        entries: in the form of a datalist, each with ``split`` beside.
        root: the folder that their paths start at.
        regions: a file of region masks that fits all of them.
    """

    entries: Sequence[Entry]
    root: Path
    regions: Path | None = None


def gather(experiment: Experiment, folder: Path, *, source: Path | None = None) -> SamplePool:
    """The experiment's samples; a data set is prepared first, once, into ``folder``.

    Args:
        experiment: names the data set, or the user's own pool.
        folder: takes what is prepared.
        source: where a public set was unpacked; it stands above the experiment's own ``source``. Region masks that fit
            it may lie there.

    Raises:
        DataError: there is no sample, or a list cannot be read.
        ConfigError: the data set does not know an option.
    """
    data, base = experiment.data, experiment.where.parent
    if data.pool is not None:
        pool = read(base / data.pool)
    else:
        source = source or (base / data.source if data.source is not None else None)
        _prepare(experiment, folder, source)
        pool = read(folder)
        if pool.regions is None and source is not None:
            pool = replace(pool, regions=_regions(source))
    if not pool.entries:
        raise DataError(f"{pool.root} holds no sample", "name another pool in [data]")
    if data.regions and pool.regions is None:
        place = pool.root if source is None else source
        raise DataError(f"{place} holds no {REGIONS}", "put a label map there, or leave [data] regions out")
    entries = _once(pool) if data.duplicates == "drop" else pool.entries
    return replace(pool, entries=entries if data.subject == SUBJECT else _named_by(entries, data.subject))


def read(place: Path) -> SamplePool:
    """The pool in a datalist, or in a folder that holds ``pool.json`` or one datalist a site."""
    if place.is_file():
        return SamplePool(_entries(place, {}, prefix=""), place.parent)
    if (place / POOL).is_file():
        return SamplePool(_entries(place / POOL, {}, prefix=""), place, _regions(place))
    entries: list[Entry] = []
    for site in sorted(place.glob(f"*/{DATALIST}")):
        name = site.parent.name
        entries += _entries(site, {"site": name}, prefix=f"{name}/")
    if not entries:
        raise DataError(f"{place} holds neither {POOL} nor a folder a site with {DATALIST}", "name another pool")
    return SamplePool(entries, place, _regions(place))


def _prepare(experiment: Experiment, folder: Path, source: Path | None) -> None:
    data = experiment.data
    assert data.dataset is not None
    wanted = {"dataset": data.dataset, "options": data.options}
    done = folder / PREPARED
    if done.exists():
        if json.loads(done.read_text()) != wanted:
            raise DataError(
                f"{folder} holds other data than [data] asks for", "name another folder with --out, or delete this one"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise StateError(f"{folder} holds something that was not prepared to its end", "delete it and run it again")
    if data.dataset in PUBLISHED and source is None:
        raise DataError(f"{experiment.where}: {data.dataset} is not shipped", "say with --data where it was unpacked")
    try:
        module = dataset_module(data.dataset)
    except ImportError as error:
        raise missing_package(error, f"{experiment.where}: [data] {data.dataset}") from error
    options: dict[str, Any] = dict(data.options)
    if source is not None:
        options["source"] = source
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a preparation that was ended
    try:
        module.prepare(unfinished, **options)
    except DataError as error:
        raise DataError(error.message, error.remedy.replace("--source", "--data")) from error
    except TypeError as error:
        raise DataError(f"{experiment.where}: [data] {data.dataset}: {error}", "see `data prepare --help`") from error
    (unfinished / PREPARED).write_text(json.dumps(wanted))
    unfinished.replace(folder)


def _entries(path: Path, beside: Mapping[str, Any], *, prefix: str) -> list[Entry]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    entries: list[Entry] = []
    for split in SPLITS:
        for entry in document.get(split, []) if isinstance(document, dict) else []:
            if not isinstance(entry, dict) or "image" not in entry:
                raise DataError(f"{path}: an entry of {split!r} has no image")
            moved = {key: _under(prefix, entry[key]) for key in ("image", "label") if key in entry}
            found = {**beside, SPLIT: split, **entry, **moved}
            found[SPLIT] = split  # whatever the entry itself calls so
            entries.append(found)
    return entries


def _once(pool: SamplePool) -> list[Entry]:
    """The entries without those whose images have the content of another's; of such, one for testing stays."""
    try:
        files = [[pool.root / name for name in image_names(entry)] for entry in pool.entries]
        sizes = [tuple(path.stat().st_size for path in paths) for paths in files]
        shared = Counter(sizes)
        seen: set[object] = set()
        kept = set()
        for at in sorted(range(len(files)), key=lambda at: (pool.entries[at][SPLIT] != "test", at)):
            # Files of different lengths differ: most need not be read.
            content = tuple(_sha256(path) for path in files[at]) if shared[sizes[at]] > 1 else at
            if content not in seen:
                kept.add(at)
            seen.add(content)
    except OSError as error:
        raise DataError(
            f"image {error.filename} cannot be read: {error.strerror}", "correct the datalist or its root"
        ) from error
    return [entry for at, entry in enumerate(pool.entries) if at in kept]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named_by(entries: Sequence[Entry], key: str) -> list[Entry]:
    """The entries with the key's value as their subject; one without the key is a subject by itself."""
    if not any(key in entry for entry in entries):
        raise DataError(f"no entry has the key {key!r}, which is to be its subject", "name another in [data] subject")
    found: list[Entry] = []
    for entry in entries:
        value = entry.get(key)
        name = value[0] if isinstance(value, list) else value
        without = {kept: value for kept, value in entry.items() if kept != SUBJECT}
        found.append(without if name is None else {**without, SUBJECT: str(name)})
    return found


def _under(prefix: str, value: Any) -> Any:
    """A path, or paths, of a folder below; numbers stay."""
    if isinstance(value, list):
        return [_under(prefix, item) for item in value]
    return f"{prefix}{value}" if isinstance(value, str) and not Path(value).is_absolute() else value


def _regions(place: Path) -> Path | None:
    found = sorted((*place.glob(REGIONS), *place.glob(f"*/{REGIONS}")))
    return found[0] if found else None

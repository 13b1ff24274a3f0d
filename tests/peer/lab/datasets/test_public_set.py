import dataclasses
import json
import re
from pathlib import Path

import pytest

from fakes.datasets import refuses, write_picture
from peer.errors import DataError, StateError, UsageError
from peer.lab.datasets import public_set
from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, PublishedCount, by_class

PUBLICATION = Publication(
    task="test",
    title="Test",
    kind="classification",
    spatial_dims=2,
    channels=("red", "green", "blue"),
    classes=("well", "ill"),
    layout="table.csv",
    reference="nobody",
    licence="none",
    federated=True,
)
ENTRIES = (
    {"image": "north/a.png", "label": 0, "subject": "p1", "site": "north", "sex": "female"},
    {"image": "/data/b.png", "label": 1, "subject": "p1", "site": "north", "sex": None},
    {"image": ["south/c.png", "made/d.png"], "label": 1, "subject": "p2", "site": "south"},
)


def fill_pool(out: Path, *counts: PublishedCount) -> PublicSet:
    pool = PublicSet(dataclasses.replace(PUBLICATION, counts=counts), out, out)
    for entry, side in zip(ENTRIES, ("training", "training", "test"), strict=True):
        pool.add(side=side, **entry)
    return pool


def test_a_count_is_of_samples_or_of_different_values_with_these_keys() -> None:
    splits = {"training": list(ENTRIES[:2]), "test": list(ENTRIES[2:])}
    for count, expected in (
        (PublishedCount("all", 0), 3),
        (PublishedCount("north", 0, {"site": "north"}), 2),
        (PublishedCount("ill in the north", 0, {"site": "north", "label": 1}), 1),
        (PublishedCount("test", 0, {"side": "test"}), 1),
        (PublishedCount("subjects", 0, of="subject"), 2),
        (PublishedCount("sexes that are known", 0, of="sex"), 1),
        (PublishedCount("ages", 0, of="age"), 0),
    ):
        assert count.count(splits) == expected, count.name


def test_by_class_counts_each_label() -> None:
    north = by_class(("well", "ill"), (7, 8), site="north")
    assert [(count.name, count.expected) for count in north] == [("north, well", 7), ("north, ill", 8)]
    assert north[1].where == {"site": "north", "label": 1}
    with pytest.raises(ValueError, match="shorter"):
        by_class(("well", "ill"), (7,))


def test_write_makes_a_pool_and_a_datalist_a_site(tmp_path: Path) -> None:
    summary = fill_pool(tmp_path, PublishedCount("samples", 3), *by_class(PUBLICATION.classes, (1, 2))).write()
    assert summary["warnings"] == []
    assert summary["counts"] == [
        {"what": "samples", "expected": 3, "found": 3},
        {"what": "well", "expected": 1, "found": 1},
        {"what": "ill", "expected": 2, "found": 2},
    ]
    assert summary["sites"]["north"] == {
        "training": {"subjects": 1, "samples": 2, "classes": {"well": 1, "ill": 1}},
        "test": {"subjects": 0, "samples": 0},
    }
    whole = json.loads((tmp_path / "pool.json").read_text())
    assert whole["labels"] == {"0": "well", "1": "ill"}
    assert (whole["numTraining"], whole["numTest"]) == (2, 1)
    assert [entry["image"] for entry in whole["training"]] == ["north/a.png", "/data/b.png"]
    assert "sex" not in whole["training"][1]
    north, south = (json.loads((tmp_path / site / "datalist.json").read_text()) for site in ("north", "south"))
    assert [entry["image"] for entry in north["training"]] == ["a.png", "/data/b.png"]
    assert not north["test"]
    assert [entry["image"] for entry in south["test"]] == [["c.png", "../made/d.png"]]


def test_another_count_is_a_warning(tmp_path: Path) -> None:
    pool = fill_pool(
        tmp_path,
        PublishedCount("samples", 4),
        PublishedCount("west", 2, {"site": "west"}),
        PublishedCount("north", 2, {"site": "north"}),
    )
    pool.absent += [f"{name}.png" for name in "abcdefg"]
    pool.warnings.append("beware")
    assert pool.write()["warnings"] == [
        "samples: 4 expected, 3 found",
        "west: 2 expected, none found; give --source the folder with table.csv",
        "7 listed files are not there: a.png, b.png, c.png, d.png, e.png and 2 more",
        "beware",
    ]


def test_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"src holds no sample of test; give --source the folder with table\.csv"):
        PublicSet(PUBLICATION, Path("src"), tmp_path).write()
    with pytest.raises(DataError, match=r"none of the listed files is there: a\.png"):
        PublicSet(PUBLICATION, Path("src"), tmp_path, absent=["a.png"]).write()
    assert not list(tmp_path.iterdir())


def test_locate_finds_the_first_marker_nearest_to_the_source(tmp_path: Path) -> None:
    for path in ("__MACOSX/set/table.csv", "b/set/table.csv", "a/deep/set/table.csv", "other.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert public_set.locate(tmp_path, "table.csv", publication=PUBLICATION) == tmp_path / "b/set/table.csv"
    assert public_set.locate(tmp_path, "set/*.csv", publication=PUBLICATION) == tmp_path / "b/set/table.csv"
    assert public_set.locate(tmp_path, "no.csv", "other.csv", publication=PUBLICATION) == tmp_path / "other.csv"
    assert public_set.locate(tmp_path / "a/deep/set", "table.csv", publication=PUBLICATION).is_file()


def test_an_adapter_finds_its_places_before_it_makes_the_folder(tmp_path: Path) -> None:
    def gather(pool: PublicSet, table: Path, images: Path, *, side: str = "training") -> None:
        assert (table.name, images.name) == ("table.csv", "images")
        pool.add(side=side, **ENTRIES[1])
        assert pool.match(re.compile("a+"), "aa")
        assert pool.match(re.compile("a+"), "aab") is None

    source, out = tmp_path / "in", tmp_path / "out"
    adapter = Adapter(PUBLICATION, gather, [["table", "table.csv"], ["images"]])
    refuses(adapter, source, "in is no folder; give --source", out=out)
    (source / "images").mkdir(parents=True)
    refuses(adapter, source, r"holds no table and no table\.csv", out=out)
    assert not out.exists()
    (source / "table.csv").touch()
    summary = adapter.prepare(out, source=source, side="test")
    assert summary["dropped"] == {"a name of another form": 1}
    assert json.loads((out / "north" / "datalist.json").read_text())["test"][0]["subject"] == "p1"
    refuses(adapter, source, "is not empty", StateError, out=out)


def test_read_table(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeffname,age\r\n"a, b", 3 \r\nc\r\n'.encode())
    assert public_set.read_table(path, ("name",)) == [{"name": "a, b", "age": "3"}, {"name": "c", "age": ""}]
    with pytest.raises(DataError, match=r"table\.csv has no column sex, site; download it again"):
        public_set.read_table(path, ("site", "name", "sex"))
    with pytest.raises(DataError, match=r"absent\.csv cannot be read: No such file"):
        public_set.read_table(tmp_path / "absent.csv", ())
    path.write_text(f"name\n{'x' * 200_000}\n")
    with pytest.raises(DataError, match=r"table\.csv is no table: field larger"):
        public_set.read_table(path, ("name",))


def test_pictures_are_in_order_and_without_debris(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpeg", "._a.jpeg"):
        write_picture(tmp_path / name)
    (tmp_path / "notes.txt").touch()
    assert [path.name for path in public_set.list_pictures(tmp_path)] == ["a.jpeg", "b.PNG"]
    assert public_set.list_pictures(tmp_path / "absent") == []


def test_small_conversions() -> None:
    numbers = [public_set.parse_number(text) for text in ("3", "3.0", "2.5", "", "nan", "inf", "three")]
    assert numbers == [3, 3, 2.5, *[None] * 4]
    assert public_set.site_name(" MAX_MUN (2)") == "max-mun-2"
    public_set.check_choice("degree", 1, (1, 2))
    with pytest.raises(UsageError, match="degree is 3, none of 1, 2"):
        public_set.check_choice("degree", 3, (1, 2))

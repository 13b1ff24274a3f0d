"""Datalists: the samples that are read, and the problems with the names of their entries."""

import json
from pathlib import Path
from typing import Any

import pytest

from peer.train.data.datalist import Datalist, inspect_datalist


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "c.png", "d.png", "mask.png"):
        (tmp_path / name).touch()
    return tmp_path


GOOD: dict[str, list[Any]] = {
    "training": [
        {"image": "a.png", "label": 0, "subject": "p1"},
        {"image": ["b.png", "c.png"], "label": 1, "subject": 2},
    ],
    "test": [{"image": "d.png", "label": 1}],
}


def inspect(folder: Path, document: object, **options: Any) -> Datalist:
    path = folder / "datalist.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return inspect_datalist(path, **{"classes": 2, **options})


def test_a_good_datalist_is_read_whole(folder: Path) -> None:
    datalist = inspect(folder, GOOD)
    assert datalist.problems == ()
    first, second = datalist.training
    assert (first.name, first.images, first.label, first.subject) == ("a.png", (folder / "a.png",), 0, "p1")
    assert (second.images, second.subject) == ((folder / "b.png", folder / "c.png"), "2")
    assert datalist.counts("training") == {0: 1, 1: 1}
    assert datalist.counts("test") == {1: 1}
    assert datalist.subjects("training") == {"p1", "2"}
    assert datalist.subjects("test") == set()


@pytest.mark.parametrize(
    ("labels", "problems"),
    [
        ({"0": "Benign", "1": "malignant "}, 0),
        ({"0": "malignant", "1": "benign"}, 2),
        ({"1": "malign"}, 1),
        ({"7": "other", "background": 0}, 0),
        (["benign"], 0),
        (["malignant", "benign"], 2),
    ],
)
def test_a_datalist_that_numbers_the_classes_otherwise_is_refused(folder: Path, labels: object, problems: int) -> None:
    document = {**GOOD, "labels": labels}
    assert inspect(folder, document).problems == ()
    refusals = inspect(folder, document, class_names=("benign", "malignant")).problems
    assert len(refusals) == problems
    for problem in refusals:
        assert "in class_names of federation.toml; give the classes the federation's numbers" in problem


def test_paths_are_relative_to_the_root(folder: Path, tmp_path: Path) -> None:
    elsewhere = folder / "lists"
    elsewhere.mkdir()
    assert inspect(elsewhere, GOOD, root=folder).problems == ()
    assert "files are missing" in inspect(elsewhere, GOOD).problems[0]


def test_test_entries_without_label_are_only_counted(folder: Path) -> None:
    datalist = inspect(folder, {**GOOD, "test": ["./d.png", {"image": "d.png"}]})
    assert (datalist.problems, datalist.test, datalist.unlabelled) == ((), (), 2)


def test_labels_of_segmentation_are_files(folder: Path) -> None:
    datalist = inspect(folder, {"training": [{"image": "a.png", "label": "mask.png"}]}, task="segmentation")
    assert datalist.problems == ()
    assert datalist.training[0].label == folder / "mask.png"
    gone = inspect(folder, {"training": [{"image": "a.png", "label": "gone.png"}]}, task="segmentation")
    assert gone.problems == (f"files are missing: {folder / 'gone.png'}; correct the paths or set [data] root",)


def test_an_image_without_a_label_is_its_own_target_in_super_resolution_alone(folder: Path) -> None:
    document = {"training": ["a.png", {"image": "b.png", "label": "mask.png"}], "test": ["c.png", {"image": "d.png"}]}
    datalist = inspect(folder, document, task="super_resolution", classes=1)
    assert (datalist.problems, datalist.unlabelled) == ((), 0)
    assert [sample.label for sample in (*datalist.training, *datalist.test)] == [None, folder / "mask.png", None, None]
    assert datalist.test[0].images == (folder / "c.png",)
    assert datalist.counts("training") == {}
    other = inspect(folder, document, task="segmentation")
    assert other.problems == ("training[0]: must be an object with 'image' and 'label'",)
    assert other.unlabelled == 2


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("a.png", "must be an object with 'image' and 'label'"),
        ({"label": 0}, "'image' must be a path or a list of paths, not None"),
        ({"image": [], "label": 0}, "'image' must be a path or a list of paths, not []"),
        ({"image": "a.png", "label": True}, "'label' of a.png must be a class number (0, 1, ...), not True"),
        ({"image": "a.png"}, "a.png has no 'label'; write a class number (0, 1, ...)"),
        ({"image": "a.png", "label": 0, "subject": [1]}, "'subject' of a.png must be a text or a number, not [1]"),
        (
            {"image": "a.png", "label": 0, "label_values": {"255": -1}},
            "'label_values' of a.png must map values to classes, such as {\"255\": 1}, not {'255': -1}",
        ),
        (
            {"image": "a.png", "label": 0, "label_values": {"x": 1}},
            "'label_values' of a.png must map whole numbers, not 'x'",
        ),
    ],
)
def test_a_malformed_entry_is_named(folder: Path, entry: object, problem: str) -> None:
    datalist = inspect(folder, {"training": [entry, *GOOD["training"]]})
    assert datalist.problems == (f"training[0]: {problem}",)
    assert len(datalist.training) == 2


@pytest.mark.parametrize("key", ["patient", "Subject", "Patient_ID", "subject id"])
def test_a_subject_under_another_name_is_not_lost_in_silence(folder: Path, key: str) -> None:
    document = json.loads(json.dumps(GOOD).replace('"subject"', json.dumps(key)))
    (note,) = inspect(folder, document).notes
    assert note.startswith(f"the key {key!r} of 2 entries is not used; call it 'subject' if it is that")
    both = {split: [{**entry, "subject": "x"} for entry in entries] for split, entries in GOOD.items()}
    assert inspect(folder, both).notes == ()


def test_subjects_that_differ_in_case_alone_are_named(folder: Path) -> None:
    test = [{"image": "d.png", "label": 1, "subject": "P1 "}, {"image": "d.png", "label": 1, "subject": "p3"}]
    (note,) = inspect(folder, {**GOOD, "test": test}).notes
    assert note.startswith("subjects of training and of test differ in case or signs alone: 'p1' and 'P1 '; see")


def test_many_malformed_entries_are_counted(folder: Path) -> None:
    datalist = inspect(folder, {"training": [*["x"] * 8, *GOOD["training"]]})
    assert len(datalist.problems) == 6
    assert datalist.problems[-1] == "and 3 more entries of this kind"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "is not JSON"),
        ('{"training": [], "training": []}', "the key 'training' is twice in one object"),
        ([], "has no list 'training'"),
        ({"training": {}}, "has no list 'training'"),
        ({"training": [], "test": 1}, "'test' must be a list"),
        ({"training": []}, "'training' holds no usable sample"),
        (
            {**GOOD, "training": [*GOOD["training"], {"image": "gone.png", "label": 0}]},
            "gone.png; correct the paths or set [data] root",
        ),
        (
            {**GOOD, "training": [*GOOD["training"], {"image": "d.png", "label": 2}]},
            "labels are not 0 to 1: d.png has 2; correct them or [task] classes",
        ),
        ({**GOOD, "test": [{"image": "d.png", "label": -1}]}, "labels are not 0 to 1: d.png has -1"),
        ({"training": GOOD["training"][:1]}, "'training' holds one class only (0); a classifier needs two"),
        (
            {**GOOD, "test": [{"image": "d.png", "label": 1, "subject": "2"}]},
            "subjects are in training and in test: 2; keep each on one side",
        ),
        ({**GOOD, "test": [{"image": "a.png", "label": 0}]}, "images are in training and in test"),
    ],
)
def test_a_problem_is_named(folder: Path, document: object, problem: str) -> None:
    problems = inspect(folder, document).problems
    assert any(problem in text for text in problems), problems


def test_a_missing_datalist_is_a_problem(folder: Path) -> None:
    assert "No such file" in inspect_datalist(folder / "none.json").problems[0]


def test_without_a_class_count_labels_have_no_upper_bound(folder: Path) -> None:
    document = {"training": [*GOOD["training"], {"image": "d.png", "label": 9}]}
    assert inspect(folder, document, classes=None).problems == ()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_datalist_of_any_editor_is_read(folder: Path, encoding: str) -> None:
    path = folder / "datalist.json"
    text = json.dumps({**GOOD, "name": "Köln"}, ensure_ascii=False, indent=1).replace("\n", "\r\n")
    path.write_bytes(text.encode(encoding))
    assert inspect_datalist(path, classes=2).problems == ()


def test_a_datalist_in_an_old_encoding_is_refused_with_its_line(folder: Path) -> None:
    path = folder / "datalist.json"
    path.write_bytes('{\n"name": "Köln"}'.encode("cp1252"))
    assert inspect_datalist(path).problems == (f"datalist {path} is not UTF-8 in line 2; save it as UTF-8",)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("my labels.csv", "is a table; run `mhfl-peer data import '{}/my labels.csv' --out '{}/my labels.json'`"),
        ("bids", "is a folder; run `mhfl-peer data import {}/bids --out {}/bids.json`"),
        ("labels.xlsx", "is a spreadsheet; save it as CSV"),
    ],
)
def test_other_lists_of_samples_are_refused_with_the_command_that_imports_them(
    folder: Path, name: str, remedy: str
) -> None:
    path = folder / name
    path.touch() if path.suffix else path.mkdir()
    (problem,) = inspect_datalist(path).problems
    assert remedy.format(folder, folder) in problem

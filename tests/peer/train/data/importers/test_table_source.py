"""Tables as hospitals have them, and what is said of those that cannot be used."""

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.documents.data import DatalistImported
from peer.errors import DataError, PeerError, StateError, UsageError
from peer.train.data.survey import survey

Import = Callable[..., DatalistImported]

ROWS = ["file,label,subject", *(f"{number}.npy,{number % 2},p{number // 2}" for number in range(12))]


def write(folder: Path, *lines: str, encoding: str = "utf-8", ends: str = "\n") -> Path:
    path = folder / "labels.csv"
    path.write_bytes(ends.join([*lines, ""]).encode(encoding))
    return path


def entries(folder: Path) -> Any:
    return json.loads((folder / "datalist.json").read_text())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_of_any_program_gives_the_same_datalist(
    pictures: Path, import_source: Import, encoding: str, ends: str, delimiter: str
) -> None:
    lines = [f"file,label,subject,Größe\n{row},ü".replace(",", delimiter) for row in ROWS[1:]]
    (header, *rows) = [lines[0].split("\n")[0], *(line.split("\n")[1] for line in lines)]
    answer = import_source(write(pictures, header, *rows, encoding=encoding, ends=ends), keep=("Größe",))
    written = entries(pictures)
    samples = {entry["image"]: entry for entry in (*written["training"], *written["test"])}
    assert samples["3.npy"] == {"Größe": "ü", "image": "3.npy", "label": 1, "subject": "p1"}
    assert len(samples) == 12
    assert answer["encoding"] == encoding
    assert bool(answer["notes"]) == (encoding == "cp1252")


def test_words_become_classes_in_the_given_order_and_unknown_labels_are_left_out(
    pictures: Path, import_source: Import
) -> None:
    table = write(pictures, "sep=;", '"Datei";Befund', "0.npy;bösartig", "1.npy; Gutartig ", "2.npy;gutartig", "3.npy;")
    answer = import_source(
        table, columns={"file": ("Datei",), "label": ("Befund",)}, classes=("gutartig", "bösartig"), test_share=0.0
    )
    assert [entry["label"] for entry in entries(pictures)["training"]] == [1, 0, 0]
    assert entries(pictures)["labels"] == {"0": "gutartig", "1": "bösartig"}
    assert answer["left_out"] == [{"reason": "no label", "count": 1, "examples": ["labels.csv line 6"]}]


def test_given_splits_are_kept_and_validation_is_training(pictures: Path, import_source: Import) -> None:
    table = write(pictures, "file,label,split", "0.npy,0,Train", "1.npy,1,val", "2.npy,1.0,test")
    answer = import_source(table)
    assert [entry["image"] for entry in entries(pictures)["training"]] == ["0.npy", "1.npy"]
    assert answer["drawn"] is None
    assert "3 samples have no subject" in answer["notes"][0]
    assert "validation_share" in answer["notes"][1]


def test_drawn_splits_divide_no_subject_and_have_every_class(pictures: Path, import_source: Import) -> None:
    rows = [f"{number}.npy,{number % 4 // 2},p{number // 2}" for number in range(12)]
    answer = import_source(write(pictures, ROWS[0], *rows), test_share=0.34, seed=3)
    written = entries(pictures)
    sides = {split: {entry["subject"] for entry in written[split]} for split in ("training", "test")}
    assert not sides["training"] & sides["test"]
    assert answer["splits"]["test"]["class_subjects"] == {"0": 1, "1": 1}
    assert answer["drawn"] == {"seed": 3, "test_share": 0.34}


def test_another_seed_draws_other_splits(pictures: Path, import_source: Import) -> None:
    drawn = []
    for seed in (0, 0, 1):
        import_source(write(pictures, *ROWS), seed=seed, test_share=0.4)
        drawn.append((pictures / "datalist.json").read_bytes())
        (pictures / "datalist.json").unlink()
    assert drawn[0] == drawn[1] != drawn[2]


def test_several_columns_of_files_are_channels(pictures: Path, import_source: Import) -> None:
    table = write(pictures, "t1,t2,label", "0.npy,1.npy,0", "2.npy,3.npy,1")
    import_source(table, columns={"file": ("t1", "t2")}, test_share=0.0)
    assert entries(pictures)["training"][1]["image"] == ["2.npy", "3.npy"]


def test_the_datalist_is_private_and_names_files_elsewhere_by_their_whole_path(
    pictures: Path, import_source: Import, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = write(tmp_path_factory.mktemp("tables"), *ROWS)
    import_source(table, root=pictures)
    path = pictures / "datalist.json"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateError, match="exists"):
        import_source(table, root=pictures)


@pytest.mark.parametrize(
    ("lines", "options", "error", "message"),
    [
        ([*ROWS, "12.npy,1,p6"], {}, DataError, r"labels.csv line 14: .*12.npy is not there; .*--leave-out"),
        ([*ROWS, "0.npy,1,p0"], {}, DataError, "line 14: 0.npy stands in labels.csv line 2 with other values"),
        ([*ROWS, "0.npy,0,p0,x"], {}, DataError, "line 14 has 4 cells, the header 3; put cells that contain ','"),
        (["a.npy,1,p0"], {}, DataError, "line 1: none of the columns a.npy, 1, p0 is named file"),
        (["file,diagnose", "0.npy,1"], {}, DataError, "is named label; give --column label=COLUMN"),
        (["file,label", "0.npy,0", "1.npy,20261123"], {}, DataError, r"are no class numbers: 20261123 \(1\)"),
        (["file,label", "0.npy,a", "1.npy,b"], {}, DataError, r"a \(1\), b \(1\); .* such as --classes 'a,b'"),
        (
            ["file,label", "0.npy,a"],
            {"classes": ("b", "c")},
            DataError,
            "line 2: the label 'a' is none of --classes b, c",
        ),
        (["file,label,split", "0.npy,0,tarin"], {}, DataError, "line 2: the split 'tarin' is none of training"),
        (["file,label,class", "0.npy,0,1"], {}, UsageError, "several columns that could be the label: label, class"),
        (["file,label", "0.npy,1"], {"columns": {"label": ("lable",)}}, UsageError, "did you mean 'label'"),
        (["file,file,label", "0.npy,0.npy,1"], {}, DataError, "line 1: the header has file twice"),
        (["file,label", "0.npy,0", "1.npy,0"], {}, DataError, "holds one class only"),
        ([""], {}, DataError, "labels.csv is empty"),
        (
            ["file,label,subject,split", "0.npy,0,p,train", "1.npy,1,p,test"],
            {},
            DataError,
            r"subject p is in training \(labels.csv line 2\) and in test \(labels.csv line 3\); .*--draw",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_its_line_and_a_remedy(
    pictures: Path, import_source: Import, lines: list[str], options: Any, error: type[PeerError], message: str
) -> None:
    with pytest.raises(error, match=message):
        import_source(write(pictures, *lines), **options)
    assert not (pictures / "datalist.json").exists()


def test_faulty_samples_are_left_out_on_request(pictures: Path, import_source: Import) -> None:
    (pictures / "5.npy").write_bytes(b"no array")
    answer = import_source(write(pictures, *ROWS, "12.npy,1,p6", "0.npy,1,p0"), leaves_out_faulty=True)
    assert {row["reason"]: row["examples"] for row in answer["left_out"]} == {
        "contradicts another line": ["labels.csv line 15"],
        "file cannot be read": ["labels.csv line 7"],
        "file is missing": ["labels.csv line 14"],
    }
    assert sum(split["samples"] for split in answer["splits"].values()) == 10


def test_an_unknown_byte_is_refused_with_its_line(pictures: Path, import_source: Import) -> None:
    (pictures / "labels.csv").write_bytes(b"file,label\n0.npy,\x81\n")
    with pytest.raises(DataError, match=r"line 2 is neither UTF-8 nor Windows-1252; .*--encoding"):
        import_source(pictures / "labels.csv")


@pytest.fixture
def masks(pictures: Path) -> Path:
    """A table of four pictures, of which the last has no mask; masks hold 0 and 255, the third 128, too."""
    for number, values in enumerate(([0, 255, 0], [255, 0, 0], [128, 255, 255])):
        np.save(pictures / f"mask-{number}.npy", np.array([values] * 2, dtype=np.uint8))
    return write(pictures, "file,mask", *(f"{number}.npy,mask-{number}.npy" for number in range(3)), "3.npy,")


def test_masks_of_a_table_are_label_maps_whose_values_are_mapped(
    masks: Path, pictures: Path, import_source: Import
) -> None:
    answer = import_source(masks, columns={"label": ("mask",)}, label_values=((128, 1), (255, 2)), test_share=0.0)
    assert (answer["task"], list(answer["classes"])) == ("segmentation", ["0", "1", "2"])
    assert answer["left_out"][0]["examples"] == ["labels.csv line 5"]
    assert entries(pictures)["training"][0] == {
        "image": "0.npy", "label": "mask-0.npy", "label_values": {"128": 1, "255": 2}
    }  # fmt: skip
    document = survey(pictures / "datalist.json", task="segmentation", classes=3, whole=True)
    assert document["splits"]["training"]["classes"] == {"0": 2, "1": 1, "2": 3}
    assert [problem for problem in document["problems"] if "label" in problem] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"hold the classes 0, 128, 255 and not 0, 1, .*; map them, such as with --map 128=1 --map 255=2, or name"),
        ({"label_values": ((255, 1),)}, "hold the classes 0, 1, 128 .* such as with --map 128=1 --map 255=2,"),
        ({"classes": ("a", "b")}, r"line 2: \S+ holds the value 255, none of 0 to 1 \(--map 255=1 maps it\)"),
        ({"task": "classification", "label_values": ((255, 1),), "classes": ("mask-0.npy", "mask-1.npy")},
         "--map: the labels of classification are no label maps"),
    ],
)  # fmt: skip
def test_values_of_masks_that_are_no_classes_are_refused_with_the_option_that_maps_them(
    masks: Path, import_source: Import, options: Any, message: str
) -> None:
    with pytest.raises(PeerError, match=message):
        import_source(masks, columns={"label": ("mask",)}, leaves_out_faulty="task" in options, **options)


def test_masks_in_shades_of_grey_are_no_label_maps(pictures: Path, import_source: Import) -> None:
    np.save(pictures / "shades.npy", np.arange(48).reshape(2, 24) * 2)
    with pytest.raises(DataError, match="shades of grey"):
        import_source(write(pictures, "file,label", "0.npy,shades.npy"))


def test_the_file_that_cannot_be_read_is_named(pictures: Path, import_source: Import) -> None:
    (pictures / "mask.npy").write_bytes(b"no array")
    table = write(pictures, "file,label", "0.npy,1.npy", "2.npy,mask.npy")
    with pytest.raises(DataError, match=r"labels.csv line 3: \S+/mask.npy cannot be read: "):
        import_source(table, task="segmentation")


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        (("-1", "1", "-1", "1"), "--classes='-1,1'"),
        (("0", "1", "none", "unknown"), "these words say that there is no label: leave those cells empty"),
        (("0", "1", "2.5", "b"), "--classes '0,1,2.5,b'"),
    ],
)
def test_proposed_classes_have_all_labels(
    pictures: Path, import_source: Import, labels: tuple[str, ...], remedy: str
) -> None:
    table = write(pictures, "file,label", *(f"{number}.npy,{label}" for number, label in enumerate(labels)))
    with pytest.raises(DataError, match="labels are no class numbers") as refused:
        import_source(table)
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("typed", ["\N{ZERO WIDTH SPACE}0.npy", "scha\N{COMBINING DIAERESIS}del.npy", "sch\xe4del.npy"])
def test_a_name_in_another_form_or_with_invisible_signs_is_found(
    pictures: Path, import_source: Import, typed: str
) -> None:
    shutil.copy(pictures / "0.npy", pictures / "sch\xe4del.npy")
    import_source(write(pictures, "file,label", f"{typed},0", "1.npy,1", "2.npy,0"), test_share=0.0)
    assert len(entries(pictures)["training"]) == 3


@pytest.mark.parametrize(("typed", "near"), [("0.NPY", "0.npy"), ("0.png", "0.npy"), ("x.npy", None)])
def test_a_name_that_is_almost_right_is_proposed(
    pictures: Path, import_source: Import, typed: str, near: str | None
) -> None:
    with pytest.raises(DataError, match="is not there") as refused:
        import_source(write(pictures, "file,label", f"{typed},0", "1.npy,1"))
    assert (f"did you mean {near}?" in refused.value.message) == (near is not None)


# --- tables of values -------------------------------------------------------------------------------------------------
COLUMNS = (
    TableColumn("age", "number", (20.0, 90.0)),
    TableColumn("sex", "category", levels=("female", "male")),
    TableColumn("fasting", "flag"),
)
PATIENTS = [
    "id;Alter;sex;fasting;outcome",
    "a;63,5;Male;yes;1",
    "b;50;female;;0",
    "c;41;female;no;healthy",
    "d;70;?;no;1",
]
VALUES = {"table": COLUMNS, "agreed_classes": ("healthy", "ill"), "own_columns": {"age": "alter"}}
ROLES = {"label": ("outcome",), "subject": ("id",)}


def test_a_table_of_values_becomes_rows_by_the_federations_names(tmp_path: Path, import_source: Import) -> None:
    source = write(tmp_path, *PATIENTS, encoding="cp1252")
    answer = import_source(source, columns=ROLES, test_share=0.0, **VALUES)
    assert (answer["task"], answer["classes"], answer["shapes"]) == ("tabular", {"0": "healthy", "1": "ill"}, {})
    assert answer["columns"]["age"] == "Alter"
    first, second, third, fourth = entries(tmp_path)["training"]
    row = {"age": 63.5, "sex": "male", "fasting": True}
    assert first == {"image": "labels.csv line 2", "row": row, "label": 1, "subject": "a"}
    assert second["row"] == {"age": 50.0, "sex": "female", "fasting": None}
    assert (third["label"], fourth["row"]["sex"]) == (0, None)


FOLLOWED = [
    "id;Alter;sex;fasting;months;died;pain;fever",
    "a;63,5;male;yes;7,5;1;yes;no",
    "b;50;female;;120;alive;;1",
    "c;41;female;no;;0;;",
]
TARGETS = {
    "survival": (
        Target("survival", times=(6.0, 12.0)),
        {"time": ("months",), "event": ("died",)},
        [{"time": 7.5, "event": True}, {"time": 120.0, "event": False}],
    ),
    "number": (Target("number", range=(0.0, 200.0)), {"label": ("months",)}, [7.5, 120]),
    "labels": (Target("labels", ("pain", "Fever")), {}, [[1, 0], [None, 1]]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_table_has_other_targets_than_classes(tmp_path: Path, import_source: Import, name: str) -> None:
    target, columns, labels = TARGETS[name]
    values = {**VALUES, "agreed_classes": (), "target": target}
    answer = import_source(write(tmp_path, *FOLLOWED), columns={"subject": ("id",), **columns}, test_share=0, **values)
    assert [entry["label"] for entry in entries(tmp_path)["training"]] == labels
    assert [(row["reason"], row["count"]) for row in answer["left_out"]] == [("no label", 1)]
    assert "labels" not in entries(tmp_path)
    assert (tmp_path / "datalist.json").read_text().count('"subject"') == 2


def test_a_cell_that_is_no_label_of_the_target_is_named(tmp_path: Path, import_source: Import) -> None:
    target, columns, _ = TARGETS["survival"]
    values = {**VALUES, "agreed_classes": (), "target": target, "columns": {"subject": ("id",), **columns}}
    wrong = [*FOLLOWED, "d;41;female;no;-2;1;;", "e;41;female;no;0;1;;"]
    with pytest.raises(DataError, match=r"line 5: the label has the negative time -2.*line 6: .*an event at time 0"):
        import_source(write(tmp_path, *wrong), **values)
    values["columns"] = {"time": ("months",)}
    with pytest.raises(DataError, match=r"none of the columns .* is named event") as raised:
        import_source(write(tmp_path, *FOLLOWED), **values)
    assert raised.value.remedy == "give --column event=COLUMN"


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (PATIENTS, {"own_columns": {}}, r"line 1: there is no column age; it has id, Alter, sex"),
        (PATIENTS, {"columns": {**ROLES, "fasting": ("fastin",)}}, r"no column fastin \(did you mean 'fasting'\?\)"),
        (
            [*PATIENTS, "e;44;male;no;maybe"],
            {},
            "line 6: the label 'maybe' is none of the federation's classes",
        ),
        ([*PATIENTS, "e;44;male;no;2"], {}, "line 6: the label '2' is none of the federation's classes healthy, ill"),
        (
            [line.replace("63,5", "635") for line in PATIENTS],
            {},
            "column age: 1 of 4 values do not fit .*635 is outside",
        ),
    ],
)
def test_a_table_of_values_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, import_source: Import, lines: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        import_source(write(tmp_path, *lines), test_share=0.0, **{"columns": ROLES, **VALUES, **options})
    assert not (tmp_path / "datalist.json").exists()


def test_a_site_without_a_column_says_so(tmp_path: Path, import_source: Import) -> None:
    lines = [";".join(cell for index, cell in enumerate(line.split(";")) if index != 1) for line in PATIENTS]
    options = {**VALUES, "own_columns": {"age": ""}}
    answer = import_source(write(tmp_path, *lines), columns=ROLES, test_share=0.0, **options)
    assert "columns without any value here: age" in answer["notes"]
    assert [entry["row"]["age"] for entry in entries(tmp_path)["training"]] == [None] * 4


def test_labels_of_images_have_the_classes_that_the_sites_have_agreed_on(pictures: Path, import_source: Import) -> None:
    rows = [row.replace(",0,", ",healthy,") if ",0," in row else row for row in ROWS]
    answer = import_source(write(pictures, *rows), agreed_classes=("healthy", "ill"), task="classification")
    assert answer["classes"] == {"0": "healthy", "1": "ill"}
    assert {entry["label"] for entry in entries(pictures)["training"]} == {0, 1}


def test_a_class_in_another_unicode_form_is_the_same_and_a_slip_is_named(pictures: Path, import_source: Import) -> None:
    words = ["gut", "b\xf6se"]
    rows = [f"{number}.npy,{words[number % 2]},p{number}" for number in range(12)]
    (pictures / "t.csv").write_text("\n".join(["file,label,subject", *rows]), encoding="utf-8")
    classes = tuple(unicodedata.normalize("NFD", word) for word in words)
    assert import_source(pictures / "t.csv", classes=classes)["splits"]["training"]["classes"] == {"0": 5, "1": 5}
    (pictures / "datalist.json").unlink()
    with pytest.raises(DataError, match=r"the label '.*' is none of --classes gut, bose \(did you mean bose\?\)"):
        import_source(pictures / "t.csv", classes=("gut", "bose"))


def test_columns_that_are_not_used_are_named_and_one_that_seems_to_be_the_subject(
    pictures: Path, import_source: Import
) -> None:
    rows = [f"{number}.npy,{number % 2},p{number},7,m" for number in range(12)]
    (pictures / "t.csv").write_text("\n".join(["file,label,Patient ID,age,sex", *rows]))
    notes = import_source(pictures / "t.csv", keep=("sex",))["notes"]
    assert "columns that are not used: Patient ID, age; --keep takes one along" in notes
    assert any("name the column, perhaps with --column 'subject=Patient ID'" in note for note in notes)


@pytest.mark.parametrize("written", ["003.npy", "\uff13.npy", "3.NPY", "3.npz"])
def test_a_name_with_other_zeros_or_wide_digits_is_proposed(
    pictures: Path, import_source: Import, written: str
) -> None:
    rows = [f"{written if number == 3 else f'{number}.npy'},{number % 2},p{number}" for number in range(12)]
    (pictures / "t.csv").write_text("\n".join(["file,label,subject", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match=r"did you mean 3\.npy\?"):
        import_source(pictures / "t.csv")

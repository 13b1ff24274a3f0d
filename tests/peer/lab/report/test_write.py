"""Whole reports of synthetic runs."""

import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from fakes.html_elements import PageParser
from fakes.json_documents import change_documents
from fakes.report_folders import link
from peer.errors import DiskError
from peer.lab.report.write import report

pytestmark = pytest.mark.e2e

ASD = {"paper": "FedSKD", "table": "II", "dataset": "FedASD", "setting": "heterogeneous"}


@pytest.fixture(scope="module")
def classified(runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A report of everything that a classification can have."""
    folder = runs(
        tmp_path_factory.mktemp("runs") / "out",
        folds=2,
        seeds=(0,),
        classes=2,
        sites=("central-us", "east-us", "europe", "west-us"),
        links=(link("all"), link("half", loss=0.5)),
        reference=ASD,
    )
    (folder / "runs/sites.heterogeneous.half.FedDAL.fold-1.seed-0/result.json").unlink()
    return folder, report(folder, folder / "report", resamples=20)


def test_the_page_is_one_file_that_fetches_nothing(classified: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = classified
    text = (folder / "report/index.html").read_text("utf-8")
    page = PageParser(text)
    assert page.stack == []
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "Synthetic runs &lt;&amp;&gt;" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_the_text_names_files_that_are_there(classified: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = classified
    text = (folder / "report/report.md").read_text("utf-8")
    named_files = re.findall(r"\]\(((?:pictures|tables)/[^)]+)\)", text)
    present = {str(path.relative_to(folder / "report")) for path in (folder / "report").glob("*/*")}
    assert set(named_files) == present
    assert "Synthetic runs \\<&\\>" in text


def test_every_picture_is_whole(classified: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = classified
    names = {path.stem for path in (folder / "report/pictures").glob("*.svg")}
    assert names == {
        "basis", "consensus", "cross-site", "distribution-sites", "experts-dflmoe", "features", "gain-accuracy-links",
        "gain-auc-links", "gain-institution", "gain-sex", "learning", "link-loss", "reliability", "similarity-fedskd",
        "target", "traffic",
    }  # fmt: skip
    for path in (folder / "report/pictures").glob("*.svg"):
        assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")


def test_every_table_has_its_csv(classified: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = classified
    names = {path.stem for path in (folder / "report/tables").glob("*.csv")}
    assert {"auc", "accuracy", "f1_macro", "paired", "bootstrap", "disconnection-links", "fairness-sex"} <= names
    assert {"cross-site", "traffic", "networks", "samples-sites", "methods", "runs"} <= names
    assert {"calibration", "room-auc", "worst-site", "target"} <= names
    lines = (folder / "report/tables/auc.csv").read_text().splitlines()
    assert lines[0].startswith("method,origin,Local Test: Mean,Local Test: Mean std,")
    (published,) = (line for line in lines if line.startswith("FedSKD (published),published,"))
    assert ",79.83,6.68," in published


def test_what_is_missing_is_said(classified: tuple[Path, dict[str, Any]]) -> None:
    folder, document = classified
    assert document["missing"] == ["sites.heterogeneous.half.FedDAL.fold-1.seed-0"]
    for name in ("index.html", "report.md"):
        text = (folder / "report" / name).read_text("utf-8")
        assert "31 of 32 runs are there." in text
        assert "sites.heterogeneous.half.FedDAL" in text


def test_the_document_has_the_main_table_as_numbers(classified: tuple[Path, dict[str, Any]]) -> None:
    _, document = classified
    (setting,) = document["results"]
    assert (setting["partition"], setting["models"]) == ("sites", "heterogeneous")
    methods = setting["methods"]["auc"]
    assert 0.5 < methods["FedSKD"]["global"] < methods["FedSKD"]["local"] < 1
    assert [table["title"] for table in setting["tables"]] == ["AUC, %", "Worst site and gap between sites, AUC, %"]
    assert document["over"] == "2 folds"


@pytest.mark.parametrize(
    ("kind", "picture"),
    [
        ("segmentation", "Segmentation"),
        pytest.param("super_resolution", "Super-resolution", marks=pytest.mark.nightly),
    ],
)
def test_dense_tasks_show_samples(make, kind: str, picture: str) -> None:
    folder = make(kind=kind, methods={"Local": "local", "dFLMoE": "dflmoe"}, seeds=(0,), insight=False)
    document = report(folder, folder / "report", resamples=10)
    assert picture in (folder / "report/report.md").read_text()
    assert (folder / "report/pictures/panels.svg").exists()
    assert document["metric"] in ("dice", "psnr")


def test_volumes_are_cut(make) -> None:
    folder = make(kind="segmentation", methods={"Local": "local"}, seeds=(0,), spatial_dims=3, insight=False)
    report(folder, folder / "report", resamples=0)
    assert "The slice with most foreground" in (folder / "report/report.md").read_text()
    assert not (folder / "report/tables/bootstrap.csv").exists()


@pytest.mark.nightly
def test_several_partitions_have_files_of_their_own_and_old_ones_go(make) -> None:
    folder = make(methods={"Local": "local"}, seeds=(0,), partitions=("a", "b"), insight=False)
    old = folder / "report/tables/auc.csv"
    old.parent.mkdir(parents=True)
    old.write_text("from before")
    (folder / "report/mine.txt").write_text("kept")
    report(folder, folder / "report", resamples=0)
    assert not old.exists()
    assert {"auc-a-heterogeneous.csv", "auc-b-heterogeneous.csv"} <= {path.name for path in old.parent.iterdir()}
    assert "### partition a" in (folder / "report/report.md").read_text()
    assert (folder / "report/mine.txt").exists()


def test_a_paper_that_prints_another_metric_is_shown_by_it_too(make) -> None:
    reference = {"paper": "dFLMoE", "table": "3", "dataset": "Sleep-EDF", "setting": "heterogeneous"}
    folder = make(kind="time_series", methods={"dFLMoE": "dflmoe"}, seeds=(0,), reference=reference, insight=False)
    (setting,) = report(folder, folder / "report", resamples=0)["results"]
    titles = [table["title"] for table in setting["tables"]]
    assert titles == ["AUC", "ACC", "MF1", "Worst site and gap between sites, AUC"]


def test_a_folder_that_cannot_be_made_is_named(make, tmp_path: Path) -> None:
    folder = make(methods={"Local": "local"}, seeds=(0,), insight=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="file/report cannot be written"):
        report(folder, tmp_path / "file" / "report", resamples=0)


def test_every_table_and_picture_is_also_there_for_a_manuscript_until_it_is_not_asked_for(make) -> None:
    folder = make(methods={"Local": "local"}, seeds=(0,), insight=False)
    report(folder, folder / "report", resamples=0, latex=True, pdf=True)
    files = {path.relative_to(folder / "report") for path in (folder / "report").glob("*/*")}
    for pair in ((".csv", ".tex"), (".svg", ".pdf")):
        first, second = ({path.with_suffix("") for path in files if path.suffix == suffix} for suffix in pair)
        assert first == second
        assert first
    report(folder, folder / "report", resamples=0)
    assert not {path for path in (folder / "report").glob("*/*") if path.suffix in (".tex", ".pdf")}


@pytest.mark.parametrize("counted", [("FedSKD",), ("Local", "FedSKD")])
def test_a_row_without_a_model_is_in_no_table_of_metrics_and_the_page_says_so(make, counted: tuple[str, ...]) -> None:
    folder = make(methods={"Local": "local", "FedSKD": "fedskd"}, seeds=(0,))
    for experiment in change_documents(folder, "experiment.json"):
        for label in counted:
            experiment["methods"][label] |= {"method": "statistics", "predicts": False, "rounds": 1}
    for label in counted:
        for result in change_documents(folder, f"runs/*.{label}.*/result.json"):
            result["matrix"] = {model: {site: {} for site in row} for model, row in result["matrix"].items()}
    written = report(folder, folder / "report", resamples=0)
    tables = {path.stem: path.read_text("utf-8") for path in (folder / "report/tables").glob("*.csv")}
    assert {name for name, text in tables.items() if "FedSKD" in text} == {"traffic", "methods", "runs"}
    assert ("auc" in tables) == ("Local" not in counted)
    assert len(written["results"]) == (0 if "Local" in counted else 1)
    said = f"Tables of a model's metrics leave out {', '.join(counted)}: no model is trained there."
    assert said in (folder / "report/report.md").read_text("utf-8")
    assert any(said in note for note in written["notes"])

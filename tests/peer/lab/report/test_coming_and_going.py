"""Members that come and go, beside a federation of which all were always members."""

import shutil
import statistics

import pytest

from fakes.report_folders import SETTING, TWO, compared, link
from peer.lab.report import lost_links
from peer.lab.report.coming_and_going import tables
from peer.lab.report.comparison import summarise_method
from peer.lab.report.contents import build_report
from peer.lab.report.results import read

pytestmark = pytest.mark.e2e

LATE = [{"from_round": 3, "add": ["asia"], "leave": [], "expel": []}]
LINKS = (link("all"), link("late", epochs=LATE))


def test_who_stayed_and_who_joined_late_each_beside_the_whole_federation(make) -> None:
    results, comparison = compared(make(methods=TWO, links=LINKS))
    (table,) = tables(results, SETTING, comparison, name="d")
    assert [column.name for column in table.columns] == ["always all", "late", "difference, points"] * 2
    assert [column.group for column in table.columns][3] == "Local Test of who joined late (asia)"
    others = [site for site in results.sites(SETTING) if site != "asia"]
    asia = summarise_method(results, SETTING, "FedSKD", "auc", links="late", without=others)
    (row,) = [row for row in table.rows if row.label == "FedSKD"]
    assert row.cells[4].value == pytest.approx(asia.local.mean.mean)
    always = summarise_method(results, SETTING, "FedSKD", "auc", without=others)
    differences = [after - before for before, after in zip(always.local.mean.folds, asia.local.mean.folds, strict=True)]
    mean = 100 * sum(differences) / len(differences)
    assert row.cells[5].value == pytest.approx(mean)
    assert row.cells[5].std == pytest.approx(100 * statistics.stdev(differences))
    assert table.notes[0] == "late: from round 3 on, asia joined."
    assert lost_links.tables(results, SETTING, comparison, name="d") == []


def test_a_method_that_sends_nothing_has_dashes_that_a_note_explains(make) -> None:
    folder = make(methods=TWO, links=LINKS)
    for run in folder.glob("**/*.late.Local.*"):
        shutil.rmtree(run)
    results, comparison = compared(folder)
    (table,) = tables(results, SETTING, comparison, name="d")
    (row,) = [row for row in table.rows if row.label == "Local"]
    assert [cell.value is None for cell in row.cells] == [False, True, True] * 2
    assert "Local: – where members come and go, since each site trains alone" in table.notes[2]


def test_they_have_a_section_of_their_own(make) -> None:
    titles: list[str] = []
    contents = build_report(read(make(methods=TWO, links=LINKS)), resamples=10, progress=titles.append)
    sections = {section.title: section.parts for section in contents.sections}
    assert "Members who join late and leave" in sections
    assert "Members who join late and leave" in titles
    assert "Disconnection" not in sections


def test_each_way_of_coming_and_going_has_a_table(make) -> None:
    early = [{"from_round": 2, "add": [], "leave": [], "expel": ["asia"]}]
    links = (*LINKS, link("early", epochs=early))
    results, comparison = compared(make(methods=TWO, links=links))
    built = tables(results, SETTING, comparison, name="d")
    assert [(table.name, len(table.columns)) for table in built] == [("d-late", 6), ("d-early", 3)]
    assert built[1].notes[0] == "early: from round 2 on, asia was expelled."


def test_an_undisturbed_experiment_has_none(make) -> None:
    results, comparison = compared(make(methods=TWO))
    assert tables(results, SETTING, comparison, name="d") == []

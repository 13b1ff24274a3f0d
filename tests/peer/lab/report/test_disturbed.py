"""Federations that are disturbed, beside the one that is not: by hand."""

import shutil
import statistics

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, TWO, compared, link, set_values, texts
from peer.lab.report import disturbed
from peer.lab.report.contents import build_report
from peer.lab.report.results import read

LOST = (link("all"), link("half", loss=0.5), link("gone", removed=["asia"]))
ACTS = (link("all"), link("gone", removed=["asia"]), link("flipped", insider="asia", act="signs"))
LATE = (link("all"), link("late", epochs=[{"from_round": 3, "add": ["asia"], "leave": [], "expel": []}]))
LEFT_OUT = (link("all"), *(link(f"leave-out-{site}", removed=[site], left_out=site) for site in ("a", "b", "c")))


def test_lost_links_by_share_and_removed_sites_beside_the_whole_federation(make) -> None:
    folder = make(methods=TWO, links=LOST, insight=False)
    lost = {"all": 0.8, "half": 0.7, "gone": 0.6}
    set_values(folder, lambda run, model, site: 0.0 if model == "asia" else lost[run["links"]])
    _, comparison = compared(folder)
    links, sites = (getattr(disturbed, name)(comparison, name="d") for name in ("lost_links", "removed_sites"))
    assert [column.name for column in links.columns] == ["none", "50%", "none", "50%"]
    assert list(texts(links)["FedSKD"].values())[:2] == ["0.600 ± 0.000", "0.525 ± 0.000"], "asia counts"
    assert [column.group for column in sites.columns] == ["Local Test, without asia"] * 2
    assert [cell.value for cell in sites.rows[1].cells] == pytest.approx([0.8, 0.6]), "without asia"
    assert disturbed.by_loss(comparison)["FedSKD"] == {0.0: pytest.approx((0.6, 0)), 0.5: pytest.approx((0.525, 0))}


def test_an_undisturbed_experiment_has_no_such_tables(make) -> None:
    _, comparison = compared(make(methods=TWO, insight=False))
    assert disturbed.lost_links(comparison, name="d") is None
    assert disturbed.removed_sites(comparison, name="d") is None
    assert disturbed.left_out_sites(comparison, name="d") is None
    assert [*disturbed.insiders(comparison, name="d"), *disturbed.coming_and_going(comparison, name="d")] == []


def test_lost_links_that_cost_steps_are_named(make) -> None:
    folder = make(methods=TWO, links=LOST, insight=False)
    for result in change_documents(folder, "runs/*.half.FedSKD.*/result.json"):
        for facts in result["sites"].values():
            facts["steps"] = 7
    _, comparison = compared(folder)
    (note,) = [note for note in disturbed.lost_links(comparison, name="d").notes if "steps" in note]
    assert note.startswith("FedSKD: a model that does not arrive is not trained in that round")
    assert "240, 7 optimiser steps" in note


def test_every_act_is_a_row_beside_the_federation_with_and_without_the_insider(make) -> None:
    folder = make(methods={"FedAvg": "fedavg", "FedSKD": "fedskd"}, links=ACTS, insight=False)
    harm = {"all": 0.0, "gone": 0.1, "flipped": 0.3}
    set_values(
        folder,
        lambda run, model, site: (0.8 if model != "asia" else 0.0) - harm[run["links"]] * (1 + run["seed"]),
    )
    _, comparison = compared(folder)
    shown, losses = disturbed.insiders(comparison, name="i")
    assert [row.label for row in shown.rows] == ["honest", "absent", "flipped (signs)"]
    assert [column.name for column in shown.columns] == ["FedAvg", "FedSKD"]
    assert [row.cells[1].value for row in shown.rows] == pytest.approx([0.8, 0.65, 0.35]), "of the honest sites"
    assert "asia is the insider" in shown.notes[0]
    assert texts(losses) == {"flipped (signs)": dict.fromkeys(("method: FedAvg", "method: FedSKD"), "0.300 (0.400)")}
    assert "where it never took part" in losses.notes[0]
    assert disturbed.lost_links(comparison, name="d") is None, "an insider is no lost link"


def test_what_a_backdoor_achieves_stands_beside_the_accuracy(make) -> None:
    folder = make(methods={"FedAvg": "fedavg", "FedSKD": "fedskd"}, links=ACTS, insight=False)
    for result in change_documents(folder, "runs/*.FedAvg.*/result.json"):
        for site, by_split in result["matrix"].items():
            by_split[site]["attack_success"] = (
                1.0 if site == "asia" else {"all": 0.1, "flipped": 0.5}.get(result["links"])
            )
    (shown, _) = disturbed.insiders(compared(folder)[1], name="i")
    assert [(column.group, column.name) for column in shown.columns] == [
        ("method", "FedAvg"),
        ("method", "FedSKD"),
        (disturbed.TAKEN, "FedAvg"),
    ]
    assert [row.cells[2].value for row in shown.rows] == [pytest.approx(0.1), None, pytest.approx(0.5)], (
        "of honest sites"
    )


def test_who_stayed_and_who_joined_late_each_beside_the_whole_federation(make) -> None:
    folder = make(methods=TWO, links=LATE, insight=False)
    values = {("all", 0): 0.8, ("all", 1): 0.9, ("late", 0): 0.7, ("late", 1): 0.85}
    set_values(folder, lambda run, model, _: values[run["links"], run["seed"]] - 0.1 * (model == "asia"))
    _, comparison = compared(folder)
    (table,) = disturbed.coming_and_going(comparison, name="d")
    assert [column.name for column in table.columns] == ["always all", "late", "difference, points"] * 2
    assert [column.group for column in table.columns][3] == "Local Test of who joined late (asia)"
    (row,) = [row for row in table.rows if row.label == "FedSKD"]
    assert [cell.value for cell in row.cells] == pytest.approx([0.85, 0.775, -7.5, 0.75, 0.675, -7.5])
    assert row.cells[5].std == pytest.approx(statistics.pstdev((-10, -5)))
    assert table.notes[0] == "late: from round 3 on, asia joined."
    assert disturbed.lost_links(comparison, name="d") is None


def test_a_method_that_sends_nothing_has_dashes_that_a_note_explains(make) -> None:
    folder = make(methods=TWO, links=LATE, insight=False)
    for run in folder.glob("**/*.late.Local.*"):
        shutil.rmtree(run)
    (table,) = disturbed.coming_and_going(compared(folder)[1], name="d")
    (row,) = [row for row in table.rows if row.label == "Local"]
    assert [cell.value is None for cell in row.cells] == [False, True, True] * 2
    assert "Local: – where members come and go, since each site trains alone" in table.notes[2]


@pytest.mark.e2e
def test_members_have_a_section_of_their_own(make) -> None:
    titles: list[str] = []
    contents = build_report(read(make(methods=TWO, links=LATE, insight=False)), resamples=10, progress=titles.append)
    sections = {section.title: section.parts for section in contents.sections}
    assert "Members who join late and leave" in sections
    assert "Members who join late and leave" in titles
    assert "Disconnection" not in sections


def test_each_way_of_coming_and_going_has_a_table(make) -> None:
    early = link("early", epochs=[{"from_round": 2, "add": [], "leave": [], "expel": ["asia"]}])
    _, comparison = compared(make(methods=TWO, links=(*LATE, early), insight=False))
    built = list(disturbed.coming_and_going(comparison, name="d"))
    assert [(table.name, len(table.columns)) for table in built] == [("d-late", 6), ("d-early", 3)]
    assert built[1].notes[0] == "early: from round 2 on, asia was expelled."


def test_the_other_sites_models_at_the_site_that_did_not_take_part(make) -> None:
    folder = make(methods=TWO, seeds=(0, 1), sites=("a", "b", "c"), links=LEFT_OUT, insight=False)
    for document in change_documents(folder, "runs/*/result.json"):
        left_out = document["links"].removeprefix("leave-out-")
        for model, row in document["matrix"].items():
            if document["links"] != "all":
                row[left_out] = {"auc": {"a": 0.6, "b": 0.7, "c": 0.8}[model] + 0.1 * document["seed"]}
            else:
                row |= {site: {"auc": 0.5 if site == model else 0.4} for site in "abc"}
    for path in folder.glob("runs/*leave-out*Local*"):  # `simulate` does not repeat these
        (path / "result.json").unlink()
    results, comparison = compared(folder)
    table = disturbed.left_out_sites(comparison, name="t")
    rows = {row.label: [cell.value for cell in row.cells] for row in table.rows}
    assert [column.name for column in table.columns] == ["a", "b", "c", "Mean"]
    assert rows["FedSKD"] == pytest.approx([0.80, 0.75, 0.70, 0.75])
    assert rows["Local"] == pytest.approx([0.4] * 4), "the models of the undisturbed runs"
    assert rows["Local, trained at the site itself"] == pytest.approx([0.5] * 4)
    assert results.select(SETTING, "Local", "leave-out-a") == []
    assert disturbed.removed_sites(comparison, name="t") is None

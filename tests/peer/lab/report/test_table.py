"""Cells, marks and CSV."""

import pytest

from peer.lab.report.table import Cell, Column, Table, TableRow, unit_of


def table(*rows: TableRow, better: str = "higher") -> Table:
    return Table("t", "T", "method", (Column("Mean", "Local Test", 2, better), Column("steps")), rows)


def row(label: str, value: float | None, **options: bool) -> TableRow:
    return TableRow(label, (Cell(value, 0.25), Cell(text="240")), **options)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell(0.12345), "0.123"),
        (Cell(12345.6, 0.04), "12,345.600 ± 0.040"),
        (Cell(), "–"),
        (Cell(1.0, mark="*"), "1.000*"),
        (Cell(text="5–6"), "5–6"),
    ],
)
def test_a_cell_as_a_person_reads_it(cell: Cell, expected: str) -> None:
    assert cell.format(3) == expected


def test_best_and_second_are_marked_and_equals_alike() -> None:
    ranked_table = table(row("a", 1.0), row("b", 3.0), row("c", 2.001), row("d", 1.999), row("e", None)).with_ranks()
    assert [ranked_row.cells[0].rank for ranked_row in ranked_table.rows] == [0, 1, 2, 2, 0]
    assert not any(ranked_row.cells[1].rank for ranked_row in ranked_table.rows)


def test_less_can_be_better() -> None:
    ranked_table = table(row("a", 1.0), row("b", 3.0), better="lower").with_ranks()
    assert [ranked_row.cells[0].rank for ranked_row in ranked_table.rows] == [1, 2]


def test_published_and_unranked_rows_do_not_compete() -> None:
    ranked_table = table(
        row("a", 9.0, published=True), row("b", 8.0, ranked=False), row("c", 2.0), row("d", 1.0)
    ).with_ranks()
    assert [ranked_row.cells[0].rank for ranked_row in ranked_table.rows] == [0, 0, 1, 2]


def test_one_value_has_nothing_to_be_better_than() -> None:
    assert table(row("a", 1.0)).with_ranks().rows[0].cells[0].rank == 0


def test_csv_has_all_digits_and_the_deviation_beside() -> None:
    text = table(row("a, b", 1 / 3), row("c", None, published=True)).csv()
    assert text.splitlines() == [
        "method,origin,Local Test: Mean,Local Test: Mean std,steps",
        '"a, b",here,0.3333333333333333,0.25,240',
        "c,published,,0.25,240",
    ]


def test_groups_are_neighbours() -> None:
    columns = tuple(Column("x", group) for group in ("a", "a", "", "a"))
    assert Table("t", "T", "h", columns, ()).groups == [("a", 2), ("", 1), ("a", 1)]


def test_shares_are_shown_as_the_paper_beside_them_does() -> None:
    assert unit_of("auc").axis == "AUC"
    percent = unit_of("auc", "percent")
    assert (percent.axis, percent.factor, percent.digits) == ("AUC, %", 100, 2)
    assert (unit_of("dice", "fraction").axis, unit_of("dice", "fraction").digits) == ("Dice", 4)


def test_decibels_stay_decibels() -> None:
    assert unit_of("psnr", "percent") == unit_of("psnr")
    assert unit_of("psnr").axis == "PSNR, dB"


def test_an_unknown_metric_has_its_own_name() -> None:
    assert unit_of("dice_2").axis == "dice_2"

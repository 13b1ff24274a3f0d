"""Markdown of tables and words."""

from peer.lab.report.contents import ReportContents, Section
from peer.lab.report.markdown import render_markdown
from peer.lab.report.table import Cell, Column, Table, TableRow


def test_the_best_is_bold_the_second_underlined_and_signs_are_no_markup() -> None:
    rows = (
        TableRow("a|b", (Cell(0.9, mark="*", rank=1),)),
        TableRow("mh_pflid", (Cell(0.8, 0.1, rank=2),)),
        TableRow("c (published)", (Cell(),), published=True),
    )
    table = Table("t", "T", "method", (Column("Mean", "Local Test", 2),), rows, ("p < 0.05",))
    text = render_markdown(
        ReportContents("A *title*", ("Run `mhfl-peer a_b`.",), ("1 of 2 runs are there.",), (Section("S", (table,)),))
    )
    assert text.splitlines() == [
        "# A \\*title\\*",
        "",
        "Run `mhfl-peer a_b`.",
        "",
        "1 of 2 runs are there.",
        "",
        "## S",
        "",
        "**T** ([CSV](tables/t.csv))",
        "",
        "| method | Local Test: Mean |",
        "|---|---:|",
        "| a\\|b | **0.90\\*** |",
        "| mh\\_pflid | <u>0.80 ± 0.10</u> |",
        "| *c (published)* | – |",
        "",
        "p \\< 0.05",
    ]

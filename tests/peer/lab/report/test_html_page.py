"""HTML of tables and words."""

from peer.lab.report.contents import ReportContents, Section
from peer.lab.report.html_page import LONG_ROWS, render_html
from peer.lab.report.table import Cell, Column, Table, TableRow


def page(*rows: TableRow, missing: tuple[str, ...] = ("2 of 2 runs are there.",)) -> str:
    columns = (Column("Mean", "Local Test", 2), Column("model"))
    table = Table("t", "T", "method", columns, rows, ("p < 0.05",))
    return render_html(
        ReportContents("T & U", (), missing, (Section("Every one", (table, "Run `a<b`.")),)), version="1.2.3"
    )


def test_marks_are_classes_and_everything_is_escaped() -> None:
    text = page(
        TableRow("<x>", (Cell(0.9, rank=1), Cell(text="resnet10"))),
        TableRow("y", (Cell(0.8, 0.1, rank=2), Cell(text="unet")), published=True),
    )
    assert "<title>T &amp; U</title>" in text
    assert '<tr><td>&lt;x&gt;</td><td class="first best">0.90</td><td class="first text">resnet10</td></tr>' in text
    assert '<tr class="published"><td>y</td><td class="first second">0.80&thinsp;±&thinsp;0.10</td>' in text
    assert "p &lt; 0.05" in text
    assert "Run <code>a&lt;b</code>." in text
    assert '<a href="#every-one">' in text
    assert "1.2.3" in text


def test_long_tables_are_folded_away() -> None:
    rows = [TableRow(str(index), (Cell(1.0), Cell(text="resnet10"))) for index in range(LONG_ROWS + 1)]
    assert "<details>" in page(*rows)
    assert "<details>" not in page(*rows[1:])


def test_what_is_missing_stands_out() -> None:
    assert '<div class="missing">' not in page()
    assert '<div class="missing"><p>1 of 2 runs are there.</p><p>Missing: one.</p></div>' in page(
        missing=("1 of 2 runs are there.", "Missing: one.")
    )

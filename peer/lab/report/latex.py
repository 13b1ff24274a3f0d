r"""The report's tables as LaTeX for ``\input``, with the rules of the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from peer.lab.report.table import BEST, SECOND, Cell, Table

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "α": r"$\alpha$",
    "<": "$<$",
    ">": "$>$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
"""Characters that LaTeX does not print as they are, and their commands."""
STYLES = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}"}


def render_latex(table: Table) -> str:
    """Return a ``tabular`` of the table; title and notes are comments above it."""
    lines = [f"% {text}" for text in (table.title, *table.notes, r"needs \usepackage{booktabs}")]
    lines += [r"\begin{tabular}{l" + "r" * len(table.columns) + "}", r"\toprule"]
    if any(group for group, _ in table.groups):
        lines += [_line("", *(rf"\multicolumn{{{width}}}{{c}}{{{_escape(group)}}}" for group, width in table.groups))]
        lines += ["".join(_group_rules(table))]
    lines += [_line(_escape(table.head), *(_escape(column.name) for column in table.columns)), r"\midrule"]
    for row in table.rows:
        label = rf"\textit{{{_escape(row.label)}}}" if row.published else _escape(row.label)
        cells = (_cell(cell, column.digits) for cell, column in zip(row.cells, table.columns, strict=True))
        lines.append(_line(label, *cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _group_rules(table: Table) -> Iterator[str]:
    first = 2  # after the label
    for group, width in table.groups:
        if group:
            yield rf"\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width


def _cell(cell: Cell, digits: int) -> str:
    text = re.sub(r"^-(?=\d)", "−", cell.format(digits))
    return STYLES.get(cell.rank, "%s").replace("%s", _escape(text))


def _line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)

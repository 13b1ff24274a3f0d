"""Tables for LaTeX: groups, marks and escaped texts."""

from peer.lab.report.latex import render_latex
from peer.lab.report.table import Cell, Column, Table, TableRow

TABLE = Table(
    "auc",
    "AUC",
    "method",
    (Column("site_1", "Local Test", 2, "higher"), Column("Mean", "Local Test", 2), Column("share, %")),
    (
        TableRow("FedAvg & co", (Cell(0.5, 0.25), Cell(-0.5), Cell(text="5–6"))),
        TableRow("FedSKD", (Cell(0.75, 0.125, mark="*"), Cell(), Cell(text="a~b"))),
        TableRow("FedSKD (published)", (Cell(0.9), Cell(), Cell(text="")), published=True),
    ),
    ("Mean over 2 seeds.",),
).with_ranks()


def test_a_table_is_what_booktabs_expects() -> None:
    assert render_latex(TABLE).splitlines() == [
        "% AUC",
        "% Mean over 2 seeds.",
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{Local Test} & \multicolumn{1}{c}{} \\",
        r"\cmidrule(lr){2-3}",
        r"method & site\_1 & Mean & share, \% \\",
        r"\midrule",
        r"FedAvg \& co & \underline{0.50 $\pm$ 0.25} & $-$0.50 & 5--6 \\",
        r"FedSKD & \textbf{0.75 $\pm$ 0.12*} & -- & a\textasciitilde{}b \\",
        r"\textit{FedSKD (published)} & 0.90 & -- &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_table_without_groups_has_one_line_of_heads() -> None:
    plain = Table("t", "T", "run", (Column("seconds"),), (TableRow("{x}^2\\", (Cell(text="#1 <2"),)),))
    assert render_latex(plain).splitlines()[3:] == [
        r"\toprule",
        r"run & seconds \\",
        r"\midrule",
        r"\{x\}\textasciicircum{}2\textbackslash{} & \#1 $<$2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]

"""The program's lines stay within a budget, which only an issue that adds features raises, by its name.

An issue that raises it says in its closing note which lines its features made unnecessary.
"""

from collections.abc import Iterable
from pathlib import Path

BUDGET = {
    "The same house with less in it": (73_550, 81_400),
    "A hospital's day without a wrong image, a wrong class, or a wrong culprit": (5_130, 4_060),
    "Real hospitals: tables, survival, statistics, and a demonstration with their names": (6_060, 4_640),
    "Private by measure": (7_580, 9_000),
    "The truth in fifteen minutes: a suite that is fast, whole and never wrong about the machine": (250, 30),
    "Take the whole room: FedVisit above the simple rival everywhere, and every row of the papers": (1_510, 1_230),
}
"""Lines of source and of tests, as formatted at 120 columns, without generated code."""


def count_lines(root: Path, files: Iterable[Path], *packages: str) -> int:
    paths = [
        root / path for path in files if path.suffix == ".py" and path.parts[0] in packages and "pb" not in path.parts
    ]
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def test_source_and_tests_are_within_their_budget(root: Path, files: list[Path]) -> None:
    source, tests = map(sum, zip(*BUDGET.values(), strict=True))
    assert count_lines(root, files, "peer", "models", "losses") <= source
    assert count_lines(root, files, "tests") <= tests

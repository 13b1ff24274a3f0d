"""The mutants of a tiny package: what each operator makes, and which of them its tests notice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mutants.changes import Program
from mutants.contexts import PACKAGES, merge

RUN = Path(__file__).with_name("run.py")
SAMPLE = '''"""A module."""
LIMIT = 3


def bounded(count: int) -> bool:
    """Whether the count is allowed."""
    return count < LIMIT


def untested(count: int) -> int:
    return count + 1


def half_tested(count: int) -> list[int]:
    counts = [count]
    counts.append(1)
    return counts
'''
TESTS = """import pytest
from peer.core import sample

@pytest.fixture(scope="module")
def shared():
    return sample.half_tested(5)

@pytest.mark.parametrize("count", [2, 3], ids=["odd id ]:: é", "other"])
def test_bounded(count):
    assert sample.bounded(count) is (count < 3)

def test_nothing(shared):
    pass

def test_first(shared):
    assert shared[0] == 5

def test_wrong():
    assert sample.bounded(2) is None
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b  # é", ["comparison: (a <= b)  # é"]),
        ("'é', a not in b", ["comparison: 'é', (a in b)"]),
        ("a is b != c", ["comparison: (a is not b != c)", "comparison: (a is b == c)"]),
        ("not (a and b)", ["not: (a and b)", "and/or: not ((a or b))"]),
        ("a * (b - c)", ["arithmetic: (a // (b - c))", "arithmetic: a * ((b + c))"]),
        ("a + 'text' + f'{b + 1}'", []),
        ("f(1, 0.5)", ["number: f(2, 0.5)", "number: f(1, 1.5)", "statement: pass"]),
        ("x = True", ["boolean: x = False"]),
        ("if a:\n    b", ["condition: if True:\n    b", "condition: if False:\n    b"]),
        ("while True:\n    break", ["condition: while False:\n    break", "loop: while True:\n    continue"]),
        ("[a for a in b if a]", ["condition: [a for a in b if True]", "condition: [a for a in b if False]"]),
        ("a if b else c", ["condition: a if True else c", "condition: a if False else c"]),
        ("del a\nb += c", ["statement: pass\nb += c", "statement: del a\npass"]),
        ("raise a(\r\n    b,\r\n)\r\n", ["statement: pass\r\n"]),
        ("def f():\n    return a", ["return: def f():\n    return None"]),
        ("def f():\n    return None", []),
        ("x = min(a.any(b), all(c))", ["call: x = max(a.any(b), all(c))", "call: x = min(a.any(b), any(c))"]),
        ("'''1 + 1'''\nx: Annotated[int, 1]\n@f(1)\nclass A: pass\n__all__ = a + b", []),
        ("if TYPE_CHECKING:\n    f()\nlog.info('x', extra={'y': a + 1})\nlogger.debug(a < b)", []),
    ],
)
def test_an_operator_changes_its_node_and_no_other_byte(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "module.py").write_bytes(text.encode())
    program = Program(tmp_path, ["."])
    changed = {mutant: mutant.apply(text.encode()).decode() for mutant in program.mutants.values()}
    assert sorted(f"{mutant.operator}: {code}" for mutant, code in changed.items()) == sorted(expected)
    for code in changed.values():
        compile(code, "module.py", "exec")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with one module, its tests, and what notes their lines."""
    folder = tmp_path / "checkout"
    (folder / "peer" / "core").mkdir(parents=True)
    (folder / "peer" / "__init__.py").touch()
    (folder / "peer" / "core" / "__init__.py").touch()
    (folder / "peer" / "core" / "sample.py").write_text(SAMPLE)
    (folder / "tests" / "mutants").mkdir(parents=True)
    (folder / "tests" / "test_sample.py").write_text(TESTS)
    shutil.copy(RUN.with_name("contexts.py"), folder / "tests" / "mutants")
    options = "--import-mode=importlib -p no:hypothesispytest -p no:anyio -p no:asyncio"
    (folder / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\naddopts = '{options}'\n")
    return folder


def run(project: Path, command: str, *words: object, status: int = 0) -> str:
    """The output of a command."""
    call = [sys.executable, str(RUN), command, "--root", str(project), "--jobs", "1", *map(str, words)]
    finished = subprocess.run(call, capture_output=True, text=True, check=False)
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout


def outcomes(path: Path) -> dict[str, tuple[str, str]]:
    """New text -> outcome and the test that failed."""
    return {record["after"].strip(): (record["outcome"], record["nodeid"]) for record in json.loads(path.read_text())}


@pytest.mark.e2e
def test_what_a_test_notices_is_killed_and_an_interrupted_run_goes_on(project: Path, tmp_path: Path) -> None:
    notes, out, program = tmp_path / "notes", tmp_path / "out.json", Program(project, PACKAGES)
    table = run(project, "contexts", "--out", notes, status=1)
    assert "4 tests that pass run 4 lines of functions; 0 have one test only" in table
    users = merge(notes, program.functions).tests({"peer/core/sample.py": 1 << 15})
    assert users == {"tests/test_sample.py::test_nothing", "tests/test_sample.py::test_first"}

    count = len(program.mutants)
    mutants: tuple[Any, ...] = ("--contexts", notes, "--count", count, "--out", out)
    run(project, "mutants", *mutants)
    ends = outcomes(out)
    assert ends["return (count <= LIMIT)"] == ("killed", "tests/test_sample.py::test_bounded[other]")
    assert ends["LIMIT = 4"][0] == "killed"
    assert ends["return None"][0] == "killed"
    assert ends["pass"] == ("survived", "")
    assert ends["return (count - 1)"] == ("not covered", "")

    whole = json.loads(out.read_text())
    out.write_text(json.dumps(whole[:-2]))
    rest = run(project, "mutants", *mutants)
    assert f"{count - 1}/{count} " in rest
    assert f"{count - 2}/{count} " not in rest
    assert outcomes(out) == ends

    tests = project / "tests" / "test_sample.py"
    tests.write_text(tests.read_text().replace("    pass", "    assert len(shared) == 2"))
    again = run(project, "mutants", "--contexts", notes, "--again", out, "--out", tmp_path / "again.json")
    assert "peer/core/sample.py:16 was survived, is killed" in again

"""A skip is said, and in CI it is an error."""

import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPPED = 'import pytest\ndef test_it() -> None:\n    pytest.skip("there is no moon")\n'


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("1", 1)])
def test_a_skip_that_no_file_lists_fails_in_ci_and_is_said(tmp_path: Path, ci: str, status: int) -> None:
    for name in ("conftest.py", "skips.toml"):
        shutil.copy(TESTS / name, tmp_path)
    (tmp_path / "test_moon.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-r", "s", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(TESTS)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.returncode, "there is no moon" in ran.stdout) == (status, True), ran.stdout
    assert ("tests/skips.toml" in ran.stdout) == bool(status)


def test_the_list_names_files_that_exist_and_skip(root: Path) -> None:
    skips = tomllib.loads((TESTS / "skips.toml").read_text("utf-8"))
    listed = [*skips["anywhere"], *skips["without_root"]["files"]]
    listed += itertools.chain(*skips["without"].values(), *skips["without_data"].values())
    assert [path for path in listed if "skip" not in (root / path).read_text("utf-8")] == []

"""`bugreport` says what it would write, asks, and writes one file."""

import stat
import zipfile
from pathlib import Path

import pytest

from fakes.cli import refused_in_one_line, run, run_json

pytestmark = pytest.mark.usefixtures("at_home")


def test_it_lists_and_asks_before_it_writes(tmp_path: Path) -> None:
    out = tmp_path / "asia.zip"
    words = ("bugreport", "--site", "asia", "--out", out)
    refused = run(*words, answer="n\n")
    assert (refused.exit_code, out.exists()) == (130, False)
    assert "versions.json" in refused.stdout
    for answer in ("n\n", ""):
        assert f"{out} was not written; answer y, or give --yes" in run(*words, answer=answer).stderr
    accepted = run(*words, answer="y\n")
    assert (accepted.exit_code, stat.S_IMODE(out.stat().st_mode)) == (0, 0o600)
    assert accepted.stdout.index("versions.json") < accepted.stdout.index("is written")
    assert "exists" in refused_in_one_line("StateError", *words)


def test_scripts_say_yes(tmp_path: Path) -> None:
    out = tmp_path / "asia.zip"
    words = ("bugreport", "--site", "asia", "--out", out)
    assert "add --yes" in refused_in_one_line("UsageError", *words, "--json")
    document = run_json(*words, "--yes")
    with zipfile.ZipFile(out) as archive:
        assert [member["name"] for member in document["members"]] == archive.namelist()

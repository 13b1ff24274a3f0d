"""Shell completion: what is offered where, how little is loaded for it, and that bash takes the script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from peer.cli import COMMANDS, PROGRAM, main
from peer.cli.completion import SHELLS, VARIABLE

ROOT = Path(__file__).parents[3]


def offered(line: str) -> list[str]:
    """What a shell offers at the end of this line."""
    *words, incomplete = line.split(" ")
    found = ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(words, incomplete)
    return [item.value for item in found]


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with ``asia`` in one federation and ``europe`` in two."""
    for name in ("trial/asia", "trial/europe", "study/europe"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "federation.toml").touch()
    monkeypatch.setenv("MHFL_HOME", str(tmp_path))
    return tmp_path


# --- what is offered -------------------------------------------------------------------------------------------------
def test_every_command_is_offered_with_its_help() -> None:
    assert offered("") == list(COMMANDS)
    found = ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions([], "rou")
    assert [(item.value, item.help) for item in found] == [("rounds", COMMANDS["rounds"][1])]


def test_options_and_their_values_are_offered() -> None:
    assert offered("--h") == ["--home", "--help"]
    assert offered("plan --r") == ["--rounds"]
    assert offered("start --resume r") == ["require"]
    assert offered("completion ") == list(SHELLS)
    assert offered("federation ad") == ["admit"]


def test_a_site_is_offered_by_the_name_that_finds_it(sites: Path) -> None:
    assert offered("status --site ") == ["asia", "study/europe", "trial/europe"]
    assert offered("status --site tri") == ["trial/europe"]
    assert offered("status --site trial/") == ["trial/asia", "trial/europe"]


def test_the_home_that_was_typed_counts(sites: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    (other / "trial" / "africa").mkdir(parents=True)
    (other / "trial" / "africa" / "federation.toml").touch()
    assert offered(f"--home {other} rounds --site ") == ["africa"]
    assert offered(f"rounds --home {other} --site ") == ["africa"]


def test_a_home_that_is_not_there_offers_no_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHFL_HOME", str(tmp_path / "nowhere"))
    assert offered("status --site ") == []


# --- scripts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_calls_the_program_back(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in result.stdout
    assert PROGRAM in result.stdout


def test_a_shell_that_is_not_known_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


# --- in a shell ------------------------------------------------------------------------------------------------------
def test_bash_completes_commands_and_sites(sites: Path, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m peer.cli "$@"\n')
    program.chmod(0o755)
    ask = """
    eval "$(mhfl-peer completion bash)"
    function_of() { complete -p mhfl-peer | sed 's/.*-F \\([^ ]*\\).*/\\1/'; }
    COMP_WORDS=(mhfl-peer ev) COMP_CWORD=1
    "$(function_of)" mhfl-peer; echo "${COMPREPLY[@]}"
    COMPREPLY=() COMP_WORDS=(mhfl-peer status --site as) COMP_CWORD=3
    "$(function_of)" mhfl-peer; echo "${COMPREPLY[@]}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["evaluation events", "asia"]


def test_names_are_completed_without_loading_the_commands() -> None:
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": f"{PROGRAM} s", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "peer.cli"],
        cwd=ROOT,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plain,status" in done.stdout.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    ours = {name for name in loaded if name.partition(".")[0] == "peer"}
    assert ours == {"peer", "peer.cli", "peer.errors"}
    assert not loaded & {"cryptography", "grpc", "numpy", "pydantic", "rich", "torch"}

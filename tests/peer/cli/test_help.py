"""`help`: the operator's pages in a terminal, help of commands, suggestions of names."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from fakes.cli import ROOT
from fakes.cli import run as call
from peer.cli import PROGRAM, main
from peer.cli.completion import VARIABLE
from peer.cli.help import TOPICS


def run(*words: str) -> Result:
    return call("help", *words)


def complete(line: str) -> list[str]:
    """The words that a shell offers at the end of this line."""
    *words, incomplete = line.split(" ")
    return [item.value for item in ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(words, incomplete)]


def test_every_page_is_a_topic() -> None:
    pages = {path.relative_to(ROOT / "deploy").as_posix() for path in (ROOT / "deploy").rglob("*.md")}
    assert pages - {"examples/plugin/README.md"} == set(TOPICS.values()), "the example package has a README of its own"


def test_topics_are_listed_with_their_titles() -> None:
    result = run()
    assert result.exit_code == 0
    assert all(topic in result.stdout for topic in TOPICS)
    assert "What leaves a site, and how to verify it" in result.stdout


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_is_drawn_with_nothing_that_a_terminal_cannot_follow(topic: str) -> None:
    result = run(topic)
    assert result.exit_code == 0
    assert (ROOT / "deploy" / TOPICS[topic]).read_text().partition("\n")[0].removeprefix("# ") in result.stdout
    assert not [line for line in result.stdout.splitlines() if "](" in line or ".md#" in line]


def test_a_link_to_a_page_names_its_topic_and_a_link_to_a_file_its_path() -> None:
    shown = run("operate").stdout
    assert "mhfl-peer help site" in shown
    assert "mhfl-peer help prometheus" in shown
    assert "deploy/Dockerfile" in " ".join(shown.split())


def test_a_topic_that_is_also_a_command_says_so() -> None:
    assert run("site").stdout.rstrip().endswith("`mhfl-peer site --help` explains the command of this name.")
    assert "explains the command" not in run("audit").stdout


def test_the_help_of_a_command_is_that_of_its_option() -> None:
    own = CliRunner().invoke(main, ["data", "prepare", "lidc", "--help"], prog_name=PROGRAM).stdout
    assert run("data", "prepare", "lidc").stdout == own


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["audi"], "did you mean 'audit'?"),
        (["statsu"], "did you mean 'status'?"),
        (["federation", "crate"], "did you mean 'create'?"),
        (["audit", "verify"], "no topic or command 'audit verify'"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(words: list[str], hint: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_scripts_get_the_text() -> None:
    listed = json.loads(run("--json").stdout)
    assert [page["topic"] for page in listed] == list(TOPICS)
    (page,) = json.loads(run("audit", "--json").stdout)
    assert page["text"] == (ROOT / "deploy" / "audit.md").read_text()
    (command,) = json.loads(run("site", "init", "--json").stdout)
    assert command["topic"] == "site init"
    assert command["text"].startswith("Usage: mhfl-peer site init")


def test_topics_and_commands_are_completed() -> None:
    assert {"audit", "operate", "rounds"} <= set(complete("help "))
    assert complete("help refe") == ["reference"]
    assert {"admit", "create", "show"} <= set(complete("help federation "))
    assert complete("help nothing ") == []


def test_a_terminal_gets_a_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\nprintf %s "$LESS" > {tmp_path}/options\ncat > {tmp_path}/paged\n')
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("LESS", "NO_COLOR")}
    environment |= {"PAGER": str(pager), "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "peer.cli", "help", "audit"]
    try:
        subprocess.run(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, timeout=60, check=True)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "The ledger" in (tmp_path / "paged").read_text()
    assert "\x1b[" in (tmp_path / "paged").read_text()
    assert (tmp_path / "options").read_text() == "FRX"

"""The program as a whole: errors of one line, and commands listed without their import."""

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fakes.cli import PROGRAM, ROOT
from fakes.cli import run as call
from peer.cli import COMMANDS, _report, main
from peer.errors import ConfigError, DiskError, Interrupted, UsageError, WorkerFailed

FEDERATION = ROOT / "deploy" / "examples" / "federation.toml"
OWN = ("federation", "site")


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = call(*arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command_in_order() -> None:
    code, output, _ = run("--help")
    assert code == 0
    listed = re.findall(r"^  ([a-z]+) {2,}\S", output, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert run() == (0, output, "")


def test_help_imports_no_command() -> None:
    script = """
import sys
from peer.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"pydantic", "cryptography", "rich", "grpc", "torch", "monai", "numpy", "sqlite3"}
    loaded = {name.partition(".")[0] for name in sys.modules}
    print(sorted(heavy & loaded), [name for name in sys.modules if name.startswith("peer.cli.")])
"""
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()[-1]
        == "[] []"
    )


@pytest.mark.parametrize("name", OWN)
def test_listed_help_is_the_commands_own(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert (command.help or "").startswith(COMMANDS[name][1])


def test_version() -> None:
    code, output, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"mhfl-peer, version \S+\n", output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hme", "x"], "No such option '--hme'.*; see `mhfl-peer --help`"),
        (["site", "join"], "Missing argument 'BUNDLE'; see `mhfl-peer site join --help`"),
        (["federation", "admit", "/dev/null"], "Missing option '--ca'; see `mhfl-peer federation admit --help`"),
        (["--home"], "Option '--home' requires an argument; see `mhfl-peer --help`"),
        (
            ["federation", "admit", "--ca"],
            "Option '--ca' requires .* `mhfl-peer federation admit --help`",
        ),
        (
            ["federation", "create", "/dev/null", "--out", "y", "--days", "0"],
            "Invalid value for '--days': 0 is not in.*",
        ),
    ],
)
def test_wrong_calls_are_one_line(arguments: list[str], message: str) -> None:
    code, output, error = run(*arguments)
    assert (code, output) == (2, "")
    assert re.fullmatch(f"mhfl-peer: {message}\n", error)


@pytest.mark.parametrize(
    "arguments",
    [
        "federation create",
        "federation show",
        "federation approve",
        "federation enact",
        "federation admit",
        "federation amend --ca ca --request",
        "site init --federation",
        "site join",
        "relay init --federation",
        "relay join",
        "relay amend",
        "restore",
        "data validate",
        "data import",
        "egress verify --file",
        "evidence --verify",
        "simulate",
        "report",
    ],
)
def test_a_file_that_does_not_exist_has_one_exit_code(arguments: str) -> None:
    code, output, error = run(*arguments.split(), "nosuch.json")
    assert (code, output) == (2, "")
    assert "'nosuch.json' does not exist" in error


@pytest.mark.parametrize(
    "arguments",
    [["--debug", "federation", "show"], ["federation", "--debug", "show"], ["federation", "show", "--debug"]],
)
def test_debug_shows_the_traceback_and_keeps_the_code(arguments: list[str], tmp_path: Path) -> None:
    code, _, error = run(*arguments, tmp_path / "missing.toml")
    assert code == 2
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("mhfl-peer: ")


def test_group_without_command_shows_its_help() -> None:
    code, _, error = run("federation")
    assert code == 2
    assert "admit" in error


def test_bugs_are_called_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(KeyError("x\ny"), debug=False) == 1
    assert capsys.readouterr().err == (
        "mhfl-peer: internal error: KeyError: 'x\\ny'; run it again with --debug and report the traceback\n"
    )


def test_other_click_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(click.FileError("name", "no such file"), debug=False) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert _report(ConfigError("a", "b"), debug=False) == 3
    assert capsys.readouterr().err == "mhfl-peer: a; b\n"


def test_ctrl_c_in_another_error_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(RuntimeError("Error building `model`:\n  KeyboardInterrupt: "), debug=False) == Interrupted.exit_code
    assert capsys.readouterr().err.startswith("mhfl-peer: interrupted")
    wrapped = RuntimeError("Error calling __set_name__ on 'Proxy' instance 'keys' in 'Table'")
    wrapped.__cause__ = KeyboardInterrupt()
    assert _report(wrapped, debug=False) == Interrupted.exit_code
    assert _report(WorkerFailed("the worker ended with KeyboardInterrupt"), debug=False) == WorkerFailed.exit_code


def test_keyboard_interrupt_is_130(tmp_path: Path) -> None:
    """A named pipe instead of a file keeps the command waiting until the signal comes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*PROGRAM, "federation", "show", str(pipe)]
    # A shell that runs the tests in the background makes them ignore the signal, and children
    # inherit that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as child:
        with pipe.open("wb"):  # returns once the command has opened the other end
            child.send_signal(2)
            assert child.stderr.read().strip() == "mhfl-peer: interrupted; run it again"
        assert child.wait() == 130


def test_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "federation", "show", str(FEDERATION), "--json"]
    result = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_full_disk_under_the_output_is_said_and_one_under_the_console_keeps_the_exit_code() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([*PROGRAM, "methods"], stdout=full, stderr=subprocess.PIPE, check=False)
        lost = subprocess.run([*PROGRAM, "--debug", "no-command"], stdout=full, stderr=full, check=False)
    assert (result.returncode, lost.returncode) == (DiskError.exit_code, UsageError.exit_code)
    message = "mhfl-peer: the output or another file: No space left on device"
    assert result.stderr.decode() == f"{message}; {DiskError.usual_remedy}\n"


def test_a_closed_output_is_said_and_signs_that_it_cannot_show_are_replaced(tmp_path: Path) -> None:
    program = shlex.join(PROGRAM)
    closed = subprocess.run(["sh", "-c", f"{program} methods >&-"], cwd=ROOT, stderr=subprocess.PIPE, check=False)
    assert closed.returncode == DiskError.exit_code
    assert closed.stderr.decode().startswith("mhfl-peer: the output or another file: the output is closed")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    table = subprocess.run([*PROGRAM, "methods"], cwd=ROOT, env=ascii_only, capture_output=True, check=False)
    assert (table.returncode, table.stderr) == (0, b"")
    assert b"fedskd" in table.stdout


def test_shared_options_stand_anywhere(tmp_path: Path) -> None:
    draft = tmp_path / "ca"
    assert run("federation", "create", FEDERATION, "--out", draft)[0] == 0
    for number, positions in enumerate(([0], [1], [2])):
        home = tmp_path / str(number)
        words: list[str | Path] = ["site", "init", "--federation", draft / "federation.toml", "--site", "asia"]
        for index in positions:
            words[index:index] = ["--home", home]
        assert run(*words, "--out", tmp_path / f"{number}.csr")[0] == 0
        assert (home / "fedasd" / "asia" / "site.toml").exists()

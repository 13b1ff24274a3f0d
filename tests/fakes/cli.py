"""The program as its users call it: in this process, or in a process of its own; and its tables as text."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from rich.console import Console

from peer.cli import main
from peer.errors import EXIT_CODES

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "peer.cli")


def run(*words: object, answer: str = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=answer)


def run_json(*words: object, answer: str = "") -> Any:
    """The document of a call that succeeds."""
    result = run(*words, "--json", answer=answer)
    expected = (0, result.stderr if answer else "")
    assert (result.exit_code, result.stderr) == expected, f"exit code {result.exit_code}: {result.output}"
    return json.loads(result.stdout)


def refused(error: str, *words: object, answer: str = "") -> str:
    """What a call says that ends with the exit code of this error, and prints no document."""
    result = run(*words, answer=answer)
    assert (EXIT_CODES[result.exit_code].name, result.stdout) == (error, ""), result.stderr
    return result.stderr


def refused_in_one_line(error: str, *words: object) -> str:
    line = refused(error, *words)
    assert line.count("\n") == 1
    return line


def run_process(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, words)]
    settings = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, "check": False}
    return subprocess.run(command, **{**settings, **options})


def drawn(value: Any, *, width: int = 160) -> str:
    """What a terminal of this width shows."""
    out = io.StringIO()
    Console(file=out, width=width).print(value)
    return out.getvalue()

"""A page of what operators type and commands print, which a test of real daemons writes."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.cli import run
from peer.errors import EXIT_CODES
from peer.site.config.site_folder import write_atomically


class Transcript:
    """The commands of one run, as the operators see them.

    Args:
        home: the sites' folder; the page shows it as the working folder's.
        title: the head of the page.
        call: calls a command; the answer has exit code, standard output and standard error.
    """

    def __init__(self, home: Path, title: str, call: Callable[..., Any] = run) -> None:
        self._home, self._page, self._call = home, [title], call

    @property
    def page(self) -> str:
        return "".join(self._page)

    def say(self, title: str, text: str) -> None:
        """Begin a section."""
        self._page.append(f"\n## {title}\n\n{text}\n")

    def append(self, text: str) -> None:
        self._page.append(text)

    def type(self, *words: object, shown: int | None = None, refused: str = "") -> str:
        """Call a command; returns what it printed, of which the page gets so many lines.

        Args:
            refused: the name of the error that the command must end with; the page then has its message.
        """
        result = self._call("--home", self._home, *words)
        name = EXIT_CODES[result.exit_code].name if result.exit_code else ""
        assert name == refused, (words, result.output)
        printed = result.stderr if refused else result.stdout
        lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
        lines = lines if shown is None else [*lines[:shown], "…"]
        text = "\n".join([f"$ {shlex.join(['mhfl-peer', *map(str, words)])}", *lines])
        self._page.append(f"\n```console\n{self._shortened(text)}\n```\n")
        return printed

    def check(self, path: Path, *, rewrite: bool) -> None:
        """The page has the commands of this run; its rounds and digests are those of another one."""
        if rewrite:
            write_atomically(path, self.page.encode(), 0o644)
        commands = commands_in(path.read_text("utf-8"))
        assert commands == commands_in(self.page), "write the page again with --rewrite-scenarios"

    def _shortened(self, text: str) -> str:
        text = text.replace(f"{self._home.parent}/", "")
        for name, port in re.findall(r"(\w+)=127\.0\.0\.1:(\d+)", text):
            text = text.replace(f"127.0.0.1:{port}", f"{name}.example.org:7443")
        text = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1…", text)
        return re.sub(r"\b((?:[0-9a-f]{2}:){4})(?:[0-9a-f]{2}:){27}[0-9a-f]{2}\b", r"\1…", text)


def commands_in(page: str) -> list[str]:
    """The commands of a page, without rounds and digests."""
    commands = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    return [re.sub(r"\b[0-9a-f]{8}…|\b([0-9a-f]{2}:){4}…|\b\d+\b", "N", command) for command in commands]

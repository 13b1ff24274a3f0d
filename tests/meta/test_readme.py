"""What the documents tell people to type exists, and what they promise about exit codes is so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from peer.cli import COMMANDS, PROGRAM, main
from peer.errors import EXIT_CODES

DOCUMENTS = ("README.md", "deploy/README.md")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"", "bash", "console", "sh", "shell", "text"}
OPERATORS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "("}


def shell_lines(document: str) -> Iterator[str]:
    """The command lines of a document's fenced blocks; continuation lines joined, prompts removed."""
    for language, block in FENCE.findall(document):
        if language in SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                yield line.strip().removeprefix("$ ")


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of one line, without the assignments and the ``sudo`` before them."""
    try:
        tokens = list(shlex.shlex(line, posix=True, punctuation_chars=True))
    except ValueError:
        return
    words: list[str] = []
    for token in [*split_options(line), ";"] if tokens else []:
        if token not in OPERATORS:
            words.append(token)
            continue
        while words and "=" in words[0]:
            del words[0]
        if words[:1] == ["sudo"]:
            words = words[3 if words[1:2] == ["-u"] else 1 :]
        if words:
            yield words
        words = []


def split_options(line: str) -> list[str]:
    """A line's words and operators, comments left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)

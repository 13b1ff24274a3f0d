"""Commands and links of the documents exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from peer.cli import PROGRAM, main

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "deploy").rglob("*.md"))]
DOCUMENTS = ("README.md", "peer/README.md", "peer/DECISIONS.md", "proto/README.md", *PAGES)
SHOWS_COMMANDS = frozenset(
    {"README.md", "deploy/README.md", "deploy/examples/experiments/README.md", "deploy/examples/experiments/RESULTS.md"}
    | {f"deploy/{page}.md" for page in ("audit", "data", "model", "site")}
)
PLUGIN_PAGE = "deploy/examples/plugin/README.md"
"""Its commands exist only where the example package is installed, as in the end-to-end tests."""
README_LINES_MAX = 150
PROSE_COLUMNS_MAX = 100
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(([^)\s]*)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "console", "sh", "shell", "text")
OPERATOR = re.compile(r"[();<>|&]+")


def simple_commands(document: str) -> Iterator[list[str]]:
    """The words of every command in fenced shell blocks, without prompt, assignments and ``sudo``."""
    for language, block in FENCE.findall(document):
        if language not in SHELL:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = words_of(line.strip().removeprefix("$ "))
            except ValueError:
                continue  # a line of output, with half a quotation
            for command in words:
                while command and ("=" in command[0] or command[0] == "sudo"):
                    del command[: 3 if command[1:2] == ["-u"] else 1]
                if command:
                    yield command


def words_of(line: str) -> list[list[str]]:
    """A shell line's simple commands, without comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if OPERATOR.fullmatch(word):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


INSTALLED_BY_THE_PAGE = {"shapes"}
"""Names that exist once the package of deploy/examples/plugin is installed; tests/e2e/test_plugin.py runs them."""


def problem(arguments: list[str]) -> str | None:
    """Why the program would refuse these arguments, or None; nothing is run."""
    command: click.Command = main
    context = click.Context(command, info_name=PROGRAM)
    try:
        while True:
            values, rest, _ = command.make_parser(context).parse_args(list(arguments))
            for parameter in command.params:
                check_value(parameter, values.get(str(parameter.name)), context)
            if not isinstance(command, click.Group) or not rest:
                return f"unexpected argument {rest[0]!r}" if rest else None
            subcommand = command.get_command(context, rest[0])
            if subcommand is None:
                return f"no command {rest[0]!r}"
            command, arguments = subcommand, rest[1:]
            context = click.Context(command, info_name=rest[0], parent=context)
    except click.UsageError as error:
        return error.format_message()


def check_value(parameter: click.Parameter, value: object, context: click.Context) -> None:
    """Refuse a missing argument and a value of the wrong type; paths need not exist."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    texts = [text for text in values if isinstance(text, str)]
    if parameter.required and not texts:
        raise click.MissingParameter(param=parameter, ctx=context)
    if not isinstance(parameter.type, click.Path | click.File | click.Tuple):
        for text in texts:
            parameter.type.convert(text, parameter, context)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != PLUGIN_PAGE])
def test_every_command_can_be_typed(root: Path, name: str) -> None:
    calls = [command for command in simple_commands((root / name).read_text()) if Path(command[0]).name == PROGRAM]
    assert calls or name not in SHOWS_COMMANDS, f"{name} shows no command of {PROGRAM}"
    calls = [command for command in calls if not INSTALLED_BY_THE_PAGE & set(command)]
    wrong = [f"{shlex.join(command)}: {why}" for command in calls if (why := problem(command[1:]))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_exists(root: Path, name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), re.MULTILINE))
    called = {
        word
        for command in simple_commands((root / name).read_text())
        if command[0] == "make"
        for word in command[1:]
        if "=" not in word and not word.startswith("-")
    }
    assert called <= targets


def anchors(document: str) -> set[str]:
    """The anchors of a page's headings, in GitHub's form."""
    headings = HEADING.findall(FENCE.sub("", document))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(root: Path, name: str) -> None:
    wrong = []
    for link in LINK.findall(CODE.sub("", FENCE.sub("", (root / name).read_text()))):
        path, _, anchor = link.partition("#")
        target = (root / name).parent / path if path else root / name
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in ("deploy/reference.md", "proto/README.md")])
def test_prose_is_wrapped(root: Path, name: str) -> None:
    prose = FENCE.sub("", (root / name).read_text())
    exempt = ("|", "  `tests/")  # a row of a table, the name of a test
    long = [line for line in prose.splitlines() if len(line) > PROSE_COLUMNS_MAX and not line.startswith(exempt)]
    assert not long


def test_readme_is_short(root: Path) -> None:
    assert len((root / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize(
    "arguments",
    [["no-such-command"], ["status", "--no-such-option"], ["status", "surplus"], ["plan", "--rounds", "many"]],
)
def test_a_wrong_command_is_found(arguments: list[str]) -> None:
    assert problem(arguments)


def test_nothing_names_this_program_as_a_package_of_the_index(root: Path, files: list[Path]) -> None:
    """Whoever registers the name there would get code into hospitals; extras are those of a checkout or bundle."""
    texts = {path: (root / path).read_text("utf-8") for path in files if path.suffix in (".md", ".py", ".toml")}
    assert [str(path) for path, text in texts.items() if f"{PROGRAM}[" in text] == []

"""Every command explains itself with an example that can be typed, and shows scripts what README says."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from peer.cli import PROGRAM, main

WITHOUT_EXAMPLE: dict[str, str] = {}
"""Commands whose help may do without an example, and why."""

WITHOUT_JSON = {
    "start": "runs until the site leaves; its log can be JSON",
    "completion": "prints a script for a shell",
}
"""Commands that show nothing which a script could read, and why."""

JSON_SECTION = re.compile(r"^## JSON\n(.*?)^## ", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (`[^|]+`) \|(.*)\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
INNERMOST = re.compile(r"[\[{][^\[\]{}]*[\]}]")

DRAFT = """
name = "trial"
rounds = 3
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "local"
[[site]]
name = "asia"
"""


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something by itself, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        words = (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, words)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join(words), command


COMMANDS = dict(commands())


def examples(command: click.Command) -> list[list[str]]:
    """The words of every line of a help text that calls this program, in its paragraphs that keep their lines."""
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    kept = [part.partition("\n")[2] for part in parts if part.startswith("\b\n")]
    lines = [line.strip() for part in kept for line in part.splitlines()]
    typed = [re.sub(r"^eval \"\$\((.*)\)\"$", r"\1", line).partition(" > ")[0] for line in lines]
    return [shlex.split(line)[1:] for line in typed if line.startswith(f"{PROGRAM} ")]


def shows(command: click.Command) -> bool:
    """Whether it has ``--json``."""
    return any("--json" in parameter.opts for parameter in command.params)


def rows(root: Path) -> dict[str, str]:
    """README's table of documents: the second cell by each command of the first."""
    section = JSON_SECTION.search((root / "README.md").read_text())
    assert section, "README.md has no section JSON"
    return {name: text.strip() for names, text in ROW.findall(section.group(1)) for name in CODE.findall(names)}


def promised(cell: str) -> set[str]:
    """The keys of a documented object, or of the objects in a documented list; nested ones are left out."""
    code = CODE.search(cell)
    assert code, f"no document in {cell!r}"
    text = code.group(1).removeprefix("[").removesuffix("]")
    text = text.removeprefix("{").removesuffix("}")
    while (flat := INNERMOST.sub("", text)) != text:
        text = flat
    return {part.partition(":")[0].strip() for part in text.split(",")}


# --- help ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").strip(), "it has no help"
    own = [words for words in examples(command) if words[: len(name.split())] == name.split()]
    assert own or name in WITHOUT_EXAMPLE, "its help shows no example, set off by \\b"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_can_be_typed(name: str) -> None:
    for words in examples(COMMANDS[name]):
        found = max((path for path in COMMANDS if words[: len(path.split())] == path.split()), key=len)
        command = COMMANDS[found]
        parser = command.make_parser(click.Context(command, info_name=found))
        values, _, _ = parser.parse_args(words[len(found.split()) :])  # an option that is not there raises
        missing = [one.name for one in command.params if one.required and not values.get(str(one.name))]
        assert not missing, f"{shlex.join(words)} leaves out {missing}"


def test_what_is_excused_needs_it() -> None:
    assert not [name for name in WITHOUT_EXAMPLE if examples(COMMANDS[name])]
    assert not [name for name in WITHOUT_JSON if shows(COMMANDS[name])]


# --- JSON ------------------------------------------------------------------------------------------------------------
def test_every_command_shows_what_it_knows_to_scripts() -> None:
    assert {name for name, command in COMMANDS.items() if not shows(command)} == WITHOUT_JSON.keys()


def test_readme_documents_every_document(root: Path) -> None:
    documented = rows(root).keys()
    showing = {name for name, command in COMMANDS.items() if shows(command)}
    missing = {name for name in showing if not {name, *parents(name)} & documented}
    assert not missing, f"README's table of documents lacks {sorted(missing)}"
    unknown = {name for name in documented if not any(name in (one, *parents(one)) for one in showing)}
    assert not unknown, f"README's table has commands without --json: {sorted(unknown)}"


def parents(name: str) -> list[str]:
    """The groups of a command, whose row may speak for all of them."""
    words = name.split()
    return [" ".join(words[:count]) for count in range(1, len(words))]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a command in a folder of its own, and gives its document."""
    folder = tmp_path_factory.mktemp("help")

    def run(*words: str) -> Any:
        arguments = [word.replace("@", f"{folder}/") for word in words]
        result = CliRunner().invoke(main, ["--home", str(folder / "home"), *arguments, "--json"])
        assert not result.stderr or result.exit_code == 16, result.stderr
        return json.loads(result.stdout)

    (folder / "draft.toml").write_text(DRAFT)
    return run


def test_documents_have_the_keys_that_readme_names(root: Path, call: Callable[..., Any]) -> None:
    """Of the commands that answer at once: a site is founded, enrolled and looked at."""
    documents = {
        "federation create": call("federation", "create", "@draft.toml", "--out", "@ca"),
        "federation show": call("federation", "show", "@ca/federation.toml"),
        "site init": call(
            "site", "init", "--federation", "@ca/federation.toml", "--site", "asia", "--out", "@asia.csr"
        ),
    }
    fingerprint = documents["site init"]["fingerprint"]
    admit = ("admit", "--ca", "@ca", "@asia.csr", "--out", "@asia.bundle", "--fingerprint", fingerprint)
    documents["federation admit"] = call("federation", *admit)
    documents["site join"] = call("site", "join", "@asia.bundle")
    for name in ("status", "plan", "methods", "models"):
        documents[name] = call(name)
    documents["scalars"] = call("scalars", "--tensorboard", "@runs")
    table = rows(root)
    wrong = {}
    for name, document in documents.items():
        keys = set(document[0] if isinstance(document, list) else document)
        if keys != (named := promised(table[name]) if name in table else set()):
            wrong[name] = f"README names {sorted(named - keys)} too many and {sorted(keys - named)} too few"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def test_what_nobody_promised_is_found() -> None:
    assert promised("`[{a, b: [{c}], d: {e: {f} or {g}}, h}]`; of which `x` is one") == {"a", "b", "d", "h"}
    assert promised("`a, b: {c: d}`") == {"a", "b"}

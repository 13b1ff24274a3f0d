"""Every command's help has an example to type, and its ``--json`` a document of its type."""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import click
import pytest
from click.testing import CliRunner

from fakes.drafts import draft
from peer.cli import PROGRAM, main
from peer.documents.commands import DatasetPrepared, Prediction
from peer.documents.registry import DOCUMENTS
from tests.meta.test_readme import problem

WITHOUT_JSON = {
    "relay start": "runs until it is stopped",
    "completion": "prints a script for a shell",
}
"""Commands without ``--json``, with the reason."""


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """The words that call a command, and the command; of groups, those that do something."""
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
    r"""The words of every example: lines of this program in paragraphs after ``\b``."""
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    verbatim = [part.partition("\n")[2] for part in parts if part.startswith("\b\n")]
    lines = [line.strip() for part in verbatim for line in part.splitlines()]
    calls = [re.sub(r"^eval \"\$\((.*)\)\"$", r"\1", line).partition(" > ")[0] for line in lines]
    return [shlex.split(line)[1:] for line in calls if line.startswith(f"{PROGRAM} ")]


def shows(command: click.Command) -> bool:
    """Whether the command has ``--json``."""
    return any("--json" in parameter.opts for parameter in command.params)


def keys(kind: Any) -> tuple[set[str], set[str]]:
    """The keys that a document (or a list's elements) always has, and those that it may lack."""
    record = get_args(kind)[-1] if get_args(kind) else kind
    hints = get_type_hints(record, include_extras=True)
    optional = {name for name, hint in hints.items() if NotRequired in (get_origin(hint), get_origin(hint_of(hint)))}
    return hints.keys() - optional, optional


def hint_of(annotation: Any) -> Any:
    """The annotated type, without its meaning."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").strip(), "it has no help"
    own = [words for words in examples(command) if words[: len(name.split())] == name.split()]
    assert own, "its help shows no example, set off by \\b"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_can_be_typed(name: str) -> None:
    for words in examples(COMMANDS[name]):
        assert problem(words) is None, shlex.join(words)


def test_every_command_shows_what_it_knows_to_scripts() -> None:
    assert {name for name, command in COMMANDS.items() if not shows(command)} == WITHOUT_JSON.keys()


def test_every_document_has_a_type() -> None:
    showing = {name for name, command in COMMANDS.items() if shows(command)}
    missing = {name for name in showing if not {name, *parents(name)} & DOCUMENTS.keys()}
    assert not missing, f"no DOCUMENTS has {sorted(missing)}"
    commands = {name: name.partition(" --")[0] for name in DOCUMENTS}  # an option may change the document
    unknown = {name for name in commands if not any(commands[name] in (word, *parents(word)) for word in showing)}
    assert not unknown, f"DOCUMENTS has commands without --json: {sorted(unknown)}"


def parents(name: str) -> list[str]:
    """The groups of a command; the type of a group's document holds for all of its commands."""
    words = name.split()
    return [" ".join(words[:count]) for count in range(1, len(words))]


def records_in(kind: Any) -> Iterator[Any]:
    """Every ``TypedDict`` that a type consists of."""
    if is_typeddict(kind):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from records_in(hint)
    for part in get_args(kind):
        yield from records_in(part)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_record_and_key_has_a_meaning(name: str) -> None:
    documented = list(records_in(DOCUMENTS[name]))
    assert documented
    for record in documented:
        assert record.__doc__, f"{record.__name__} has no docstring"
        for key, hint in get_type_hints(record, include_extras=True).items():
            (meaning,) = getattr(hint, "__metadata__", ("",))
            assert meaning, f"{record.__name__}.{key} has no meaning"


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Calls a command in a folder of its own, and returns its document."""
    folder = tmp_path_factory.mktemp("help")

    def run(*words: str) -> Any:
        arguments = [word.replace("@", f"{folder}/") for word in words]
        result = CliRunner().invoke(main, ["--home", str(folder / "home"), *arguments, "--json"])
        assert not result.stderr or result.exit_code == 16, result.stderr
        return json.loads(result.stdout)

    (folder / "draft.toml").write_text(draft("trial", method="local", site=[{"name": "asia"}]))
    return run


def test_documents_have_the_keys_of_their_types(call: Callable[..., Any]) -> None:
    """Found a federation, enrol a site, and check the commands that answer at once."""
    shown = {
        "federation create": call("federation", "create", "@draft.toml", "--out", "@ca"),
        "federation show": call("federation", "show", "@ca/federation.toml"),
        "site init": call(
            "site", "init", "--federation", "@ca/federation.toml", "--site", "asia", "--out", "@asia.csr"
        ),
    }
    fingerprint = shown["site init"]["fingerprint"]
    admit = ("admit", "--ca", "@ca", "@asia.csr", "--out", "@asia.bundle", "--fingerprint", fingerprint)
    shown["federation admit"] = call("federation", *admit)
    shown["site join"] = call("site", "join", "@asia.bundle")
    for name in ("list", "status", "plan", "methods", "models", "help"):
        shown[name] = call(name)
    shown["scalars"] = call("scalars", "--tensorboard", "@runs")
    wrong = {}
    for name, document in shown.items():
        present = set(document[0] if isinstance(document, list) else document)
        needed, optional = keys(DOCUMENTS[name])
        if not needed <= present <= needed | optional:
            wrong[name] = f"lacks {sorted(needed - present)}, and has {sorted(present - needed - optional)}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def test_optional_keys_are_told_apart() -> None:
    assert keys(list[Prediction]) == (
        {"file"},
        {"class_name", "median", "output", "probabilities", "survival", "value"},
    )
    assert keys(DatasetPrepared)[0] == {"folder"}

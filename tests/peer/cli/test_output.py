"""The output of commands: JSON that scripts can parse, tables that no peer's text can break."""

import json

import click
import pytest

from peer.cli.output import emit, emit_line, fields, json_option, table


def shown(capsys: pytest.CaptureFixture[str], drawn: object) -> str:
    emit({}, as_json=False, render=lambda _: drawn)  # type: ignore[arg-type, return-value]
    return capsys.readouterr().out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"site": "europe", "rounds": [1, None, True]}
    emit(document, as_json=True, render=lambda _: pytest.fail("rendered"))
    assert json.loads(capsys.readouterr().out) == document


def test_watching_is_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for round in (1, 2):
        emit_line({"round": round, "text": "a\nb"})
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]


def test_tables_hold_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output = shown(capsys, table(("site", "round"), [("europe", 3), ("asia", None)], title="peers"))
    words = [line.split() for line in output.splitlines() if line.strip()]
    assert [words[0], words[1], *words[-2:]] == [["peers"], ["site", "round"], ["europe", "3"], ["asia", "-"]]


def test_cells_are_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[red]x[/red] \x1b[31m [bold"
    output = shown(capsys, table(("reason",), [(hostile,)]))
    assert "[red]x[/red]  [31m [bold" in output
    assert "\x1b" not in output
    assert "[red]x" in shown(capsys, fields([("reason", hostile)]))


def test_a_digest_stays_on_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ab" * 32 in shown(capsys, table(("sha256", "kind"), [("ab" * 32, "model")]))


def test_json_option_is_a_flag() -> None:
    @click.command()
    @json_option
    def command(as_json: bool) -> None: ...

    assert [(option.name, option.opts) for option in command.params] == [("as_json", ["--json"])]

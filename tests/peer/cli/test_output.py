"""The output of commands: JSON that scripts can parse, tables that no peer's text can break."""

import io
import json
import sys
import threading

import pytest

from fakes.cli import drawn
from peer.cli.output import emit, emit_line, fields, table, working


def shown(capsys: pytest.CaptureFixture[str], drawn: object) -> str:
    emit({}, as_json=False, render=lambda _: drawn)  # type: ignore[arg-type, return-value]
    return capsys.readouterr().out


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
    assert "ab" * 32 in shown(capsys, table(("sha256", "kind"), [("ab" * 32, "model")])), "on one line, in a pipe, too"


class Terminal(io.StringIO):
    """Standard error as a terminal, which says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_work_that_takes_long_shows_on_a_terminal_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with working("waiting for the checkpoint", patience_s=0.0):
        assert terminal.written.wait(30)
    assert "waiting for the checkpoint" in terminal.getvalue()


def test_short_work_and_work_without_a_terminal_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with working("checking", patience_s=1000.0) as show:
        show("still checking")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with working("checking", patience_s=0.0) as show:
        show("still checking")
    assert file.getvalue() == ""


@pytest.mark.parametrize("width", [24, 40, 60, 95, 120])
def test_a_fingerprint_breaks_between_two_bytes(width: int) -> None:
    fingerprint = bytes(range(32)).hex(":")
    sentence = f"adds oslo, with the key {fingerprint}, and more"
    assert drawn(fields([("key", fingerprint)]), width=160).split()[1] == fingerprint
    for grid in (fields([("key", sentence)]), table(("time", "changes"), [("now", sentence)])):
        words = drawn(grid, width=width).split()
        assert fingerprint in "".join(words)
        assert {len(byte) for word in words if ":" in word for byte in word.strip(",:").split(":")} == {2}

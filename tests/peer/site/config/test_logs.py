"""Log records: one line each, whatever their fields hold.

The file has tracebacks, and the screen has none.
"""

import json
import logging
import logging.handlers
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.site.config import logs

IDS = {"site": "asia", "federation": "0123456789ab", "generation": 2}


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Restores the logging of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, level: int = logging.INFO, *, error: BaseException | None = None, **extra: Any) -> Any:
    trace = (type(error), error, error.__traceback__) if error is not None else None
    log_record = logging.LogRecord("peer.daemon.dispatch", level, "daemon.py", 1, message, (), trace)
    vars(log_record).update(extra)
    return log_record


def key_error() -> BaseException:
    try:
        raise KeyError("lost\nkey")
    except KeyError as error:
        return error


def test_a_line_of_the_file_is_json_with_the_fields(tmp_path: Path) -> None:
    text = logs.JsonFormatter(IDS).format(record("round committed", round=3, path=tmp_path, missing={"asia": "slow"}))
    document = json.loads(text)
    assert document.pop("time").endswith("+00:00")
    assert document == {
        "level": "info", "logger": "peer.daemon.dispatch", "message": "round committed", **IDS, "round": 3,
        "path": str(tmp_path), "missing": {"asia": "slow"},
    }  # fmt: skip


def test_the_file_has_the_traceback_in_its_line() -> None:
    text = logs.JsonFormatter(IDS).format(record("call failed", logging.ERROR, error=key_error()))
    assert "\n" not in text
    assert "in key_error" in json.loads(text)["exception"]


@pytest.mark.parametrize("debug", [False, True])
def test_the_screen_has_the_traceback_only_when_it_is_asked_for(debug: bool) -> None:
    text = logs.LineFormatter(debug=debug).format(record("call failed", logging.ERROR, error=key_error(), peer="asia"))
    first, *rest = text.split("\n")
    assert "error: call failed  peer=asia" in first
    assert bool(rest) is debug
    assert ("Traceback" in text) is debug
    assert debug or "KeyError" in first


def test_what_others_say_cannot_move_the_cursor_or_begin_a_line() -> None:
    text = logs.LineFormatter().format(record("peer refused", logging.WARNING, reason="no\n12:00:00 all well\x1b[2J"))
    assert "\n" not in text
    assert "\x1b" not in text
    assert text.endswith("warning: peer refused  reason=no 12:00:00 all well [2J")


def test_fields_are_in_words_numbers_short_and_empty_ones_left_out() -> None:
    format_line = logs.LineFormatter().format
    text = format_line(record("round committed", sources=["asia", "mars"], missing={"europe": "silent"}, cut={}))
    assert text.endswith("round committed  sources=asia, mars missing=europe (silent)")
    assert format_line(record("round committed", sources=[], missing={})).endswith("round committed")
    assert format_line(record("committed", seconds=0.22036876699985442)).endswith("seconds=0.2204")


def test_a_terminal_shows_the_start_of_a_digest() -> None:
    line = record("artifact received", sha256="ab" * 32, federation="0123456789ab")
    assert logs.LineFormatter(short=True).format(line).endswith("sha256=abababababab… federation=0123456789ab")
    assert "ab" * 32 in logs.LineFormatter().format(line)


def test_everything_goes_to_the_file_and_to_the_screen_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet in (False, True):
        logs.set_up(tmp_path, IDS, quiet=quiet)
        logging.getLogger("peer.test").info("served", extra={"quiet": quiet})
        logging.getLogger("peer.test").debug("whispered")
        logging.getLogger("asyncio").info("noise")
    assert [json.loads(line)["quiet"] for line in (tmp_path / "daemon.log").read_text().splitlines()] == [False, True]
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["served  quiet=False"]


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    logs.set_up(tmp_path, IDS, quiet=True)
    log = logging.getLogger("peer.test")
    for _ in range(3):
        log.info("x" * (logs.FILE_BYTES_MAX // 2))
    assert {path.name for path in tmp_path.iterdir()} == {"daemon.log", "daemon.log.1", "daemon.log.2"}


def test_debug_shows_more(tmp_path: Path) -> None:
    logs.set_up(tmp_path, IDS, quiet=True, debug=True)
    logging.getLogger("peer.test").debug("whispered")
    assert "whispered" in (tmp_path / "daemon.log").read_text()


def test_every_json_line_says_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(tmp_path, IDS, json_lines=True)
    logging.getLogger("peer.test").info("served", extra={"round": 3})
    shown = capsys.readouterr().err
    assert shown == (tmp_path / "daemon.log").read_text(), "a collector that reads standard error gets the same"
    document = json.loads(shown)
    assert {key: document[key] for key in (*IDS, "pid", "round")} == {**IDS, "pid": os.getpid(), "round": 3}


class Lines(logging.Handler):
    """Keeps the records that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append({"message": record.getMessage(), **logs.fields(record)})


def test_lines_about_a_peer_are_bounded_counted_and_summarised_and_others_are_not() -> None:
    now_s, lines = 0.0, Lines()
    handler = logs.RepetitionHandler([lines], clock=lambda: now_s)
    for number in range(logs.REPEATED_LINES_MAX + 5):
        handler.handle(record("call refused", peer="mallory", reason=f"ever new {number}"))
    handler.handle(record("call refused", peer="asia", reason="once"))
    handler.handle(record("artifact sent", peer="mallory"))
    for _ in range(100):
        handler.handle(record("round committed", round=3))
    written = [line["message"] for line in lines.records if line.get("peer") == "mallory"]
    assert written == ["call refused"] * logs.REPEATED_LINES_MAX + ["artifact sent"]
    assert sum(line["message"] == "round committed" for line in lines.records) == 100
    assert sum(line.get("peer") == "asia" for line in lines.records) == 1
    now_s = logs.REPEATED_S
    lines.records.clear()
    handler.handle(record("call refused", peer="mallory", reason="next interval"))
    assert lines.records == [
        {"message": "lines left out", "of": "call refused", "peer": "mallory", "lines": 5},
        {"message": "call refused", "peer": "mallory", "reason": "next interval"},
    ]


def test_lines_of_libraries_are_bounded_whatever_they_say() -> None:
    lines = Lines()
    handler = logs.RepetitionHandler([lines], clock=lambda: 0.0)
    for number in range(2 * logs.REPEATED_LINES_MAX):
        handler.handle(logging.LogRecord("grpc._cython", logging.ERROR, "", 1, f"Invalid encoding {number}", (), None))
    assert len(lines.records) == logs.REPEATED_LINES_MAX


def test_ever_new_peers_are_counted_together_and_the_rest_is_said_at_the_end() -> None:
    lines = Lines()
    handler = logs.RepetitionHandler([lines], clock=lambda: 0.0)
    count = logs.SUBJECTS_MAX + 2 * logs.REPEATED_LINES_MAX
    for number in range(count):
        handler.handle(record("connections closed", peer=f"192.0.2.{number}"))
    assert len(lines.records) == logs.SUBJECTS_MAX + logs.REPEATED_LINES_MAX
    handler.close()
    assert lines.records[-1]["lines"] == logs.REPEATED_LINES_MAX
    assert lines.records[-1]["peer"] == logs.OTHER_PEERS


def test_a_flood_of_one_peer_does_not_rotate_the_log_away(tmp_path: Path) -> None:
    logs.set_up(tmp_path, IDS, quiet=True)
    log = logging.getLogger("peer.test")
    log.info("round committed", extra={"round": 1})
    for _ in range(100):
        log.warning("call refused", extra={"peer": "mallory", "reason": "x" * (logs.FILE_BYTES_MAX // 20)})
    assert {path.name for path in tmp_path.iterdir()} <= {"daemon.log", "daemon.log.1", "daemon.log.2"}
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    assert '"round committed"' in kept

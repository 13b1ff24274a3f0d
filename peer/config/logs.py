"""Structured logs: one JSON object a line in the site's log file, a short line on standard error.

A message is a constant text. Fields name the daemon that wrote it (``site``, ``federation``,
``generation``, ``pid``) and its subject (``round``, ``peer``, ``sha256``, ``intent``).
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.errors import one_line

FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 5
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, these ids, the record's fields."""

    def __init__(self, ids: Mapping[str, Any]) -> None:
        super().__init__()
        self._ids = dict(ids)

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        document = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._ids,
            **fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False, default=str)


class LineFormatter(logging.Formatter):
    """A line for operators: time, message, fields.

    An exception as its text, with the traceback only if ``debug``.
    """

    def __init__(self, *, debug: bool = False) -> None:
        super().__init__()
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, also where a field holds line feeds that another site sent."""
        time = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        text = f"{time} {level}{record.getMessage()}"
        shown = fields(record)
        if record.exc_info and not self._debug:
            shown["exception"] = repr(record.exc_info[1])
        extra = " ".join(f"{key}={_brief(value)}" for key, value in shown.items())
        text = f"{text}  {extra}" if extra else text
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info and self._debug else text


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))


def set_up(
    folder: Path, ids: Mapping[str, Any], *, quiet: bool = False, debug: bool = False, json_lines: bool = False
) -> None:
    """Send the program's logs to ``daemon.log`` in the folder and, unless quiet, to standard error.

    Args:
        ids: fields that every JSON line has beside its own; the process id is added.
        debug: also write debug messages, and tracebacks on standard error.
        json_lines: write the file's lines to standard error too, for a log collector that reads
            there.
    """
    formatter = JsonFormatter({**ids, "pid": os.getpid()})
    file = logging.handlers.RotatingFileHandler(
        folder / "daemon.log", maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
    )
    file.setFormatter(formatter)
    handlers: list[logging.Handler] = [file]
    if not quiet:
        shown = logging.StreamHandler()
        shown.setFormatter(formatter if json_lines else LineFormatter(debug=debug))
        handlers.append(shown)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=handlers, force=True)
    for noisy in ("asyncio", "grpc", "grpc._cython"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

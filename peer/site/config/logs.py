"""Structured logs: one JSON object a line in the site's log file, a short line on standard error.

A message is a constant text. Fields name the daemon that wrote it (``site``, ``federation``,
``generation``, ``pid``) and its subject (``round``, ``peer``, ``sha256``, ``intent``). A line that
another site or a stranger can cause has the field ``peer``, and is written a bounded number of times.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer.errors import one_line

FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 5
REPEATED_S = 60.0
REPEATED_LINES_MAX = 30  # of one message about one peer in that time: in a day some 10 MB, of 60 that are kept
SUBJECTS_MAX = 1000  # pairs of message and peer that are counted apart; strangers have ever new addresses
OTHER_PEERS = "others"
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
DIGITS_SHOWN = 12
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


class RepetitionHandler(logging.Handler):
    """Passes so many lines of a message about a peer in each interval, and then says how many it left out.

    Without it, a caller that floods a site with calls which it logs rotates the site's log away.
    """

    def __init__(self, targets: Sequence[logging.Handler], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._targets = targets
        self._clock = clock
        self._began_s = clock()
        self._lines: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if self._clock() - self._began_s >= REPEATED_S:
            self._begin_interval()
        own = record.name.partition(".")[0] == "peer"
        peer = vars(record).get("peer") if own else "library"  # gRPC's lines do not say who caused them
        if peer is not None:
            subject = (str(record.msg) if own else record.name, str(peer))
            if subject not in self._lines and len(self._lines) >= SUBJECTS_MAX:
                subject = (str(record.msg), OTHER_PEERS)
            self._lines[subject] += 1
            if self._lines[subject] > REPEATED_LINES_MAX:
                return
        self._pass_on(record)

    def close(self) -> None:
        self._begin_interval()
        for target in self._targets:
            target.close()
        super().close()

    def _begin_interval(self) -> None:
        """Write a line for each subject with too many lines, and count from zero."""
        counted, self._lines, self._began_s = self._lines, Counter(), self._clock()
        for (message, peer), lines in counted.items():
            if lines > REPEATED_LINES_MAX:
                summary = logging.LogRecord(__name__, logging.WARNING, __file__, 0, "lines left out", (), None)
                vars(summary).update({"of": message, "peer": peer, "lines": lines - REPEATED_LINES_MAX})
                self._pass_on(summary)

    def _pass_on(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            target.handle(record)


class LineFormatter(logging.Formatter):
    """A line for operators: time, message, fields that are not empty.

    An exception as its text, with the traceback only if ``debug``. A ``short`` line, for a terminal, has the start of a
    digest.
    """

    def __init__(self, *, debug: bool = False, short: bool = False) -> None:
        super().__init__()
        self._debug, self._short = debug, short

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line, also where a field holds line feeds that another site sent."""
        time = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        text = f"{time} {level}{record.getMessage()}"
        shown = fields(record)
        if record.exc_info and not self._debug:
            shown["exception"] = repr(record.exc_info[1])
        extra = " ".join(f"{key}={_in_words(value)}" for key, value in shown.items() if value not in ([], {}, ()))
        if self._short:
            extra = DIGEST.sub(lambda match: f"{match[0][:DIGITS_SHOWN]}…", extra)
        text = f"{text}  {extra}" if extra else text
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info and self._debug else text


def _in_words(value: Any) -> str:
    """Return a value without brackets and quotes."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_in_words(key)} ({_in_words(inner)})" for key, inner in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(_in_words, value))
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
        shown.setFormatter(formatter if json_lines else LineFormatter(debug=debug, short=shown.stream.isatty()))
        handlers.append(shown)
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(level=level, handlers=[RepetitionHandler(handlers)], force=True)
    for noisy in ("asyncio", "grpc", "grpc._cython"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

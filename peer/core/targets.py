"""What a sample's label is: a class, several labels, a number, or the time to an event."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from peer.core.columns import FLAGS, MISSING, TableColumn, parse_number

TargetKind = Literal["class", "labels", "number", "survival"]
EVENTS = FLAGS | {
    **dict.fromkeys(("dead", "deceased", "died", "event", "progressed", "relapsed"), 1.0),
    **dict.fromkeys(("alive", "living", "censored"), 0.0),
}
"""Cells of a column that says whether the event happened."""


EVENT_NAMES = {"0": "censored", "1": "with the event"}
"""The two groups of persons who are followed until an event, by :func:`stratum`."""


class TimeToEvent(NamedTuple):
    """How long a person was observed, and whether that ended with the event."""

    time: float
    event: bool


Label: TypeAlias = int | float | tuple[float, ...] | TimeToEvent
"""A class; a number; several labels, each 0, 1 or NaN where it is not known; or the time to an event."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the federation agreed to predict of a sample.

    Attributes:
        names: of several labels.
        range: the lowest and the highest value of a number.
        unit: of the number or the times, as people read it.
        times: the ends of the intervals in which an event may happen, rising; the first one begins at 0.
        horizon: the one of ``times`` at which predictions are compared with what happened.
    """

    kind: TargetKind = "class"
    names: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unit: str = ""
    times: tuple[float, ...] = ()
    horizon: float = 0.0

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns of a table from which a label is read."""
        if self.kind == "labels":
            return self.names
        return ("time", "event") if self.kind == "survival" else ("label",)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table of predictions; none of a class."""
        if self.kind == "survival":
            return (*(f"survival({time:g})" for time in self.times), "median")
        return self.names if self.kind == "labels" else ("value",) if self.kind == "number" else ()

    @property
    def table(self) -> tuple[TableColumn, ...]:
        """The columns of the labels themselves, by which they are described; none of a class."""
        if self.kind == "labels":
            return tuple(TableColumn(name, "flag") for name in self.names)
        if self.kind == "survival":
            return TableColumn("time", "number", unit=self.unit), TableColumn("event", "flag")
        return (TableColumn("label", "number", self.range, unit=self.unit),) if self.kind == "number" else ()

    def row(self, label: object) -> tuple[float, ...]:
        """Return a label's values in the columns of ``table``."""
        values = label if isinstance(label, tuple) else (label,)
        return tuple(float(value) for value in values) if self.table else ()

    def read(self, cells: Mapping[str, str]) -> Any:
        """Return the label as a datalist has it, of cells by role; ``None`` if it is missing.

        Raises:
            ValueError: a cell has a value that does not fit; the message says why.
        """
        if self.kind == "labels":
            known = [_flag(cells[name], FLAGS, name) for name in self.names]
            return None if all(value is None for value in known) else known
        if self.kind == "survival":
            time, event = _number(cells["time"]), _flag(cells["event"], EVENTS, "event")
            document: Any = None if time is None or event is None else {"time": time, "event": bool(event)}
        else:
            document = _number(cells["label"])
        if document is not None:
            self.parse(document)
        return document

    def parse(self, document: Any) -> Label:
        """Return the label in a datalist; raise ``ValueError`` if it is none of this target."""
        if self.kind == "number":
            return self._parse_number(document)
        if self.kind == "survival":
            return self._parse_survival(document)
        if self.kind == "labels":
            return self._parse_labels(document)
        if not isinstance(document, int) or isinstance(document, bool):
            raise ValueError(f"must be a class number (0, 1, ...), not {document!r}")
        return document

    def _parse_number(self, document: Any) -> float:
        if not _is_number(document):
            raise ValueError(f"must be a number, not {document!r}")
        low, high = self.range or (-math.inf, math.inf)
        if not low <= document <= high:
            raise ValueError(f"is {document:g}, outside {low:g} to {high:g}{self.unit and f' {self.unit}'}")
        return float(document)

    def _parse_labels(self, document: Any) -> tuple[float, ...]:
        if not isinstance(document, Sequence) or len(document) != len(self.names):
            raise ValueError(f"must be a list of {len(self.names)} labels ({', '.join(self.names)}), not {document!r}")
        if any(value is not None and value not in (0, 1) for value in document):
            raise ValueError(f"must have 0, 1 or null for each label, not {document!r}")
        if all(value is None for value in document):
            raise ValueError("has no known label; leave the sample out")
        return tuple(math.nan if value is None else float(value) for value in document)

    def _parse_survival(self, document: Any) -> TimeToEvent:
        if not isinstance(document, Mapping) or not {"time", "event"} <= document.keys():
            raise ValueError(f'must be {{"time": ..., "event": true or false}}, not {document!r}')
        time, event = document["time"], document["event"]
        if not _is_number(time) or event not in (0, 1):
            raise ValueError(f"must have a number as time, and true or false as event, not {document!r}")
        if time < 0:
            raise ValueError(f"has the negative time {time:g}")
        if time == 0:
            what = "an event at time 0, before anybody was observed" if event else "no time under observation"
            raise ValueError(f"has {what}; correct the time, or leave the person out")
        return TimeToEvent(float(time), bool(event))


CLASS = Target()
"""The target of most tasks: one class a sample."""


def stratum(label: object) -> int | None:
    """Return the class within which splits are drawn: the class itself, or whether there was an event."""
    if isinstance(label, TimeToEvent):
        return int(label.event)
    return label if isinstance(label, int) else None


def check_targets(target: Target, labels: Sequence[object]) -> list[str]:
    """Return why a network could learn nothing of these labels; of classes nothing is said."""
    if not labels or target.kind == "class":
        return []
    if target.kind == "number":
        return ["'training' holds one number only; there is nothing to predict"] if len(set(labels)) == 1 else []
    if target.kind == "labels":
        known = [[label[index] for label in labels if isinstance(label, tuple)] for index in range(len(target.names))]
        constant = [name for name, values in zip(target.names, known, strict=True) if not {0.0, 1.0} <= set(values)]
        return ["no label has both yes and no in 'training'"] if len(constant) == len(target.names) else []
    people = [label for label in labels if isinstance(label, TimeToEvent)]
    events = [person.time for person in people if person.event]
    if not events:
        return [f"'training' holds {len(people)} persons and no event; there is nothing to learn"]
    last, unit = target.times[-1], target.unit and f" {target.unit}"
    if min(events) > last:
        return [f"no event of 'training' is within {last:g}{unit}: are its times in another unit?"]
    if len(people) >= PEOPLE_MIN and max(person.time for person in people) <= target.times[0] / UNIT_FACTOR:
        return [f"all times of 'training' are below {target.times[0] / UNIT_FACTOR:g}{unit}: are they in another unit?"]
    return []


PEOPLE_MIN, UNIT_FACTOR = 20, 10
"""Persons from which times below a tenth of the first interval say that the unit is another one."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(cell: str) -> float | None:
    return None if cell.strip().casefold() in MISSING else parse_number(cell.strip())


def _flag(cell: str, words: Mapping[str, float], name: str) -> int | None:
    text = cell.strip().casefold().removesuffix(".0")
    if text in MISSING:
        return None
    if text not in words:
        raise ValueError(f"{name} is {cell!r}, neither yes nor no")
    return int(words[text])

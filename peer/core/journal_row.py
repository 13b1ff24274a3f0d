"""The base of the journal's rows: a frozen dataclass whose fields are the keys of its JSON body."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from peer.core.json_codec import from_json, to_json

Body = Mapping[str, Any]
"""A row's JSON object."""
ON_DISK = "on_disk"
"""Metadata of a field whose key on disk differs from its name: that key."""
OMITTED = {"omitted": True}
"""Metadata of a field whose key is left out of the body if the value is ``None``."""


RowType = TypeVar("RowType", bound="JournalRow")


class RowError(ValueError):
    """The body of a row does not fit its kind; the message names kind, round and key."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The event that made the state machine write a row.

    ``event_number`` counts the events since the daemon started: rows with the same number are of one event. ``event``
    is the name of its type, ``peer`` the site that caused it, or empty.
    """

    event_number: int
    event: str
    peer: str = ""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def frozen_row(kind: type[RowType]) -> type[RowType]:
    """Make a kind of row a frozen dataclass that compares and prints as ``JournalRow`` does.

    Functions of its own would take half of the time in which a command imports the rows.
    """
    return dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(kind)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JournalRow:
    """Base of all rows. ``round`` is the round that the row belongs to."""

    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1

    round: int

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(other) == _values(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in _values(self).items())
        return f"{type(self).__name__}({values})"

    def body(self) -> dict[str, Any]:
        """Return the JSON object on disk."""
        row_type: Any = type(self)  # mypy takes no type for hashable
        values = ((key, getattr(self, name), omitted) for key, name, omitted in _stored(row_type))
        return {key: to_json(value) for key, value, omitted in values if not (value is None and omitted)}

    @classmethod
    def from_body(cls, round: int, body: Body) -> Self:
        """Build the row of this body. Raises ``ValueError`` naming the key that is missing or wrong."""
        return cls(round, **values_of(cls, body))


@dataclass(frozen=True, slots=True)
class ArtifactRow(JournalRow):
    """Base of rows that describe artifacts. In version 1, each description had the list of tensors."""

    version: ClassVar[int] = 2


def without_tensors(value: Any) -> Any:
    """Remove the list of tensors from each artifact in a body: it is in the header of the artifact's file."""
    if isinstance(value, list):
        return [without_tensors(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "spec" in value:  # an artifact
        return {key: inner for key, inner in value.items() if key != "tensors"}
    return {key: without_tensors(inner) for key, inner in value.items()}


def _values(row: Any) -> dict[str, Any]:
    return {item.name: getattr(row, item.name) for item in dataclasses.fields(row)}


@functools.cache
def _stored(row_type: Any) -> list[tuple[str, str, bool]]:
    """List for each key on disk: the key, its field's name, and whether it is left out if it is ``None``."""
    return [
        (item.metadata.get(ON_DISK, item.name), item.name, bool(item.metadata.get("omitted")))
        for item in dataclasses.fields(row_type)
        if item.name != "round"
    ]


@functools.cache
def _keys(row_type: Any) -> list[tuple[str, str, Any, bool]]:
    """List for each key on disk: the key, its field's name and type, and whether it is required."""
    hints = typing.get_type_hints(row_type)
    return [
        (item.metadata.get(ON_DISK, item.name), item.name, hints[item.name], item.default is dataclasses.MISSING)
        for item in dataclasses.fields(row_type)
        if item.name != "round"
    ]


def values_of(row_type: Any, body: Body) -> dict[str, Any]:
    """Parse a body into a row's fields. Raises ``ValueError`` naming the key that is missing or wrong."""
    missing = [key for key, _, _, required in _keys(row_type) if required and key not in body]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    return {name: from_json(hint, body[key], path=key) for key, name, hint, _ in _keys(row_type) if key in body}

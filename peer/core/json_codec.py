"""Conversion of dataclasses to JSON values and back; each value is checked against the declared type of its field."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from peer.core.roster import Sha256, SiteName, sha256, site_name

IDENTITIES: Mapping[Any, Callable[[str], str]] = {Sha256: sha256, SiteName: site_name}
"""The parser of each identity type: a digest names a file, so no other text may pass as one."""

PLAIN = frozenset({str, int, float, bool, type(None)})


LEFT_OUT = {"left_out": True}
"""Metadata of a field whose key is left out of the JSON object if the value is ``None``."""


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...] | None:
    """Return the field names of a dataclass, each with whether ``None`` is left out; ``None`` for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((field.name, bool(field.metadata.get("left_out"))) for field in dataclasses.fields(kind))


def to_json(value: Any) -> Any:
    """Turn a dataclass, or a container of them, into JSON values."""
    kind: Any = type(value)  # mypy takes no type for hashable
    if kind in PLAIN:
        return value
    fields = _fields(kind)
    if fields is not None:
        values = ((name, getattr(value, name), left_out) for name, left_out in fields)
        return {name: to_json(inner) for name, inner, left_out in values if not (inner is None and left_out)}
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def from_json(kind: Any, value: Any, *, path: str = "") -> Any:
    """Convert a JSON value to an instance of the declared type. Raises ``ValueError`` naming the path of a misfit."""
    return _reader(kind)(value, path)


Reader = Callable[[Any, str], Any]
"""Takes a JSON value and its path."""


@functools.cache
def _reader(kind: Any) -> Reader:
    """Build the reader of a declared type; cached, since a journal has many rows of one type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, path: value
    if isinstance(kind, typing.NewType):
        return _identity_reader(kind)
    if origin is typing.Literal:
        return _literal_reader(arguments)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        read = _reader(inner)
        optional = type(None) in arguments
        return lambda value, path: None if value is None and optional else read(value, path)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _object_reader(_reader(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_dataclass, kind)
    return _plain_reader(kind)


def _identity_reader(kind: Any) -> Reader:
    read, parse = _reader(kind.__supertype__), IDENTITIES[kind]

    def read_identity(value: Any, path: str) -> Any:
        text = read(value, path)
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return read_identity


def _literal_reader(permitted: tuple[Any, ...]) -> Reader:
    def read_literal(value: Any, path: str) -> Any:
        if value not in permitted:
            raise ValueError(f"{path}: {value!r} is none of {', '.join(map(repr, permitted))}")
        return value

    return read_literal


def _list_reader(read: Reader) -> Reader:
    def read_list(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected a list")
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_list


def _object_reader(read: Reader) -> Reader:
    def read_object(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected an object")
        return {key: read(inner, f"{path}.{key}") for key, inner in value.items()}

    return read_object


def _plain_reader(kind: Any) -> Reader:
    def read_plain(value: Any, path: str) -> Any:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{path}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    return read_plain


@functools.cache
def _readers(kind: Any) -> dict[str, tuple[Reader, bool]]:
    """Build for each field of a dataclass its reader, and whether it is required."""
    hints, absent = typing.get_type_hints(kind), dataclasses.MISSING
    return {
        field.name: (_reader(hints[field.name]), field.default is absent and field.default_factory is absent)
        for field in dataclasses.fields(kind)
    }


def _dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{path or kind.__name__}: expected an object")
    readers = _readers(kind)
    unknown = value.keys() - readers.keys() - {"type"}
    if unknown:
        raise ValueError(f"{path or kind.__name__}: unknown field {sorted(unknown)[0]!r}")
    arguments, prefix = {}, path or kind.__name__
    for name, (read, required) in readers.items():
        if name in value:
            arguments[name] = read(value[name], f"{prefix}.{name}")
        elif required:
            raise ValueError(f"{prefix}.{name} is missing")
    return kind(**arguments)

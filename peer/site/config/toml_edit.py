"""Changes of single keys of a TOML file, which leave every other byte as it is."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from peer.errors import ConfigError

SECTION_END = re.compile(r"\s*#?\[")
"""A header, or one in a comment: the commented keys below that are not those of the table above."""
KEY = re.compile(r"""\s*[\w"'-]+\s*=""")


def find(document: Mapping[str, Any], key: str) -> Any:
    """Find the value of a dotted key; None where the document has none."""
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def edit(text: str, changes: Mapping[str, Any]) -> str:
    """Set each dotted key of the text to its value; None removes the key.

    A new key replaces the commented line that shows its default or an example, where its table has
    one, and otherwise follows the table's last key.
    """
    for key, value in changes.items():
        document = tomllib.loads(text)
        if find(document, key) == _plain(value):
            continue
        text = _set(text, document, key, _plain(value)) if value is not None else _remove(text, key)
    return text


def _set(text: str, document: dict[str, Any], key: str, value: Any) -> str:
    if find(document, key) is None:
        expected = _with_value(document, key, value)
        for candidate in _insertions(text, key, value):
            try:
                if tomllib.loads(candidate) == expected:
                    return candidate
            except tomllib.TOMLDecodeError:  # the line fell into a value of several lines
                continue
    import tomlkit  # here: the import takes 14 ms

    edited = tomlkit.parse(text)
    *tables, name = key.split(".")
    table: Any = edited
    for part in tables:
        table = table.setdefault(part, tomlkit.table())
    table[name] = _item(value)
    return tomlkit.dumps(edited)


def _remove(text: str, key: str) -> str:
    import tomlkit

    edited = tomlkit.parse(text)
    *tables, name = key.split(".")
    table: Any = edited
    for part in tables:
        table = table[part]
    del table[name]
    return tomlkit.dumps(edited)


def _with_value(document: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    expected = copy.deepcopy(document)
    *tables, name = key.split(".")
    table = expected
    for part in tables:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{part} is no table, and {key} is in it", f"write [{part}] on a line of its own")
    table[name] = value
    return expected


def _insertions(text: str, key: str, value: Any) -> Iterator[str]:
    """Return the text with a line for a new key at each place where it may go, best first."""
    import tomlkit

    lines = text.split("\n")
    end_of_line = "\r" if lines[0].endswith("\r") else ""
    *tables, name = key.split(".")
    line = f"{tomlkit.key(name).as_string()} = {_item(value).as_string()}{end_of_line}"
    header = re.compile(rf"\s*\[\s*{re.escape('.'.join(tables))}\s*\]\s*(#.*)?")
    start = 0 if not tables else next((i + 1 for i, each in enumerate(lines) if header.fullmatch(each)), None)
    if start is None:
        separator = "" if text.endswith("\n") or not text else f"{end_of_line}\n"
        yield f"{text}{separator}{end_of_line}\n[{'.'.join(tables)}]{end_of_line}\n{line}\n"
        return
    end = next((i for i in range(start, len(lines)) if SECTION_END.match(lines[i])), len(lines))
    shown = re.compile(rf"#{re.escape(name)}\s*=")
    for i in range(start, end):
        if shown.match(lines[i]):
            yield "\n".join([*lines[:i], line, *lines[i + 1 :]])
    last = max((i + 1 for i in range(start, end) if KEY.match(lines[i])), default=start)
    for place in (last, start):
        yield "\n".join([*lines[:place], line, *lines[place:]])


def _item(value: Any) -> Any:
    """Return a value as TOML in one line."""
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    return tomlkit.item(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

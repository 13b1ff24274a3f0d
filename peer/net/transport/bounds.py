"""Checks of values from outside. Every ``WireError`` names the field, the value and the limit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from peer.core import limits, roster
from peer.core.artifacts import DTYPES, TensorSpec
from peer.core.roster import Sha256, SiteName

SHOWN_CHARACTERS = 40  # of a bad value in an error message

Key = TypeVar("Key")
Meaning = TypeVar("Meaning")


class WireError(ValueError):
    """A message is outside the protocol's limits; the text names the field, the value and the limit."""


def at_most(field: str, value: int, maximum: int, unit: str) -> None:
    """Raise ``WireError`` if a size or a count exceeds its limit."""
    if value > maximum:
        raise WireError(f"{field} has {value} {unit}, over the limit of {maximum}")


def number(field: str, value: int, *, minimum: int = 0, maximum: int = limits.COUNT_MAX) -> int:
    """Check that an integer lies within its bounds, and return it."""
    if not minimum <= value <= maximum:
        raise WireError(f"{field} = {value} is outside {minimum} to {maximum}")
    return value


def finite(field: str, value: float, *, minimum: float = 0.0, maximum: float) -> float:
    """Check that a number lies within its bounds, and return it; NaN is refused."""
    if not minimum <= value <= maximum:
        raise WireError(f"{field} = {value} is outside {minimum:g} to {maximum:g}")
    return value


def text(field: str, value: str, *, bytes_max: int = limits.TEXT_BYTES_MAX, empty: bool = False) -> str:
    """Check that a text is printable and within its size in UTF-8, and return it."""
    if not value and not empty:
        raise WireError(f"{field} is empty")
    if not value.isprintable():
        raise WireError(f"{field} {value[:SHOWN_CHARACTERS]!r} has characters that cannot be printed")
    at_most(field, len(value.encode()), bytes_max, "bytes")
    return value


def digest(field: str, value: str) -> Sha256:
    try:
        return roster.sha256(value)
    except ValueError as error:
        raise WireError(f"{field}: {error}") from None


def site(field: str, value: str) -> SiteName:
    try:
        return roster.site_name(value[:SHOWN_CHARACTERS])
    except ValueError as error:
        raise WireError(f"{field}: {error}") from None


def known(field: str, table: Mapping[Key, Meaning], value: Key) -> Meaning:
    """Look up an enumeration's number or name."""
    try:
        return table[value]
    except KeyError:
        raise WireError(f"{field} = {value} means nothing in this version of the protocol") from None


def tensor_bytes(tensor: TensorSpec) -> int:
    """Return the size of a tensor's elements in a safetensors file, in bytes."""
    return math.prod(tensor.shape) * DTYPES[tensor.dtype]


def json_object(field: str, encoded: str, *, bytes_max: int) -> dict[str, Any]:
    """Parse a JSON object; refuse duplicate keys and numbers that are not finite."""
    at_most(field, len(encoded.encode("utf-8", "surrogatepass")), bytes_max, "bytes")

    def refuse(constant: str) -> NoReturn:
        raise WireError(f"{field} has the number {constant}; only finite ones are allowed")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise WireError(f"{field} has an object with the same key twice")
        return members

    try:
        document = json.loads(encoded, parse_constant=refuse, object_pairs_hook=unique)
    except WireError:
        raise
    except RecursionError:
        raise WireError(f"{field} is nested too deep to be read") from None
    except ValueError as error:
        raise WireError(f"{field} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise WireError(f"{field} is not a JSON object")
    return document


def specification(field: str, value: object, depth: int = 0) -> None:
    """Raise ``WireError`` if a model specification is not JSON, is nested too deep, or has bad texts or numbers."""
    if depth > limits.SPEC_DEPTH_MAX:
        raise WireError(f"{field} is nested deeper than {limits.SPEC_DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise WireError(f"{field} has the key {key!r}, which is not a text")
            text(f"{field} key", key)
            specification(f"{field}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            specification(f"{field}[{index}]", inner, depth + 1)
    elif isinstance(value, str):
        text(field, value, bytes_max=limits.SPEC_BYTES_MAX, empty=True)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise WireError(f"{field} = {value} is not finite")
    elif isinstance(value, int):
        number(field, value, minimum=-limits.COUNT_MAX)
    elif value is not None:
        raise WireError(f"{field} is a {type(value).__name__}, which JSON cannot hold")

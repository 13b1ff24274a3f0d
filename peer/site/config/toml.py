"""TOML files, read and checked: exact types, no unknown keys.

An error names the file, the dotted key and a remedy.
"""

from __future__ import annotations

import difflib
import inspect
import ipaddress
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from peer.core.limits import COUNT_MAX, NUMBER_CONFIGURED_MAX, SECONDS_CONFIGURED_MIN
from peer.errors import ConfigError

BROADCAST = "255.255.255.255"
NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""The last part of a host that programs take for an IPv4 address, of which only four decimal numbers are one here."""
FILE_BYTES_MAX = 1 << 20  # a roster of 1000 sites has 100 KB
HOST_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"(?=.{{1,253}}$){HOST_LABEL}(\.{HOST_LABEL})*")


class StrictTable(BaseModel):
    """A TOML table: exact types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, document: Any) -> Any:
        if isinstance(document, dict) and cls.model_config.get("extra") == "forbid":
            for key in sorted(document.keys() - cls.model_fields.keys()):
                raise key_problem(key, f"unknown key{suggestion(key, cls.model_fields)}")
        return document


AnyTable = TypeVar("AnyTable", bound=StrictTable)


def key_problem(key: str, reason: str) -> PydanticCustomError:
    """Return the error that a table's validator raises about one of its keys, or a dotted key below."""
    return PydanticCustomError("key_problem", "{reason}", {"key": key, "reason": reason})


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a hint to append to an error: the most similar known word, or else all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(known)})" if known else ""


def matching(pattern: re.Pattern[str], description: str) -> AfterValidator:
    """Return a validator that requires the whole string to match the pattern, which errors describe by these words."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} is not {description}")
        return text

    return AfterValidator(check)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``, or ``ValueError``.

    Port 0 means any free port.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port with a port up to 65535")
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    if not host.isascii():
        raise ValueError(f"{text!r} has a host that is not ASCII{_in_ascii(host)}")
    if not HOST.fullmatch(host):
        raise ValueError(f"{text!r} has no valid host (an IPv6 address goes in brackets)")
    return host, int(port)


def _in_ascii(host: str) -> str:
    """Say how DNS writes a name, if it can."""
    try:
        return f"; write {host.encode('idna').decode('ascii')}"
    except UnicodeError:
        return ""


def check_dialable(route: str) -> None:
    """Raise ``ValueError`` if a route that ``check_route`` takes has a host that nobody can dial.

    Founders and newcomers are told; a federation that has such an address goes on.
    """
    host, _ = split_address(split_route(route)[1])
    if ":" not in host and not NUMBER.fullmatch(host.rpartition(".")[2]):
        return
    address = ipaddress.ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_unspecified:
        raise ValueError(f"{route!r} is no address to dial, but one to listen at; name the site's own")
    if address.is_multicast or str(address) == BROADCAST:
        raise ValueError(f"{route!r} is no address of one machine; name the site's own")


def split_proxy(text: str) -> tuple[str, int]:
    """Host and port of ``http://host:port``, or ``ValueError``."""
    scheme, slashes, address = text.partition("://")
    if not slashes or scheme != "http":
        raise ValueError(f"{text!r} is not http://host:port")
    if "@" in address:
        raise ValueError("user and password of a proxy go into a file, which password_file names")
    return split_address(address.removesuffix("/"))


def read(path: Path) -> str:
    """Read the text of a file. Raises ``ConfigError`` if it cannot be read, is too long or is not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "name the right file") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is over {FILE_BYTES_MAX} bytes", "name the right file")
    try:
        return content.decode("utf-8-sig")  # Windows editors write a byte order mark first
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}", "save it as UTF-8") from error


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse the TOML document in a text. Raises ``ConfigError`` naming the line with the syntax error."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a plain ValueError
        raise ConfigError(f"{where} is not TOML: {error}", "correct the syntax there") from error


def text(document: Mapping[str, Any]) -> str:
    """Return the document as TOML: first the keys outside tables, then each table after an empty line."""
    import tomlkit  # here: the import takes 14 ms, and most commands write no TOML

    content = tomlkit.dumps(document)
    return f"\n{content}" if content.startswith("[") else content


def read_extended(path: Path) -> dict[str, Any]:
    """Read the document of a file, merged over the document of the file that its key ``extends`` names,
    if it has that key.

    Tables are merged; every other value replaces that of the base. The base may itself extend a
    file. The path in ``extends`` is relative to the file that has the key.
    """
    return _extended(path, ())


def _extended(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    document = parse(read(path), str(path))
    if "extends" not in document:
        return document
    name = document.pop("extends")
    if not isinstance(name, str):
        raise ConfigError(f"{path}: extends = {str(name)[:60]}: name one file")
    base, chain = path.parent / name, (*below, path.resolve())
    if base.resolve() in chain:
        raise ConfigError(f"{path} extends {base}, which extends {path} in turn", "remove one of the keys `extends`")
    if not base.is_file():
        raise ConfigError(f"{path} extends {base}, which is no file", "correct the key `extends`")
    return _merge(_extended(base, chain), document)


def _merge(base: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in document.items():
        base_value = base.get(key)
        merged[key] = _merge(base_value, value) if isinstance(base_value, dict) and isinstance(value, dict) else value
    return merged


def validate(model: type[AnyTable], document: Mapping[str, Any], where: str) -> AnyTable:
    """Validate the document as a model. Raises ``ConfigError`` that lists every problem."""
    try:
        return model.model_validate(document)
    except ConfigError as error:  # from a validator with a better remedy than "correct the key"
        raise type(error)(f"{where}: {error.message}", error.remedy) from error
    except ValidationError as error:
        errors = _without_branches(error.errors(include_url=False))
        refuse(where, [_problem(details, model) for details in errors if not _follows(details, errors)])


def refuse(where: str, problems: Iterable[str]) -> NoReturn:
    """Raise a ``ConfigError`` that lists the problems of a file in one line."""
    raise ConfigError(f"{where}: {', and '.join(problems)}")


EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table, [{key}] on a line of its own",
    "model_type": "a table, [{key}] on a line of its own",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}
"""What a key takes, by pydantic's name of the error; its own texts are for programmers."""
TYPE_ERRORS = frozenset({"int_type", "int_from_float", "float_type", "string_type", "tuple_type", "missing"})
"""Errors that an example explains."""


def _problem(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context, key = details["type"], details.get("ctx", {}), _dotted(details["loc"])
    if kind == "key_problem":
        return f"{key}.{context['key']}: {context['reason']}".lstrip(".")
    if kind == "value_error":
        return f"{key}: {context['error']}"
    example = _example(model, details["loc"]) if kind in TYPE_ERRORS else ""
    if kind == "missing":
        return f"{key} is missing" + (f"; write, for example, {details['loc'][-1]} = {example}" if example else "")
    if kind in EXPECTED:
        bounds = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
        expected = EXPECTED[kind].format(key=key, **bounds) + (f" such as {example}" if example else "")
        return f"{key}: expected {expected}, found {_in_words(details['input'])}"
    return f"{key} = {_in_words(details['input'])}: {details['msg'][:1].lower()}{details['msg'][1:]}"


def _dotted(location: Iterable[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _in_words(value: Any) -> str:
    """Return a value of a TOML file as its author would call it."""
    if isinstance(value, str):
        return f'the text "{value[:60]}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return str(value)[:60]


def _example(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return a value that the key takes, as TOML: the schema's example or its default; empty without either."""
    table: type[BaseModel] | None = model
    value: Any = None
    for part in location:
        field = table.model_fields.get(part) if table is not None and isinstance(part, str) else None
        if field is not None:
            value = field.examples[0] if field.examples else field.default
            table = table_of(field.annotation)
    is_plain = isinstance(value, str | int | float | list | tuple) and value not in ("", [], ())
    return json.dumps(value, ensure_ascii=False) if is_plain and isinstance(location[-1], str) else ""


def table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the table that a key has, or that each entry of its list or table is."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((table for inner in get_args(annotation) if (table := table_of(inner)) is not None), None)


def _follows(details: ErrorDetails, errors: Iterable[ErrorDetails]) -> bool:
    """Return whether another error, deeper in, causes this one: pydantic left a wrong item out, and the
    list is too short.
    """
    location = details["loc"]
    return any(len(other["loc"]) > len(location) and other["loc"][: len(location)] == location for other in errors)


def _without_branches(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Place errors at their keys, without the branch of a union, and join what the branches expect of a key."""
    unions = {details["loc"][:-1] for details in errors if str(details["loc"][-1:]).startswith('("literal[')}
    placed: dict[tuple[int | str, ...], ErrorDetails] = {}
    for details in errors:
        location = details["loc"]
        union = next((above for above in unions if location[: len(above)] == above), location)
        location = (*union, *location[len(union) + 1 :])
        first, details = placed.get(location, details), {**details, "loc": location}
        if first["type"] == "literal_error" != details["type"] in EXPECTED:
            other = EXPECTED[details["type"]].format(key=_dotted(location))
            details = {**first, "ctx": {"expected": f"{first['ctx']['expected']} or {other}"}}
        placed[location] = details
    return list(placed.values())


def _listen(text: str) -> str:
    split_address(text)
    return text


def _address(text: str) -> str:
    if split_address(text)[1] == 0:
        raise ValueError(f"{text!r} has port 0, which nobody can dial")
    return text


def _addresses(value: Any) -> Any:
    """One address, or a list of them, as a tuple."""
    if isinstance(value, str):
        value = (value,)
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if not is_list:
        return value
    return tuple(check_route(item) for item in value)


def check_route(text: str) -> str:
    """Check and return a text that ``split_route`` reads, with a port that can be dialled, or raise ``ValueError``."""
    _address(split_route(text)[1])
    return text


def split_route(text: str) -> tuple[str, str]:
    """Split ``relay NAME host:port`` or ``host:port`` into name ("") and address, or raise ``ValueError``."""
    if not text.startswith(RELAYED):
        return "", text
    return split_relay(text.removeprefix(RELAYED))


RELAYED = "relay "


def split_relay(text: str) -> tuple[str, str]:
    """Name and address of ``name host:port``, or ``ValueError``."""
    name, _, address = text.partition(" ")
    if not name or not address:
        raise ValueError(f"{text!r} is not the relay's name and host:port, such as 'gate relay.example.org:443'")
    split_address(address)
    return name, address


def _relay(text: str) -> str:
    split_relay(text)
    return text


def _proxy(text: str) -> str:
    if text not in ("none", "environment"):
        split_proxy(text)
    return text


Relay = Annotated[str, AfterValidator(_relay)]
ProxyUrl = Annotated[str, AfterValidator(_proxy)]
Addresses = Annotated[tuple[str, ...], BeforeValidator(_addresses), Strict(False)]
Listen = Annotated[str, AfterValidator(_listen)]
Route = Annotated[str, AfterValidator(check_route)]
Count = Annotated[int, Field(ge=1, le=NUMBER_CONFIGURED_MAX)]
Bytes = Annotated[int, Field(ge=1, le=COUNT_MAX)]
Positive = Annotated[float, Field(gt=0, le=NUMBER_CONFIGURED_MAX)]
NotNegative = Annotated[float, Field(ge=0, le=NUMBER_CONFIGURED_MAX)]
Seconds = Annotated[float, Field(ge=SECONDS_CONFIGURED_MIN, le=NUMBER_CONFIGURED_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]
Loose = Strict(False)  # TOML has lists only; they become tuples

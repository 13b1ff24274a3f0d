"""Checked TOML files: every complaint names the file, the dotted key and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, Strict

from peer.config import toml
from peer.config.toml import StrictTable, matching, split_address, suggestion, wrong
from peer.errors import ConfigError


class Inner(StrictTable):
    size: Annotated[int, Field(ge=1)] = 1
    share: float = 0.5


class Outer(StrictTable):
    name: str
    inner: Inner = Inner()
    some: Annotated[tuple[Inner, ...], Strict(False), Field(min_length=1)] = (Inner(),)
    more: dict[str, Inner] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "f.toml: name is missing"),
        ({"name": 3}, "f.toml: name = 3: input should be a valid string"),
        ({"name": "x", "inner": {"size": 0}}, "f.toml: inner.size = 0: input should be greater than or equal to 1"),
        ({"name": "x", "inner": {"size": True}}, "f.toml: inner.size = True: input should be a valid integer"),
        ({"name": "x", "inner": {"share": float("inf")}}, "inner.share = inf: input should be a finite number"),
        ({"name": "x", "inner": {"siz": 1}}, r"f.toml: inner.siz: unknown key \(did you mean 'size'\?\)"),
        ({"name": "x", "more": {"a": {"what": 1}}}, r"f.toml: more.a.what: unknown key \(known: share, size\)"),
        ({"name": "x", "nam": 1}, r"f.toml: nam: unknown key \(did you mean 'name'\?\)"),
        ({"name": "x", "some": [{"size": 0}]}, r"f.toml: some\[0\].size = 0: input should be [a-z ]* 1; correct"),
        ({"name": 1, "inner": {"size": 0}}, "name = 1: .*, and inner.size = 0: "),
    ],
)
def test_errors_name_file_key_and_value(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toml.validated(Outer, document, "f.toml")


def test_valid_tables_are_immutable() -> None:
    outer = toml.validated(Outer, {"name": "x", "inner": {"share": 1}}, "f.toml")
    assert (outer.inner.size, outer.inner.share) == (1, 1.0)
    with pytest.raises(ValueError, match="frozen"):
        outer.name = "y"


def test_wrong_names_a_key_below_the_table() -> None:
    assert wrong("a.b", "is bad").context == {"key": "a.b", "reason": "is bad"}


def test_suggestions() -> None:
    assert suggestion("rouns", ["rounds", "seed"]) == " (did you mean 'rounds'?)"
    assert suggestion("zzz", ["b", "a"]) == " (known: a, b)"
    assert suggestion("zzz", []) == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7443", ("127.0.0.1", 7443)),
        ("mhfl.europe.example:1", ("mhfl.europe.example", 1)),
        ("docker_service:65535", ("docker_service", 65535)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:7443", ("::1", 7443)),
        ("[2001:db8:0::1]:7443", ("2001:db8::1", 7443)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", ":7443", "host:", "host:65536", "host:-1", "host:7443x", "host:٣", "a b:1", "http://host:1"),
        *("::1:7443", "[::1:7443", "[host]:1", "[]:1", "-host:1", "host-:1", "a..b:1", f"{'a' * 64}:1", "host\n:1"),
        f"{'a.' * 127}aa:1",
    ],
)
def test_refused_addresses(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"host:port|valid host|Address cannot be empty|Expected|At least|not permitted"
    ):
        split_address(text)


def test_matching_is_about_the_whole_text() -> None:
    import re

    class Device(StrictTable):
        name: Annotated[str, matching(re.compile("cpu|cuda"), "cpu or cuda")]

    assert Device(name="cuda").name == "cuda"
    with pytest.raises(ConfigError, match="name: 'cuda2' is not cpu or cuda"):
        toml.validated(Device, {"name": "cuda2"}, "f.toml")


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(ConfigError, match=r"f.toml is not TOML: .*at line 2, column 4"):
        toml.parse("a = 1\nb  2\n", "f.toml")
    with pytest.raises(ConfigError, match=r"f.toml is not TOML: .*overwrite.*"):
        toml.parse("a = 1\na = 2\n", "f.toml")
    with pytest.raises(ConfigError, match=r"f.toml is not TOML"):
        toml.parse("a = " + "[" * 100_000, "f.toml")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"missing.toml cannot be read: No such file or directory; name the right file"
    ):
        toml.read(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        toml.read(tmp_path)
    (tmp_path / "latin").write_bytes(b"a = '\xe4'")
    with pytest.raises(ConfigError, match="latin is not UTF-8 at byte 5"):
        toml.read(tmp_path / "latin")
    (tmp_path / "long").write_bytes(b"#" * (toml.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="long is over 1048576 bytes"):
        toml.read(tmp_path / "long")
    (tmp_path / "fits").write_bytes(b"#" * toml.FILE_BYTES_MAX)
    assert len(toml.read(tmp_path / "fits")) == toml.FILE_BYTES_MAX


def test_what_is_written_is_read_again() -> None:
    written = toml.text({"name": "Zürich", "rounds": 3}, {"a": {"on": True, "sizes": [1, 2]}, "a.b": {"rate": 1e-3}})
    assert toml.parse(written, "text") == {
        "name": "Zürich",
        "rounds": 3,
        "a": {"on": True, "sizes": [1, 2], "b": {"rate": 0.001}},
    }

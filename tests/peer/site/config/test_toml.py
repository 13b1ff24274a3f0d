"""Checked TOML files: every error names the file, the dotted key and what would be right."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, Strict

from peer.errors import ConfigError
from peer.site.config import toml
from peer.site.config.toml import StrictTable, check_dialable, matching, split_address, suggestion


class Inner(StrictTable):
    size: Annotated[int, Field(ge=1)] = 1
    share: float = 0.5


class Outer(StrictTable):
    name: str
    inner: Inner = Inner()
    some: Annotated[tuple[Inner, ...], Strict(False), Field(min_length=1)] = (Inner(),)
    more: dict[str, Inner] = Field(default_factory=dict)
    flags: Annotated[tuple[bool, ...], Strict(False), Field(min_length=1, examples=[[True, False]])] = (True,)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "f.toml: name is missing"),
        ({"name": 3}, "f.toml: name: expected a text in quotes, found 3"),
        ({"name": "x", "inner": {"size": 0}}, "f.toml: inner.size: expected at least 1, found 0"),
        ({"name": "x", "inner": {"size": True}}, "inner.size: expected a whole number such as 1, found true"),
        ({"name": "x", "inner": {"size": "8"}}, 'inner.size: expected a whole number such as 1, found the text "8"'),
        ({"name": "x", "inner": {"size": 8.5}}, "inner.size: expected a whole number such as 1, found 8.5"),
        ({"name": "x", "inner": {"share": "high"}}, r'inner.share: expected .* 0.5, found the text "high"'),
        ({"name": "x", "inner": {"share": float("inf")}}, "inner.share: expected a finite number, found inf"),
        ({"name": "x", "inner": 3}, r"inner: expected a table, \[inner\] on a line of its own, found 3"),
        ({"name": "x", "flags": 1}, r"flags: expected a list such as \[true, false\], found 1"),
        ({"name": "x", "flags": []}, "flags: expected a list of at least 1, found an empty list"),
        ({"name": "x", "inner": {"siz": 1}}, r"f.toml: inner.siz: unknown key \(did you mean 'size'\?\)"),
        ({"name": "x", "more": {"a": {"what": 1}}}, r"f.toml: more.a.what: unknown key \(known: share, size\)"),
        ({"name": "x", "nam": 1}, r"f.toml: nam: unknown key \(did you mean 'name'\?\)"),
        ({"name": "x", "some": [{"size": 0}]}, r"f.toml: some\[0\].size: expected at least 1, found 0; correct"),
        ({"name": 1, "inner": {"size": 0}}, "name: expected .*, and inner.size: expected "),
    ],
)
def test_errors_name_file_key_and_value(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toml.validate(Outer, document, "f.toml")


def test_valid_tables_are_immutable() -> None:
    outer = toml.validate(Outer, {"name": "x", "inner": {"share": 1}}, "f.toml")
    assert (outer.inner.size, outer.inner.share) == (1, 1.0)
    with pytest.raises(ValueError, match="frozen"):
        outer.name = "y"


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
    reasons = r"host:port|valid host|Address cannot be empty|Expected|At least|not permitted"
    with pytest.raises(ValueError, match=reasons):
        split_address(text)


def test_a_host_that_is_not_ascii_has_the_name_that_dns_has() -> None:
    with pytest.raises(ValueError, match=r"not ASCII; write xn--mnchen-3ya\.de"):
        split_address("m\xfcnchen.de:7443")


@pytest.mark.parametrize(
    "route",
    [
        *("0.0.0.0:7443", "[::]:7443", "relay gate 0.0.0.0:443", "10.0.0.300:7443", "10.0.1:1"),
        *("0x7f.1:7443", "a.0x7f:1", "host.1:1", "[::ffff:0.0.0.0]:7443", "[::ffff:224.0.0.1]:7443"),
        *("224.0.0.251:7443", "[ff02::1]:7443", "255.255.255.255:7443"),
    ],
)
def test_what_nobody_can_dial(route: str) -> None:
    with pytest.raises(ValueError, match=r"no address to dial|does not appear to be|no address of one machine"):
        check_dialable(route)


@pytest.mark.parametrize(
    "route", ["10.0.0.3:7443", "[fd00::1]:7443", "relay gate relay.example.org:443", "3com.com:1", "node7:1"]
)
def test_what_can_be_dialled(route: str) -> None:
    check_dialable(route)


def test_matching_is_about_the_whole_text() -> None:
    import re

    class Device(StrictTable):
        name: Annotated[str, matching(re.compile("cpu|cuda"), "cpu or cuda")]

    assert Device(name="cuda").name == "cuda"
    with pytest.raises(ConfigError, match="name: 'cuda2' is not cpu or cuda"):
        toml.validate(Device, {"name": "cuda2"}, "f.toml")


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(ConfigError, match=r"f.toml is not TOML: .*at line 2, column 4"):
        toml.parse("a = 1\nb  2\n", "f.toml")
    with pytest.raises(ConfigError, match=r"f.toml is not TOML: .*overwrite.*"):
        toml.parse("a = 1\na = 2\n", "f.toml")
    with pytest.raises(ConfigError, match=r"f.toml is not TOML"):
        toml.parse("a = " + "[" * 100_000, "f.toml")


def test_unreadable_files(tmp_path: Path) -> None:
    reason = r"missing.toml cannot be read: No such file or directory; name the right file"
    with pytest.raises(ConfigError, match=reason):
        toml.read(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        toml.read(tmp_path)
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert toml.parse(toml.read(tmp_path / "bom"), "bom") == {"a": 1}
    (tmp_path / "long").write_bytes(b"#" * (toml.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="long is over 1048576 bytes"):
        toml.read(tmp_path / "long")
    (tmp_path / "fits").write_bytes(b"#" * toml.FILE_BYTES_MAX)
    assert len(toml.read(tmp_path / "fits")) == toml.FILE_BYTES_MAX


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["a.b", "\N{GRINNING FACE}", "Zürich", '"', "'", "\n", "\r\n", "'''", '"""\n', "\\", "", "a b", "\x7f", "#", "[a]"]
)
VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_again(document: dict[str, Any]) -> None:
    assert toml.parse(toml.text(document), "text") == document


def test_a_written_file_is_laid_out_as_runs_hold_it() -> None:
    # The digest of a run counts these very bytes.
    document = {
        "name": "a b",
        "rate": 1e-5,
        "sizes": [1, 2],
        "stages": {"train": {"unit": "step"}},
        "model": {"name": "resnet10", "parameters": {}},
        "site": [{"name": "asia"}, {"name": "europe"}],
    }
    assert toml.text(document) == (
        'name = "a b"\nrate = 1e-05\nsizes = [1, 2]\n\n[stages.train]\nunit = "step"\n\n'
        '[model]\nname = "resnet10"\n\n[model.parameters]\n\n[[site]]\nname = "asia"\n\n[[site]]\nname = "europe"\n'
    )
    assert toml.text({"data": {"root": "."}}) == '\n[data]\nroot = "."\n'


def test_a_file_that_extends_another_is_laid_over_it(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "_first.toml").write_text("a = 1\nlist = [1, 2]\n[t]\nx = 1\ny = {u = 1, v = 2}\n")
    (tmp_path / "_second.toml").write_text('extends = "below/_first.toml"\nb = 2\n[t]\nx = 3\n')
    (tmp_path / "file.toml").write_text('extends = "_second.toml"\nlist = [3]\n[t]\ny.u = 4\nz = 5\n')
    document = toml.read_extended(tmp_path / "file.toml")
    assert document == {"a": 1, "list": [3], "t": {"x": 3, "y": {"u": 4, "v": 2}, "z": 5}, "b": 2}
    assert list(document["t"]) == ["x", "y", "z"]


def test_what_cannot_be_extended_is_named(tmp_path: Path) -> None:
    path, base = tmp_path / "file.toml", tmp_path / "_base.toml"
    path.write_text('extends = "_base.toml"\n')
    with pytest.raises(ConfigError, match=r"file.toml extends .*_base.toml, which is no file; correct the key"):
        toml.read_extended(path)
    base.write_text('extends = "file.toml"\n')
    with pytest.raises(ConfigError, match=r"_base.toml extends .*file.toml, which extends .*_base.toml in turn"):
        toml.read_extended(path)
    path.write_text('extends = "file.toml"\n')
    with pytest.raises(ConfigError, match=r"file.toml extends .*file.toml, which extends"):
        toml.read_extended(path)
    path.write_text("extends = [1]\n")
    with pytest.raises(ConfigError, match=r"file.toml: extends = \[1\]: name one file"):
        toml.read_extended(path)
    path.write_text('extends = "_base.toml"\n')
    base.write_text("b  2")
    with pytest.raises(ConfigError, match=r"_base.toml is not TOML"):
        toml.read_extended(path)

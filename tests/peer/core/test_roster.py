"""Names, digests and rosters; canonical JSON against an independent writer."""

from __future__ import annotations

import datetime
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.core.roster import Roster, federation_digest, roster_digest, round_key, sha256, site_name

VECTORS = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "federation.json").read_text())
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def reference_json(value: Any) -> str:
    """Canonical JSON, written character by character from the specification."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(ESCAPES.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(reference_json, value)) + "]"
    keys = sorted((key for key in value if key not in ("address", "description")), key=lambda k: [ord(c) for c in k])
    return "{" + ",".join(f"{reference_json(key)}:{reference_json(value[key])}" for key in keys) + "}"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
documents = st.dictionaries(
    texts | st.sampled_from(["address", "description", "rounds"]),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)),
    max_size=4,
)


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_known_digests(vector: dict[str, str]) -> None:
    document = tomllib.loads(vector["toml"])
    assert reference_json(document) == vector["canonical"]
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["digest"]
    assert federation_digest(document) == vector["digest"]


@given(documents)
def test_digest_agrees_with_the_reference(document: dict[str, Any]) -> None:
    assert federation_digest(document) == hashlib.sha256(reference_json(document).encode()).hexdigest()


@given(documents, st.sampled_from(["address", "description"]), texts)
def test_addresses_and_descriptions_are_no_identity(document: dict[str, Any], key: str, text: str) -> None:
    bare = {name: value for name, value in document.items() if name != key}
    assert federation_digest({**bare, key: text}) == federation_digest(bare)
    assert federation_digest({"site": [{**bare, key: text}]}) == federation_digest({"site": [bare]})


def test_digest_sees_every_other_change() -> None:
    documents = [{"rounds": 1}, {"rounds": 1.0}, {"rounds": True}, {"rounds": "1"}, {"rounds": [1]}, {"round": 1}]
    assert len({federation_digest(document) for document in documents}) == len(documents)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"method": {"gamma": float("nan")}}, "method.gamma = nan: only finite"),
        ({"site": [{"name": "a"}, {"since": datetime.date(2026, 1, 1)}]}, r"site\[1\].since: a date has no canonical"),
    ],
)
def test_digest_refuses_what_has_no_canonical_form(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation_digest(document)


@pytest.mark.parametrize("name", ["a", "0", "europe", "site-1", "a" * 32, "a--b"])
def test_site_names(name: str) -> None:
    assert site_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "ä", "a" * 33, "a\n", "../a"])
def test_refused_site_names(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 32 lower-case"):
        site_name(name)


def test_other_identities_are_checked() -> None:
    assert sha256("ab" * 32) == "ab" * 32
    assert round_key(bytes(32)) == bytes(32)
    for text in ("AB" * 32, "ab" * 31, "ab" * 32 + "\n"):
        with pytest.raises(ValueError, match="is not a SHA-256 digest"):
            sha256(text)
    with pytest.raises(ValueError, match="has 32 bytes, not 31"):
        round_key(bytes(31))


def test_roster_sorts_by_bytes_and_counts() -> None:
    roster = Roster.of(["b", "a-b", "a", "a0", "10", "9"])
    assert list(roster) == ["10", "9", "a", "a-b", "a0", "b"] == sorted(roster, key=str.encode)
    assert len(roster) == 6
    assert [roster.index(name) for name in roster] == list(range(6))
    assert roster.others("a") == ("10", "9", "a-b", "a0", "b")
    assert "a" in roster
    assert "c" not in roster


def test_roster_digest_is_that_of_the_sorted_names() -> None:
    assert Roster.of(["b", "a"]).digest == hashlib.sha256(b"a\nb").hexdigest() == roster_digest(["a", "b"])


def test_roster_refuses() -> None:
    with pytest.raises(ValueError, match="'a' is in the roster twice"):
        Roster.of(["a", "b", "a"])
    with pytest.raises(ValueError, match="'A' must be"):
        Roster.of(["A"])
    with pytest.raises(ValueError, match="at least one"):
        Roster.of([])
    with pytest.raises(ValueError, match="sorted by name"):
        Roster((site_name("b"), site_name("a")))
    with pytest.raises(ValueError, match=r"'c' is not in the roster \(a, b\)"):
        Roster.of(["a", "b"]).index("c")

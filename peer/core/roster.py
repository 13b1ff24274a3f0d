"""Sites, digests and the roster: the identities that every other module passes around."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType

SiteName = NewType("SiteName", str)
Sha256 = NewType("Sha256", str)
RoundKey = NewType("RoundKey", bytes)

SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
SHA256 = re.compile(r"[0-9a-f]{64}")
ROUND_KEY_BYTES = 32

NOT_IDENTITY = frozenset({"address", "description"})


NO_ROUND_KEY = RoundKey(bytes(32))
"""Placeholder for the genesis' round key at a site that joined later: its epochs have their own keys."""


def site_name(text: str) -> SiteName:
    """Check and return a site name: 1 to 32 lower-case letters, digits or inner hyphens, or raise ``ValueError``."""
    if not SITE_NAME.fullmatch(text):
        raise ValueError(
            f"site name {text!r} must be 1 to 32 lower-case letters, digits or hyphens, with no hyphen at either end"
        )
    return SiteName(text)


def sha256(text: str) -> Sha256:
    """Check and return a SHA-256 digest in lower-case hex; raise ``ValueError`` if it is malformed."""
    if not SHA256.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a SHA-256 digest (64 lower-case hex digits)")
    return Sha256(text)


def round_key(key: bytes) -> RoundKey:
    """Check and return a round key; raise ``ValueError`` unless it has exactly 32 bytes."""
    if len(key) != ROUND_KEY_BYTES:
        raise ValueError(f"a round key has {ROUND_KEY_BYTES} bytes, not {len(key)}")
    return RoundKey(key)


def federation_digest(document: Mapping[str, Any]) -> Sha256:
    """Compute a federation's identity: SHA-256 of the canonical JSON of its parsed ``federation.toml``.

    Every ``address`` and ``description``, at any depth, is left out, so that a site can move. Keys are sorted by code
    point, there are no spaces, floats are written as Python's ``repr``. Dates and non-finite floats have no canonical
    form: ``ValueError``.
    """
    return Sha256(hashlib.sha256(canonical_json(document, left_out=NOT_IDENTITY)).hexdigest())


def canonical_json(document: Mapping[str, Any], *, left_out: Container[str] = ()) -> bytes:
    """Encode a document as canonical JSON in UTF-8; ``left_out`` are keys to omit at any depth.

    Raises ``ValueError`` for a value that has no canonical form.
    """
    canonical = _canonical(document, path="", left_out=left_out)
    return json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def roster_digest(names: Sequence[str]) -> Sha256:
    """Compute the SHA-256 of a roster's names, in its order, joined by line feeds."""
    return Sha256(hashlib.sha256("\n".join(names).encode("ascii")).hexdigest())


def round_key_tag(key: RoundKey, federation: Sha256) -> Sha256:
    """Prove possession of the round key: HMAC-SHA256(key, "mhfl/hello/v1" || federation digest)."""
    return Sha256(hmac.digest(key, b"mhfl/hello/v1" + bytes.fromhex(federation), "sha256").hex())


def _canonical(value: Any, *, path: str, left_out: Container[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _canonical(inner, path=f"{path}.{key}" if path else key, left_out=left_out)
            for key, inner in value.items()
            if key not in left_out
        }
    if isinstance(value, list | tuple):
        return [_canonical(inner, path=f"{path}[{index}]", left_out=left_out) for index, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} = {value}: only finite numbers have a canonical form")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{path}: a {type(value).__name__} has no canonical form; write it as a string")


@dataclass(frozen=True, slots=True)
class Roster:
    """The sites of a federation, sorted by name; a site's index is its position here."""

    names: tuple[SiteName, ...]
    _indices: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an empty, unsorted or repeating roster: its indices would differ between sites."""
        if not self.names:
            raise ValueError("a roster needs at least one site")
        if list(self.names) != sorted(set(self.names)):
            raise ValueError("a roster is sorted by name and names no site twice")
        object.__setattr__(self, "_indices", {name: index for index, name in enumerate(self.names)})

    @classmethod
    def of(cls, names: Sequence[str]) -> Roster:
        """Build the roster of names in any order. Raises ``ValueError`` naming a duplicate or a malformed name."""
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ValueError(f"site {name!r} is in the roster twice")
            seen.add(name)
        return cls(tuple(sorted(site_name(name) for name in names)))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[SiteName]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def index(self, name: str) -> int:
        """Return the site's index; raise ``ValueError`` for a site that is not in the roster."""
        try:
            return self._indices[name]
        except KeyError:
            raise ValueError(f"site {name!r} is not in the roster ({', '.join(self.names)})") from None

    def others(self, name: str) -> tuple[SiteName, ...]:
        """Return all sites but the named one, in roster order."""
        return tuple(other for other in self.names if other != name)

    @property
    def digest(self) -> Sha256:
        """The roster's digest, compared in ``Hello``."""
        return roster_digest(self.names)

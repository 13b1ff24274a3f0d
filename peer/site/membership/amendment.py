"""The body of an amendment: canonical JSON that changes the members or the settings of a federation.

The signatures and the next amendment's ``previous`` cover the bytes, so a body that is not canonical
JSON is refused. A key that this program does not know changes nothing here: the site holds before
the amendment's first round, and says that it needs an upgrade.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from peer.core import limits, roster
from peer.core.messages import SignedNotice
from peer.core.roster import Sha256, SiteName, canonical_json
from peer.site.config import toml

MANDATORY = ("federation", "number", "previous", "from_round", "issued", "round_key_tag")
CHANGES = ("add", "leave", "expel", "rekey", "set", "hold", "requires", "authority", "governance")
SETTINGS = ("rounds", "pace", "stages", "method", "quorum", "fallback")
"""Keys of federation.toml that ``set`` may change."""
NEVER = (
    "aggregate",
    "ca_certificate",
    "description",
    "evaluation_every",
    "global_test",
    "image_axes",
    "name",
    "privacy",
    "schedule",
    "seed",
    "shared_model",
    "site",
    "task",
    "weighting",
)
"""Keys that no amendment may change: sites' policies approved them when they joined."""
METHOD_NEVER = ("name", "package")
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or the order in which it shows text. By number: the validity of an amendment
must not depend on a version of Unicode."""
TEXT_SHOWN = 40
NOTICE_PARTS = ("body", "signature", "certificate_der")


class AmendmentRefused(ValueError):  # noqa: N818 - the name is the fact
    """An amendment, a signature or a notice is not valid; the remedy says what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A site that an amendment adds: the SHA-256 of its key, and the address that others may dial."""

    name: SiteName
    key: Sha256
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Governance:
    """Who signs amendments: the founder (``members`` is ``None``), or at least ``members`` members and a majority."""

    members: int | None = None

    def document(self) -> Any:
        return "founder" if self.members is None else {"members": self.members}


@dataclass(frozen=True, slots=True)
class Requirements:
    """The protocol and features that every site must support from the amendment's first round on."""

    protocol: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """One link of the chain; ``unknown`` are keys of a later version of this program."""

    federation: Sha256
    number: int
    previous: Sha256
    from_round: int
    issued: int
    round_key_tag: Sha256
    add: tuple[Newcomer, ...] = ()
    leave: tuple[SignedNotice, ...] = ()
    expel: SiteName | None = None
    rekey: Mapping[SiteName, Sha256] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    hold: bool | None = None
    requires: Requirements | None = None
    authority: str | None = None
    governance: Governance | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> frozenset[str]:
        """The keys of the body's changes."""
        return frozenset(self._changes())

    def encode(self) -> bytes:
        """Encode the body. Raise ``AmendmentRefused`` if no site would accept it."""
        document: dict[str, Any] = {name: getattr(self, name) for name in MANDATORY}
        body = canonical_json(document | self._changes())
        decode(body)
        return body

    def _changes(self) -> dict[str, Any]:
        add = [
            {"name": site.name, "key": site.key} | ({} if site.address is None else {"address": site.address})
            for site in self.add
        ]
        requires = self.requires and {"protocol": self.requires.protocol, "features": list(self.requires.features)}
        candidates = {
            "add": add or None,
            "leave": [notice_to_base64(notice) for notice in self.leave] or None,
            "expel": self.expel,
            "rekey": dict(self.rekey) or None,
            "set": dict(self.settings) or None,
            "hold": self.hold,
            "requires": requires,
            "authority": self.authority,
            "governance": None if self.governance is None else self.governance.document(),
        }
        return {key: value for key, value in candidates.items() if value is not None} | dict(self.unknown)


def body_digest(body: bytes) -> Sha256:
    """Return the SHA-256 of a body, which the next amendment names as ``previous``."""
    return Sha256(hashlib.sha256(body).hexdigest())


def decode(body: bytes) -> Amendment:
    """Decode and check a body. Raise ``AmendmentRefused``, which names the key and the bound."""
    if len(body) > limits.AMENDMENT_BYTES_MAX:
        raise _malformed(f"it has {len(body)} bytes, over the limit of {limits.AMENDMENT_BYTES_MAX}")
    try:
        document = json.loads(body)
        canonical = isinstance(document, dict) and canonical_json(document) == body
    except (ValueError, RecursionError):
        raise _malformed("it is no JSON text") from None
    if not canonical:
        raise _malformed("it is no object in canonical JSON")
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, AmendmentRefused):
            raise
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise _malformed(reason) from None


def _read(document: dict[str, Any]) -> Amendment:
    settings = _object(document, "set", empty=False)
    for key in settings:
        if key in NEVER:
            raise _malformed(f"set.{key} is not an amendment's to change: the sites' policies approved it")
    for key in _object(settings, "method"):
        if key in METHOD_NEVER:
            raise _malformed(f"set.method.{key} is not an amendment's to change: the sites' policies approved it")
    if "rounds" in settings:
        _count(settings, "rounds", 1, limits.ROUNDS_MAX)
    known = (*MANDATORY, *CHANGES)
    _check_texts("the body", list(document))
    _check_texts("set", settings)
    return Amendment(
        federation=roster.sha256(_text(document, "federation")),
        number=_count(document, "number", 1, limits.AMENDMENTS_MAX),
        previous=roster.sha256(_text(document, "previous")),
        from_round=_count(document, "from_round", 1, limits.ROUNDS_MAX + 1),
        issued=_count(document, "issued", 0, limits.ISSUED_MAX),
        round_key_tag=roster.sha256(_text(document, "round_key_tag")),
        add=tuple(map(_newcomer, _list(document, "add"))),
        leave=tuple(map(notice_from_base64, _list(document, "leave"))),
        expel=roster.site_name(_text(document, "expel")) if "expel" in document else None,
        rekey={
            roster.site_name(site): roster.sha256(_text({"rekey": key}, "rekey"))
            for site, key in _object(document, "rekey", empty=False).items()
        },
        settings=settings,
        hold=_flag(document, "hold") if "hold" in document else None,
        requires=_requirements(_object(document, "requires")) if "requires" in document else None,
        authority=_text(document, "authority") if "authority" in document else None,
        governance=_governance(document["governance"]) if "governance" in document else None,
        unknown={key: value for key, value in document.items() if key not in known},
    )


def notice_to_base64(notice: SignedNotice) -> dict[str, str]:
    """Encode a notice as amendments and files hold it."""
    return {name: base64.b64encode(getattr(notice, name)).decode("ascii") for name in NOTICE_PARTS}


def notice_from_base64(parts: Any) -> SignedNotice:
    """Decode a notice from an amendment or a file. Raise ``ValueError`` if it has another form."""
    if not isinstance(parts, dict) or set(parts) != set(NOTICE_PARTS):
        raise ValueError(f"a notice has the keys {', '.join(NOTICE_PARTS)}")
    try:
        return SignedNotice(*(base64.b64decode(_text(parts, name), validate=True) for name in NOTICE_PARTS))
    except binascii.Error:
        raise ValueError("a notice's parts are texts in base64") from None


def _newcomer(entry: Any) -> Newcomer:
    if not isinstance(entry, dict) or set(entry) - {"address"} != {"name", "key"}:
        raise ValueError("each entry of add has the keys name, key and, if it is known, address")
    address = toml.check_route(_text(entry, "address")) if "address" in entry else None
    return Newcomer(roster.site_name(_text(entry, "name")), roster.sha256(_text(entry, "key")), address)


def _requirements(table: dict[str, Any]) -> Requirements:
    if set(table) != {"protocol", "features"}:
        raise ValueError("requires has the keys protocol and features")
    features = _list({"requires.features": table["features"]}, "requires.features", empty=True)
    return Requirements(
        _count(table, "protocol", 0, (1 << 32) - 1),
        tuple(_text({"requires.features": feature}, "requires.features") for feature in features),
    )


def _governance(value: Any) -> Governance:
    if value == "founder":
        return Governance()
    if not isinstance(value, dict) or set(value) != {"members"}:
        raise ValueError('governance is "founder" or {members: M}')
    return Governance(_count(value, "members", 1, limits.SITES_MAX))


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table[key]
    if not isinstance(value, str) or not value or len(value.encode()) > limits.AMENDMENT_BYTES_MAX:
        raise ValueError(f"{key} is not a text")
    if key != "authority" and not value.isprintable():
        raise ValueError(f"{key} has characters that cannot be printed")
    return value


def _check_texts(name: str, value: Any) -> None:
    """Raise ``ValueError`` if a text in a value, or a key of its tables, could control a terminal."""
    left = [value]
    while left:  # no recursion: a table may be nested as deep as a body is long
        each = left.pop()
        if isinstance(each, str) and STEERING.search(each):
            raise ValueError(f"{name} has a text with a control character: {each[:TEXT_SHOWN]!a}")
        if isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each


def _count(table: Mapping[str, Any], key: str, minimum: int, maximum: int) -> int:
    value = table[key]
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ValueError(f"{key} is not a whole number from {minimum} to {maximum}")
    return value


def _flag(table: Mapping[str, Any], key: str) -> bool:
    if not isinstance(table[key], bool):
        raise ValueError(f"{key} is neither true nor false")
    return bool(table[key])


def _list(table: Mapping[str, Any], key: str, *, empty: bool = False) -> list[Any]:
    """Return a key's list, empty if the key is absent. A present list must have entries unless ``empty``."""
    if key not in table:
        return []
    value = table[key]
    if not isinstance(value, list) or (not value and not empty):
        raise ValueError(f"{key} is not a list with entries")
    return value


def _object(table: Mapping[str, Any], key: str, *, empty: bool = True) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict) or (key in table and not value and not empty):
        raise ValueError(f"{key} is not a table with entries")
    return value


def _malformed(reason: str) -> AmendmentRefused:
    return AmendmentRefused(f"the amendment is refused: {reason}", "its author has to make a correct one")

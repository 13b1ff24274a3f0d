"""The changes of an amendment in words, for people who are about to sign it or read the chain.

Texts by the amendment's author are shown escaped: they may hold terminal escapes, or words that read
like another change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from peer.core.messages import SignedNotice
from peer.core.roster import Sha256
from peer.site.identity import certificates
from peer.site.membership.amendment import Amendment
from peer.site.membership.chain import Membership
from peer.site.membership.signatures import quorum

ADDRESS = re.compile(r"(relay )?[A-Za-z0-9._:\[\]-]+")
FEATURE = re.compile(r"[A-Za-z0-9._-]+")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""As in TOML; any other key is quoted."""


def changes_in_words(amendment: Amendment, before: Membership | None, settings: Mapping[str, Any]) -> list[str]:
    """Describe each change in a sentence; keys as fingerprints, which people compare over the telephone.

    Args:
        before: the membership before the amendment; ``None`` if the chain is not available.
        settings: federation.toml's settings before the amendment; empty if not known.
    """
    return list(_sentences(amendment, before, settings))


def fingerprint(key: Sha256) -> str:
    """Format a pinned key as `site init` prints it."""
    return bytes.fromhex(key).hex(":")


def _notice(notice: SignedNotice) -> tuple[str, str]:
    """Return the site and the day in a notice, which may not be verified yet."""
    try:
        content = json.loads(notice.body)
        site, issued = content["site"], content["issued"]
        day = f"{datetime.fromtimestamp(issued, UTC):%Y-%m-%d}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return "a site", "an unknown day"
    return _plain(str(site), BARE_KEY), day


def _sentences(amendment: Amendment, before: Membership | None, settings: Mapping[str, Any]) -> Iterator[str]:
    for site in amendment.add:
        where = f" at {_plain(site.address, ADDRESS)}" if site.address else ""
        yield f"adds {site.name}{where}, with the key {fingerprint(site.key)}"
    for notice in amendment.leave:
        site_name, day = _notice(notice)
        yield f"lets {site_name} leave, as its notice of {day} asks"
    if amendment.expel is not None:
        yield f"expels {amendment.expel}: no site serves it any more, and the others get a new round key"
    elif before is not None and amendment.round_key_tag != before.round_key_tag is not None:
        yield "brings a new round key"
    for name, pinned in amendment.rekey.items():
        yield f"pins the key {fingerprint(pinned)} for {name}"
    for path, value in _flat(amendment.settings):
        former = _value(settings, path)
        dotted = ".".join(_plain(part, BARE_KEY) for part in path)
        yield f"sets {dotted} to {_text(value)}" + ("" if former is None else f" (so far {_text(former)})")
    if amendment.hold is not None:
        yield _hold(amendment, before)
    if amendment.requires is not None:
        features = ", ".join(_plain(feature, FEATURE) for feature in amendment.requires.features)
        protocol = f"protocol {amendment.requires.protocol}" if amendment.requires.protocol else ""
        yield f"requires {' and '.join(filter(None, (protocol, features))) or 'nothing'} of every site's program"
    if amendment.authority is not None:
        key = certificates.certificate_key(certificates.read_authority(amendment.authority.encode()))
        yield f"makes the CA with the key {certificates.fingerprint(key)} the founder's"
    if amendment.governance is not None:
        yield f"lets {_governance(amendment, before)} sign amendments from the next one on"
    for change in sorted(amendment.unknown):
        yield f"changes {change!a}, which this version does not know: the site would hold until mhfl-peer is updated"


def _hold(amendment: Amendment, before: Membership | None) -> str:
    if amendment.hold:
        return f"holds: no site opens round {amendment.from_round} or a later one until an amendment ends the hold"
    return "ends the hold" if before is None or before.hold else "ends no hold: the federation does not hold"


def _governance(amendment: Amendment, before: Membership | None) -> str:
    governance = amendment.governance
    if governance is None or governance.members is None:
        return "the founder"
    if before is None:
        return f"a majority of the members, and at least {governance.members},"
    members = len(before.keys) + len(amendment.add) - len(amendment.leave) - (amendment.expel is not None)
    return f"{quorum(members, governance, expels=False)} of the {members} members"


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _value(table: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        table = table.get(key, {}) if isinstance(table, Mapping) else {}
    return None if isinstance(table, Mapping) else table


def _text(value: Any) -> str:
    """Encode the value as JSON in printable ASCII."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def _plain(text: str, form: re.Pattern[str]) -> str:
    """Return the text unchanged if it has the usual form, else quoted and escaped."""
    return text if form.fullmatch(text) else _text(text)

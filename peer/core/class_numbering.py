"""The names by which a site's own data number the classes, compared between sites whose federation.toml has none."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peer.core import limits
from peer.core.roster import Sha256

DIGEST_BYTES = 16
"""Of a name's digest in a greeting: enough that two names of a federation never share one."""
TAG = b"mhfl/class-name/v1"
SHOWN_CHARACTERS = 64
NUMBERS_DIFFER = "the classes' numbers differ"
"""How the reason of such a refusal begins, which its receiver reads."""
CONFLICT = re.compile(NUMBERS_DIFFER + r": class ([0-9]{1,4}) at (\S+) is class ([0-9]{1,4}) at the other site")
NUMBER_DIGITS_MAX = 9  # of a class in a datalist; Python converts no more than 4300


def plain_name(name: str) -> str:
    """Return a name without case, Unicode form, invisible signs and spaces around it, to compare it as people do."""
    if name.isascii():  # most names, of which a table has thousands
        return name.casefold().strip()
    visible = "".join(sign for sign in name if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFC", visible).casefold().strip()


def listed_names(document: Mapping[str, Any]) -> dict[int, str]:
    """Return class names by number from the key ``labels``: a list, or an object, as ``data import`` writes it."""
    labels = document.get("labels")
    if isinstance(labels, list):
        labels = {str(number): name for number, name in enumerate(labels)}
    pairs = labels.items() if isinstance(labels, Mapping) else ()
    numbered = ((number, name) for number, name in pairs if number.isdecimal() and len(number) <= NUMBER_DIGITS_MAX)
    return {int(number): name for number, name in numbered if isinstance(name, str) and name}


def digest_names(names: Mapping[int, str], federation: Sha256) -> tuple[str, ...]:
    """Return the digests of names as a greeting states them, in the order of the numbers; empty for no name."""
    known = {number: name for number, name in names.items() if number < limits.CLASS_NAMES_MAX}
    return tuple(
        _digest(known[number], federation) if number in known else "" for number in range(max(known, default=-1) + 1)
    )


def _digest(name: str, federation: Sha256) -> str:
    content = TAG + bytes.fromhex(federation) + plain_name(name).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:DIGEST_BYTES].hex()


def find_conflict(site: str, names: Mapping[int, str], theirs: Sequence[str], federation: Sha256) -> str | None:
    """Say which class this site and another number otherwise, without its name; ``None`` if none is, at either site.

    A name that a site gives to several numbers is in conflict only where none of them is the other site's.
    """
    own, others = _group_numbers(digest_names(names, federation)), _group_numbers(theirs)
    conflicts = [(own[name], others[name]) for name in own.keys() & others.keys() if not own[name] & others[name]]
    if not conflicts:
        return None
    number, other = min((min(mine), min(other)) for mine, other in conflicts)
    return f"{NUMBERS_DIFFER}: class {number} at {site} is class {other} at the other site"


def _group_numbers(digests: Sequence[str]) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = {}
    for number, digest in enumerate(digests):
        if digest:
            numbers.setdefault(digest, set()).add(number)
    return numbers


def add_own_name(reason: str, site: str, names: Mapping[int, str]) -> str:
    """Add this site's name of the class, for its own people, if the reason is a conflict that either site has found."""
    conflict = CONFLICT.search(reason)
    number = -1 if conflict is None else int(conflict[1 if conflict[2] == site else 3])
    return f"{reason}; class {number} here is {names[number][:SHOWN_CHARACTERS]!r}" if number in names else reason


def differing_names(names: Mapping[int, str], theirs: Sequence[str], federation: Sha256) -> Iterator[str]:
    """Yield the classes that have different names at two sites."""
    for number, (own, other) in enumerate(zip(digest_names(names, federation), theirs, strict=False)):
        if own and other and own != other:
            yield f"{number} {names[number][:SHOWN_CHARACTERS]!r}"

"""When the site's certificate expires, read with the standard library alone: `status` has to start at once."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Iterator
from pathlib import Path

CERTIFICATE_FILE = "cert.pem"
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
UTC_TIME, GENERALIZED_TIME, VERSION = 0x17, 0x18, 0xA0
"""DER tags (X.690 and RFC 5280, 4.1)."""
TIME = re.compile("[0-9]{14}Z")


def days_left(pki: Path, now: datetime.datetime) -> int | None:
    """Return the whole days until the certificate in a site's ``pki`` folder expires, unverified, for display alone.

    Negative once it has expired; ``None`` if no certificate can be read.
    """
    try:
        return (not_valid_after((pki / CERTIFICATE_FILE).read_bytes()) - now).days
    except (OSError, ValueError):
        return None


def not_valid_after(pem: bytes) -> datetime.datetime:
    """Return when a PEM certificate expires. Raises ``ValueError`` if it is none."""
    match = PEM.search(pem)
    if match is None:
        raise ValueError("it is no certificate in PEM form")
    try:
        (_, certificate), *_ = _elements(base64.b64decode(match[1]))
        (_, signed), *_ = _elements(certificate)
        fields = [content for tag, content in _elements(signed) if tag != VERSION]
        (_, _), (tag, end) = _elements(fields[3])  # after serial number, algorithm and issuer: the validity
        century = "" if tag == GENERALIZED_TIME else "19" if end >= b"50" else "20"
        text = century + end.decode("ascii")
        if tag not in (UTC_TIME, GENERALIZED_TIME) or not TIME.fullmatch(text):
            raise ValueError("its end is no time")
        return datetime.datetime.fromisoformat(f"{text[:8]}T{text[8:]}")
    except (IndexError, ValueError) as error:
        raise ValueError("it is no certificate in DER form") from error


def _elements(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each DER element (X.690, 8.1). Raises ``IndexError`` or ``ValueError`` if one is cut."""
    at = 0
    while at < len(encoded):
        tag, size = encoded[at], encoded[at + 1]
        at += 2
        if size >= 0x80:
            count = size - 0x80
            size, at = int.from_bytes(encoded[at : at + count]), at + count
        if at + size > len(encoded):
            raise ValueError("an element is cut off")
        yield tag, encoded[at : at + size]
        at += size

"""The end of a certificate, read without the library that the reading is compared with."""

import contextlib
import datetime
import itertools
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.identity.validity import CERTIFICATE_FILE, days_left, not_valid_after

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
PEM = certificates.certificate_pem(certificates.new_authority("trial", now=NOW)[1])


@pytest.mark.parametrize("year", [1951, 1999, 2000, 2049, 2050, 2120])
@pytest.mark.parametrize("name", ["europe", "a" * 60])
def test_the_end_is_that_which_the_library_reads(year: int, name: str) -> None:
    """Up to 2049 a certificate writes a year in two digits; of the subject's length depends how lengths are written."""
    begins = datetime.datetime(year - 1, 12, 30, 23, 59, 58, tzinfo=datetime.UTC)
    authority = certificates.new_authority("t" * 40, now=begins)
    key = certificates.new_key().public_key()
    certificate = certificates.issue(*authority, name=SiteName(name), public_key=key, now=begins)
    assert certificate.not_valid_after_utc.year == year
    for each in (certificate, authority[1]):
        assert not_valid_after(each.public_bytes(serialization.Encoding.PEM)) == each.not_valid_after_utc


def test_no_certificate_is_refused_wherever_it_is_cut_or_changed() -> None:
    der = PEM.splitlines()[1:-1]
    for content in (b"", b"no certificate", PEM.replace(b"CERTIFICATE", b"PRIVATE KEY")):
        with pytest.raises(ValueError, match="PEM"):
            not_valid_after(content)
    for lines in (der[:1], der[1:], [b"!" * 64], [b"MIIB"], [b"MAA="]):
        with pytest.raises(ValueError, match="certificate"):
            not_valid_after(b"\n".join((b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----")))


def test_a_changed_byte_raises_nothing_but_valueerror() -> None:
    for position, byte in itertools.product(range(len(PEM)), b"A9/=-"):
        with contextlib.suppress(ValueError):
            not_valid_after(PEM[:position] + bytes([byte]) + PEM[position + 1 :])


def test_days_are_whole_ones_and_none_without_a_certificate(tmp_path: Path) -> None:
    assert days_left(tmp_path, NOW) is None
    (tmp_path / CERTIFICATE_FILE).write_bytes(PEM)
    assert days_left(tmp_path, NOW) == certificates.CA_DAYS
    assert days_left(tmp_path, NOW + datetime.timedelta(days=certificates.CA_DAYS, seconds=1)) == -1
    (tmp_path / CERTIFICATE_FILE).write_bytes(b"torn")
    assert days_left(tmp_path, NOW) is None

"""A certificate that runs out is named in the log in good time, and not every second."""

import asyncio
import datetime
import logging
from pathlib import Path

import pytest

from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.identity.expiry import ExpiryWatcher

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
KEY, CA = certificates.new_authority("trial", now=NOW)


class Site:
    """A site's pki folder, its clock, and the log of its watcher."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.folder, self.caplog, self.now = folder, caplog, NOW
        caplog.set_level(logging.INFO, logger="peer.site.identity.expiry")
        self.watcher = ExpiryWatcher(folder, lambda: self.now)

    def certify(self, days: int) -> None:
        key = certificates.new_key().public_key()
        certificate = certificates.issue(KEY, CA, name=SiteName("europe"), public_key=key, now=self.now, days=days)
        (self.folder / "cert.pem").write_bytes(certificates.certificate_pem(certificate))

    def messages(self, **later: float) -> list[tuple[str, str]]:
        """The level and text of each message that a check logs after so much time."""
        self.now += datetime.timedelta(**later)
        self.caplog.clear()
        self.watcher.check()
        return [(record.levelname, record.getMessage()) for record in self.caplog.records]


@pytest.fixture
def site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Site:
    return Site(tmp_path, caplog)


SOON = ("WARNING", "certificate expires soon")
URGENT = ("ERROR", "certificate expires within days")
EXPIRED = ("ERROR", "certificate expired: no peer can be called, and none takes a call")
RENEWED = ("INFO", "certificate renewed")


def test_a_certificate_s_last_month_is_told_once_a_day(site: Site) -> None:
    site.certify(60)
    assert site.messages() == []
    assert site.messages(days=30) == []
    assert site.messages(minutes=1) == [SOON]
    assert site.messages(hours=23) == []
    assert site.messages(hours=1) == [SOON]
    assert site.messages(days=22) == [URGENT]
    assert site.messages(hours=12) == []
    assert site.messages(hours=12) == [URGENT]
    assert site.messages(days=6) == [EXPIRED]
    assert site.messages(days=1) == [EXPIRED]
    site.certify(365)
    assert site.messages(minutes=1) == [RENEWED]
    assert site.messages(days=1) == []
    assert site.messages(days=335) == [SOON]


def test_what_is_said_names_the_days_and_the_remedy(site: Site) -> None:
    site.certify(5)
    assert site.messages() == [URGENT]
    (record,) = site.caplog.records
    assert (record.__dict__["days"], record.__dict__["not_after"]) == (5, "2026-07-06 12:00")
    assert "mhfl-peer site init --renew" in record.__dict__["remedy"]
    assert site.messages(hours=-24) == [], "a clock that is set back repeats nothing"
    site.certify(6)
    assert site.messages(minutes=1) == [RENEWED, URGENT], "a renewal that is short as well"


def test_a_file_that_is_gone_or_damaged_is_told_and_does_not_raise(site: Site) -> None:
    missing = site.messages()
    assert missing == [("ERROR", "certificate not readable")]
    assert "cert.pem is missing" in site.caplog.records[0].__dict__["reason"]
    (site.folder / "cert.pem").write_text("no certificate")
    assert site.messages(minutes=1) == []
    site.certify(60)
    assert site.messages(minutes=1) == []


async def test_the_first_look_is_at_once(site: Site) -> None:
    site.certify(5)
    watching = asyncio.create_task(site.watcher.watch())
    await asyncio.sleep(0)
    watching.cancel()
    assert [record.getMessage() for record in site.caplog.records] == [URGENT[1]]

"""Log messages about the site's certificate: it expires soon, has expired, or was renewed.

A message that still applies is logged again once a day.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.errors import CertificateError
from peer.site.identity import certificates

log = logging.getLogger(__name__)

URGENT_DAYS = 7
REPEAT_AFTER = datetime.timedelta(days=1)
CHECK_INTERVAL_S = 30.0  # delay until a renewal or an expiry is noticed; a check reads one small file
REMEDY = "renew it: `mhfl-peer site init --renew`, `federation admit --replace` at the founder, `site join`"


class ExpiryWatcher:
    """Watcher of the site's certificate on disk. It only logs: the daemon goes on."""

    def __init__(self, pki: Path, clock: Callable[[], datetime.datetime]) -> None:
        self._path = pki / certificates.CERTIFICATE_FILE
        self._clock = clock
        self._logged_at: datetime.datetime | None = None
        self._logged_message = ""
        self._serial: int | None = None

    async def watch(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def check(self) -> None:
        """Read the certificate, and log problems and renewals."""
        now = self._clock()
        try:
            certificate = certificates.read_certificate(self._path)
        except (CertificateError, ValueError) as error:
            self._log("certificate not readable", now, logging.ERROR, {"reason": str(error)})
            return
        self._log_renewal(certificate, now)
        days = certificates.certificate_days(certificate, now)
        facts = {"days": days, "not_after": f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}", "remedy": REMEDY}
        if now > certificate.not_valid_after_utc:
            self._log("certificate expired: no peer can be called, and none takes a call", now, logging.ERROR, facts)
        elif days < URGENT_DAYS:
            self._log("certificate expires within days", now, logging.ERROR, facts)
        elif days < CERTIFICATE_DAYS_MIN:
            self._log("certificate expires soon", now, logging.WARNING, facts)
        else:
            self._logged_message = ""

    def _log_renewal(self, certificate: x509.Certificate, now: datetime.datetime) -> None:
        """Log that the certificate changed since the last check; the first check logs nothing."""
        serial = certificate.serial_number
        if self._serial not in (None, serial):
            facts = {"serial": f"{serial:x}", "days": certificates.certificate_days(certificate, now)}
            log.info("certificate renewed", extra=facts)
            self._logged_message = ""
        self._serial = serial

    def _log(self, message: str, now: datetime.datetime, level: int, facts: dict[str, object]) -> None:
        if message == self._logged_message and self._logged_at is not None and now - self._logged_at < REPEAT_AFTER:
            return
        self._logged_message, self._logged_at = message, now
        log.log(level, message, extra=facts)

"""Says in the log, once a day and whenever it changes, that the site's certificate runs out or has, or was renewed."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.errors import CertificateError
from peer.identity import certificates

log = logging.getLogger(__name__)

URGENT_DAYS = 7
AGAIN = datetime.timedelta(days=1)
LOOK_S = 30.0  # how late a renewal or an expiry may be noticed; a look reads one small file
REMEDY = "renew it: `mhfl-peer site init --renew`, `federation admit --replace` at the founder, `site join`"


class Expiry:
    """Watches one site's certificate on disk; the daemon goes on whatever it finds.

    Args:
        pki: the site's ``pki`` folder.
        clock: the time, with its zone.
    """

    def __init__(self, pki: Path, clock: Callable[[], datetime.datetime]) -> None:
        self._path = pki / certificates.CERTIFICATE_FILE
        self._clock = clock
        self._told: datetime.datetime | None = None
        self._said = ""
        self._serial: int | None = None

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look at the certificate, and say what there is to say."""
        now = self._clock()
        try:
            certificate = certificates.read_certificate(self._path)
        except (CertificateError, ValueError) as error:
            self._tell("certificate not readable", now, logging.ERROR, {"reason": str(error)})
            return
        self._greet_renewal(certificate, now)
        days = certificates.certificate_days(certificate, now)
        facts = {"days": days, "not_after": f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}", "remedy": REMEDY}
        if now > certificate.not_valid_after_utc:
            self._tell("certificate expired: no peer can be called, and none takes a call", now, logging.ERROR, facts)
        elif days < URGENT_DAYS:
            self._tell("certificate expires within days", now, logging.ERROR, facts)
        elif days < CERTIFICATE_DAYS_MIN:
            self._tell("certificate expires soon", now, logging.WARNING, facts)
        else:
            self._said = ""

    def _greet_renewal(self, certificate: x509.Certificate, now: datetime.datetime) -> None:
        """The first look sees what the site was started with; a later one may see another certificate."""
        serial = certificate.serial_number
        if self._serial not in (None, serial):
            facts = {"serial": f"{serial:x}", "days": certificates.certificate_days(certificate, now)}
            log.info("certificate renewed", extra=facts)
            self._said = ""
        self._serial = serial

    def _tell(self, message: str, now: datetime.datetime, level: int, facts: dict[str, object]) -> None:
        if message == self._said and self._told is not None and now - self._told < AGAIN:
            return
        self._said, self._told = message, now
        log.log(level, message, extra=facts)

"""Certificates that the operator refuses, whatever their dates: site.toml's list, followed while the daemon runs.

A stolen key cannot wait for the end of a round, nor for a restart of every other site.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path

from peer.config import Site
from peer.errors import ConfigError

log = logging.getLogger(__name__)


class RefusedCertificates(Container[str]):
    """SHA-256 digests of certificates; each question looks whether the file was changed, and reads no other key of it.

    Args:
        site: as it was at the start; a file that is broken later on is named once, and the former list stays.
    """

    def __init__(self, site: Site) -> None:
        self._path = Path(site.where)
        self._listed = frozenset(site.refuse_certificates)
        self._stamp = self._look()

    def __contains__(self, digest: object) -> bool:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        return digest in self._listed

    def _look(self) -> tuple[int, ...]:
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> None:
        try:
            listed = frozenset(Site.load(self._path).refuse_certificates)
        except ConfigError as error:
            log.warning("changed refuse_certificates not usable; the former ones stay", extra={"reason": str(error)})
            return
        if listed != self._listed:
            log.info("certificates refused from now on", extra={"certificates": len(listed)})
        self._listed = listed

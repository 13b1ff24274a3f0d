"""Certificates that the operator refuses, whatever their dates: site.toml's list, followed while the daemon runs.

A stolen key cannot wait for the end of a round, nor for a restart of every other site.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from peer.config import Site
from peer.followed import Followed

log = logging.getLogger(__name__)


class RefusedCertificates(Container[str]):
    """SHA-256 digests of certificates; each question looks whether the file was changed, and reads no other key of it.

    Args:
        site: as it was at the start; a file that is broken later on is named once, and the former list stays.
    """

    def __init__(self, site: Site) -> None:
        self._file = Followed(site, "refuse_certificates")
        self._listed = frozenset(site.refuse_certificates)

    def __contains__(self, digest: object) -> bool:
        site = self._file.news()
        if site is not None and frozenset(site.refuse_certificates) != self._listed:
            self._listed = frozenset(site.refuse_certificates)
            log.info("certificates refused from now on", extra={"certificates": len(self._listed)})
        return digest in self._listed

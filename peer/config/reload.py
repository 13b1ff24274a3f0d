"""site.toml, read again whenever it changes under a running daemon; what it says of other things stays as it was."""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path

from peer.config.schema import SiteConfig
from peer.errors import ConfigError
from peer.files import stamp

log = logging.getLogger(__name__)


class FollowedConfig:
    """A site's private configuration as its file is now.

    Args:
        site: as it was at the start.
        what: the key that is followed, for the log.
    """

    def __init__(self, site: SiteConfig, what: str) -> None:
        self.path = Path(site.where)
        self._what = what
        self._stamp = stamp(self.path)

    def news(self) -> SiteConfig | None:
        """What the file says now, if it was changed since the last question; one that is broken is named once."""
        current = stamp(self.path)
        if current == self._stamp:
            return None
        self._stamp = current
        try:
            return SiteConfig.load(self.path)
        except ConfigError as error:
            self.refuse(error)
            return None

    def refuse(self, error: ConfigError) -> None:
        """Say that what holds is what held before."""
        log.warning(f"changed {self._what} not usable; the former ones stay", extra={"reason": str(error)})


class RefusedCertificates(Container[str]):
    """SHA-256 digests of certificates; each question looks whether the file was changed, and reads no other key of it.

    Args:
        site: as it was at the start; a file that is broken later on is named once, and the former list stays.
    """

    def __init__(self, site: SiteConfig) -> None:
        self._file = FollowedConfig(site, "refuse_certificates")
        self._listed = frozenset(site.refuse_certificates)

    def __contains__(self, digest: object) -> bool:
        site = self._file.news()
        if site is not None and frozenset(site.refuse_certificates) != self._listed:
            self._listed = frozenset(site.refuse_certificates)
            log.info("certificates refused from now on", extra={"certificates": len(self._listed)})
        return digest in self._listed

"""Keys of site.toml that a running daemon reads again when the file changes.

The daemon keeps the values that it started with for all other keys.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path

from peer.errors import ConfigError
from peer.files import stamp
from peer.site.config.schema import SiteConfig

log = logging.getLogger(__name__)


class SiteTomlWatcher:
    """Reads site.toml again when it changes."""

    def __init__(self, site: SiteConfig, key: str) -> None:
        self.path = Path(site.where)
        self._key = key
        self._stamp = stamp(self.path)

    def read_change(self) -> SiteConfig | None:
        """Read the new configuration if the file changed since the last call.

        A broken file is logged once.
        """
        current = stamp(self.path)
        if current == self._stamp:
            return None
        self._stamp = current
        try:
            return SiteConfig.load(self.path)
        except ConfigError as error:
            self.log_unusable(error)
            return None

    def log_unusable(self, error: ConfigError) -> None:
        """Log that the change was ignored, and the former values still hold."""
        log.warning(f"changed {self._key} not usable; the former ones stay", extra={"reason": str(error)})


class RefusedCertificates(Container[str]):
    """SHA-256 digests of the certificates that site.toml refuses.

    Each ``in`` first looks whether the file changed.

    Args:
        site: the configuration that the daemon started with. A file that breaks later is logged
            once; until it is mended, the former list holds.
    """

    def __init__(self, site: SiteConfig) -> None:
        self._site_toml = SiteTomlWatcher(site, "refuse_certificates")
        self._listed = frozenset(site.refuse_certificates)

    def __contains__(self, digest: object) -> bool:
        site = self._site_toml.read_change()
        if site is not None and frozenset(site.refuse_certificates) != self._listed:
            self._listed = frozenset(site.refuse_certificates)
            log.info("certificates refused from now on", extra={"certificates": len(self._listed)})
        return digest in self._listed

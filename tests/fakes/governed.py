"""A founder's CA folder and sites on this machine, whose operators amend their federation."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.cli import run_json
from fakes.drafts import draft, site_text
from peer.core.roster import site_name
from peer.daemon.dispatch import now
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import enrolment
from peer.site.identity.bundle import Bundle
from peer.site.identity.certificates import KEY_FILE, key_digest, read_key
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder

SILENT = "127.0.0.1"
"""Where every site is said to be, at a port at which nothing answers."""


@dataclass(frozen=True)
class GovernedFederation:
    """All sites are enrolled, and live under ``home``; no daemon runs."""

    ca: Path
    home: Path
    federation: FederationConfig

    @classmethod
    def create(
        cls, tmp: Path, *names: str, members: int | None = None, rounds: int = 100, **keys: Any
    ) -> "GovernedFederation":
        """Members sign amendments where ``members`` is given, and else the founder; ``keys`` of federation.toml."""
        home, table = (
            tmp / "home",
            [{"name": name, "address": f"{SILENT}:{port}"} for port, name in enumerate(names, 1)],
        )
        folders = [SiteFolder(home, "trial", site_name(name)) for name in names]
        text, governance = draft("trial", rounds=rounds, site=table, **keys), {}
        if members is not None:
            for entry, folder in zip(table, folders, strict=True):
                enrolment.request(folder, FederationConfig.parse(text, "draft"), text, now=now())
                entry["key"] = key_digest(read_key(folder.pki / KEY_FILE).public_key())
            governance = {"governance": {"members": members}}
        authority = enrolment.Authority.create(
            tmp / "ca", draft("trial", rounds=rounds, site=table, **governance, **keys), "draft", now=now()
        )
        for folder in folders:
            request = enrolment.request(folder, authority.federation, authority.federation_toml, now=now())
            admitted = authority.admit(request.pem, fingerprint=request.fingerprint, now=now())
            enrolment.join(folder, Bundle.decode(admitted.bundle), now=now())
            folder.site_toml.write_text(site_text(listen=f"{SILENT}:1"))
        return cls(tmp / "ca", home, authority.federation)

    def amend(self, site: str, *words: object) -> Any:
        """What the founder enacts at a site."""
        return run_json("--home", self.home, "federation", "amend", "--yes", "--ca", self.ca, "--site", site, *words)

    def copy(self, tmp: Path) -> "GovernedFederation":
        """The same in another folder, for a test of its own."""
        for folder in (self.ca, self.home):
            shutil.copytree(folder, tmp / folder.name)
        return GovernedFederation(tmp / "ca", tmp / "home", self.federation)

    def folder(self, name: str) -> SiteFolder:
        return SiteFolder(self.home, "trial", site_name(name))

    def chain(self, name: str) -> Chain:
        return MembershipFolder(self.folder(name).membership).chain(self.federation)

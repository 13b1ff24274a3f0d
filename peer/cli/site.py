"""``mhfl-peer site``: create a site's key and signing request, install the founder's bundle, configure."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, Settings, output, pass_settings, shared_options
from peer.cli.configure import configure
from peer.cli.template import NEWCOMERS_LISTEN, site_toml
from peer.core.roster import site_name
from peer.documents.commands import SiteInitialised, SiteJoined
from peer.errors import BundleError, ConfigError, UsageError
from peer.methods.registry import PackageMissing
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, home_folder, must_be_new, sites, write_atomically
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle, read_received_file
from peer.site.membership.folder import MembershipFolder

PATH = click.Path(path_type=Path)


@click.group()
@shared_options
def site() -> None:
    """Enrol this site and configure it: key, bundle, site.toml."""


site.add_command(configure)


@site.command()
@click.option(
    "--federation", "file", type=GIVEN_FILE, required=True, help="The founder's federation.toml, or its draft."
)
@click.option("--site", "name", required=True, metavar="NAME", help="This site's name in it.")
@click.option("--out", type=PATH, help="The signing request to write  [default: NAME.csr]")
@click.option("--renew", is_flag=True, help="Create a second key, which replaces the first when its bundle is joined.")
@click.option("--newcomer", is_flag=True, help="This site is not in the roster: an amendment adds it.")
@click.option("--listen", metavar="HOST:PORT", help="Where the daemon shall listen, for a new site.toml.")
@output.json_option
@shared_options
@pass_settings
def init(
    settings: Settings,
    file: Path,
    name: str,
    out: Path | None,
    renew: bool,
    newcomer: bool,
    listen: str | None,
    as_json: bool,
) -> None:
    """Create this site's folder, key and signing request; an existing key is kept.

    A new site.toml has the port of the site's address in federation.toml as `listen`; that of a newcomer, whose
    address is not there, has 0.0.0.0:7443.

    With a draft, the founder can write this site's fingerprint into it as `key` before `federation create`.

    \b
    mhfl-peer site init --federation federation.toml --site europe
    mhfl-peer site init --federation federation.toml --site europe --renew --out europe-renewed.csr
    mhfl-peer site init --federation federation.toml --site oslo --newcomer
    mhfl-peer site init --federation federation.toml --site oslo --newcomer --listen 127.0.0.1:7443
    """
    federation_toml = toml.read(file)
    federation = FederationConfig.parse(federation_toml, str(file))
    try:
        folder = SiteFolder(home_folder(settings.home), federation.name, site_name(name))
    except ValueError as error:
        raise UsageError(str(error), "take the name that federation.toml gives this site") from error
    if listen is not None:
        try:
            toml.split_address(listen)
        except ValueError as error:
            raise UsageError(f"--listen: {error}", "give an address of this machine and a port") from error
    out = out or Path(f"{folder.site}.csr")
    must_be_new(out)
    request = enrolment.request(
        folder, federation, federation_toml, now=datetime.now(UTC), renew=renew, newcomer=newcomer
    )
    if not folder.site_toml.exists():
        text = site_toml(
            federation.task.spatial_dims,
            federation.addresses.get(folder.site),
            discovery=len(federation.addresses) < len(federation.roster),
            kind=federation.task.kind,
            listen=listen or (NEWCOMERS_LISTEN if newcomer else None),
        )
        write_atomically(folder.site_toml, text.encode("utf-8"))
    write_atomically(out, request.pem, 0o644)
    document: SiteInitialised = {
        "federation": federation.name,
        "digest": federation.digest,
        "site": folder.site,
        "folder": str(folder.path),
        "site_toml": str(folder.site_toml),
        "request": str(out),
        "fingerprint": request.fingerprint,
        "key": request.key,
    }
    output.emit(document, as_json=as_json, render=_render_initialised)


@site.command()
@click.argument("file", metavar="BUNDLE", type=GIVEN_FILE)
@output.json_option
@shared_options
@pass_settings
def join(settings: Settings, file: Path, as_json: bool) -> None:
    """Check the founder's bundle against this site's key and federation.toml, and install its
    certificate and secrets.

    \b
    mhfl-peer site join europe.bundle
    """
    now = datetime.now(UTC)
    try:
        bundle = Bundle.decode(read_received_file(file))
        federation = FederationConfig.parse(bundle.federation_toml, "its federation.toml")
    except PackageMissing:  # the bundle is not at fault
        raise
    except (ValueError, ConfigError) as error:
        raise BundleError(f"{file} is refused: {getattr(error, 'message', error)}") from error
    folder = SiteFolder(home_folder(settings.home), federation.name, bundle.site)
    if not folder.federation_toml.exists():
        raise BundleError(
            f"{file} is for site {bundle.site} of {federation.name}, which has no folder under {folder.home}",
            "give --home or MHFL_HOME, or run `mhfl-peer site init` first",
        )
    membership = MembershipFolder(folder.membership)
    pinned = membership.chain(FederationConfig.load(folder.federation_toml)).head.keys.get(folder.site)
    joined = enrolment.join(folder, bundle, now=now, pinned=pinned, keep=membership.save_joined)
    document: SiteJoined = {
        "federation": federation.name,
        "digest": federation.digest,
        "site": joined.name,
        "folder": str(folder.path),
        "fingerprint": certificates.fingerprint(joined.key.public_key()),
        "certificate_sha256": certificates.certificate_sha256(certificates.certificate_der(joined.certificate)),
        "certificate_days": certificates.certificate_days(joined.certificate, now),
    }
    check = f"mhfl-peer {_words_for(folder, settings)}"
    output.emit(document, as_json=as_json, render=lambda document: _render_joined(document, check))


def _words_for(folder: SiteFolder, settings: Settings) -> str:
    """Return the words that run `check` for this site on this machine."""
    home = f"--home {shlex.quote(str(settings.home))} " if settings.home is not None else ""
    name_is_unique = [other.site for other in sites(folder.home)].count(folder.site) == 1
    return f"{home}check --site {folder.site if name_is_unique else f'{folder.federation}/{folder.site}'}"


def _render_initialised(document: dict[str, Any]) -> output.RenderableType:
    keys = {
        "new": "a new one; it never leaves this folder",
        "kept": "the existing one",
        "renewed": "a second one, used once its bundle is joined",
    }
    return output.fields(
        (
            ("site", f"{document['site']} of {document['federation']}"),
            ("folder", document["folder"]),
            ("key", keys[document["key"]]),
            ("fingerprint", document["fingerprint"]),
            ("next", f"send {document['request']} to the founder, and read the fingerprint out over the telephone"),
            *(
                [("meanwhile", f"describe data and model in {document['site_toml']}")]
                if document["key"] == "new"
                else []
            ),
        )
    )


def _render_joined(document: dict[str, Any], check: str) -> output.RenderableType:
    return output.fields(
        (
            ("joined", f"{document['site']} of {document['federation']}"),
            ("digest", document["digest"]),
            ("certificate", f"{document['certificate_days']} days left"),
            ("next", f"`{check}`"),
        )
    )

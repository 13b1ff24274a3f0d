"""``mhfl-peer relay``: a relay for sites that nobody can dial."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, output, shared_options
from peer.core.roster import site_name
from peer.documents.relay import RelayAmended, RelayChecked, RelayJoined, RelayRequested, RelayStatus
from peer.errors import ConfigError, DaemonDown, PeerUnreachable, PortInUse, UsageError
from peer.site.config import toml
from peer.site.config.site_folder import make_private, must_be_new, write_atomically

FILE = click.Path(path_type=Path, dir_okay=False)
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("relay"),
    show_default=True,
    help="The relay's folder.",
)


@click.group(short_help="Join callers to sites that nobody can dial.")
@shared_options
def relay() -> None:
    """Join callers to sites that nobody can dial.

    A relay has an address that all can reach. Sites that can only dial out keep connections parked
    there. The relay joins a caller to one of them, and reads nothing: the two sites' TLS runs
    through it.
    """


@relay.command()
@click.option("--federation", "file", type=GIVEN_FILE, required=True, help="The federation.toml from the founder.")
@click.option("--name", required=True, help="The relay's name, which no site has.")
@folder_option
@click.option("--out", type=FILE, help="The signing request to write  [default: NAME.csr].")
@output.json_option
@shared_options
def init(file: Path, name: str, folder: Path, out: Path | None, as_json: bool) -> None:
    """Create the relay's folder, key and signing request; a key that exists is kept.

    \b
    mhfl-peer relay init --federation federation.toml --name gate
    """
    from peer.net.relay.folder import RelayFolder

    out = out or Path(f"{name}.csr")
    must_be_new(out)
    try:
        checked = site_name(name)
    except ValueError as error:
        raise UsageError(str(error), "give the relay such a name") from error
    request, fingerprint = RelayFolder(folder).make(toml.read(file), str(file), checked)
    write_atomically(out, request, 0o644)
    document: RelayRequested = {
        "name": name,
        "folder": str(folder),
        "request": str(out),
        "fingerprint": fingerprint,
    }
    output.emit(document, as_json=as_json, render=_render_requested)


@relay.command()
@click.argument("certificate", type=GIVEN_FILE)
@folder_option
@output.json_option
@shared_options
def join(certificate: Path, folder: Path, as_json: bool) -> None:
    """Keep the certificate that the founder issued.

    \b
    mhfl-peer relay join gate.pem
    """
    from peer.net.relay.folder import RelayFolder
    from peer.site.identity.bundle import read_received_file
    from peer.site.identity.certificates import certificate_days

    now = datetime.now(UTC)
    joined = RelayFolder(folder).join(read_received_file(certificate), now)
    document: RelayJoined = {"folder": str(folder), "days": certificate_days(joined, now)}
    output.emit(document, as_json=as_json, render=_render_joined)


@relay.command()
@click.argument("chain", type=GIVEN_FILE)
@folder_option
@output.json_option
@shared_options
def amend(chain: Path, folder: Path, as_json: bool) -> None:
    """Take the amendments from a file that a member wrote. A relay is told of no amendment by itself;
    one that runs follows within seconds: a newcomer may park, and a site that is no member may not.

    \b
    mhfl-peer federation show --site europe --out chain.json
    mhfl-peer relay amend chain.json
    """
    from peer.net.relay.folder import RelayFolder

    place = RelayFolder(folder)
    place.load()
    amended = place.amend(chain.read_bytes())
    document: RelayAmended = {
        "folder": str(folder),
        "number": amended.head.number,
        "digest": amended.head.digest,
        "sites": sorted(place.sites(amended)),
        "unknown": place.unknown(amended),
    }
    output.emit(document, as_json=as_json, render=_render_amended)


@relay.command()
@folder_option
@shared_options
def start(folder: Path) -> None:
    """Relay in the foreground until Ctrl-C or SIGTERM.

    \b
    mhfl-peer relay start --folder relay
    """
    from peer.net.relay.folder import RelayFolder
    from peer.net.relay.run import run
    from peer.site.config import logs

    place = RelayFolder(folder)
    config, _ = place.load()
    place.verify(datetime.now(UTC))
    make_private(folder / "logs")
    logs.set_up(folder / "logs", {"relay": config.name}, quiet=False, debug=False, json_lines=False)
    run(place)


@relay.command()
@folder_option
@output.json_option
@shared_options
def status(folder: Path, as_json: bool) -> None:
    """Show which sites have connections parked, and what was carried and refused.

    \b
    mhfl-peer relay status --json
    """
    from peer.net.relay.folder import RelayFolder

    place, problem = RelayFolder(folder), ""
    running = (folder / "lock").exists() and place.is_running()
    try:
        place.load()
    except ConfigError as error:
        if not running:
            raise
        problem = f"{error}; until then the relay goes on with what it had"
    if not running:
        raise DaemonDown(f"no relay runs in {folder}", "begin it with `mhfl-peer relay start`")
    document: RelayStatus = {**place.status(), "problem": problem}  # type: ignore[typeddict-item]
    output.emit(document, as_json=as_json, render=_render_status)


@relay.command()
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Also dial it here, as sites do; may be repeated.",
)
@folder_option
@output.json_option
@shared_options
def check(addresses: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Check the relay's files and its certificate; while it runs, whether it answers to its name, and
    else whether its port is free.

    \b
    mhfl-peer relay check --address relay.example.org:443
    """
    import asyncio
    import ssl

    from peer.net.relay.folder import STATUS_FILE, RelayFolder
    from peer.net.relay.probe import probe
    from peer.net.relay.server import bind, connections_max
    from peer.site.config.toml import split_address
    from peer.site.identity.certificates import certificate_days

    place, now = RelayFolder(folder), datetime.now(UTC)
    config, _ = place.load()
    certificate, running, chain = place.verify(now), place.is_running(), place.chain()
    host, port = split_address(config.listen)
    try:
        asked = [split_address(address) for address in addresses]
    except ValueError as error:
        raise UsageError(f"--address: {error}", "give host:port") from error
    if running:
        if not (place.path / STATUS_FILE).exists():
            raise DaemonDown(f"the relay in {folder} has only just started", "look again in a second")
        asked.insert(0, ({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), place.status().get("port", port)))
    elif asked:
        raise DaemonDown(f"no relay runs in {folder}", "start it, or leave --address out")
    else:
        try:
            bind(host, port).close()
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {config.listen}: {error.strerror}", "free it, or name another"
            ) from error
    asked = list(dict.fromkeys(asked))
    for where in asked:
        try:
            asyncio.run(probe(*where, config.name, place.context(chain, ssl.PROTOCOL_TLS_CLIENT)))
        except (OSError, ValueError, EOFError) as error:
            raise PeerUnreachable(
                f"{config.name} does not answer at {where[0]}:{where[1]}: {_reason(error)}",
                "compare the address, the firewall, and what else listens there",
            ) from error
    document: RelayChecked = {
        "name": config.name,
        "days": certificate_days(certificate, now),
        "sites": sorted(place.sites(chain)),
        "unknown": place.unknown(chain),
        "connections": connections_max(),
        "running": running,
        "answers": [f"{host}:{port}" for host, port in asked],
    }
    output.emit(document, as_json=as_json, render=_render_checked)


def _reason(error: Exception) -> str:
    """Return in words why a relay does not answer."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if numbers := re.findall(r"\[Errno (\d+)\]", str(error)):  # one for each address of the host
        return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    return re.sub(r"^\[Errno -\d+\] ", "", str(error)) or type(error).__name__


def _render_checked(document: dict[str, Any]) -> output.RenderableType:
    answers = ", ".join(document["answers"]) or "it does not run; its port is free"
    return output.fields(
        (
            ("relay", document["name"]),
            ("certificate", f"{document['days']} days left"),
            ("sites", ", ".join(document["sites"])),
            *_unknown(document),
            ("connections", f"{document['connections']} at a time, by the limit of open files"),
            ("answers at", answers),
        )
    )


def _unknown(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a line of the sites that relay.toml names but no amendment has added; empty if there are none."""
    return [("no members (yet)", ", ".join(document["unknown"]))] if document["unknown"] else []


def _render_requested(document: dict[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("relay", document["name"]),
            ("key", document["fingerprint"]),
            ("next", f"send {document['request']} to the founder, and read the key's fingerprint out to them"),
            ("meanwhile", f"set listen in {document['folder']}/relay.toml"),
        )
    )


def _render_amended(document: dict[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("amendment", f"{document['number']}, {document['digest']}"),
            ("sites", ", ".join(document["sites"])),
            *_unknown(document),
        )
    )


def _render_joined(document: dict[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("certificate", f"{document['days']} days left"),
            ("next", f"mhfl-peer relay start --folder {document['folder']}"),
        )
    )


def _render_status(document: dict[str, Any]) -> output.RenderableType:
    from rich.console import Group

    rows = [
        (site, held["parked"], held["carrying"], held["carried_connections"], held["carried_bytes"])
        for site, held in document["sites"].items()
    ]
    refused = ", ".join(f"{reason}: {count}" for reason, count in document["refused"].items()) or None
    return Group(
        output.fields(
            (
                ("relay", document["name"]),
                ("port", document["port"]),
                ("amendment", document["amendment"] or None),
                *_unknown(document),
                ("refused", refused),
                *((("problem", document["problem"]),) if document["problem"] else ()),
            )
        ),
        output.table(("site", "parked", "carrying", "carried", "bytes"), rows),
    )

"""``mhfl-peer backup`` and ``mhfl-peer restore``: a site in one file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import GIVEN_FILE, output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.documents.commands import SiteBackedUp, SiteRestored
from peer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

FILE = click.Path(path_type=Path, dir_okay=False)


@site_command()
@click.argument("file", type=FILE, required=False)
@click.option("--out", type=FILE, help="The file to write.")
@click.option("--with-key", is_flag=True, help="Also write the private key and the round key: keep the file secret.")
def backup(call: SiteCall, file: Path | None, out: Path | None, with_key: bool) -> None:
    """Write the site's journal, ledger, models and configuration to FILE or --out, also while its
    daemon runs.

    The file appears in one step and has no data of the site.

    \b
    mhfl-peer backup --site europe --out /backup/europe.tar
    mhfl-peer backup --site europe --with-key --out /safe/europe-with-key.tar
    """
    from peer.audit import backup as backups

    if (file is None) == (out is None):
        raise UsageError("the backup needs one file", "name it once, with --out FILE")
    path = file or out
    assert path is not None
    folder = call.folder
    manifest = backups.back_up(folder, path, with_key=with_key)
    document: SiteBackedUp = {
        "site": manifest.site,
        "federation": manifest.federation,
        "file": str(path),
        "bytes": path.stat().st_size,
        "files": len(manifest.files),
        "generation": manifest.generation,
        "round": manifest.round,
        "ledger_rows": manifest.ledger_rows,
        "private_key": manifest.private_key,
    }
    call.emit(document, _render_backup)


@site_command()
@click.argument("file", type=GIVEN_FILE)
@click.option("--force", is_flag=True, help="Move the folder that exists aside; its daemon must be stopped.")
def restore(call: SiteCall, file: Path, force: bool) -> None:
    """Make a site's folder from the backup FILE, and say which rounds are lost.

    The site goes on as a new generation, which its peers and auditors see. A folder that is moved
    aside keeps everything; its usable keys and a newer ledger are taken over from it.

    \b
    mhfl-peer restore --site europe /backup/europe.tar
    mhfl-peer restore --site europe --force /backup/europe.tar
    """
    from peer.audit import backup as backups

    restored = backups.restore(file, call.home, call.site_name, force=force)
    manifest = restored.manifest
    document: SiteRestored = {
        "site": manifest.site,
        "federation": manifest.federation,
        "folder": str(restored.folder.path),
        "time": manifest.time,
        "round": manifest.round,
        "generation": restored.generation,
        "lost_rounds": list(restored.lost) if restored.lost is not None else None,
        "aside": str(restored.aside) if restored.aside is not None else None,
        "ledger_kept": restored.ledger_kept,
        "private_key": restored.has_key,
        "broken": list(restored.broken),
    }
    call.emit(document, _render_restoration)


def _render_backup(document: Mapping[str, Any]) -> RenderableType:
    key = "is in the file: keep it secret" if document["private_key"] else "is not in the file: see --with-key"
    return output.fields(
        (
            ("backup", f"of {document['site']} in {document['federation']}: {document['file']}"),
            ("size", f"{rendering.size(document['bytes'])}, {document['files']} files"),
            ("state", f"round {document['round']} of generation {document['generation']}"),
            ("ledger", f"{document['ledger_rows']} rows"),
            ("private key", key),
        )
    )


def _render_restoration(document: Mapping[str, Any]) -> RenderableType:
    where = f"{document['federation']}/{document['site']}"
    start = f"`mhfl-peer check --site {where}`, then `mhfl-peer start --site {where}`"
    enrol = "put site.key and round.key into its pki folder with mode 0600, or enrol the site again with --renew"
    lost = document["lost_rounds"]
    unknown = f"those after round {document['round']}, if there were any"
    notes = [
        f"{name} of the former folder cannot be read: the backup's, which may be older, is used"
        for name in document["broken"]
    ]
    kept = "the newer one of the former folder" if document["ledger_kept"] else "that of the backup"
    return output.fields(
        (
            ("restored", f"{where} as of {rendering.clock(document['time'])}: {document['folder']}"),
            ("state", f"round {document['round']}; goes on as generation {document['generation']}"),
            ("lost rounds", f"{lost[0]} to {lost[1]}" if lost is not None else unknown),
            ("ledger", kept),
            *([("moved aside", document["aside"])] if document["aside"] is not None else []),
            *(("note", note) for note in notes),
            ("next", start if document["private_key"] else f"{enrol}; {start}"),
        )
    )

"""``mhfl-peer disk``: show how much of the disk a site's folder takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from peer.cli import output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.site.config.site_folder import SiteFolder

if TYPE_CHECKING:
    from peer.documents.records import DiskPart, DiskUsage


@site_command()
def disk(call: SiteCall) -> None:
    """Show how much of the disk a site's folder takes, by its subfolders.

    The daemon may run. `mhfl-peer prune` deletes old files that no round needs.

    \b
    mhfl-peer disk --site europe
    """
    parts = list(_parts(call.folder))
    document: DiskUsage = {
        "site": call.folder.site,
        "parts": parts,
        "bytes": sum(part["bytes"] for part in parts),
    }
    call.emit(document, _render)


def _parts(folder: SiteFolder) -> Iterator[DiskPart]:
    """Yield the subfolders by name; a file that the daemon deletes meanwhile counts as empty."""
    for part in sorted(path for path in folder.path.iterdir() if path.is_dir()):
        sizes = [path.stat().st_size if path.exists() else 0 for path in part.rglob("*") if not path.is_dir()]
        yield {"name": part.name, "files": len(sizes), "bytes": sum(sizes)}


def _render(document: Any) -> output.RenderableType:
    rows = [(part["name"], part["files"], rendering.size(part["bytes"])) for part in document["parts"]]
    title = f"{document['site']} takes {rendering.size(document['bytes'])}"
    return output.table(("folder", "files", "size"), rows, title=title)

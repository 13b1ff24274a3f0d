"""``mhfl-peer prune``: delete old files of a site that no round needs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.documents.privacy import PrunedFiles, SitePruned

if TYPE_CHECKING:
    from peer.audit.pruning import OldPath

UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class Age(click.ParamType[float]):
    """An age such as ``90d``, in seconds."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,5})([hdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no age; write hours, days or weeks, such as 36h, 90d or 12w", param, ctx)
        return int(match[1]) * UNITS_S[match[2]]


@site_command()
@click.option("--older-than", "age_s", type=Age(), default="90d", show_default=True, help="Least age of a file.")
@click.option("--yes", is_flag=True, help="Delete without a question.")
def prune(call: SiteCall, age_s: float, yes: bool) -> None:
    """Delete old files of a site that no round needs: weights and artifacts of former generations,
    artifacts that no row names, prepared images, logs.

    It lists them by kind and asks first; with --json and without --yes, it only lists. It deletes
    no journal, ledger, key or list of people, and nothing that the open round or the best round
    needs. Stop the daemon first. Backups, predictions, exports and contact sheets lie elsewhere, and are yours
    to delete.

    \b
    mhfl-peer prune --site europe
    mhfl-peer prune --site europe --older-than 0d --yes
    """
    from peer.audit import pruning

    folder = call.folder
    with folder.locked():
        old = pruning.find_old(folder, before_s=time.time() - age_s)
        document: SitePruned = {"site": folder.site, "older_than_s": age_s, "kinds": _kinds(old), "deleted": False}
        if not old or (call.as_json and not yes):
            call.emit(document, _render)
            return
        if not call.as_json:
            output.console().print(_render(document))
        if not yes:
            output.confirm(f"Delete {len(old)} files and checkpoints?", otherwise="nothing was deleted")
        pruning.delete(old)
    call.emit({**document, "deleted": True}, lambda _: "They are deleted.")


def _kinds(old: Sequence[OldPath]) -> list[PrunedFiles]:
    return [
        {
            "kind": kind,
            "files": sum(path.files for path in old if path.kind == kind),
            "bytes": sum(path.bytes for path in old if path.kind == kind),
            "oldest": min(path.written_s for path in old if path.kind == kind),
        }
        for kind in dict.fromkeys(path.kind for path in old)
    ]


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    if not document["kinds"]:
        return "Nothing that may go is older than that."
    rows = [
        (kind["kind"], kind["files"], rendering.size(kind["bytes"]), rendering.clock(kind["oldest"]))
        for kind in document["kinds"]
    ]
    return output.table(("may go", "files", "size", "oldest"), rows)

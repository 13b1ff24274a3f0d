"""``mhfl-peer export``: the local model as a file that others can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output, pass_settings, shared_options, site_option
from peer.config import site_folder
from peer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMATS = ("bundle", "pt2", "onnx")
NOT_STATED = "not stated"


@click.command(short_help="Take the local model away: MONAI bundle, .pt2 or ONNX.")
@site_option
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What others will load it with.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A new FILE.onnx or FILE.pt2; for a bundle a new folder or FILE.zip.",
)
@click.option("--licence", metavar="TEXT", default=NOT_STATED, show_default=True, help="For the model card.")
@output.json_option
@shared_options
@pass_settings
def export(settings: Settings, site_name: str | None, form: str, out: Path, licence: str, as_json: bool) -> None:
    """Write what the site predicts with, as its last finished round left it, to a file that others can load.

    A model card goes with it, as text (FILE.md, in a bundle docs/README.md) and inside: method, rounds, data counts,
    metrics, what it may reveal. What was written is run beside the site's own model on test images first; where it
    computes something else nothing is left behind.

    Networks of other sites are in it only where their manifests allow it (`reexport` in their site.toml); the card and
    this command name those that were left out. Every export is a row of the egress ledger: weights leave the site.

    \b
    mhfl-peer export --site europe --format onnx --out europe.onnx
    mhfl-peer export --site europe --format bundle --out europe --licence CC-BY-4.0
    """
    from peer.inference import model_state, release

    if not licence.strip():
        raise UsageError("--licence is empty", "name one, or leave the option out")
    folder = site_folder.find_site(site_folder.home_folder(settings.home), site_name)
    with model_state.exit_on_sigterm(), model_state.open_trained(folder) as (federation, standing):
        document = release.export_model(folder, federation, standing, form=form, out=out, licence=licence)
    output.emit(document, as_json=as_json, render=_picture)


def _picture(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group

    facts = [
        ("model", f"{document['network']} of {document['site']}, after round {document['round']}"),
        ("written", document["out"]),
        ("model card", document["card"]),
        ("SHA-256", document["sha256"]),
        ("bytes", document["bytes"]),
        ("licence", document["licence"]),
        ("networks of", ", ".join([document["site"], *document["included"]])),
        *(("left out", f"{site}: {reason}") for site, reason in document["left_out"].items()),
    ]
    columns = ("compared", "difference", "tolerance", "on")
    rows = [
        (row["what"], f"{row['difference']:.2g}", f"{row['tolerance']:g}", f"{row['samples']} {row['source']}")
        for row in document["checks"]
    ]
    return Group(output.fields(facts), output.table(columns, rows))

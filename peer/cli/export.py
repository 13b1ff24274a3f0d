"""``mhfl-peer export``: write the local model to a file that others can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from peer.cli import chosen_round, output, round_option
from peer.cli.site_command import SiteCall, site_command
from peer.errors import UsageError

FORMATS = ("bundle", "pt2", "onnx")
NOT_STATED = "not stated"


@site_command()
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What the file will be loaded with.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A new FILE.onnx or FILE.pt2; for a bundle a new folder or FILE.zip.",
)
@click.option(
    "--licence", metavar="TEXT", default=NOT_STATED, show_default=True, help="The licence that the model card states."
)
@round_option
def export(call: SiteCall, form: str, out: Path, licence: str, which: str | None) -> None:
    """Write the site's model, as its last or best finished round left it, to a file that others can
    load.

    A model card goes with the file, as text (FILE.md, in a bundle docs/README.md) and inside it:
    method, rounds, data counts, metrics, and what the model may reveal. The command first runs the
    file beside the site's own model on test images; if their results differ, it deletes the file
    and fails.

    The file contains networks of other sites only where their manifests allow it (`reexport` in
    their site.toml); the card and this command name those that were left out. Weights leave the
    site: every export is a row of the egress ledger.

    \b
    mhfl-peer export --site europe --format onnx --out europe.onnx
    mhfl-peer export --site europe --format bundle --out europe --licence CC-BY-4.0
    mhfl-peer export --site europe --round best --format onnx --out europe.onnx
    """
    from peer.train.inference import model_state, release

    if not licence.strip():
        raise UsageError("--licence is empty", "name a licence, or leave the option out")
    folder = call.folder
    with model_state.exit_on_sigterm(), model_state.open_trained(folder, chosen_round(which)) as (federation, state):
        document = release.export_model(folder, federation, state, form=form, out=out, licence=licence)
    call.emit(document, _render)


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    choice = f", {document['choice']}" if document["choice"] else ""
    facts = [
        ("model", f"{document['network']} of {document['site']}, after round {document['round']}{choice}"),
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

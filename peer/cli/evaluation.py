"""``mhfl-peer evaluation``: this site's model on every site's test data, as far as policies and peers allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output, pass_settings, shared_options, site_option
from peer.cli.watch import show, watch_option

if TYPE_CHECKING:
    from rich.console import RenderableType

NOT_SHOWN = "loss"
"""A metric that `--json` has and the table leaves out."""


@click.command(short_help="This site's model on every site's test data.")
@site_option
@watch_option
@output.json_option
@shared_options
@pass_settings
def evaluation(settings: Settings, site_name: str | None, watch: bool, as_json: bool) -> None:
    """This site's model on every site's test data (Global Test), or why a site says nothing of it.

    Models travel and figures come back; data stays. The federation, both sites and the method must permit it.

    \b
    mhfl-peer evaluation --site europe
    mhfl-peer evaluation --site europe --json
    """
    show(settings, site_name, "evaluation", _drawn, {}, as_json=as_json, watch=watch)


def _drawn(document: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line a site of each evaluated round, and the mean over the sites below them."""
    return output.table(("round", "test data of", "samples", "metrics"), _rows(document))


def _rows(document: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[object]]:
    for record in document:
        for site, cell in record["cells"].items():
            if "metrics" in cell:
                yield record["round"], site, cell["counts"].get("samples"), _figures(cell["metrics"])
            else:
                yield record["round"], site, None, cell["reason"]
        if record["global_test"] is not None:
            yield record["round"], "mean (Global Test)", None, _figures(record["global_test"])
        else:
            means = {name: mean["value"] for name, mean in record["mean"].items()}
            sites = sum("metrics" in cell for cell in record["cells"].values())
            yield record["round"], f"mean of {sites} of {len(record['cells'])}", None, _figures(means)


def _figures(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in sorted(values.items()) if name != NOT_SHOWN)

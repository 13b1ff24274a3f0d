"""``mhfl-peer evaluation``: cross-site evaluation of this site's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peer.cli import output
from peer.cli.site_command import SiteCall, site_command
from peer.cli.watch import show, watch_option
from peer.core.metrics import metric_title

NOT_SHOWN = "loss"
"""The metric that the table omits; ``--json`` includes it."""


@site_command()
@watch_option
def evaluation(call: SiteCall, watch: bool) -> None:
    """Show this site's model on every site's test data (Global Test); where a figure is missing,
    say why.

    The model travels to the other site and the metrics come back; test data stay where they are.
    The federation, both sites and the method must permit it.

    \b
    mhfl-peer evaluation --site europe
    mhfl-peer evaluation --site europe --json
    """
    show(call, "evaluation", _render, {}, watch=watch)


def _render(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    """Render a row for each site of each evaluated round, then the mean over the sites."""
    return output.table(("round", "test data of", "samples", "metrics"), _rows(document))


def _rows(document: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[object]]:
    for record in document:
        for site, cell in record["cells"].items():
            if "metrics" in cell:
                yield record["round"], site, cell["counts"].get("samples"), _format_metrics(cell["metrics"])
            else:
                yield record["round"], site, None, cell["reason"]
        if record["global_test"] is not None:
            yield record["round"], "mean (Global Test)", None, _format_metrics(record["global_test"])
        else:
            means = {name: mean["value"] for name, mean in record["mean"].items()}
            sites = sum("metrics" in cell for cell in record["cells"].values())
            yield record["round"], f"mean of {sites} of {len(record['cells'])}", None, _format_metrics(means)


def _format_metrics(values: Mapping[str, float]) -> str:
    return "  ".join(f"{metric_title(name)} {value:.4g}" for name, value in sorted(values.items()) if name != NOT_SHOWN)

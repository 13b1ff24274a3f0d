"""Cross-site evaluation: every site's model on every site's test split, on one machine with all folders.

In a real federation no site can do this, since no site sees another's data. The demo runs ``python
-m peer.lab.experiments.cross_site``, which reads one JSON document from standard input and writes one to
standard output, so that the demo's own process needs neither torch nor the memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from peer.core.artifacts import Source
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.train.trainer import Trainer

Matrix = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metrics by the model's site, then by the test split's site."""


def cross_site(sites: Sequence[tuple[WorkerSetting, str, tuple[Source, ...]]]) -> Matrix:
    """Evaluate each site's checkpoint on the test split of every site.

    Args:
        sites: of every site its worker's setting, the name of the checkpoint, and the sources of
            its last round.

    Returns:
        Metrics by model and test split; empty where the two sites enlarge images by different
        factors.
    """
    trainers = {setting.site_name: Trainer(setting) for setting, _, _ in sites}
    matrix: dict[str, dict[str, Mapping[str, float]]] = {}
    for setting, state, sources in sites:
        trainer = trainers[setting.site_name]
        trainer.load(state, sources)
        scale = trainer.settings.data.scale
        matrix[setting.site_name] = {
            name: trainer.evaluate(other.data.test) if other.settings.data.scale == scale else {}
            for name, other in trainers.items()
        }
    return matrix


def main() -> None:
    """Answer one document ``{"federations": {"...": [{"setting": {...}, "state": "...", "sources": [...]}]}}``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        matrices = {
            federation: cross_site([_read_site(site) for site in sites])
            for federation, sites in request["federations"].items()
        }
    json.dump(matrices, sys.stdout)


def _read_site(site: Mapping[str, Any]) -> tuple[WorkerSetting, str, tuple[Source, ...]]:
    return (
        from_json(WorkerSetting, site["setting"]),
        str(site["state"]),
        tuple(from_json(Source, source) for source in site["sources"]),
    )


if __name__ == "__main__":
    main()

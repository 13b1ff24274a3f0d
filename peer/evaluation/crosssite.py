"""Every site's model on every site's test split, on one machine that holds all the sites' folders.

A real federation never does this, since no site sees another's data; the demo and the simulator do. Run as
``python -m peer.evaluation.crosssite`` it reads one JSON document from standard input and writes one to standard
output, so that who asks needs neither torch nor the memory for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from peer.core import commands
from peer.core.work import Setting, from_json
from peer.training.trainer import Trainer

Matrix = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metrics by the model's site, then by the test split's site."""


def cross_site(sites: Sequence[tuple[Setting, str]]) -> Matrix:
    """Evaluate each site's model in a checkpoint on the test split of each.

    Args:
        sites: of every site its worker's setting and the name of the checkpoint.
    """
    trainers = {setting.site_name: Trainer(setting) for setting, _ in sites}
    matrix: dict[str, dict[str, Mapping[str, float]]] = {}
    for setting, state in sites:
        trainer = trainers[setting.site_name]
        trainer.perform(commands.Evaluate(generation=1, round=1, attempt=1, base=state))
        matrix[setting.site_name] = {name: trainer.measured(other.data.test) for name, other in trainers.items()}
    return matrix


def main() -> None:
    """Answer one document ``{"sites": [{"setting": {...}, "state": "..."}]}``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    sites = [(from_json(Setting, site["setting"]), str(site["state"])) for site in request["sites"]]
    with contextlib.redirect_stdout(sys.stderr):
        matrix = cross_site(sites)
    json.dump(matrix, sys.stdout)


if __name__ == "__main__":
    main()

"""Reads and prepares every sample of a site as its training would, and says which would be left out.

Run as ``python -m peer.train.inference.sample_check``, the module reads one JSON document from standard input, with the
worker's ``setting``. It writes one to standard output, so that the caller does not load torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from typing import Any

from peer.core.worker_protocol import WorkerSetting, from_json
from peer.train.errors import UnusableDataError, reason_of
from peer.train.samples import load_data, site_seed
from peer.train.settings import TrainingSettings


def check_samples(settings: TrainingSettings) -> dict[str, Any]:
    """Return ``left_out``, by sample the reason, ``lost_classes``, by sample those that its label map loses, and
    ``refusal``, why training would not begin with the others.
    """
    left_out: dict[str, str] = {}
    lost_classes: dict[str, list[int]] = {}
    data = dataclasses.replace(settings.data, cache="none", unreadable_share_max=1.0)
    settings = dataclasses.replace(settings, data=data)
    refusal = None
    try:
        load_data(
            settings,
            site_seed(settings),
            check_halt=lambda: None,
            unreadable=left_out,
            lost_classes=lost_classes,
        )
    except UnusableDataError as error:
        refusal = str(error)
    return {"left_out": left_out, "lost_classes": lost_classes, "refusal": refusal}


def main() -> None:
    """Answer a request."""
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    request: Any = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = check_samples(TrainingSettings.of(from_json(WorkerSetting, request["setting"])))
    except Exception as error:
        sys.exit(reason_of(error))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

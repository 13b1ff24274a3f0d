"""A transfer begins when its artifact is published, while the receiver still trains."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE, StillProcess
from peer.lab.demo.local_federation import LocalFederation
from peer.site.records.journal import Journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

AFRICA, EUROPE = "africa", "europe"


def test_an_artifact_is_received_before_its_receiver_has_trained(tmp_path: Path, tools: Any) -> None:
    """Europe trains until it has africa's next artifact: without an early transfer it would train for ever."""
    loopback = LocalFederation.create(
        tmp_path, draft("early", schedule=DERANGEMENT), dict.fromkeys((AFRICA, EUROPE), SITE)
    )
    sites = {name: StillProcess(loopback, name, 1) for name in (AFRICA, EUROPE)}
    path = loopback.folder(EUROPE).generation(1) / "journal.db"

    def rounds(kind: str) -> list[int]:
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            return [record["round"] for record in journal.records((kind,))]

    try:
        for site in sites.values():
            site.hear("ready")
        sites[AFRICA].release()
        tools.wait_until(lambda: 2 in rounds("arrived"), limit_s=60, what="the artifact of round 2 did not arrive")
        assert rounds("trained") == []
        sites[EUROPE].release()
        for name, origin in ((EUROPE, AFRICA), (AFRICA, EUROPE)):
            assert sites[name].hear("ordered 2") == f"ordered 2 {origin}"
    finally:
        for site in sites.values():
            site.end()

"""A real worker that hangs: its daemon ends it and starts another, and no bit of the rounds changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fakes import stopping_worker
from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(600)]

SCHEDULE = '[schedule]\nkind = "derangement"\n'


def test_a_stopped_worker_is_started_again_and_the_round_ends_with_the_same_bits(
    found: Callable[..., LocalFederation],
    copied: Callable[[LocalFederation], LocalFederation],
    warm_daemons: Callable[[str], type[LocalFederation]],
    tools: Any,
) -> None:
    sites = ("asia", "europe")
    enrolled = found(sites=sites, rounds=3, steps=12, top=SCHEDULE)
    calm, hung = copied(enrolled), copied(enrolled)
    tools.start(calm, sites)
    tools.finish_well(calm)
    site_toml = hung.folder("asia").site_toml
    site_toml.write_text(site_toml.read_text().replace("[training]\n", "[training]\nhang_s = 40.0\n"))
    stopping = warm_daemons(stopping_worker.__file__)
    hung.daemons[SiteName("asia")] = stopping(hung.home, hung.federation).start("asia")
    hung.start("europe")
    mark = hung.folder("asia").generation(1) / stopping_worker.MARK
    tools.wait_until(mark.exists)
    tools.wait_until(lambda: [body for kind, _, body in tools.rows(hung, "asia") if kind == "work_failed"])
    tools.finish_well(hung)
    (failure,) = [body for kind, _, body in tools.rows(hung, "asia") if kind == "work_failed"]
    assert failure["fault"] == "hang"
    assert "did not compute" in failure["reason"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    for name in sites:
        bits = [record["artifact_sha256"] for record in tools.records(calm, name)]
        assert len(bits) == 3
        assert [record["artifact_sha256"] for record in tools.records(hung, name)] == bits
        assert all(record["missing"] == {} for record in tools.records(hung, name))

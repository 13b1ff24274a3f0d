"""The pages in a real browser: at 1400 and 400 pixels, in light and dark, with nothing that overlaps or runs out."""

import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from fakes import chromium
from fakes.snapshots import HEARD, SITES, federation, link, site_snapshot
from peer.core.status_document import RefusedEntry
from peer.lab.demo.local_federation import LocalFederation
from peer.site.records.snapshot import room_taken
from peer.view.dashboard import egress_page
from peer.view.dashboard.page import write_page
from peer.view.dashboard.server import DashboardServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on this machine"),
]
LONG = ("university-hospital-of-the-east", "st-mary", "a", "memorial-centre-north-west-2")
MANY = tuple(f"site-{index:02}" for index in range(16))


def eventful(sites: tuple[str, ...]) -> str:
    """A page with a trouble of every kind."""
    first, second, third = sites[:3]
    peers = {name: dict(HEARD) for name in sites if name != first}
    peers[third] |= {"state": "silent", "last_seen_s": 95.0, "progress": None}
    total = {"kind": "model", "purpose": "train", "transfers": 2, "complete": 2, "bytes": 20 << 20, "last": 1.0}
    wait = {"site": second, "kind": "model", "artifact": "model", "since_s": 12.0, "deadline_s": 48.0}
    refusal: RefusedEntry = {"site": second, "round": 3, "reason": "its head has 7 classes, not 4", "declined": False}
    snapshot = site_snapshot(
        first, sites=sites, peers=peers, waiting_for=[wait], certificate_days=12, failure="out of memory",
        links=[link(second, first, state="waiting"), link(first, third, state="missing", reason="had left")],
        refusals=[refusal] * 9 + [{**refusal, "round": -4}],
        contributions={second: {"expected": 24, "refused": 10, "last_refused": 3}},
        stories=[{"round": 3, "state": "open", "sentences": [(1.0, f"{first} began round 3 when {'x' * 80}.")]}],
        sent=[{**total, "receiver": receiver} for receiver in sites],
        room=room_taken("auc", alone=0.8, pooled=0.9, round=2, value=0.862),
    )  # fmt: skip
    return write_page([federation(snapshot, site_snapshot(second, sites=sites))], version="1.2.3", live=True)


VIEWS = [
    (400, "dark"),
    *(pytest.param(*view, marks=pytest.mark.nightly) for view in ((1400, "light"), (1400, "dark"), (400, "light"))),
]
"""The narrow page has the least room, and the dark one the colours that are not the browser's own."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize(
    "sites",
    [
        SITES,
        MANY,
        pytest.param(LONG, marks=pytest.mark.nightly),
        pytest.param(SITES[:3], marks=pytest.mark.nightly),
        pytest.param((*SITES, "oceania", "arctic", "antarctica", "x"), marks=pytest.mark.nightly),
    ],
)
def test_a_page_is_legible(
    sites: tuple[str, ...], width: int, scheme: Literal["light", "dark"], tmp_path: Path
) -> None:
    chromium.assert_legible(eventful(sites), tmp_path, width=width, scheme=scheme)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_the_officers_page_is_legible(
    width: int, scheme: Literal["light", "dark"], tmp_path: Path, books: Any, enrolled: LocalFederation
) -> None:
    for round in (1, 2):
        books.send("asia", "europe", round=round)
    report = egress_page.read_report(enrolled.folder("asia"), (), time_s=1_795_000_000.0)
    page = egress_page.write_report(report, version="1")
    chromium.assert_legible(page, tmp_path, width=width, scheme=scheme)


@pytest.mark.timeout(300)
def test_the_live_page_fetches_itself_again_within_its_policy(enrolled: LocalFederation) -> None:
    server = DashboardServer([enrolled.folder("asia")])
    answered: list[str] = []
    application = server._server.get_app()
    assert application is not None

    def count(environ: Any, start_response: Any) -> Any:
        answered.append(environ["PATH_INFO"])
        return application(environ, start_response)

    server._server.set_app(count)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        shown = chromium.run("--virtual-time-budget=15000", "--dump-dom", server.link)
    finally:
        server.stop()
        thread.join(30)
    assert answered.count(f"/{server.link.split('/')[3]}/") >= 2
    assert "Content Security Policy" not in shown.stderr
    assert 'id="stale" hidden=""' in shown.stdout
    assert "trial" in shown.stdout

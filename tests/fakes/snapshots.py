"""A federation of painted sites, as ``peer.view.dashboard.collect`` would read them."""

from typing import Any

from peer.documents.records import Route
from peer.site.records.snapshot import SiteSnapshot, group_refusals, overview, planned_route
from peer.view.dashboard.collect import FederationSnapshot

SITES = ("africa", "america", "asia", "europe")
NOW_S = 1_795_000_000.0
HEARD: dict[str, Any] = {
    "state": "heard", "round": 3, "phase": "train", "progress": 0.5, "last_seen_s": 0.4, "spoken": None,
    "artifact_bytes": None, "clock_skew_s": 0.0, "software": "mhfl-peer 0.2.0", "protocol": 1, "features": [],
    "address": "10.0.0.7:7443", "route": "direct", "problem": "", "epoch": 0, "called_s": 1.0,
}  # fmt: skip


def ring(sites: tuple[str, ...] = SITES) -> dict[str, list[str]]:
    """Each site receives from the one before it."""
    return {name: [sites[index - 1]] for index, name in enumerate(sites) if len(sites) > 1}


def site_snapshot(site: str, *, sites: tuple[str, ...] = SITES, **changes: Any) -> SiteSnapshot:
    """A running site in round 3 of 10; ``changes`` are of the snapshot where that has the key, else of its status."""
    status: dict[str, Any] = {
        "daemon": "running", "site": site, "federation": "trial", "digest": "ab" * 32, "method": "fedskd",
        "generation": 1, "phase": "train", "phase_s": 2.0, "round": 3, "rounds": 10, "committed": 2, "waiting_for": [],
        "peers": {name: dict(HEARD) for name in sites if name != site},
        "training": {"stage": "train", "step": 5, "steps": 10, "loss": {"ce": 0.5}},
        "samples": {"training": 20, "test": 5, "unreadable": 0}, "refusals": [], "failure": "",
        "departed": "", "held": "", "contributions": {},
        "last_round": {"round": 2, "contributors": [site], "missing": {}, "missing_returns": {}, "duration_s": 3.0},
        "left_s": 60.0, "certificate_days": 364, "transfers": [], "listen": "127.0.0.1:7443", "pid": 1,
        "relays": [], "relayed": {}, "weights": None, "software": "mhfl-peer 0.3.0", "worker_pid": 2, "started": NOW_S,
    }  # fmt: skip
    snapshot: dict[str, Any] = {
        "plan": [{"round": 3, "order": None, "receives_from": ring(sites), "visits": None, "made_in": None}],
        "artifact": "model",
        "links": [], "certificates": {}, "stories": [], "room": None, "folder_bytes": 5 << 20,
        "free_bytes": 40 << 30,
        "sent": [
            {"receiver": sites[0], "kind": "model", "purpose": "train", "transfers": 2, "complete": 2, "bytes": 2048,
             "last": NOW_S},
        ],
        "curves": [
            {"tag": "test/auc", "points": [(1, 0.5), (2, 0.75)]},
            {"tag": "train/total", "points": [(1, 1.5), (2, 1.0)]},
        ],
    }  # fmt: skip
    for key, value in changes.items():
        (snapshot if key in snapshot else status)[key] = value
    refusals = group_refusals(status)  # type: ignore[arg-type]
    return {**snapshot, "status": status, "refusals": refusals}  # type: ignore[typeddict-item]


def link(sender: str, receiver: str, **changes: Any) -> Route:
    route: Route = {**planned_route(3, sender, receiver, "model"), **changes}  # type: ignore[typeddict-item]
    return route


def federation(*snapshots: SiteSnapshot, **options: Any) -> FederationSnapshot:
    return FederationSnapshot(overview(snapshots, time_s=NOW_S, **options), snapshots)

"""The overview of a federation, from what each of its sites on this machine knows."""

from typing import Any

import pytest

from fakes.snapshots import HEARD, NOW_S, SITES, federation, link, site_snapshot
from peer.core.status_document import RefusedEntry
from peer.documents.records import FederationOverview, OverviewRow
from peer.site.records.snapshot import overview, room_taken


def rows(document: FederationOverview) -> dict[str, OverviewRow]:
    return {row["site"]: row for row in document["sites"]}


def test_a_site_of_this_machine_speaks_for_itself_and_of_the_others() -> None:
    document = overview([site_snapshot("asia", certificates={"europe": 12})], time_s=NOW_S)
    every = rows(document)
    assert list(every) == sorted(SITES)
    assert (every["asia"]["seen_by"], every["asia"]["state"], every["asia"]["progress"]) == ("asia", "running", 0.5)
    assert (every["europe"]["seen_by"], every["europe"]["state"]) == ("asia", "heard")
    assert (every["europe"]["certificate_days"], every["africa"]["certificate_days"]) == (12, None)
    assert (every["asia"]["software"], every["europe"]["software"]) == ("mhfl-peer 0.3.0", "mhfl-peer 0.2.0")


def test_of_a_site_elsewhere_the_newest_view_counts() -> None:
    old = {name: {**HEARD, "last_seen_s": 90.0, "state": "silent"} for name in SITES if name != "asia"}
    document = overview([site_snapshot("asia", peers=old), site_snapshot("africa")], time_s=NOW_S)
    assert rows(document)["europe"]["seen_by"] == "africa"
    assert rows(document)["europe"]["state"] == "heard"


@pytest.mark.parametrize(
    ("metric", "pooled", "value", "share"),
    [("auc", 0.9, 0.85, 0.5), ("auc", 0.9, 0.75, -0.5), ("auc", 0.805, 0.9, None), ("psnr", 0.85, 0.9, None)],
)
def test_a_share_is_told_of_a_room_that_is_large_enough(
    metric: str, pooled: float, value: float, share: float | None
) -> None:
    taken = room_taken(metric, alone=0.8, pooled=pooled, round=4, value=value)
    assert taken["share"] == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("phase", ["down", "new", "finished"])
def test_a_daemon_that_is_down_is_told_from_a_site_that_is_done(phase: str) -> None:
    document = overview([site_snapshot("asia", daemon="down", phase=phase, training={})], time_s=NOW_S)
    assert rows(document)["asia"]["state"] == phase
    urgent = [item["site"] for item in document["attention"] if item["urgent"]]
    assert urgent == (["asia"] if phase == "down" else [])


def test_a_daemon_that_does_not_answer_is_not_down() -> None:
    document = overview([site_snapshot("asia", daemon="unresponsive", phase="down", training={})], time_s=NOW_S)
    assert rows(document)["asia"]["state"] == "unresponsive"
    assert "does not answer" in document["attention"][0]["text"]


def test_the_round_is_that_of_most_running_sites() -> None:
    snapshots = [
        site_snapshot("asia", round=3),
        site_snapshot("europe", round=4),
        site_snapshot("africa", round=4),
        site_snapshot("america", round=1, daemon="down", phase="down"),
    ]
    assert overview(snapshots, time_s=NOW_S)["round"] == 4


def test_the_overview_says_of_which_round_older_artifacts_are() -> None:
    planned = {"round": 3, "order": None, "receives_from": {}, "visits": None, "made_in": 1}
    older, newer = ({**site_snapshot("asia"), "plan": [{**planned, "made_in": each}]} for each in (1, None))
    assert overview([older], time_s=NOW_S)["made_in"] == 1  # type: ignore[list-item]
    assert overview([newer], time_s=NOW_S)["made_in"] is None  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("receivers", "senders", "state"),
    [
        ("planned", "planned", "planned"),
        ("planned", "moving", "moving"),
        ("waiting", "moving", "waiting"),
        ("waiting", "arrived", "waiting"),
        ("missing", "arrived", "missing"),
        ("arrived", "moving", "arrived"),
    ],
)
def test_of_a_route_the_end_that_knows_more_is_believed(receivers: Any, senders: Any, state: str) -> None:
    europe = site_snapshot("europe", links=[link("asia", "europe", state=receivers)])
    asia = site_snapshot("asia", links=[link("asia", "europe", state=senders)])
    for snapshots in ([europe, asia], [asia, europe]):
        (route,) = [route for route in overview(snapshots, time_s=NOW_S)["routes"] if route["receiver"] == "europe"]
        assert route["state"] == state


def test_a_share_is_not_lost_to_an_end_that_does_not_know_it() -> None:
    europe = site_snapshot("europe", links=[link("asia", "europe", state="moving", share=0.25)])
    asia = site_snapshot("asia", links=[link("asia", "europe", state="moving")])
    for snapshots in ([europe, asia], [asia, europe]):
        (route,) = [route for route in overview(snapshots, time_s=NOW_S)["routes"] if route["receiver"] == "europe"]
        assert route["share"] == 0.25


def test_links_of_another_round_are_left_out() -> None:
    document = overview([site_snapshot("asia", links=[link("europe", "asia", round=2, kind="head")])], time_s=NOW_S)
    assert {route["kind"] for route in document["routes"]} == {"model"}
    assert len(document["routes"]) == len(SITES)


def test_equal_refusals_are_one_group_with_their_number() -> None:
    refusals: list[RefusedEntry] = [
        {"site": "europe", "round": 4, "reason": "too large", "declined": False},
        {"site": "africa", "round": 4, "reason": "too large", "declined": False},
        {"site": "europe", "round": 6, "reason": "too large", "declined": False},
        {"site": "europe", "round": 6, "reason": "late", "declined": False},
    ]
    groups = site_snapshot("asia", refusals=refusals)["refusals"]
    assert [(group["of"], group["reason"], group["times"]) for group in groups] == [
        ("africa", "too large", 1),
        ("europe", "too large", 2),
        ("europe", "late", 1),
    ]
    assert (groups[1]["first_round"], groups[1]["last_round"]) == (4, 6)


def test_attention_says_what_holds_a_site() -> None:
    snapshot = site_snapshot("asia", phase="held", held="amendment 2 holds the federation")
    items = overview([snapshot], time_s=NOW_S)["attention"]
    assert {"site": "asia", "urgent": False, "text": "held: amendment 2 holds the federation"} in items


def test_attention_says_why_a_site_departed_and_not_that_it_should_be_started() -> None:
    snapshot = site_snapshot("asia", daemon="down", phase="down", departed="this site was expelled by amendment 2")
    texts = [item["text"] for item in overview([snapshot], time_s=NOW_S)["attention"] if item["site"] == "asia"]
    assert "this site was expelled by amendment 2" in texts
    assert not any("mhfl-peer start" in text for text in texts)


def test_attention_names_what_is_urgent_first() -> None:
    silent = {name: {**HEARD} for name in SITES if name != "asia"}
    silent["europe"] |= {"state": "silent", "last_seen_s": 90.0}
    refused: list[RefusedEntry] = [
        {"site": "africa", "round": 2, "reason": "too large", "declined": False},
        *({"site": "africa", "round": round, "reason": "late", "declined": False} for round in (3, 5)),
        {"site": "europe", "round": 5, "reason": "europe's policy sends no model to asia", "declined": True},
    ]
    snapshot = site_snapshot(
        "asia",
        peers=silent,
        certificate_days=12,
        failure="out of memory",
        refusals=refused,
        certificates={"africa": -1},
    )
    items = overview([snapshot], time_s=NOW_S)["attention"]
    assert [item["urgent"] for item in items] == sorted((item["urgent"] for item in items), reverse=True)
    texts = [f"{item['site']} {item['urgent']} {item['text']}" for item in items]
    for start in (
        "asia True its training has failed: out of memory",
        "europe True asia has not heard it for 90 s",
        "africa True its certificate has expired",
        "asia False its certificate expires in 12 days",
        "africa False asia refused it (in round 2): too large",
        "africa False asia refused it (2 times, last in round 5): late",
        "europe False it declined to asia (in round 5): europe's policy sends no model to asia",
    ):
        assert any(text.startswith(start) for text in texts), (start, texts)


def test_a_refusal_of_long_ago_needs_no_attention() -> None:
    refusals = [{"site": "africa", "round": 2, "reason": "late", "declined": False}]
    for round, committed, shown in ((6, 5, True), (7, 6, False), (4, 10, False)):
        snapshot = site_snapshot("asia", round=round, committed=committed, refusals=refusals)
        document = overview([snapshot], time_s=NOW_S)
        assert any("refused it" in item["text"] for item in document["attention"]) == shown
        assert rows(document)["asia"]["refuses"] == ({"africa": 1} if shown else {})


def test_a_row_says_what_a_site_lost_by_refusals() -> None:
    lost = {"expected": 3, "refused": 1, "last_refused": 2}
    document = overview([site_snapshot("asia", contributions={"africa": lost}), site_snapshot("europe")], time_s=NOW_S)
    words = "asia went on without 1 of 3 contributions, the last in round 2: africa 1 of 3"
    assert [row["losses"] for row in document["sites"]] == ["", "", words, ""]


def test_a_healthy_federation_needs_no_attention() -> None:
    assert overview([site_snapshot(name) for name in SITES], time_s=NOW_S)["attention"] == []


def test_peers_on_this_machine_are_not_reported_twice() -> None:
    silent = {name: {**HEARD, "state": "silent"} for name in SITES if name != "asia"}
    document = overview([site_snapshot("asia", peers=silent), *map(site_snapshot, ("africa", "america", "europe"))],
                        time_s=NOW_S)  # fmt: skip
    assert document["attention"] == []


def test_a_site_that_cannot_be_read_is_a_row_with_its_reason() -> None:
    document = federation(site_snapshot("asia"), problems={"europe": "journal.db is damaged"}).overview
    assert rows(document)["europe"]["state"] == "unreadable"
    assert document["attention"][0] == {"site": "europe", "urgent": True, "text": "journal.db is damaged"}


# The verdict.


def curve(tag: str, *values: float) -> dict[str, Any]:
    return {"tag": tag, "points": list(enumerate(values, 1))}


def verdict(*snapshots: Any, **options: Any) -> str:
    return federation(*snapshots, **options).overview["verdict"]


def test_a_running_federation_says_how_far_it_is_and_what_the_rounds_gave() -> None:
    sites = [
        site_snapshot("asia", curves=[curve("test/auc", 0.5, 0.75)], samples={"test": 18}),
        site_snapshot("europe", curves=[curve("test/auc", 0.625, 0.875)], samples={"test": 40}),
    ]
    assert verdict(*sites) == (
        "Round 3 of 10, about 60 s left. AUC on own test data: 0.812 on average after round 2, 0.562 after round 1; "
        "the lowest is asia with 0.750 on 18 samples."
    )


def test_a_finished_one_says_what_comes_next() -> None:
    done = {"daemon": "down", "phase": "done", "committed": 10, "round": 10, "left_s": None}
    text = verdict(site_snapshot("asia", **done, curves=[curve("global_test/dice", 0.9), curve("test/dice", 0.1)]))
    assert text == (
        "Finished: 10 of 10 rounds. Dice on every site's test data: 0.900 after round 1. "
        "Next: `mhfl-peer predict` or `mhfl-peer export`."
    )


def test_a_site_that_trains_no_more_is_named_first() -> None:
    failed = site_snapshot("asia", failure="no images", curves=[], left_s=None)
    assert verdict(failed, site_snapshot("europe", left_s=None), problems={"africa": "unreadable"}) == (
        "Round 3 of 10. africa, asia need attention."
    )


def test_only_a_split_that_all_sites_have_measured_is_compared() -> None:
    sites = [
        site_snapshot("asia", curves=[curve("global_test/auc", 0.9), curve("validation/psnr", 20.0, 30.0)]),
        site_snapshot("europe", curves=[curve("validation/psnr", 10.0, 40.0)]),
    ]
    assert (
        "PSNR on own validation data: 35.0 dB on average after round 2, 15.0 dB after round 1; the lowest is asia"
        in verdict(*sites)
    )

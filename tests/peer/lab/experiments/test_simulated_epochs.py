"""Who joins and leaves when in a simulated federation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.simulated_sites import MemoryJournal, restore_sites, rules_of
from peer.core.epochs import Epoch
from peer.core.roster import RoundKey, SiteName
from peer.lab.experiments.simulated_epochs import SimulatedEpochs
from peer.lab.experiments.simulated_network import SimulatedNetwork

GENESIS = Epoch(0, None, 1, (SiteName("asia"), SiteName("europe")), RoundKey(bytes(32)), 9)


def change(from_round: int, **names: list[str]) -> dict[str, Any]:
    return {"from_round": from_round, "add": [], "leave": [], "expel": [], **names}


CHANGES = (change(3, add=["africa"]), change(5, expel=["asia"]), change(7, add=["oceania"]))


def test_a_change_that_adds_is_known_at_once_and_one_that_takes_out_after_the_last_round() -> None:
    epochs = SimulatedEpochs(GENESIS, CHANGES)
    assert epochs.learn_due({})
    assert epochs.known.head.members == ("africa", "asia", "europe")
    assert not epochs.learn_due({SiteName("asia"): 3, SiteName("europe"): 9})
    assert epochs.learn_due({SiteName("asia"): 4})
    assert [epoch.number for epoch in epochs.known.all] == [0, 1, 2, 3], "the last one only adds"
    assert epochs.known.head.expelled == {"asia"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([change(3, leave=["africa"])], "'africa' is no member before round 3"),
        ([change(3, leave=["asia"]), change(4, expel=["europe"])], "nobody is left from round 4 on"),
    ],
)
def test_a_change_that_cannot_be_is_named(changes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatedEpochs(GENESIS, changes)


def run(interrupt_after: int = 10**6, **fields: Any) -> dict[SiteName, MemoryJournal]:
    """Run a federation of two that two join; every site's rows."""
    rules = rules_of(("asia", "europe"), rounds=9, **fields)
    first = rules[SiteName("asia")]
    rules |= {SiteName(name): dataclasses.replace(first, site=SiteName(name)) for name in ("africa", "oceania")}
    rows = {name: MemoryJournal() for name in rules}
    left: Iterator[int] = iter(range(interrupt_after))

    def watch(name: SiteName, machine: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    for _ in range(2):
        sites = restore_sites(rules, rows)
        network = SimulatedNetwork(sites, epochs=SimulatedEpochs(first.epochs.genesis, CHANGES), watch=watch)
        try:
            network.run()
            break
        except KeyboardInterrupt:
            left = iter(range(10**6))
    assert all(site.exit is not None and not site.exit.fault for site in sites.values())
    return rows


@pytest.mark.parametrize(("method", "shadow"), [("fedskd", 0), ("fedcross", 0), ("fedavg", 1), ("dflmoe", 1)])
def test_members_train_in_their_rounds_and_in_no_other(method: str, shadow: int) -> None:
    rows = run(method=method)
    committed = {name: [round for kind, round, _ in own if kind == "committed"] for name, own in rows.items()}
    assert committed == {
        "asia": [1, 2, 3, 4],
        "europe": list(range(1, 10)),
        "africa": list(range(3 - shadow, 10)),
        "oceania": list(range(7 - shadow, 10)),
    }


@pytest.mark.parametrize("after", [5, 40, 60])
def test_an_interrupted_run_ends_with_the_same_models(after: int) -> None:
    def models(rows: dict[SiteName, Any]) -> dict[str, Any]:
        return {
            name: [(round, body["state"]) for kind, round, body in own if kind == "committed"]
            for name, own in rows.items()
        }

    assert models(run(interrupt_after=after)) == models(run())

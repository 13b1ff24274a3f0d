"""Sites in one process come to their end, whatever links are down, and go on after an interruption."""

from typing import Any

import pytest

from fakes.simulated_sites import MemoryJournal, restore_sites, rules_of, worker_without_training
from peer.core import commands, site_memory
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.lab.experiments.simulated_network import Perform, SimulatedNetwork
from peer.methods.registry import PLANS

SITES = ("africa", "america", "asia", "europe")


class ProcessKilled(Exception):  # noqa: N818 - the name is the fact
    """The process was killed here."""


def committed(rows: Any) -> list[tuple[int, Any]]:
    return [(round, body) for kind, round, body in rows if kind == "committed"]


def run(*, sites: tuple[str, ...] = SITES, link_down: Any = None, **changes: Any) -> dict[SiteName, MemoryJournal]:
    """Run a federation; every site's rows."""
    rules = rules_of(sites, **changes)
    rows = {name: MemoryJournal() for name in rules}
    simulated = restore_sites(rules, rows)
    SimulatedNetwork(simulated, **({} if link_down is None else {"link_down": link_down})).run()
    assert all(site.exit is not None and not site.exit.fault for site in simulated.values())
    return rows


@pytest.mark.parametrize("method", sorted(PLANS))
def test_every_method_comes_to_its_last_round(method: str) -> None:
    for rows in run(method=method).values():
        assert [round for round, _ in committed(rows)] == [1, 2, 3, 4]
        assert not any(body["missing"] for _, body in committed(rows))


def test_who_receives_from_whom_is_the_schedule() -> None:
    rules = rules_of(SITES)
    for name, rows in run().items():
        for round, body in committed(rows):
            turn = rules[name].turn(round)
            assert [source["site"] for source in body["sources"]] == ([] if turn == name else [turn])


@pytest.mark.parametrize("method", ["fedavg_ft", "fedprox_ft", "fedcross_ft"])
def test_models_are_at_home_before_the_round_of_fine_tuning_which_exchanges_nothing(method: str) -> None:
    for name, rows in run(method=method).items():
        kinds = [kind for kind, _, _ in rows]
        stages = [body["stage"] for kind, round, body in rows if kind == "trained" and round == 4]
        *_, (_, body) = committed(rows)
        assert stages == ["finetune"]
        assert (body["sources"], body["contributors"], body["visiting"]) == ([], [name], False)
        assert max(round for kind, round, body in rows if kind == "published") == (4 if method == "fedcross_ft" else 3)
        last_opened = len(kinds) - kinds[::-1].index("opened")
        assert not {"arrived", "published", "chosen", "adopted"} & set(kinds[last_opened:])
        assert ("adopted" in kinds) == (method == "fedcross_ft")


def test_without_any_link_each_site_consolidates_alone() -> None:
    for name, rows in run(link_down=lambda round, sender, receiver: True).items():
        for _, body in committed(rows):
            assert body["contributors"] == [name]


def test_a_lost_link_concerns_one_direction_of_one_round() -> None:
    rows_by_site = run(method="feddal", link_down=lambda *link: link == (2, "africa", "asia"))
    for name, rows in rows_by_site.items():
        for round, body in committed(rows):
            assert body["missing"] == ({"africa": "skipped"} if (name, round) == ("asia", 2) else {})


def test_a_lost_link_leaves_the_last_head_in_use() -> None:
    rows = run(method="dflmoe", link_down=lambda *link: link == (2, "africa", "asia"))["asia"]
    (body,) = [body for round, body in committed(rows) if round == 2]
    (head,) = [source for source in body["sources"] if source["site"] == "africa"]
    assert (head["round"], head["fallback"]) == (1, "stale")


@pytest.mark.parametrize("method", ["fedskd", "fedcross", "fedcross_ft", "feddal", "dflmoe"])
@pytest.mark.parametrize("after", [1, 7, 20])
def test_an_interrupted_run_goes_on_to_the_same_end(method: str, after: int) -> None:
    rules, orders = rules_of(SITES, method=method), 0
    rows = {name: MemoryJournal() for name in rules}

    def interrupted_worker(own: Rules) -> Perform:
        perform = worker_without_training(own)

        def perform_or_stop(command: commands.Command) -> Any:
            nonlocal orders
            orders += 1
            if orders == after:
                raise ProcessKilled
            return perform(command)

        return perform_or_stop

    with pytest.raises(ProcessKilled):
        SimulatedNetwork(restore_sites(rules, rows, interrupted_worker)).run()
    SimulatedNetwork(restore_sites(rules, rows)).run()
    whole = run(method=method)
    for name in rules:
        assert site_memory.recover(rows[name]).state == site_memory.recover(whole[name]).state


def test_forty_sites_send_to_all() -> None:
    sites = tuple(f"site-{number}" for number in range(40))
    for rows in run(sites=sites, method="feddal", rounds=2).values():
        assert all(len(body["contributors"]) == 40 for _, body in committed(rows))

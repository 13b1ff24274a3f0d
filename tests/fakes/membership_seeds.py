"""Federations in memory whose members come and go as a seed says, and what must hold of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from fakes.core_world import Simulation
from peer.core import membership, rounds
from peer.core.epochs import Epochs
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.core.state import SiteState

FOUR = ("africa", "america", "asia", "europe")
NEWCOMERS = ("arctica", "oceania")
METHODS = ("fedavg", "fedskd", "fedskd", "fedcross", "dflmoe", "fedvisit", "feddal", "proxyfl")
ROUNDS = 9
WORK_S = 20_000.0
"""How long a run may last beside the time for which a site that hears nobody waits for the others."""


class ViolationError(AssertionError):
    """Something does not hold."""


def require(holds: object, reason: str) -> None:
    if not holds:
        raise ViolationError(reason)


def play(seed: int) -> Simulation:
    """Play a seed to its end, and check the journals of all sites."""
    rng = random.Random(f"members {seed}")
    method = rng.choice(METHODS)
    parameters = {"activation": rng.choice([0.0, 0.5, 1.0])} if method == "fedskd" else {}
    can = method == "dflmoe" or parameters.get("activation") == 0.0
    world = Simulation(
        (*FOUR, *NEWCOMERS),
        seed=seed,
        newcomers=NEWCOMERS,
        method=method,
        rounds=ROUNDS,
        parameters=parameters,
        schedule_kind="ring" if method == "fedvisit" else rng.choice(["permutation", "derangement", "ring"]),
        staleness=random.Random(f"staleness {seed}").randint(0, 1) if can else 0,
        fallback="self" if method == "fedvisit" else rng.choice(["self", "stale"]),
    )
    for act in draw_acts(rng):
        at = rng.randint(1, 3)
        reached = min(ROUNDS - 2, furthest(world) + at)
        world.run(until=lambda reached=reached: furthest(world) >= reached)  # type: ignore[misc]
        act(world, rng)
        if rng.random() < 0.4:
            world.kill_for(rng.choice(FOUR), rng.choice([2.0, 20.0]))
    world.run_to_end(limit_s=world.epochs.head.pace.isolated_s + WORK_S)
    check(world)
    return world


def furthest(world: Simulation) -> int:
    return max(machine.round.number for machine in world.machines.values() if machine.round is not None)


def draw_acts(rng: random.Random) -> Iterator[Callable[[Simulation, random.Random], None]]:
    acts = [join("oceania"), rng.choice([expel, leave]), rng.choice([join("arctica"), hold])]
    rng.shuffle(acts)
    yield from acts


def amend(world: Simulation, rng: random.Random, **changes: Any) -> None:
    """An amendment from a round that some may have begun; the last site learns of it early or late."""
    head = world.epochs.head
    from_round = min(ROUNDS, max(head.from_round, furthest(world) + rng.randint(0, 3)))
    if head.hold:  # a later round would leave those before it held for good
        from_round = head.from_round
    world.amend(from_round, late_s=rng.choice([0.5, 5.0, 30.0]), **changes)


def join(name: str) -> Callable[[Simulation, random.Random], None]:
    def act(world: Simulation, rng: random.Random) -> None:
        amend(world, rng, members=[*world.epochs.head.members, name])

    return act


def expel(world: Simulation, rng: random.Random) -> None:
    members = [name for name in world.epochs.head.members if name != "asia"]
    amend(world, rng, members=members, expelled={SiteName("asia")})


def leave(world: Simulation, rng: random.Random) -> None:
    world.amend(0, leaving=["america"])


def hold(world: Simulation, rng: random.Random) -> None:
    """The federation holds for a minute."""
    amend(world, rng, hold=True)
    world.at(60.0, lambda: world.amend(world.epochs.head.from_round, hold=False))


def check(world: Simulation) -> None:
    """What must hold of every journal."""
    gone, chain = world.epochs.gone, world.epochs
    for name, machine in world.machines.items():
        if name in gone or not machine.rows:
            continue
        require("finished" in world.kinds(name), f"{name} has not finished")
        refusals = [body for kind, _, body in machine.rows if kind == "refused"]
        require(not refusals, f"{name} accuses an innocent: {refusals}")
        check_rounds(machine.rules, name, machine.rows, chain)


def check_rounds(rules: Rules, name: str, rows: list[Any], chain: Epochs) -> None:
    """Each round of a site follows the epoch that the site knew before it chose its sources."""
    by_digest = {epoch.digest: epoch for epoch in chain.all}
    known = Epochs(chain.all[: 1 if name in FOUR else len(chain.all)])
    learnt, epoch, starts = name in FOUR, None, 0
    first = chain.first_round(SiteName(name)) or 1
    for kind, round, body in rows:
        if kind == "began":  # it may have learnt more while it was down
            starts += 1
            learnt = learnt and starts == 1
        elif kind == "amended":
            learnt = True
            known = Epochs(chain.all[: body["number"] + 1])
            epoch = by_digest[body["epoch"]] if body["reopened"] and "epoch" in body else epoch
        elif kind == "opened":
            epoch = by_digest[body.get("epoch")]
            shadow = 1 if rules.pattern(round) == "all_to_all" else 0
            require(round >= first - shadow, f"{name} opens round {round}, and is a member from round {first} on")
            require(not (learnt and known.at(round).hold), f"{name} opens round {round}, although it is held")
        elif kind == "chosen" and epoch is not None:
            sources = {source["origin"] for source in body["sources"]}
            if learnt and body.get("purpose") != "return":
                again = epoch.digest != known.at(round).digest
                require(not again or chosen_before(rows, round), f"{name} chooses for round {round} in an old epoch")
            expelled = frozenset[SiteName]()
            if learnt and not chosen_before(rows, round):
                expelled = known.head.expelled
            require(not sources & expelled, f"{name} uses what the expelled {sources & expelled} sent")


def chosen_before(rows: list[Any], round: int) -> bool:
    """Whether the round's sources were chosen more than once: a worker rejected some, or models return."""
    return sum(kind == "chosen" and number == round for kind, number, _ in rows) > 1


RULES: Mapping[str, tuple[str, Callable[[], AbstractContextManager[Any]], int]] = {
    "no_reopening": (
        "A round whose epoch changes before its sources are chosen keeps its members",
        lambda: mock.patch.object(membership, "_reopens", return_value=False),
        0,
    ),
    "no_hold": (
        "A site opens rounds that the federation holds",
        lambda: mock.patch.object(SiteState, "is_held", return_value=False),
        2,
    ),
    "newcomers_begin_at_once": (
        "A newcomer opens rounds before its first one",
        lambda: mock.patch.object(rounds, "_join"),
        0,
    ),
}
"""By the name of a removed rule: what happens then, how it is removed, and a seed that notices."""


def notices(name: str, seed: int) -> str:
    """The violation without a rule; empty where the seed does not notice."""
    with RULES[name][1]():
        try:
            play(seed)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""

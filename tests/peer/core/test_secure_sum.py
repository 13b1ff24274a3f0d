"""The secure sum: what each message leads to, and seeds with faults and liars, whose masks are real ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes import reference_sum
from fakes.sum_world import HABITS, World, play
from peer.core import sum_messages as core
from peer.core.roster import Roster, Sha256, SiteName
from peer.core.secure_sum import FORGETFUL, SecureSum, members_min
from peer.core.sum_messages import (
    NamePeer,
    NoSum,
    PersistSum,
    SendOpening,
    SendSum,
    SumCommit,
    SumDecision,
    SumKey,
    SumMasked,
    SumOpening,
    SumReady,
    SumSet,
    commitment,
)

SEEDS = 200
NIGHTLY_SEEDS = 10_000
VECTORS = json.loads(reference_sum.PATH.read_text("utf-8"))
A, B, C, D, E = map(SiteName, "abcde")
ROSTER = Roster((A, B, C, D, E))
OTHERS = (B, C, D, E)


class CommitsAgain(SecureSum):
    """Commits to a smaller set after a larger one, and lets others do so."""

    def _is_bound(self) -> bool:
        return False

    def _is_bound_elsewhere(self, name: SiteName, contributions: core.Contributions) -> bool:
        return False

    def _second_commit(self, sender: SiteName, contributions: core.Contributions) -> None:
        self.commits[sender] = dict(contributions)


class OpensEarly(SecureSum):
    """Opens without the commits of the others."""

    def _all_committed(self) -> bool:
        return True


# --- seeds ------------------------------------------------------------------------------------------------------------
def test_the_invariants_hold() -> None:
    broken = {seed: violation for seed in range(SEEDS) if (violation := play(seed))}
    assert broken == {}


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(SEEDS, SEEDS + NIGHTLY_SEEDS, 1000))
def test_the_invariants_hold_at_length(batch: int) -> None:
    broken = {seed: violation for seed in range(batch, batch + 1000) if (violation := play(seed))}
    assert broken == {}


def test_the_seeds_play_each_fault_and_end_in_both_ways() -> None:
    worlds = [World(seed).run() for seed in range(60)]
    assert {habit for world in worlds for habits in world.habits.values() for habit in habits} == {*HABITS}
    assert all(sum(bool(getattr(world, fault)) for world in worlds) > 5 for fault in ("lossy", "kill_share"))
    members = [member for world in worlds for member in world.honest()]
    assert {type(member.machine.result) for member in members if not member.absent} == {SumReady, NoSum}
    assert any(member.restored for member in members)
    assert any(world.unaware for world in worlds)


@pytest.mark.parametrize(("mutant", "seed"), [(CommitsAgain, 47), (OpensEarly, 54)])
def test_a_seed_unmasks_a_site_where_a_rule_is_missing(mutant: type[SecureSum], seed: int) -> None:
    assert World(seed, mutant).run().bare().endswith("is bare")
    assert play(seed) == ""


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_everybody_has_the_sum_of_all(seed: int) -> None:
    world = World(seed, calm=True).run()
    assert world.violation() == ""
    for member in world.members.values():
        assert isinstance(member.machine.result, SumReady)
        assert set(member.machine.result.contributions) == set(world.roster)


@pytest.mark.parametrize("kind", [SumKey, SumMasked, SumSet, SumCommit, SumOpening])
@pytest.mark.parametrize("seed", range(4))
def test_who_vanishes_before_the_commit_is_left_out_and_later_costs_the_sum(seed: int, kind: Any) -> None:
    world = World(seed, calm=True)
    lost = world.roster.names[seed % len(world.roster)]
    world.silent_from = (lost, kind)
    world.run()
    assert world.violation() == ""
    for member in world.members.values():
        if member.name == lost:
            continue
        assert lost in member.named
        if kind in (SumCommit, SumOpening):
            assert isinstance(member.machine.result, NoSum)
            assert lost in member.machine.result.reason
        else:
            assert isinstance(member.machine.result, SumReady)
            assert set(member.machine.result.contributions) == set(world.roster) - {lost}


# --- one site ---------------------------------------------------------------------------------------------------------
def seed_of(one: str, other: str) -> bytes:
    return "".join(sorted(one + other)).encode().ljust(32, b"\0")


def masked(site: SiteName, *others: SiteName, artifact: str = "1") -> SumMasked:
    commitments = {other: commitment(seed_of(site, other)) for other in (site, *others)}
    return SumMasked(Sha256(artifact * 64), commitments)


def statement(site: SiteName) -> SumMasked:
    return masked(site, *ROSTER.others(site))


def contributions(*sites: SiteName) -> dict[SiteName, Sha256]:
    return {site: statement(site).digest for site in sites}


def site(until: str = "", *, without: tuple[SiteName, ...] = ()) -> SecureSum:
    """Site a, to which the others have said everything before ``until``."""
    machine = SecureSum(A, ROSTER, 1)
    machine.begin(b"A")
    others = [name for name in OTHERS if name not in without]
    everybody = contributions(A, *others)
    if until == "keys":
        return machine
    for name in OTHERS:
        machine.receive(name, SumKey(name.encode()))
    machine.complete_masking({name: name.encode() for name in OTHERS}, statement(A))
    for kind, message in (("masked", None), ("sets", SumSet(everybody)), ("commits", SumCommit(everybody))):
        if until == kind:
            return machine
        for name in others:
            machine.receive(name, message or statement(name))
        if without and kind == "masked":
            machine.give_up()
    return machine


def opening(name: SiteName, *dropped: SiteName) -> SumOpening:
    return SumOpening(seed_of(name, name), {other: seed_of(name, other) for other in dropped})


def named(decisions: list[SumDecision]) -> dict[SiteName, tuple[str, bool]]:
    return {one.site: (one.reason, one.guilty) for one in decisions if isinstance(one, NamePeer)}


def sent(decisions: list[SumDecision]) -> list[tuple[SiteName, Any]]:
    return [(one.to, one.message) for one in decisions if isinstance(one, SendSum)]


@pytest.mark.parametrize("known", VECTORS["members_min"])
def test_members_min_is_the_known_answer(known: dict[str, int]) -> None:
    members, colluders = known["members"], known["colluders"]
    assert members_min(members, colluders) == known["members_min"]


def test_two_sets_share_more_members_than_collude() -> None:
    for members in range(3, 65):
        for colluders in range(members - 1):
            least = members_min(members, colluders)
            assert 2 * least - members > colluders
            assert least - colluders >= 2


@pytest.mark.parametrize("vector", VECTORS["sums"], ids=lambda vector: f"{vector['bits']}-{vector['clip']}")
def test_a_statement_has_the_known_digest(vector: dict[str, Any]) -> None:
    for member in vector["members"].values():
        assert SumMasked(**json.loads(member["statement"])).digest == member["digest"]


def test_a_commit_is_on_disk_before_it_leaves_and_an_opening_after_all_commits() -> None:
    machine, everybody = site("sets"), contributions(*ROSTER)
    for name in (B, C, D):
        assert machine.receive(name, SumSet(everybody)) == []
    decisions = machine.receive(E, SumSet(everybody))
    assert decisions[0] == PersistSum(core.SumBound(everybody))
    assert sent(decisions[1:]) == [(name, SumCommit(everybody)) for name in OTHERS]
    for name in (B, C, D):
        assert machine.receive(name, SumCommit(everybody)) == []
    opened = [PersistSum(core.SumOpened()), *(SendOpening(name, ()) for name in OTHERS)]
    assert machine.receive(E, SumCommit(everybody)) == opened


def test_the_seeds_of_pairs_with_who_is_left_out_are_opened() -> None:
    machine = site(without=(D,))
    assert machine.opened
    assert machine.repeat(B)[-1] == SendOpening(B, (D,))
    assert not any(isinstance(one, SendOpening) for one in machine.repeat(D))
    for name in (B, C):
        assert machine.receive(name, opening(name, D)) == []
    openings = {name: opening(name, D) for name in (B, C, E)}
    result = SumReady(contributions(A, B, C, E), openings)
    assert machine.receive(E, opening(E, D)) == [PersistSum(core.SumCompleted(openings)), result]


@pytest.mark.parametrize(
    ("until", "message", "reason"),
    [
        ("keys", SumKey(b"other"), "gave two keys for one sum"),
        ("sets", masked(B, A, C, D, E, artifact="2"), "sent two masked artifacts"),
        ("commits", SumCommit(contributions(A, B, C, D)), "committed to two sets"),
        ("", opening(C), "opened another seed than it committed to"),
        ("masked", SumMasked(Sha256("1" * 64), {A: commitment(b"")}), "committed to no seed of its own"),
    ],
)
def test_who_breaks_the_protocol_is_named_as_guilty(until: str, message: Any, reason: str) -> None:
    machine = site(until)
    if until == "keys":
        machine.receive(B, SumKey(b"B"))
    if until == "commits":
        machine.receive(B, SumCommit(contributions(*ROSTER)))
    decisions = machine.receive(B, message)
    assert named(decisions)[B] == (reason, True)
    bound = until in ("commits", "")
    assert any(isinstance(one, NoSum) for one in decisions) == bound
    if bound:
        assert SumKey in {type(one) for _, one in sent(machine.repeat(C))}


def test_another_seed_than_that_of_the_keys_shows_at_once() -> None:
    """Its sender has given two keys, or lies about the one it has used."""
    machine = site("masked")
    for name in (C, D, E):
        machine.receive(name, statement(name))
    commitments = {**statement(B).commitments, A: commitment(b"another")}
    decisions = machine.receive(B, SumMasked(Sha256("1" * 64), commitments))
    assert named(decisions) == {B: ("committed to another seed than that of the two keys", True)}
    assert sent(decisions)[0] == (B, SumSet(contributions(A, C, D, E)))


def test_who_masked_without_this_sites_key_is_left_out() -> None:
    machine = site("masked")
    for name in (C, D, E):
        machine.receive(name, statement(name))
    assert named(machine.receive(B, masked(B, C, D, E))) == {B: ("masked without this site's key", False)}


def test_a_set_that_is_too_small_costs_its_sender_the_sum_and_not_the_others() -> None:
    machine = site("sets")
    assert named(machine.receive(B, SumSet(contributions(A, B)))) == {B: ("shares too few contributors", False)}
    assert machine.last_shown == contributions(A, C, D, E)


def test_who_is_left_out_says_so_to_all() -> None:
    machine = site("sets")
    decisions = machine.receive(B, SumSet(contributions(B, C, D, E)))
    assert decisions[0] == PersistSum(core.SumAbandoned("left out by b"))
    assert sent(decisions) == [(name, SumSet({})) for name in OTHERS]
    assert decisions[-1] == NoSum("left out by b")


def test_who_takes_no_part_is_not_waited_for() -> None:
    machine = site("keys")
    assert named(machine.receive(B, SumSet({}))) == {B: ("takes no part", False)}
    for name in (C, D):
        machine.receive(name, SumKey(name.encode()))
    assert machine.receive(E, SumKey(b"E")) == [core.MaskInput({C: b"c", D: b"d", E: b"E"})]


def test_sets_may_arrive_in_any_order() -> None:
    machine = site("sets")
    machine.receive(B, SumSet(contributions(A, B, C, D)))
    machine.receive(B, SumSet(contributions(*ROSTER)))
    assert machine.last_shown == contributions(A, B, C, D)


def test_after_giving_up_nothing_is_opened() -> None:
    machine = site("commits")
    decisions = machine.give_up()
    assert named(decisions) == dict.fromkeys(OTHERS, ("did not commit", False))
    assert decisions[-1] == NoSum("without a commit of b, c, d, e")
    assert [machine.receive(name, SumCommit(contributions(*ROSTER))) for name in OTHERS] == [[]] * 4
    assert not machine.opened


def test_a_member_that_is_bound_to_another_set_is_left_out() -> None:
    machine = site("sets")
    machine.receive(B, SumCommit(contributions(*ROSTER)))
    assert named(machine.receive(C, SumSet(contributions(A, B, C, D))))[B] == ("committed to another set", False)


def test_a_kill_between_any_two_decisions_repeats_the_same_messages() -> None:
    """What a rebuilt site says again, it has said before, or was about to say."""
    said: dict[SiteName, list[Any]] = {name: [] for name in OTHERS}
    records: list[core.SumRecord] = []
    machine = SecureSum(A, ROSTER, 1)
    everybody = contributions(*ROSTER)
    events = [lambda: machine.begin(b"A")]
    events += [lambda name=name: machine.receive(name, SumKey(name.encode())) for name in OTHERS]
    events += [lambda: machine.complete_masking({name: name.encode() for name in OTHERS}, statement(A))]
    events += [lambda name=name: machine.receive(name, statement(name)) for name in OTHERS]
    events += [lambda name=name: machine.receive(name, SumSet(everybody)) for name in OTHERS]
    events += [lambda name=name: machine.receive(name, SumCommit(everybody)) for name in OTHERS]
    events += [lambda name=name: machine.receive(name, opening(name)) for name in OTHERS]
    for event in events:
        for decision in event():
            if isinstance(decision, PersistSum):
                records.append(decision.record)
            elif isinstance(decision, SendSum | SendOpening):
                said[decision.to].append(decision)
            rebuilt = SecureSum.rebuild(A, ROSTER, 1, records)
            again = rebuilt.resume()
            assert not any(isinstance(one, PersistSum) for one in again)
            for one in again:
                if isinstance(one, SendSum | SendOpening):
                    said_or_due = one in said[one.to] or one in machine.repeat(one.to)
                    assert said_or_due
            assert rebuilt.bound == (machine.bound if core.SumBound(everybody) in records else None)
    assert again[-1] == machine.result
    assert [type(record) for record in records] == [
        core.SumKeyed,
        core.SumMasking,
        core.SumBound,
        core.SumOpened,
        core.SumCompleted,
    ]


def test_a_rebuilt_site_keeps_to_its_set() -> None:
    machine = SecureSum.rebuild(
        A,
        ROSTER,
        1,
        [
            core.SumKeyed(b"A"),
            core.SumMasking({name: name.encode() for name in OTHERS}, statement(A)),
            core.SumBound(contributions(A, B, C, D)),
        ],
    )
    for name in OTHERS:
        machine.receive(name, statement(name))
        machine.receive(name, SumSet(contributions(*ROSTER)))
    assert machine.bound == contributions(A, B, C, D)
    decisions = machine.receive(B, masked(B, A, C, D, E, artifact="2"))
    assert named(decisions)[B] == ("sent two masked artifacts", True)


@pytest.mark.parametrize("records", [[], [core.SumKeyed(b"A")]])
def test_a_restored_site_takes_no_part(records: list[core.SumRecord]) -> None:
    machine = SecureSum.rebuild(A, ROSTER, 1, records, restored=True)
    decisions = machine.resume() if records else machine.begin(b"A")
    assert {name for name, _ in sent(decisions)} == {*OTHERS}
    assert all(message == SumSet({}) for _, message in sent(decisions))
    assert decisions[-1] == NoSum(FORGETFUL)
    assert machine.begin(b"B") == []
    assert machine.repeat(B) == [SendSum(B, SumSet({}))]


def test_a_federation_that_asks_for_more_contributors_has_no_sum_of_fewer() -> None:
    machine = SecureSum(A, ROSTER, 1, contributors_min=len(ROSTER))
    machine.begin(b"A")
    others = OTHERS[:-1]
    for name in OTHERS:
        machine.receive(name, SumKey(name.encode()))
    machine.complete_masking({name: name.encode() for name in OTHERS}, statement(A))
    for name in others:
        machine.receive(name, statement(name))
    decisions = machine.give_up()
    assert decisions[-1] == core.NoSum(f"{len(ROSTER) - 1} of {len(ROSTER)} needed members agree")
    assert not machine.opened


def test_nobody_else_has_a_say() -> None:
    machine = site("keys")
    assert machine.receive(SiteName("f"), SumKey(b"f")) == []
    assert machine.receive(A, SumKey(b"g")) == []
    assert machine.keys == {}


def test_too_few_keys_end_it() -> None:
    machine = site("keys")
    machine.receive(B, SumKey(b"B"))
    decisions = machine.give_up()
    assert named(decisions) == dict.fromkeys((C, D, E), ("gave no key", False))
    assert decisions[-1] == NoSum("2 of 4 needed members gave a key")

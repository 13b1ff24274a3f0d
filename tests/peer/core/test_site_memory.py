"""Memory as the fold of the journal, also where files are gone."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from peer.core import commands, events, limits, rows, status
from peer.core.artifacts import Artifact, Source
from peer.core.epochs import PaceRules
from peer.core.leak import Leak, leak_facts
from peer.core.limits import FIRST_DIGESTS_PER_PEER_MAX
from peer.core.messages import Seen
from peer.core.phases import Phase
from peer.core.privacy import Spending, spending_facts
from peer.core.roster import Sha256, SiteName
from peer.core.rows import ArrivedRow
from peer.core.site_memory import (
    REMEMBERED,
    Memory,
    later_generation,
    newest_leak,
    newest_spending,
    recover,
    used_sources,
)
from peer.core.worker_protocol import to_json
from peer.documents.records import RoundRecord
from peer.site.records.history import committed_rounds

ALONE = {"sites": ("asia", "europe"), "schedule_kind": "derangement"}


def trained_once(solo: Any, **rules: Any) -> Any:
    """A site that has committed round 1."""
    site = solo(**{**ALONE, **rules}).begin()
    site.deliver("asia")
    site.finish()
    return site


def test_nothing_is_remembered_of_nothing() -> None:
    assert recover([]) == Memory()
    assert Memory().needed_digests() == set()


def test_rows_of_other_kinds_only_inform() -> None:
    informing: list[Any] = [
        ("configured", 0, {}),
        ("manifest", 1, {}),
        ("denied", 1, {}),
        ("paused", 1, {}),
        ("unheard of", 9, {}),
    ]
    assert recover(informing) == Memory()


def test_every_kind_that_changes_memory_survives_json(solo: Any) -> None:
    site = trained_once(solo, fallback="stale")
    rows = [(kind, round, json.loads(json.dumps(body))) for kind, round, body in site.audit.rows]
    assert recover(rows) == site.site.memory
    assert {kind for kind, _, _ in rows} >= {"initialised", "published", "opened", "arrived", "chosen", "trained"}
    assert {kind for kind, _, _ in rows} <= {*REMEMBERED, "ignored"}


def test_a_restart_serves_what_was_published_and_goes_on_where_it_was(solo: Any) -> None:
    site = trained_once(solo)
    site.deliver("asia")
    assert site.site.phase == Phase.TRAIN
    before = site.order
    out = site.restart()
    assert [command.round for command in out if isinstance(command, commands.Publish)] == [1, 2]
    again = next(command for command in out if isinstance(command, commands.Train))
    assert again == dataclasses.replace(before, attempt=again.attempt)
    assert site.kinds[-1] == "began"


def test_a_received_artifact_whose_file_is_gone_is_asked_for_again(solo: Any) -> None:
    site = solo(**ALONE, fallback="stale", staleness_rounds_max=3).begin()
    site.deliver("asia")
    site.finish()
    (received,) = site.site.memory.received
    kept = site.site.memory.needed_digests() - {received}
    memory = recover(site.audit.rows, present=kept)
    assert memory.received == {}
    assert memory.open is not None
    assert memory.open.number == 2
    assert memory.needed_digests() == kept


def test_a_source_that_is_gone_is_exchanged_again(solo: Any) -> None:
    site = trained_once(solo)
    site.deliver("asia")
    opened = site.site.memory.open
    (source,) = opened.sources
    memory = recover(site.audit.rows, present=site.site.memory.needed_digests() - {source.artifact.sha256})
    assert (memory.open.number, memory.open.position, memory.open.sources) == (2, 0, ())
    assert memory.open.state == opened.state


def test_a_proxy_that_is_gone_is_exchanged_again_but_nothing_is_trained_twice(solo: Any) -> None:
    site = solo(**ALONE, method="feddal").begin()
    site.finish()
    site.deliver("asia")
    assert site.site.phase == Phase.AGGREGATE
    received = site.order.sources[0].artifact.sha256
    memory = recover(site.audit.rows, present=site.site.memory.needed_digests() - {received})
    assert (memory.open.position, memory.open.state, memory.open.sources) == (1, site.order.base, ())
    assert set(memory.published) == {(1, "europe")}


def test_a_source_that_is_used_up_may_be_gone(solo: Any) -> None:
    site = solo(**ALONE, method="feddal", evaluation_every=1).begin()
    site.finish()
    site.deliver("asia")
    used = site.order.sources
    site.finish()
    assert site.site.phase == Phase.EVALUATE
    memory = recover(site.audit.rows, present=site.site.memory.needed_digests() - {used[0].artifact.sha256})
    assert (memory.open.position, memory.open.sources) == (3, used)


def test_a_result_that_is_gone_is_made_again(solo: Any) -> None:
    site = trained_once(solo, evaluation_every=1)
    opened = site.site.memory.open
    assert (site.site.phase, opened.number) == (Phase.EVALUATE, 1)
    memory = recover(site.audit.rows, present=site.site.memory.needed_digests() - {opened.artifact.sha256})
    assert memory.open is None
    assert memory.committed == 0


def test_what_is_published_but_gone_is_not_offered(solo: Any) -> None:
    site = trained_once(solo)
    first = site.site.memory.published[(1, "europe")].sha256
    memory = recover(site.audit.rows, present=site.site.memory.needed_digests() - {first})
    assert set(memory.published) == {(2, "europe")}


def test_a_due_publication_needs_its_file(solo: Any) -> None:
    site = trained_once(solo)
    cut = max(place for place, (kind, _, _) in enumerate(site.audit.rows) if kind == "committed") + 1
    due = recover(site.audit.rows[:cut])
    ((key, artifact),) = due.publications_due.items()
    assert key[0] == 2
    gone = recover(site.audit.rows[:cut], present=due.needed_digests() - {artifact.sha256})
    assert not gone.publications_due
    assert gone.artifact is None


@pytest.mark.parametrize(("method", "row"), [("fedskd", "initialised"), ("fedskd", "committed"), ("feddal", "trained")])
def test_a_crash_before_the_publication_only_delays_it(solo: Any, method: str, row: str) -> None:
    site = solo(**ALONE, method=method).begin()
    if row == "committed":
        site.deliver("asia")
    if row != "initialised":
        site.finish()
    cut = max(place for place, (kind, _, _) in enumerate(site.audit.rows) if kind == row) + 1
    assert site.audit.rows[cut][0] == "published"
    expected = site.audit.rows[cut]
    out = site.restart(site.audit.rows[:cut])
    assert ("published", *expected[1:]) in [(row.kind, row.round, row.body) for row in persisted(out)]


def test_the_copy_of_the_artifact_in_the_commit_of_an_earlier_program_changes_nothing(solo: Any, artifact: Any) -> None:
    site = trained_once(solo)
    earlier = [
        (kind, round, {**body, "artifact": to_json(artifact("europe", "copy"))} if kind == "committed" else body)
        for kind, round, body in site.audit.rows
    ]
    assert earlier != site.audit.rows
    assert recover(earlier) == recover(site.audit.rows)


def persisted(out: list[commands.Command]) -> list[commands.Persist]:
    return [command for command in out if isinstance(command, commands.Persist)]


def test_nobody_takes_anothers_place_with_the_same_bytes(artifact: Any) -> None:
    head = artifact("asia", "head", kind="head")
    copied = artifact("europe", "head", kind="head")
    rows = [
        ("arrived", 1, {"source": to_json(Source("asia", 1, head)), "origin_generation": 1}),
        ("arrived", 1, {"source": to_json(Source("europe", 1, copied)), "origin_generation": 1}),
    ]
    memory = recover(rows)
    assert memory.received == {head.sha256: Source("asia", 1, head)}
    newer = ("arrived", 2, {"source": to_json(Source("asia", 2, head)), "origin_generation": 1})
    assert recover([*rows, newer]).received == {head.sha256: Source("asia", 2, head)}


def test_a_restored_backup_begins_a_new_generation(solo: Any) -> None:
    site = trained_once(solo)
    assert max(site.site.memory.published) == (2, "europe")
    backup = [row for row in site.audit.rows if row[1] < 1 or row[0] in ("began", "initialised")]
    site.restart(backup)
    out = site.greet("asia", seen=Seen(1, 2, "ab" * 32))
    body = {"generation": 2, "reported_by": "asia", "their_round": 2}
    assert ("regenerated", 0, body) in [(row.kind, row.round, row.body) for row in persisted(out)]
    assert site.site.memory.generation == 2
    assert all(command.generation == 2 for command in out if isinstance(command, commands.Fetch))
    assert [command.round for command in out if isinstance(command, commands.Publish)] == [1]
    site.restart()
    assert site.site.memory.generation == 2, "the new generation is remembered"


def test_a_restored_site_that_is_alone_before_round_1_learns_so_from_the_first_peer_that_greets(solo: Any) -> None:
    site = trained_once(solo, pace=PaceRules(gather_s=60.0))
    site.restart([row for row in site.audit.rows if row[0] in ("began", "initialised")])
    site.wait(3_600)
    assert site.site.phase == Phase.ISOLATED
    site.greet("asia", seen=Seen(1, 2, "ab" * 32))
    assert (site.site.memory.generation, site.site.phase) == (2, Phase.EXCHANGE)


def test_a_backup_that_two_machines_copied_gets_a_generation_of_its_own_on_each(solo: Any) -> None:
    generations = set()
    for chance in (0.0, 0.5, 0.99):
        site = trained_once(solo)
        site.restart([row for row in site.audit.rows if row[0] in ("began", "initialised")])
        site.site.chance = chance
        site.greet("asia", seen=Seen(1, 2, "ab" * 32))
        generations.add(site.site.memory.generation)
    assert len(generations) == 3


@pytest.mark.parametrize("newest", [1, 500_000, 999_900, 999_998])
def test_a_later_generation_is_later_and_never_the_last_by_chance(newest: int) -> None:
    lowest, highest = later_generation(newest, 0.0), later_generation(newest, 0.999999)
    assert newest < lowest <= highest <= limits.ROUNDS_MAX
    assert highest - newest <= max(1, (limits.ROUNDS_MAX - newest) / 100 + 1), "many restorations must fit"


def test_a_site_that_remembers_as_much_stays_what_it_is(solo: Any) -> None:
    site = trained_once(solo)
    site.restart()
    (newest,) = [artifact for (round, _), artifact in site.site.memory.published.items() if round == 2]
    site.greet("asia", seen=Seen(1, 2, newest.sha256))
    assert site.site.memory.generation == 1


def test_a_site_that_forgot_one_of_two_artifacts_of_its_newest_round_takes_a_new_generation(solo: Any) -> None:
    """Seed 206 of the simulation: the backup was made between the two."""
    site = trained_once(solo)
    site.restart()
    site.greet("asia", seen=Seen(1, 2, "ab" * 32))
    assert site.site.memory.generation > 1


def test_a_liar_makes_a_site_begin_anew_once_a_run_at_most(solo: Any) -> None:
    site = solo()
    site.finish()
    for round in range(1, 50):
        site.greet("asia", seen=Seen(site.site.memory.generation, 10**6, "ab" * 32))
        site.greet("asia", seen=Seen(site.site.memory.generation + round, 1, "ab" * 32))
    assert site.kinds.count("regenerated") == 1


def test_a_site_that_lost_a_published_artifact_takes_a_new_generation(solo: Any) -> None:
    """It may make another one for the same round, which is no equivocation then."""
    site = solo()
    site.finish()
    files = site.site.memory.needed_digests()
    assert recover(site.audit.rows, present=files).generation == 1
    assert recover(site.audit.rows, present=set()).generation == 2


def test_a_backup_noticed_during_a_pause_waits_for_the_operator(solo: Any) -> None:
    site = solo()
    site.finish()
    site.feed(events.PauseRequested())
    out = site.greet("asia", seen=Seen(3, 1, "ab" * 32))
    assert site.site.memory.generation == 4
    assert site.site.phase == Phase.PAUSED
    assert not [command for command in out if isinstance(command, commands.Halt | commands.Fetch | commands.Train)]


def test_the_record_of_a_round_has_every_key(solo: Any) -> None:
    site = trained_once(solo, evaluation_every=1)
    site.finish()
    record = committed_rounds(site.audit.rows)[0].document()
    assert record.keys() == RoundRecord.__annotations__.keys()
    assert record["round"] == 1
    assert [source["site"] for source in record["sources"]] == ["asia"]
    assert record["contributors"] == ["asia", "europe"]
    assert record["metrics"] == {"auc": 0.5}
    assert record["threads"] == 1
    assert record["duration_s"] == 1.0


def test_what_a_round_used_counts_from_its_commit_to_the_next(solo: Any) -> None:
    site = solo(**ALONE)

    def used() -> tuple[Source, ...]:
        return used_sources((kind, round, json.loads(json.dumps(body))) for kind, round, body in site.audit.rows)

    site.finish()
    site.greet()
    site.deliver("asia")
    first = site.order.sources
    assert [source.origin for source in first] == ["asia"]
    assert used() == ()
    site.finish()
    assert used() == first
    site.deliver("asia")
    second = site.order.sources
    assert second != first == used()
    site.finish()
    assert used() == second


def test_the_first_digests_of_a_peer_are_its_newest_ones(artifact: Any) -> None:
    arrived = [
        ArrivedRow(round, source=Source("asia", round, artifact("asia", f"model {round}")), origin_generation=1)
        for round in range(1, 201)
    ]
    memory = recover((row.kind, row.round, row.body()) for row in arrived)
    assert list(memory.first_digests) == ["asia"]
    known = memory.first_digests["asia"]
    assert sorted(round for _, round, _ in known) == list(range(201 - FIRST_DIGESTS_PER_PEER_MAX, 201))
    assert known[(1, 200, "asia")] == arrived[-1].source.artifact.sha256


# The best round on validation data.


def evaluated(site: Any, auc: float | None, **more: float) -> list[commands.Command]:
    """The worker evaluated the model of the open round."""
    order = site.order
    assert isinstance(order, commands.Evaluate)
    figures = {"auc": 0.5} if auc is None else {"auc": 0.5, "validation_auc": auc, "validation_accuracy": 0.1, **more}
    return site.feed(events.Evaluated(order.generation, order.round, order.attempt, figures))


def after_rounds(solo: Any, *values: float | None, **rules: Any) -> Any:
    """A site that trained alone in as many rounds, each evaluated."""
    site = solo(sites=("europe",), evaluation_every=1, **rules)
    site.finish()
    for value in values:
        while not isinstance(site.order, commands.Evaluate):
            site.finish()
        evaluated(site, value)
    return site


def test_the_best_round_on_validation_data_is_remembered_and_its_checkpoint_kept(solo: Any) -> None:
    site = after_rounds(solo, 0.6, 0.8, 0.7)
    best = site.site.memory.best
    assert (best.round, best.metric, best.value) == (2, "validation_auc", 0.8)
    assert best.state == next(
        body["state"] for kind, number, body in site.audit.rows if (kind, number) == ("committed", 2)
    )
    assert best.state in site.order.kept
    restarted = recover(site.audit.rows)
    assert restarted.best == best
    shown = status.status(site.site, now_s=0.0)["best_round"]
    assert shown == {
        "metric": "validation_auc", "round": 2, "value": 0.8, "newest_round": 3, "newest_value": 0.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "best"), [((None, None, None), 3), ((0.5, 0.3, 0.4), 2), ((0.4, 0.3, 0.3), 3), ((0.3, None, 0.4), 1)]
)
def test_of_equal_rounds_the_one_with_the_lower_loss_is_best_and_else_the_later(
    solo: Any, losses: tuple[float | None, ...], best: int
) -> None:
    site = solo(sites=("europe",), evaluation_every=1)
    site.finish()
    for loss in losses:
        while not isinstance(site.order, commands.Evaluate):
            site.finish()
        evaluated(site, 1.0, **({} if loss is None else {"validation_loss": loss}))
    assert site.site.memory.best.round == best
    assert recover(site.audit.rows).best == site.site.memory.best


def test_the_leak_of_the_artifact_that_was_published_last_is_remembered() -> None:
    leak = Leak("loss", 0.54, 150, 100, 20, 0.55, 0.56, 3, bound=0.65)
    artifact = Artifact("model", SiteName("europe"), Sha256("ab" * 32), 8, 4, {"name": "resnet10"}, leak=leak)
    published = rows.PublishedRow(2, artifact=artifact)
    memory = recover([("published", 2, json.loads(json.dumps(published.body())))])
    assert memory.published[2, "europe"].leak == leak
    assert newest_leak(memory) == {"kind": "model", "owner": "europe", **leak_facts(leak)}
    unmeasured = rows.PublishedRow(3, artifact=dataclasses.replace(artifact, leak=None)).body()
    assert "leak" not in unmeasured["artifact"]
    assert newest_leak(recover([("published", 3, unmeasured)])) is None


def test_what_was_spent_with_the_artifact_that_was_published_last_is_remembered() -> None:
    spent = Spending(0.5, 1e-4, epsilon_max=3.0)
    artifact = Artifact("model", SiteName("europe"), Sha256("ab" * 32), 8, 4, {"name": "resnet10"}, spent=spent)
    memory = recover([("published", 2, json.loads(json.dumps(rows.PublishedRow(2, artifact=artifact).body())))])
    assert newest_spending(memory) == spending_facts(spent)
    bare = rows.PublishedRow(3, artifact=dataclasses.replace(artifact, spent=None)).body()
    assert "spent" not in bare["artifact"]
    assert newest_spending(recover([("published", 3, bare)])) is None


def test_without_validation_data_no_round_is_best(solo: Any) -> None:
    site = after_rounds(solo, None, None)
    assert site.site.memory.best is None
    assert status.status(site.site, now_s=0.0)["best_round"] is None
    assert all("best_by" not in body for kind, _, body in site.audit.rows if kind == "evaluated")


def test_a_kill_between_any_two_rows_of_an_evaluation_loses_no_best_round(solo: Any) -> None:
    for crash_after in range(1, 6):
        site = after_rounds(solo, 0.6)
        while not isinstance(site.order, commands.Evaluate):
            site.finish()
        order, figures = site.order, {"validation_auc": 0.9}
        site.feed(events.Evaluated(order.generation, order.round, order.attempt, figures), crash_after=crash_after)
        if isinstance(site.order, commands.Evaluate):  # killed before the row: it evaluates again
            evaluated(site, 0.9)
        assert (site.site.memory.best.round, site.site.memory.best.value) == (2, 0.9)


def test_heads_with_which_the_best_round_predicts_are_kept_until_a_better_one(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), method="dflmoe", evaluation_every=1).begin()
    digests = []
    for value in (0.9, 0.5, 0.95, 0.1):
        while not isinstance(site.order, commands.Evaluate):
            if site.fetches:
                site.deliver("asia")
            else:
                site.finish()
        digests.append({source.artifact.sha256 for source in site.order.sources})
        evaluated(site, value)
        if value == 0.5:
            assert digests[0] <= site.site.memory.needed_digests()
    memory = site.site.memory
    assert set(memory.best.received) == digests[2]
    assert digests[0] - digests[2] - digests[3]
    assert not (digests[0] - digests[2] - digests[3]) & memory.needed_digests()

"""The program without one of its safety rules, and a seed that shows what the rule is for.

    python tests/simulation/mutations.py                the table, each row played
    python tests/simulation/mutations.py --search NAME  the first seeds that fail without the rule

A mutation that no seed notices is a rule that the simulation does not test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from peer.core import (  # noqa: E402
    access,
    commands,
    exchange,
    liveness,
    membership,
    rounds,
    state,
    transitions,
    worker_events,
)
from peer.core.machine import SiteMachine  # noqa: E402
from peer.daemon import artifact_store, chain_keeper, dispatch, fetcher, heartbeat, proofs, service  # noqa: E402
from peer.net.relay import frames, parking  # noqa: E402
from peer.net.relay import server as relay_server  # noqa: E402
from peer.net.transport import client, tls, transfer  # noqa: E402
from peer.site.identity import certificates  # noqa: E402
from peer.site.membership import chain, epoch_rules, signatures  # noqa: E402
from peer.site.records import journal, ledger  # noqa: E402
from simulation.seeded_run import Simulation  # noqa: E402

patch = mock.patch.object


def persist_after_publishing() -> Iterator[Any]:
    """Rows are written after the commands that depend on them."""
    handle = SiteMachine.handle

    def reorder(self: SiteMachine, event: Any, *, now_s: float) -> list[commands.Command]:
        out = handle(self, event, now_s=now_s)
        return sorted(out, key=lambda command: isinstance(command, commands.Persist))

    yield patch(SiteMachine, "handle", reorder)


def journal_without_fsync() -> Iterator[Any]:
    """A row counts as written before it is on disk."""
    open_database = journal.open_database

    def open_unsafe(*args: Any, **options: Any) -> Any:
        connection = open_database(*args, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    yield patch(journal, "open_database", open_unsafe)
    yield patch(ledger, "open_database", open_unsafe)


def artifact_without_fsync() -> Iterator[Any]:
    """A received artifact counts as kept before its content is on disk."""
    yield patch(transfer, "os", _without(os, fsync=lambda descriptor: None))


def torn_artifacts_kept() -> Iterator[Any]:
    """A start does not verify the artifacts that the disk may not have when the power fails."""
    yield patch(artifact_store, "verify_unsynced", lambda folder: [])


def stages_end_unsynced() -> Iterator[Any]:
    """A stage is over before the artifacts that it used are on disk."""

    async def sync(self: Any, round: int | None = None) -> None:
        """Leave it to the disk when to write."""

    yield patch(artifact_store.ArtifactStore, "sync", sync)


def no_intent() -> Iterator[Any]:
    """Bytes leave without an intent in the ledger."""
    yield patch(ledger.Ledger, "intend", lambda self, **facts: self.head.count + 1)
    yield patch(ledger.Ledger, "settle", lambda self, intent, **facts: None)


def no_outcome_after_a_crash() -> Iterator[Any]:
    """Transfers that a crash ended stay open."""
    yield patch(ledger.Ledger, "close_open_intents", lambda self: 0)


def no_digest() -> Iterator[Any]:
    """The bytes of an artifact are not compared with the manifest's digest."""
    finish = transfer.IncomingArtifact._finish

    def accept(self: Any, check: Callable[[Path], None]) -> Path:
        self._hash = mock.Mock(hexdigest=lambda: self._sha256)
        return finish(self, check)

    yield patch(transfer.IncomingArtifact, "_finish", accept)


def no_signature() -> Iterator[Any]:
    """A manifest's signature is not verified."""
    yield patch(certificates, "verify_signature", lambda *parts: None)


def _comparing(change: Callable[[Any, Any, Any], Any], words: str) -> Iterator[Any]:
    """Manifests are compared as if they had this change, and a problem with these words is none."""
    compare, problem = client.ExchangeClient._compare, transitions._problem

    def compare_all_else(self: Any, manifest: Any, request: Any, peer: Any) -> None:
        compare(self, change(manifest, request, peer), request, peer)

    def overlook(site: Any, wanted: Any, event: Any) -> str:
        reason = problem(site, wanted, event)
        return "" if words in reason else reason

    yield patch(client.ExchangeClient, "_compare", compare_all_else)
    yield patch(transitions, "_problem", overlook)


def any_round() -> Iterator[Any]:
    """The round of an artifact is not compared with the one that is due."""

    def change(manifest: Any, request: Any, peer: Any) -> Any:
        return dataclasses.replace(manifest, round=request.for_round)

    yield from _comparing(change, "sent the artifact of round")


def any_owner() -> Iterator[Any]:
    """Origin and owner of an artifact are not compared with those that were asked for."""

    def change(manifest: Any, request: Any, peer: Any) -> Any:
        artifact = dataclasses.replace(manifest.artifact, owner=request.owner)
        return dataclasses.replace(manifest, origin=peer, artifact=artifact)

    yield from _comparing(change, " where ")


def same_generation_after_a_backup() -> Iterator[Any]:
    """A site whose backup was restored goes on in the same generation."""
    yield patch(rounds, "regenerate", lambda site, **facts: None)


def no_exchange_deadline() -> Iterator[Any]:
    """An exchange waits for a living peer as long as it takes."""

    def wait(self: Any, peers: Any, rules: Any, now_s: float) -> list[Any]:
        dropped = [want for want in self.wants.values() if want.open and peers.silent(want.origin, now_s)]
        for want in dropped:
            want.dropped = "silent"
        return dropped

    yield patch(exchange.Exchange, "give_up", wait)


def no_silence() -> Iterator[Any]:
    """A peer never counts as silent."""
    yield patch(liveness.Peers, "silent", lambda self, site, now_s: False)


def no_pacing_deadline() -> Iterator[Any]:
    """Between rounds, a site waits for a peer as long as the peer beats."""
    yield patch(liveness.Peers, "stalled", lambda self, site, now_s, *, patience_s: False)


def no_schedule() -> Iterator[Any]:
    """Any peer may have any artifact."""
    yield patch(access, "denial", lambda rules, **request: None)


def visits_for_anyone() -> Iterator[Any]:
    """Where models visit, any peer may have any model and any return."""
    yield patch(access, "_visit_denial", lambda rules, **request: None)


def late_results() -> Iterator[Any]:
    """A worker's answer to an earlier order counts."""
    yield patch(worker_events, "_answers", lambda site, event: True)


def nobody_is_named() -> Iterator[Any]:
    """What a peer sent is refused in silence."""
    yield patch(state.SiteState, "refuse", lambda self, origin, reason, **facts: None)


def full_disk_ends_the_site() -> Iterator[Any]:
    """An artifact that does not fit counts as this site's own failure."""
    yield patch(fetcher, "InsufficientSpace", ZeroDivisionError)


def stray_artifacts() -> Iterator[Any]:
    """Artifacts that no round needs stay on disk."""
    carry_out = dispatch.Daemon._carry_out

    async def keep(self: Any, command: commands.Command) -> None:
        if not isinstance(command, commands.Discard):
            await carry_out(self, command)

    yield patch(dispatch.Daemon, "_carry_out", keep)


def discarded_while_looked_at() -> Iterator[Any]:
    """An artifact is discarded while a fetch looks at it, and a file that is gone is a fault of the disk."""

    def look(path: Path, **facts: Any) -> bool:
        if not path.exists():
            raise FileNotFoundError(path)
        return transfer.is_complete(path, **facts)

    yield patch(artifact_store.ArtifactStore, "hold", artifact_store.ArtifactStore.path)
    yield patch(artifact_store.ArtifactStore, "release", lambda self, sha256: None)
    yield patch(client, "is_complete", look)


def lost_is_refused() -> Iterator[Any]:
    """A received artifact whose file is gone counts as one that its origin spoilt."""
    reject = worker_events.reject

    def blame(site: Any, event: Any) -> None:
        reject(site, dataclasses.replace(event, lost=False))

    for phase in ("train", "aggregate"):
        key = next(key for key in transitions.TRANSITIONS if key[1].__name__ == "ArtifactRejected" and key[0] == phase)
        yield mock.patch.dict(transitions.TRANSITIONS, {key: blame})


def retired_is_guilty() -> Iterator[Any]:
    """A peer that retired an artifact between offer and fetch is named as a culprit."""
    yield patch(fetcher, "Missing", ZeroDivisionError)


def no_reopening() -> Iterator[Any]:
    """A round whose epoch changes before its sources are chosen keeps its members."""
    yield patch(membership, "_reopens", lambda site: False)


def no_hold() -> Iterator[Any]:
    """A site opens rounds that the federation holds."""
    yield patch(state.SiteState, "is_held", lambda self, round: False)


def newcomers_begin_at_once() -> Iterator[Any]:
    """A newcomer opens rounds before its first one."""
    yield patch(rounds, "_join", lambda site: None)


def expelled_still_used() -> Iterator[Any]:
    """What an expelled site sent before is used after its expulsion."""
    yield patch(membership, "_take_effect", lambda site: None)


def notices_by_anyone() -> Iterator[Any]:
    """A notice that a site leaves counts whoever signed it."""

    def believe(notice: Any, *, federation: Any, **known: Any) -> signatures.LeaveNotice:
        content = json.loads(notice.body)
        return signatures.LeaveNotice(federation, content["site"], content["issued"])

    yield patch(chain_keeper, "verify_notice", believe)


def no_name_for_relays() -> Iterator[Any]:
    """A relay is asked for the host of its own address, not for the site."""
    options = tls.channel_options

    def without_name(site: Any, **more: Any) -> tuple[Any, ...]:
        return tuple(option for option in options(site, **more) if option[0] != "grpc.ssl_target_name_override")

    yield patch(tls, "channel_options", without_name)


def parked_once() -> Iterator[Any]:
    """A parked connection that a caller has taken is not replaced."""
    keep, carry = parking.Parking._keep, parking.Parking._carry

    async def keep_one(self: Any) -> None:
        with contextlib.suppress(StopAsyncIteration):
            await keep(self)

    def stop(self: Any, ends: Any, caller: str) -> Any:
        self._tasks.add(asyncio.ensure_future(carry(self, ends, caller)))
        raise StopAsyncIteration

    yield patch(parking.Parking, "_keep", keep_one)
    yield patch(parking.Parking, "_carry", stop)


def silent_relays() -> Iterator[Any]:
    """A parked connection counts as open however long the relay says nothing."""
    yield patch(frames, "SILENCE_S", None)


def first_relay_only() -> Iterator[Any]:
    """A site with two relays parks at one of them."""
    begin = parking.Parkings.__init__

    def park_at_one(self: Any, relays: Any, **options: Any) -> None:
        begin(self, list(relays)[:1], **options)

    yield patch(parking.Parkings, "__init__", park_at_one)


def relaying_member_unreached() -> Iterator[Any]:
    """A member that is a relay joins no caller to its own server."""

    async def refuse(self: Any, connection: Any, address: str) -> None:
        raise ConnectionRefusedError("Connection refused")

    yield patch(relay_server.RelayServer, "_reach_own_server", refuse)


def relaying_member_knows_the_genesis() -> Iterator[Any]:
    """A member that is a relay takes in no site that joined later."""
    follow = relay_server.RelayServer.follow

    def follow_first(self: Any, sites: Any) -> None:
        self.first = getattr(self, "first", frozenset(sites))
        follow(self, self.first & frozenset(sites))

    yield patch(relay_server.RelayServer, "follow", follow_first)


def any_key_of_a_site() -> Iterator[Any]:
    """Of a member with a pinned key, every certificate of the CA counts."""
    yield patch(certificates, "verify_pinned", lambda certificate, pinned: None)
    yield patch(service, "verify_pinned", lambda certificate, pinned: None)


def another_key_is_guilt() -> Iterator[Any]:
    """What another key than the pinned one signed counts as the origin's own."""
    yield patch(client, "OtherKey", ZeroDivisionError)
    yield patch(proofs, "OtherKey", ZeroDivisionError)


def locked_out_with_a_former_key() -> Iterator[Any]:
    """A member that has not heard of its new key may ask for nothing with the former one."""
    yield patch(chain_keeper.ChainKeeper, "had_key", lambda self, site, key: False)


def amended_by_anyone() -> Iterator[Any]:
    """An amendment counts however few have signed it."""
    yield patch(chain, "check_signatures", lambda signed, amendment, **known: signed)


def any_protocol() -> Iterator[Any]:
    """Two programs without a common version of the protocol talk all the same."""
    yield patch(service, "common_protocol", lambda greeting: 1)


def refusal_forgotten() -> Iterator[Any]:
    """A site serves a peer that has refused its greeting."""
    yield from _blind_heartbeats(note_mismatch=lambda peer, problem: None)


def greeted_once() -> Iterator[Any]:
    """A peer that was updated between two heartbeats is not greeted again, and its refusal is forgotten."""
    yield from _blind_heartbeats(account=lambda peer: service.PeerAccount(), note_mismatch=lambda peer, problem: None)


def _blind_heartbeats(**replaced: Any) -> Iterator[Any]:
    """Heartbeats that use some functions in place of the service's own."""
    begin = heartbeat.Heartbeats.__init__

    def begin_blind(self: Any, **facts: Any) -> None:
        begin(self, service=_without(facts.pop("service"), **replaced), **facts)

    yield patch(heartbeat.Heartbeats, "__init__", begin_blind)


def requirements_ignored() -> Iterator[Any]:
    """A site whose program lacks what the federation requires opens rounds."""
    yield patch(epoch_rules, "upgrade_reason", lambda membership: "")


def newer_journal_opened() -> Iterator[Any]:
    """A program opens the journal of a later one."""
    version_of = journal.version_of
    yield patch(journal, "version_of", lambda connection: min(version_of(connection), journal.SCHEMA_VERSION))


@dataclass(frozen=True)
class Mutation:
    """A rule that is removed, and a seed that then fails."""

    remove: Callable[[], Iterator[Any]]
    seed: int

    @property
    def rule(self) -> str:
        return (self.remove.__doc__ or "").splitlines()[0]

    @property
    def row(self) -> str:
        """The mutation in the table of deploy/guarantees.md."""
        return f"| {self.rule.rstrip('.')} | `{self.remove.__name__}` | {self.seed} |"

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for change in self.remove():
                stack.enter_context(change)
            yield

    def violation(self, seed: int) -> str:
        """What a seed says of the program without the rule."""
        with self.applied():
            return Simulation(seed, total_s=ENOUGH_S).run().violation


ENOUGH_S = 600.0
"""Until then each seed of the table is over while no rule is missing: the longest takes 271 s."""


def _without(module: Any, **replaced: Any) -> Any:
    """The module with some of its functions replaced, for one of its users."""

    class Module:
        def __getattr__(self, name: str) -> Any:
            return replaced[name] if name in replaced else getattr(module, name)

    return Module()


SEEDS: Mapping[Callable[[], Iterator[Any]], int] = {
    persist_after_publishing: 0,
    journal_without_fsync: 0,
    artifact_without_fsync: 15,
    torn_artifacts_kept: 162,
    stages_end_unsynced: 15,
    no_intent: 0,
    no_outcome_after_a_crash: 15,
    no_digest: 19,
    no_signature: 4,
    any_round: 33,
    any_owner: 209,
    same_generation_after_a_backup: 58,
    no_exchange_deadline: 57,
    no_silence: 271,
    no_pacing_deadline: 536,
    no_schedule: 280,
    visits_for_anyone: 712,
    late_results: 2117,
    nobody_is_named: 49,
    full_disk_ends_the_site: 11,
    stray_artifacts: 28,
    discarded_while_looked_at: 422,
    lost_is_refused: 2,
    retired_is_guilty: 3193,
    no_reopening: 32,
    no_hold: 28,
    newcomers_begin_at_once: 35,
    expelled_still_used: 519,
    notices_by_anyone: 127,
    any_key_of_a_site: 97,
    another_key_is_guilt: 21,
    locked_out_with_a_former_key: 175,
    amended_by_anyone: 118,
    any_protocol: 298,
    refusal_forgotten: 2027202866,
    greeted_once: 205,
    requirements_ignored: 653,
    newer_journal_opened: 164,
    no_name_for_relays: 2,
    parked_once: 122,
    silent_relays: 61,
    first_relay_only: 175,
    relaying_member_unreached: 15,
    relaying_member_knows_the_genesis: 2522,
}
MUTATIONS: Mapping[str, Mutation] = {remove.__name__: Mutation(remove, seed) for remove, seed in SEEDS.items()}


def search(name: str, seeds: int, having: str) -> int:
    """Print the first seeds that fail without the rule and hold with it."""
    failed = 0
    for seed in range(seeds):
        run = Simulation(seed)
        plan = {each.kind for each in (*run.faults, *run.acts)}
        plan |= {upgrade.program.name for upgrade in run.roll.upgrades}
        plan |= {habit for habits in run.liars.values() for habit in habits}
        if having and having not in plan:
            continue
        violation = MUTATIONS[name].violation(seed)
        if violation:
            print(f"{name}: {seed}: {violation[:150]}", flush=True)
            failed += 1
            if failed == 2:
                return 0
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", choices=sorted(MUTATIONS))
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to search")
    parser.add_argument("--having", default="", help="only seeds with this fault, habit or program in their plan")
    arguments = parser.parse_args()
    if arguments.search is not None:
        return search(arguments.search, arguments.seeds, arguments.having)
    unnoticed = 0
    for mutation in MUTATIONS.values():
        violation = mutation.violation(mutation.seed)
        unnoticed += not violation
        print(f"{mutation.row} {violation[:100] or 'NOT NOTICED'}", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())

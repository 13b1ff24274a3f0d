"""Carries out the state machine's commands on secure sums: secrets, statements of the members, masks and sums.

Masks and sums are computed in a thread, from file to file; no secret leaves the daemon's process. Each command but
``HearSum`` ends with at most one event.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer import errors
from peer.core import commands, events, limits
from peer.core.artifacts import Artifact
from peer.core.machine import SiteMachine
from peer.core.messages import Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.sum_messages import SumStatements, commitment
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.fetcher import PATIENT_S, backoff_s
from peer.net.transport.client import ExchangeClient, Misbehaved, NotAdmitted, Refused, Unreachable
from peer.net.transport.sum_statements import SumRequest, decode_statements, statements_digest
from peer.site.sums.pair_keys import SumContext, SumSecrets, check_public_key
from peer.site.sums.secret_files import SumSecretFiles

log = logging.getLogger(__name__)

REFUSED_AGAIN_S = limits.MANIFEST_WAIT_S
"""Pause after a refusal or a breach: the peer would most likely answer alike."""
CHANGES_AT_ONCE_MAX = 16
"""Changes after which a member is asked again at once; an honest one shows a key, a few sets, a commit, an opening."""
SECRETS_GONE = "the secrets of this site's sum are gone"

SumCommand = (
    commands.DrawSumKey
    | commands.HearSum
    | commands.EndSum
    | commands.MaskArtifact
    | commands.AddMasked
    | commands.ForgetSums
)
Work = commands.MaskArtifact | commands.AddMasked
Computed = tuple[Artifact, int]
"""An artifact on disk, and how many of its values were clipped."""


class SumTasks:
    """Runs the tasks of one site's sums.

    Args:
        machine: the state machine; the tasks only read it.
        client: calls the other members.
        store: keeps the artifacts.
        secrets: keeps this site's seeds.
        report: passes an event to the state machine.
        fail: called with an error that the site cannot survive, such as a failed disk.
        on_epoch: called with a peer that follows another epoch, so that both exchange chain tips soon.
        refused_again_s: the pause after a refusal or a breach.
    """

    def __init__(
        self,
        *,
        machine: SiteMachine,
        client: ExchangeClient,
        store: ArtifactStore,
        secrets: SumSecretFiles,
        report: Callable[[events.Event], None],
        fail: Callable[[errors.PeerError], None],
        on_epoch: Callable[[SiteName], None] = lambda peer: None,
        refused_again_s: float = REFUSED_AGAIN_S,
    ) -> None:
        self._machine = machine
        self._client = client
        self._store = store
        self._secrets = secrets
        self._report, self._fail, self._on_epoch = report, fail, on_epoch
        self._refused_again_s = refused_again_s
        self._hearing: list[asyncio.Task[None]] = []
        self._work: asyncio.Task[None] | None = None
        self._threads: set[asyncio.Future[Computed]] = set()

    def carry_out(self, command: SumCommand) -> None:
        """Carry out a command on a sum, or begin to; a newer one of its kind takes its place."""
        match command:
            case commands.DrawSumKey():
                self._use_disk(functools.partial(self._draw, command))
            case commands.HearSum(members=members):
                self._end_hearing()
                self._hearing = [
                    asyncio.create_task(self._hear(command, member), name=f"sum of {member}") for member in members
                ]
            case commands.EndSum():
                self._end_hearing()
            case commands.MaskArtifact():
                self._begin(command, self._mask)
            case commands.AddMasked():
                self._begin(command, self._add)
            case commands.ForgetSums(before=before):
                self._use_disk(functools.partial(self._secrets.forget, before))

    async def close(self) -> None:
        """Cancel all tasks without an event, and wait for their threads: nothing can interrupt those."""
        tasks = [*self._hearing, *([] if self._work is None else [self._work])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._threads, return_exceptions=True)

    # --- secrets ------------------------------------------------------------------------------------------------------
    def _draw(self, command: commands.DrawSumKey) -> None:
        key = self._secrets.draw(command.round)
        self._report(events.SumKeyDrawn(command.generation, command.round, command.attempt, key))

    def _use_disk(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._fail(errors.DiskError(f"{self._secrets.folder} cannot be used: {error.strerror}"))

    # --- statements of the others -------------------------------------------------------------------------------------
    def _end_hearing(self) -> None:
        for task in self._hearing:
            task.cancel()
        self._hearing = []

    async def _hear(self, command: commands.HearSum, member: SiteName) -> None:
        """Ask a member again and again, and report each change of its statements, until it has no sum any more."""
        answer = (command.generation, command.round, command.attempt, member)
        request = SumRequest(command.round, self._machine.rules.plan.published or "", command.epoch)
        failures, changes, reported, clock = 0, 0, "", asyncio.get_running_loop().time
        while True:
            asked_s = clock()
            try:
                reply = await self._client.get_sum(member, request)
                self._report(events.PeerHeard(member))
                if reply == Unavailable.RETIRED:
                    self._report(events.SumShown(*answer, SumStatements(), over=True))
                    return
                failures = failures + 1 if isinstance(reply, Unavailable) else 0
                if isinstance(reply, Unavailable):
                    self._on_epoch(member)
                elif (known := statements_digest(reply)) != request.known:
                    self._report(events.SumShown(*answer, read_statements(member, reply)))
                    request, changes = replace(request, known=known), changes + 1
                    if changes <= CHANGES_AT_ONCE_MAX:
                        continue
                if not failures and clock() - asked_s >= PATIENT_S:
                    continue  # a statement in between must not wait for the next request
            except (Unreachable, errors.CertificateError):  # an expired certificate of this site may be renewed
                failures += 1
            except (Refused, Misbehaved) as error:
                if isinstance(error, NotAdmitted) and self._machine.is_ahead_of(member):
                    failures += 1  # the peer will learn of this newcomer
                else:
                    if error.reason != reported:
                        reported = error.reason
                        self._report(events.PeerRefused(member, reported, declined=isinstance(error, Refused)))
                    await asyncio.sleep(self._refused_again_s)
                    continue
            except Exception:  # our bug: the sum goes on without this member's statements
                log.exception("statements not heard", extra={"peer": member, "round": command.round})
                return
            await asyncio.sleep(backoff_s(failures))

    # --- masks and sums -----------------------------------------------------------------------------------------------
    def _begin(self, command: Work, work: Callable[[Any], Awaitable[events.Event]]) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work = asyncio.create_task(self._run(command, work), name=f"sum of round {command.round}")

    async def _run(self, command: Work, work: Callable[[Any], Awaitable[events.Event]]) -> None:
        try:
            event = await work(command)
        except Exception as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"{error.strerror}: {Path(str(error.filename or self._store.folder)).name}"
            if isinstance(error, ValueError | OSError | errors.PeerError):
                log.warning("no secure sum", extra={"round": command.round, "reason": reason})
            else:  # our bug: the round has no sum
                reason = f"it could not be computed here: {type(error).__name__}"
                log.exception("no secure sum", extra={"round": command.round, "reason": reason})
            event = events.SumFailed(command.generation, command.round, command.attempt, reason)
        self._report(event)

    async def _mask(self, command: commands.MaskArtifact) -> events.Event:
        """Mask an artifact; the seeds of the pairs are on disk before, for openings after a restart."""
        rules, plain = self._machine.rules, command.artifact
        secrets = self._own_secrets(command.round)
        amendment = rules.federation if command.epoch is None else command.epoch
        context = SumContext(rules.federation, amendment, command.round, rules.plan.published or "")
        seeds = {
            other: secrets.pair_seed(context, own=rules.site, other=other, other_key=key)
            for other, key in command.keys.items()
        }
        self._secrets.keep_pair_seeds(command.round, seeds)
        commitments = {name: commitment(seed) for name, seed in {**seeds, rules.site: secrets.own_seed}.items()}

        def mask() -> Computed:
            from peer.site.sums.masked_files import mask_file  # with numpy, which most sites' daemons do not need

            masked = mask_file(
                self._store.path(plain.sha256),
                self._store.folder,
                ring=command.ring,
                weight=command.weight,
                site=rules.site,
                own_seed=secrets.own_seed,
                pair_seeds=seeds,
            )
            untold = replace(plain, training_samples=None, leak=None)
            return replace(untold, sha256=masked.sha256, bytes=masked.bytes, commitments=commitments), masked.clipped

        artifact, clipped = await self._compute([plain.sha256], mask)
        return events.ArtifactMasked(command.generation, command.round, command.attempt, artifact, clipped)

    async def _add(self, command: commands.AddMasked) -> events.Event:
        """Add up the masked artifacts of this site and of the sources, and remove the masks by the openings."""
        plain, masked = command.plain, [command.own, *(source.artifact for source in command.sources)]
        own_seeds = [self._own_secrets(command.round).own_seed]
        own_seeds += [command.openings[source.origin].own for source in command.sources]
        left_seeds = self._left_seeds(command)

        def add() -> Computed:
            from peer.site.sums.masked_files import add_masked

            sha256, size = add_masked(
                [self._store.path(artifact.sha256) for artifact in masked],
                self._store.path(plain.sha256),
                self._store.folder,
                ring=command.ring,
                own_seeds=own_seeds,
                left_seeds=left_seeds,
            )
            untold = replace(plain, training_samples=None, leak=None)
            return replace(untold, sha256=sha256, bytes=size, commitments=None), 0

        artifact, _ = await self._compute([plain.sha256, *(each.sha256 for each in masked)], add)
        return events.MaskedAdded(command.generation, command.round, command.attempt, artifact)

    def _left_seeds(self, command: commands.AddMasked) -> dict[tuple[SiteName, SiteName], bytes]:
        """Return the seeds of the pairs of a contributor and a member that is none: their masks do not cancel."""
        own, commitments = self._machine.rules.site, command.own.commitments or {}
        contributors = {own, *(source.origin for source in command.sources)}
        seeds = self._secrets.pair_seeds(command.round)
        left = {(own, name): seeds.get(name, b"") for name in commitments if name not in contributors}
        if any(commitment(seed) != commitments[name] for (_, name), seed in left.items()):
            raise ValueError(SECRETS_GONE)
        return left | {
            (source.origin, name): seed
            for source in command.sources
            for name, seed in command.openings[source.origin].shared.items()
        }

    def _own_secrets(self, round: int) -> SumSecrets:
        secrets = self._secrets.load(round)
        if secrets is None:
            raise ValueError(SECRETS_GONE)
        return secrets

    async def _compute(self, inputs: Sequence[Sha256], function: Callable[[], Computed]) -> Computed:
        """Compute an artifact in a thread, one at a time, and hold it until the daemon has processed the event.

        A cancelled computation goes on in its thread, holds its inputs until it ends, and its artifact is discarded.
        """
        while self._threads:
            await asyncio.wait(self._threads)
        for sha256 in inputs:
            self._store.hold(sha256)
        thread = asyncio.get_running_loop().run_in_executor(None, function)
        self._threads.add(thread)
        thread.add_done_callback(functools.partial(self._end_thread, inputs))
        try:
            artifact, clipped = await asyncio.shield(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(self._discard)
            raise
        self._store.hold(artifact.sha256)
        return artifact, clipped

    def _end_thread(self, inputs: Sequence[Sha256], thread: asyncio.Future[Computed]) -> None:
        self._threads.discard(thread)
        for sha256 in inputs:
            self._store.release(sha256)

    def _discard(self, thread: asyncio.Future[Computed]) -> None:
        if not thread.cancelled() and thread.exception() is None:
            self._store.discard(thread.result()[0].sha256)


def read_statements(member: SiteName, content: bytes) -> SumStatements:
    """Decode a member's statements, and check its key. Raises ``Misbehaved``."""
    try:
        statements = decode_statements(content)
        if statements.key is not None:
            check_public_key(statements.key)
    except ValueError as error:
        raise Misbehaved(member, f"its statements on a sum: {error}") from error
    return statements

"""Fetches artifacts and sends evaluations for the state machine; each task ends with exactly one event."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from peer import errors
from peer.core import access, commands, events, limits, rows
from peer.core.machine import SiteMachine
from peer.core.messages import Manifest, SignedManifest, Unavailable
from peer.core.roster import SiteName
from peer.core.status_document import TransferInProgress
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.service import PeerService
from peer.net.transport import wire
from peer.net.transport.bounds import WireError
from peer.net.transport.client import ExchangeClient, Misbehaved, Missing, NotAdmitted, Offer, Refused, Unreachable
from peer.net.transport.manifest import to_base64
from peer.net.transport.server import Outcome, Refusal
from peer.net.transport.tls import NO_DESCRIPTORS
from peer.net.transport.transfer import InsufficientSpace
from peer.net.transport.wire import encode_report
from peer.site.records.journal import Journal

log = logging.getLogger(__name__)

HEARD_EVERY_S = 1.0
"""Interval at which a transfer in progress reports that its peer is heard."""
PATIENT_S = 1.0
"""A peer that delayed its answer this long is asked again at once, a peer that answers sooner after a pause."""


class ArtifactFetcher:
    """Fetches artifacts for one site, and sends its evaluations.

    Args:
        machine: the state machine; the fetcher only reads its rules.
        client: calls peers.
        service: permits and records evaluations that leave.
        journal: gets a row of each received artifact, with its signed manifest.
        store: keeps received artifacts.
        report: passes an event to the state machine.
        fail: called with an error that the site cannot survive, such as a failed disk.
        examine: compares a verified manifest with earlier ones of its origin.
        on_epoch: called with a peer that follows another epoch, so that both exchange chain tips soon.
    """

    def __init__(
        self,
        *,
        machine: SiteMachine,
        client: ExchangeClient,
        service: PeerService,
        journal: Journal,
        store: ArtifactStore,
        report: Callable[[events.Event], None],
        fail: Callable[[errors.PeerError], None],
        examine: Callable[[SignedManifest, Manifest], None],
        on_epoch: Callable[[SiteName], None] = lambda peer: None,
    ) -> None:
        self._machine, self._on_epoch = machine, on_epoch
        self._client = client
        self._service = service
        self._journal = journal
        self._store = store
        self._report = report
        self._fail = fail
        self._examine = examine
        self._tasks: dict[tuple[SiteName, str], asyncio.Task[None]] = {}
        self.receiving: dict[tuple[SiteName, str], TransferInProgress] = {}
        self.received_bytes: Counter[SiteName] = Counter()

    def fetch(self, command: commands.Fetch) -> None:
        """Start a fetch; cancel an earlier one from the same site for the same purpose."""
        self.cancel(command.origin, command.purpose)
        if all(task.done() for task in self._tasks.values()):  # no part is being written
            self._store.delete_parts(older_than_s=self._machine.pace.wait_max_s)  # too old for any exchange
        task = asyncio.create_task(self._run(command), name=f"fetch from {command.origin}")
        self._tasks[(command.origin, command.purpose)] = task

    def cancel(self, origin: SiteName, purpose: str) -> None:
        """Cancel a fetch without an event; the received part stays on disk for the next one."""
        task = self._tasks.pop((origin, purpose), None)
        if task is not None:
            task.cancel()

    def send_report(self, command: commands.SendReport) -> None:
        """Try once to send a site the evaluation of its model; cancel an earlier one to it."""
        self.cancel(command.site, "report")
        task = asyncio.create_task(self._send_report(command), name=f"report to {command.site}")
        self._tasks[(command.site, "report")] = task

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _run(self, command: commands.Fetch) -> None:
        answer = (command.generation, command.round, command.attempt, command.origin)
        try:
            offer = await self._request_manifest(command)
            if isinstance(offer, Unavailable):
                self._report(events.ArtifactUnavailable(*answer, command.purpose, offer))
                return
            manifest = offer.manifest
            if manifest.method != self._machine.rules.method:
                raise Misbehaved(command.origin, f"sent an artifact of method {manifest.method!r}")
            if manifest.artifact.bytes > command.bytes_max:
                reason = (
                    f"its artifact has {manifest.artifact.bytes} bytes, this site takes {command.bytes_max} at most"
                )
                raise Misbehaved(command.origin, f"{reason} ([limits] received_ratio_max)")
            self._store.hold(manifest.artifact.sha256)
            try:
                await self._receive(command, offer)
            except BaseException:
                self._store.release(manifest.artifact.sha256)
                raise
            facts = (manifest.generation, manifest.round, command.purpose, manifest.artifact)
            self._report(events.ArtifactArrived(*answer, *facts))  # held until the state machine has judged it
        except Missing as error:  # retired since the offer: the peer is ahead, not at fault
            log.info("artifact retired before it was fetched", extra={"peer": command.origin, "reason": error.reason})
            self._report(events.ArtifactUnavailable(*answer, command.purpose, Unavailable.RETIRED))
        except (Refused, Misbehaved) as error:
            declined = isinstance(error, Refused)
            self._report(events.ArtifactRefused(*answer, command.purpose, error.reason, declined=declined))
        except InsufficientSpace as error:
            log.warning("no room for an artifact", extra={"peer": command.origin, "reason": str(error)})
            self._report(events.ArtifactRefused(*answer, command.purpose, str(error), blameless=True))
        except errors.PeerError as error:
            self._fail(error)
        except OSError as error:
            self._fail(errors.DiskError(f"{self._store.folder} cannot be used: {error}"))
        except Exception as error:  # our bug: the round continues without this artifact, and states why
            log.exception("artifact not fetched", extra={"peer": command.origin, "round": command.round})
            reason = f"it could not be fetched here: {type(error).__name__}"
            self._report(events.ArtifactRefused(*answer, command.purpose, reason, blameless=True))

    async def _send_report(self, command: commands.SendReport) -> None:
        peer, report = command.site, command.report
        answer: events.Answer = "refused"
        reason = ""
        try:
            size = encode_report(report).ByteSize()
            intent = self._service.open_report(peer, report, size=size)
            outcome: Outcome = "broken"
            try:
                await self._client.put_report(peer, report)
                answer, outcome = "taken", "complete"
            except Refused:
                outcome = "complete"
                raise
            finally:
                self._service.record_report_sent(intent, size=size, outcome=outcome)
        except (Unreachable, errors.CertificateError) as error:
            answer, reason = "none", str(error)
            await asyncio.sleep(limits.DIAL_BACKOFF_S[-1])
        except (Refused, Misbehaved, Refusal, WireError) as error:
            reason = str(error)
        except errors.PeerError as error:
            self._fail(error)
            return
        except Exception as error:  # our bug: the evaluation stays here, and the journal states why
            log.exception("report not sent", extra={"peer": peer, "round": report.round})
            reason = f"it could not be sent from here: {type(error).__name__}"
        log.info("report sent", extra={"peer": peer, "round": report.round, "answer": answer, "reason": reason})
        self._report(events.ReportAnswered(command.attempt, peer, answer, reason))

    async def _request_manifest(self, command: commands.Fetch) -> Offer | Unavailable:
        """Request the manifest until it exists; the state machine cancels the fetch if it gives up."""
        rules = self._machine.lived_rules
        earlier = rules.pattern(command.round) == "circulate" and command.purpose == "train"
        epoch = access.epoch_digest(rules, caller=rules.site, for_round=command.round)
        request = wire.ArtifactRequest(command.kind, command.round, command.purpose, command.owner, earlier, epoch)
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            asked_s = clock()
            try:
                offer = await self._client.get_manifest(command.origin, request)
                self._report(events.PeerHeard(command.origin))
                if isinstance(offer, Offer):
                    self._examine(offer.signed, offer.manifest)
                if offer not in (Unavailable.NOT_YET, Unavailable.EPOCH):
                    return offer
                if offer == Unavailable.EPOCH:
                    self._on_epoch(command.origin)
                failures = failures + 1 if offer == Unavailable.EPOCH else 0  # only NOT_YET was held back there
                if not failures and clock() - asked_s >= PATIENT_S:
                    continue  # a publication in between must not wait for the next request
            except (Unreachable, errors.CertificateError):  # an expired certificate of this site may be renewed
                failures += 1
            except NotAdmitted:
                if not self._machine.is_ahead_of(command.origin):
                    raise
                failures += 1  # the peer will learn of this newcomer
            await asyncio.sleep(backoff_s(failures))

    async def _receive(self, command: commands.Fetch, offer: Offer) -> None:
        artifact, origin = offer.manifest.artifact, command.origin
        loop = asyncio.get_running_loop()
        started_s = heard_s = loop.time()
        task = (origin, str(command.purpose))
        transfer: TransferInProgress = {
            "direction": "in",
            "peer": origin,
            "purpose": command.purpose,
            "kind": artifact.kind,
            "round": command.round,
            "bytes": artifact.bytes,
            "received": 0,
        }
        self.receiving[task] = transfer
        self._store.quiet.clear()

        def on_bytes(received: int) -> None:
            nonlocal heard_s
            self.received_bytes[origin] += max(0, received - transfer["received"])
            transfer["received"] = received
            if loop.time() - heard_s >= HEARD_EVERY_S:
                heard_s = loop.time()
                self._report(events.PeerHeard(origin))

        failures, durable = 0, command.purpose == "handback"  # its sender may be the only other site that has it
        try:
            while True:
                try:
                    await self._client.fetch(offer, self._store.folder, on_bytes, durable=durable)
                    break
                except (Unreachable, errors.CertificateError):
                    failures += 1
                except (InsufficientSpace, errors.DiskError):
                    if not await self._store.delete_discarded(spares=0):
                        raise
                    continue
                except OSError as error:
                    if error.errno not in NO_DESCRIPTORS:
                        raise
                    failures += 1
                await asyncio.sleep(backoff_s(failures))
        finally:
            if self.receiving.get(task) is transfer:  # unless the next task has replaced it
                del self.receiving[task]
            if not self.receiving:
                self._store.quiet.set()
        if not durable:
            self._store.sync_later(artifact.sha256, command.round)
        facts = {
            "peer": origin,
            "purpose": command.purpose,
            "kind": artifact.kind,
            "sha256": artifact.sha256,
            "bytes": artifact.bytes,
            "outcome": "complete",
            "seconds": round(loop.time() - started_s, 3),
        }
        head = {"egress_count": offer.manifest.egress_count, "egress_head": offer.manifest.egress_head}
        self._journal.write(rows.ReceivedRow.from_body(command.round, {**facts, **head, **to_base64(offer.signed)}))
        log.info("artifact received", extra={"round": command.round, **facts})


def backoff_s(failures: int) -> float:
    """Return the back-off before the next attempt."""
    return limits.DIAL_BACKOFF_S[min(failures, len(limits.DIAL_BACKOFF_S) - 1)]

"""The daemon of one site: it connects the state machine with the wire, the journal and the worker.

The daemon decides nothing. Events queue up, the state machine turns each into commands, and the
daemon carries the commands out in their order.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
import os
import time
from collections.abc import Callable, Container, Coroutine, Sequence
from typing import Any

from cryptography import x509

from peer import errors
from peer.config.reload import RefusedCertificates
from peer.config.rules import make_rules
from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.config.toml import split_relay
from peer.core import commands, events, rows, site_memory, worker_protocol
from peer.core import status as status_document
from peer.core.machine import SiteMachine
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.state import HALT_S
from peer.daemon import proxies
from peer.daemon.addresses import AddressBook
from peer.daemon.evidence import EquivocationWatch
from peer.daemon.fetcher import ArtifactFetcher
from peer.daemon.heartbeat import Heartbeats
from peer.daemon.service import PeerService, common_protocol
from peer.daemon.worker_process import WORKER, EvaluationProcess, WorkerProcess
from peer.files import ARTIFACT_SUFFIX, STRAY_FOLDER, put_aside
from peer.identity import certificates
from peer.records.history import CommittedRound, RecentRounds, recent_rounds
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.relay.parking import Parkings
from peer.transport import tls
from peer.transport.client import ExchangeClient
from peer.transport.rates import loop_time
from peer.transport.server import ExchangeServer

log = logging.getLogger(__name__)

LOGGED_KINDS = frozenset({"isolated", "alone", "skipped", "slot_lost", "regenerated", "paused", "resumed", "finished"})
"""Kinds of journal rows that the daemon also logs."""


def now() -> datetime.datetime:
    """The time that certificates are checked against."""
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)


async def _nothing() -> None:
    """Nothing else can make the start fail."""


class Daemon:
    """One site, from its folder on disk to its exit code.

    Args:
        folder: the site's folder, locked by the caller.
        federation: the federation.
        site: the site's private configuration.
        own: the site's identity.
        generation: the generation whose journal the daemon goes on with.
        without: sites that the operator named absent.
        stay: keep serving after the last round.
        worker: the command that starts the worker.
        chance: as of ``SiteMachine``.
    """

    def __init__(
        self,
        *,
        folder: SiteFolder,
        federation: FederationConfig,
        site: SiteConfig,
        own: certificates.Identity,
        generation: int,
        without: frozenset[SiteName] = frozenset(),
        stay: bool = False,
        worker: Sequence[str] = WORKER,
        chance: float = 0.0,
    ) -> None:
        self.folder, self.federation, self.site, self.own = folder, federation, site, own
        self.home = folder.generation(generation)
        self.artifacts = self.home / "artifacts"
        self.journal, self.ledger = Journal(self.home / "journal.db"), Ledger(folder.egress_db)
        rules = self._rules(without, stay=stay)
        present = {Sha256(path.stem) for path in self.artifacts.glob("*.safetensors")}
        recover = functools.partial(site_memory.recover, present=present, generation=generation)
        self.machine = SiteMachine(rules, self.journal.fold(recover, site_memory.REMEMBERED), chance=chance)
        self.started_s, self.served, self.changed = time.time(), "", asyncio.Event()
        self._recent = RecentRounds(recent_rounds(self.journal))
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._alarm: asyncio.TimerHandle | None = None
        self._exit: commands.Exit | None = None
        self._fatal: errors.PeerError | None = None
        self._pki = pki = tls.Pki(folder.pki, own.name, federation.ca_certificate or "", now)
        refused = RefusedCertificates(site)
        self.service = PeerService(
            federation=federation,
            site=site,
            machine=self.machine,
            journal=self.journal,
            ledger=self.ledger,
            artifacts=self.artifacts,
            pki=pki,
            report=self.report,
            clock=loop_time,
            refused=refused,
        )
        self.addresses = AddressBook(own=own.name, federation=federation, site=site)
        proxy_for = proxies.choice(site)
        self.client = ExchangeClient(
            pki=pki,
            federation=federation.digest,
            address=self.addresses.address,
            refused=refused,
            proxy_for=proxy_for,
        )
        self.evidence = self._equivocation_watch(refused)
        compare, reports = self.evidence.answer, self.service.report if federation.global_test else None
        self.server = ExchangeServer(
            self.service,
            pki=pki,
            roster=rules.roster,
            refused=refused,
            reports=reports,
            compare=compare,
            clock=loop_time,
        )
        relays = [split_relay(relay) for relay in site.connect.relays]
        self.parkings = Parkings(
            relays, pki=pki, listen=site.listen, proxy_for=proxy_for, on_caller=self.server.note_relayed
        )
        self.heartbeats = self._heartbeats()
        self.fetcher = self._fetcher()
        setting = self._setting()
        log_path, hang_s = folder.logs / "worker.log", site.training.hang_s
        self.worker_process = WorkerProcess(setting, log_path, self.report, command=worker, hang_s=hang_s)
        self.evaluation_process = EvaluationProcess(setting, folder.logs / "examiner.log", self.report, command=worker)

    def _fetcher(self) -> ArtifactFetcher:
        return ArtifactFetcher(
            rules=self.machine.rules,
            client=self.client,
            service=self.service,
            journal=self.journal,
            artifacts=self.artifacts,
            report=self.report,
            fail=self._fail,
            examine=self.evidence.examine,
        )

    def _rules(self, without: frozenset[SiteName], *, stay: bool) -> Rules:
        own, site = self.own, self.site
        return make_rules(
            self.federation,
            own.name,
            own.round_key,
            without=without,
            stay=stay,
            egress=site.egress,
            received=site.limits,
        )

    def _heartbeats(self) -> Heartbeats:
        return Heartbeats(
            own=self.own.name,
            federation=self.federation,
            site=self.site,
            addresses=self.addresses,
            client=self.client,
            service=self.service,
            report=self.report,
        )

    def _equivocation_watch(self, refused: Container[str]) -> EquivocationWatch:
        return EquivocationWatch(
            federation=self.federation.digest,
            ca=self.own.ca,
            site=self.own.name,
            roster=self.machine.rules.roster,
            journal=self.journal,
            service=self.service,
            client=self.client,
            refused=refused,
            report=self.report,
        )

    def _setting(self) -> worker_protocol.WorkerSetting:
        return worker_protocol.WorkerSetting(
            site_name=self.own.name,
            federation_digest=self.federation.digest,
            federation=self.federation.model_dump(mode="json"),
            site=self.site.model_dump(mode="json"),
            home=str(self.home),
            base_folder=str(self.folder.path),
        )

    def report(self, event: events.Event) -> None:
        self._events.put_nowait(event)

    def _fail(self, error: errors.PeerError) -> None:
        """End the dispatch loop with an error that this site cannot survive."""
        self._fatal = error
        self.report(events.Ticked())

    async def run(
        self,
        ready: Callable[[int], Coroutine[Any, Any, None]],
        bind: Callable[[], Coroutine[Any, Any, None]] = _nothing,
    ) -> commands.Exit:
        """Serve, take part in the rounds, and return the command that ended the daemon.

        Args:
            bind: called once before any peer can hear of this site. Whatever may make the start fail
                belongs here: peers would begin round 1 with a site that greeted them and ended.
            ready: called once with the bound port, when peers can be served.

        Raises:
            PeerError: the site cannot go on; all finished work is on disk.
        """
        try:
            unknown = self.ledger.close_open_intents()
            if unknown:
                log.warning("transfers of an earlier run have no known end", extra={"transfers": unknown})
            self._put_strays_aside()
            await bind()
            port = await self.server.start(self.site.listen)
            self.served = f"{self.site.listen.rpartition(':')[0]}:{port}"
            self.heartbeats.start(port)
            self.parkings.start(port)
            await self._process(events.Began())
            await ready(port)
            await self._dispatch()
        finally:
            closing = (self.parkings.close(), self.heartbeats.close(), self.fetcher.close(), self.evidence.close())
            await asyncio.gather(*closing, return_exceptions=True)
            self.served = ""
            await self.server.stop()  # before the worker's end, which may take a while
            await self.client.close()
            await asyncio.gather(self.worker_process.close(), self.evaluation_process.close())
            if self._alarm is not None:
                self._alarm.cancel()
            self.journal.close()
            self.ledger.close()
        if self._fatal is not None:
            raise self._fatal
        assert self._exit is not None
        return self._exit

    async def _dispatch(self) -> None:
        """Process events one by one until the site ends."""
        while self._exit is None and self._fatal is None:
            await self._process(await self._events.get())

    async def _process(self, event: events.Event) -> None:
        loop = asyncio.get_running_loop()
        for command in self.machine.handle(event, now_s=loop.time()):
            await self._carry_out(command)
        if isinstance(event, events.PeerGreeted):
            self.evidence.hand_on(event.site)
        if isinstance(event, events.StopRequested) and self.machine.phase == Phase.LEAVING:
            log.info("leaving once the worker has written its checkpoint", extra={"limit_s": HALT_S})
        self.service.wake_waiting_calls()
        self.changed.set()
        self.changed = asyncio.Event()

    async def _carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Persist(kind, round, body, cause):
                self.journal.append(kind, round, body, cause)
                self._log_row(kind, round, body)
                if kind == "compared" and not body["agrees"]:
                    self.evidence.compare(SiteName(body["site"]), round)
                if kind == "committed":
                    self._journal_message_counts()
            case commands.Publish(round, artifact, evaluation):
                self.service.publish(round, artifact, evaluation=evaluation)
            case commands.Fetch():
                self.fetcher.fetch(command)
            case commands.CancelFetch(origin, purpose):
                self.fetcher.cancel(origin, purpose)
            case commands.Discard(sha256):
                (self.artifacts / f"{sha256}.safetensors").unlink(missing_ok=True)
            case commands.Announce():
                self.heartbeats.nudge()
            case commands.Measure():
                await self.evaluation_process.send(command)
            case commands.Dismiss():
                self.evaluation_process.dismiss()
            case commands.SendReport():
                self.fetcher.send_report(command)
            case commands.WakeAt(at_s):
                self._set_alarm(at_s)
            case commands.Exit():
                await self.heartbeats.send_farewell()
                self._journal_message_counts()
                self._exit = command
            case _:
                await self.worker_process.send(command)

    def _journal_message_counts(self) -> None:
        """Journal the messages sent beside artifacts since this daemon began."""
        counts = {name: self.service.account(name).spoken for name in self.machine.rules.others}
        by_peer = {str(name): rows.MessageCount(count.messages, count.bytes) for name, count in counts.items()}
        self.journal.write(rows.SpokenRow(self.machine.number, by_peer=by_peer))

    def _log_row(self, kind: str, round: int, body: Any) -> None:
        """Log the rows that matter to an operator as they happen."""
        if kind == "committed":
            self._recent.add(CommittedRound.of_row(round, body, time_s=time.time()))
            facts = {"sources": [source["site"] for source in body["sources"]], "missing": body["missing"]}
            if not any(facts.values()):
                facts["alone"] = "as planned"
            log.info("round committed", extra={"round": round, **facts, "seconds": body["duration_s"]})
        elif kind == "compared" and not body["agrees"]:
            log.warning("peer has another mean", extra={"round": round, "peer": body["site"], "sha256": body["sha256"]})
        elif kind == "reverted":
            facts = {"reason": body["reason"], "contributors": body["origins"]}
            log.warning("training diverged after a round: its artifacts are left out", extra={"round": round, **facts})
        elif kind == "refused":
            log.warning("peer refused", extra={"round": round, "peer": body["origin"], "reason": body["reason"]})
        elif kind == "report":
            unmeasured = body["report"]["unmeasured"]
            log.info("model measured", extra={"round": round, "peer": body["site"], "unmeasured": unmeasured})
        elif kind == "work_failed":
            log.error("training failed", extra={"round": round, "fault": body["fault"], "reason": body["reason"]})
        elif kind in LOGGED_KINDS:
            log.info(kind.replace("_", " "), extra={"round": round})

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_at(at_s + 0.001, self.report, events.Ticked())

    def _put_strays_aside(self) -> None:
        """Clear the artifacts of files that memory does not need; parts stay, a transfer may resume them.

        A file that the journal names was superseded, and is deleted. The daemon moves any other
        file to ``stray/``: the journal may be an older one, and the file the only copy of a model.
        """
        needed = self.machine.memory.needed_digests()
        strays = []
        for path in sorted(self.artifacts.glob(f"*{ARTIFACT_SUFFIX}")):
            if path.stem in needed:
                continue
            if self.journal.mentions(path.stem):
                path.unlink()
                log.info("superseded artifact removed", extra={"sha256": path.stem})
            else:
                strays.append(path)
        if strays:
            folder = self.home / STRAY_FOLDER
            put_aside(strays, folder)
            facts = {"artifacts": len(strays), "folder": str(folder)}
            log.warning("artifacts that no row of the journal names were put aside", extra=facts)

    def status(self) -> status_document.SiteStatus:
        machine = status_document.status(self.machine, now_s=asyncio.get_running_loop().time())
        return {
            "daemon": "running",
            "federation": self.federation.name,
            **machine,
            "peers": {name: self._peer(SiteName(name), seen) for name, seen in machine["peers"].items()},
            "last_round": self._recent.last,
            "left_s": self._recent.left_s(machine["rounds"] - machine["committed"], now_s=time.time()),
            "certificate_days": certificates.certificate_days(self._certificate(), now()),
            "transfers": [*self.fetcher.receiving.values(), *self.service.sending.values()],
            "listen": self.served,
            "relays": self.parkings.states(),
            "pid": os.getpid(),
            "worker_pid": self.worker_process.pid,
            "started": self.started_s,
        }

    def _peer(self, name: SiteName, seen: status_document.PeerProgress) -> status_document.PeerStatus:
        """The status of a peer: the state machine's view, and the connections' figures."""
        account = self.service.account(name)
        skew_s, greeting = account.clock_skew_s, account.greeting
        return {
            **seen,
            "spoken": {"messages": account.spoken.messages, "bytes": account.spoken.bytes},
            "artifact_bytes": {"in": self.fetcher.received_bytes[name], "out": account.sent_bytes},
            "clock_skew_s": round(skew_s, 1) if skew_s is not None else None,
            "software": greeting.software if greeting is not None else None,
            "protocol": common_protocol(greeting) if greeting is not None else None,
            "features": list(greeting.features) if greeting is not None else None,
            "address": self.addresses.address(name),
            "called_s": self.service.called_s(name),
        }

    def summary(self) -> str:
        """The site's round and phase, in a few words."""
        site = self.machine
        return f"round {site.number} of {site.rules.rounds}, {site.phase}" + (
            f": {site.failure}" if site.failure else ""
        )

    def _certificate(self) -> x509.Certificate:
        """The certificate on disk now, renewed or expired; the first one if the files are unusable."""
        try:
            return self._pki.certificate()
        except errors.CertificateError:
            return self.own.certificate

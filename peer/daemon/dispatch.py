"""The daemon of one site: it connects the state machine with the network, the journal and the worker.

The daemon decides nothing. Events queue up, the state machine turns each into commands, and the daemon executes the
commands in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Container, Coroutine, Sequence
from typing import Any

from cryptography import x509

from peer import __version__, errors, privacy_budget
from peer.core import access, commands, events, rows, site_memory, worker_protocol
from peer.core.epochs import Epochs
from peer.core.liveness import AWAY
from peer.core.machine import SiteMachine
from peer.core.phases import Phase
from peer.core.roster import NO_ROUND_KEY, Sha256, SiteName
from peer.core.rules import Rules
from peer.core.state import HALT_S
from peer.core.status import status as machine_status
from peer.core.status_document import PeerProgress, PeerStatus, SiteStatus
from peer.daemon import proxies
from peer.daemon.addresses import AddressBook, describe_route
from peer.daemon.amendment_fetcher import AmendmentFetcher
from peer.daemon.artifact_store import ArtifactStore
from peer.daemon.chain_keeper import ChainKeeper, CurrentSites
from peer.daemon.evidence import EquivocationWatch
from peer.daemon.fetcher import ArtifactFetcher
from peer.daemon.heartbeat import Heartbeats
from peer.daemon.hold_status import why_held
from peer.daemon.member_relay import make_relay, start_relay
from peer.daemon.notice_spread import NoticeWait
from peer.daemon.row_log import log_row
from peer.daemon.service import PeerService, common_protocol
from peer.daemon.sum_service import SumService
from peer.daemon.sums import SumCommand, SumTasks
from peer.daemon.worker_process import WORKER, EvaluationProcess, WorkerProcess
from peer.files import STRAY_FOLDER, SUM_SECRETS_FOLDER
from peer.net.relay.parking import Parkings
from peer.net.transport import handshake, tls
from peer.net.transport.client import ExchangeClient
from peer.net.transport.rates import loop_time
from peer.net.transport.server import ExchangeServer
from peer.net.transport.transfer import STREAMS_AT_ONCE
from peer.site.config.reload import RefusedCertificates
from peer.site.config.rules import make_rules, with_noise, worker_setting
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.toml import split_address, split_relay
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.history import RECENT_ROUNDS, CommittedRound, RecentRounds, recent_rounds
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.site.records.trained_people import datalist_change
from peer.site.sums.secret_files import SumSecretFiles

log = logging.getLogger(__name__)


def now() -> datetime.datetime:
    """Return the time for checks of certificates."""
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)


async def _nothing() -> None:
    """Do nothing."""


class Daemon:
    """One site, from its folder on disk to its exit code.

    Args:
        folder: the site's folder, locked by the caller.
        federation: the federation.
        site: the site's private configuration.
        own: the site's identity.
        generation: the generation whose journal the daemon continues.
        without: sites that the operator named absent.
        stay: keep serving after the last round.
        worker: the command that starts the worker.
        chance: as for ``SiteMachine``.
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
        self.chain = self._chain_keeper()
        rules = self._rules(without, stay=stay)
        spares = STREAMS_AT_ONCE if rules.plan.pattern == "all_to_all" else 1
        self.store = ArtifactStore(self.artifacts, needed=self._needed_digests, fail=self._fail, spares=spares)
        recover = functools.partial(site_memory.recover, present=self.store.verify(), generation=generation)
        self.sum_secrets = secrets = self._sum_secrets(rules)
        memory = self.journal.fold(recover, site_memory.REMEMBERED)
        self.machine = SiteMachine(rules, memory, chance=chance, sum_rounds=secrets.rounds())
        self.started_s, self.served, self.changed, self.ended = time.time(), "", asyncio.Event(), False
        self._recent = RecentRounds(recent_rounds(self.journal, last=RECENT_ROUNDS))
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._alarm: asyncio.TimerHandle | None = None
        self._exit: commands.Exit | None = None
        self._fatal: errors.PeerError | None = None
        self._stopped, self._durable = False, True
        self._callers = dict(self.chain.callers)
        pins = CurrentSites(lambda: self.chain.pins)
        ca_certificate, later = federation.ca_certificate or "", self.chain.later_authorities
        is_new = own.name not in federation.roster
        self._pki = pki = tls.Pki(folder.pki, own.name, ca_certificate, now, pins, later, joined_later=is_new)
        refused = RefusedCertificates(site)
        self.service = self._service(refused)
        self.addresses = AddressBook(own=own.name, federation=federation, site=site)
        self._proxy_for = proxy_for = proxies.choice(site)
        self.client = self._client(rules, refused)
        self.amendments = AmendmentFetcher(self.chain, client=self.client, report=self.report, fail=self._fail)
        self.evidence = self._equivocation_watch(refused)
        self.server = self._server(refused)
        relays = [split_relay(relay) for relay in site.connect.relays]
        self.parkings = Parkings(
            relays, pki=pki, listen=site.listen, proxy_for=proxy_for, on_caller=self.server.note_relayed
        )
        self.relay = make_relay(site, pki=pki, chain=self.chain, server=self.server, refused=refused)
        self.heartbeats = self._heartbeats()
        self.notice_wait = NoticeWait(self.service.notices, self.heartbeats.peers, linger_s=rules.pace.linger_s)
        self.fetcher, self.sums = self._fetcher(), self._sum_tasks()
        self._follow_roster()
        setting = worker_setting(federation, site, own.name, home=self.home, folder=folder.path)
        self._setting = with_noise(setting, federation, folder, generation, self.ledger.spent)
        log_path, hang_s = folder.logs / "worker.log", site.training.hang_s
        self.worker_process = WorkerProcess(self._setting, log_path, self.report, command=worker, hang_s=hang_s)
        self.evaluation_process = EvaluationProcess(setting, folder.logs / "examiner.log", self.report, command=worker)

    def _needed_digests(self) -> set[Sha256]:
        return self.machine.memory.needed_digests()

    def _service(self, refused: Container[str]) -> PeerService:
        return PeerService(
            federation=self.federation,
            site=self.site,
            machine=self.machine,
            journal=self.journal,
            ledger=self.ledger,
            store=self.store,
            pki=self._pki,
            report=self.report,
            fail=self._fail,
            chain=self.chain,
            note_head=lambda peer, head: self.amendments.note_head(peer, head),
            clock=loop_time,
            refused=refused,
            budget=privacy_budget.PrivacyBudget(self.folder.home / privacy_budget.FOLDER),
        )

    def _server(self, refused: Container[str]) -> ExchangeServer:
        return ExchangeServer(
            self.service,
            pki=self._pki,
            roster=CurrentSites(lambda: self.chain.callers),
            refused=refused,
            reports=self.service.report if self.federation.global_test else None,
            compare=self.evidence.answer,
            chain=self.service.amendments,
            sums=self._sum_service().sum if self.machine.rules.secure else None,
            expelled=CurrentSites(lambda: self.chain.expelled),
            had_key=self.chain.had_key,
            clock=loop_time,
            connections_max=self.site.limits.connections_max,
            silence_s=self.federation.pace.silence_s,
        )

    def _client(self, rules: Rules, refused: Container[str]) -> ExchangeClient:
        many = len(rules.others)
        return ExchangeClient(
            pki=self._pki,
            federation=self.federation.digest,
            address=self.addresses.address,
            refused=refused,
            beat_s=self.federation.beat_s,
            silence_s=self.federation.pace.silence_s,
            proxy_for=self._proxy_for,
            streams=many if rules.plan.pattern == "all_to_all" else 1,
            evaluations=many,
        )

    def _fetcher(self) -> ArtifactFetcher:
        return ArtifactFetcher(
            machine=self.machine,
            client=self.client,
            service=self.service,
            journal=self.journal,
            store=self.store,
            report=self.report,
            fail=self._fail,
            examine=self.evidence.examine,
            on_epoch=self.heartbeats.nudge,
        )

    def _sum_secrets(self, rules: Rules) -> SumSecretFiles:
        for earlier in self.folder.generations():  # of rounds that this generation does not remember
            if (home := self.folder.generation(earlier)) != self.home:
                shutil.rmtree(home / SUM_SECRETS_FOLDER, ignore_errors=True)
        secrets = SumSecretFiles(self.home / SUM_SECRETS_FOLDER)
        if rules.secure:
            secrets.prepare()
        return secrets

    def _sum_service(self) -> SumService:
        return SumService(
            service=self.service,
            machine=self.machine,
            ledger=self.ledger,
            secrets=self.sum_secrets,
            report=self.report,
            durable=lambda: self._durable,
        )

    def _sum_tasks(self) -> SumTasks:
        return SumTasks(
            machine=self.machine,
            client=self.client,
            store=self.store,
            secrets=self.sum_secrets,
            report=self.report,
            fail=self._fail,
            on_epoch=self.heartbeats.nudge,
        )

    def _chain_keeper(self) -> ChainKeeper:
        return ChainKeeper(
            MembershipFolder(self.folder.membership),
            self.folder.federation_toml.read_text("utf-8"),
            own=self._identity,
            round_key=self.own.round_key,
            opened_round=lambda: self.machine.number,
            report=self._learn,
            clock=loop_time,
        )

    def _identity(self) -> certificates.Identity:
        """Return this site's key and certificate on disk; those of the start while the files are unusable."""
        try:
            return self._pki.load()
        except (AttributeError, errors.CertificateError):  # AttributeError: the start has not made `_pki` yet
            return self.own

    def _learn(self, event: events.Event) -> None:
        """Report the chain keeper's event; its effect on callers and called peers is immediate."""
        self.report(event)
        if isinstance(event, events.EpochsLearned):
            self._follow_roster(event.epochs)

    def _follow_roster(self, epochs: Epochs | None = None) -> None:
        """Call, answer and relay for the present members."""
        epochs = epochs if epochs is not None else self.machine.rules.epochs
        others = sorted(epochs.names - epochs.gone - {self.own.name})
        self.addresses.follow_roster({name: self.chain.addresses().get(name) for name in others})
        self.heartbeats.follow_roster(others)
        former, self._callers = self._callers, dict(self.chain.callers)
        self.server.follow_roster({name for name, key in former.items() if self._callers.get(name, "none") != key})
        if self.relay is not None:
            self.relay.follow(frozenset(others))

    def _rules(self, without: frozenset[SiteName], *, stay: bool) -> Rules:
        own, site = self.own, self.site
        rules = make_rules(
            self.federation,
            own.name,
            own.round_key or NO_ROUND_KEY,
            without=without,
            stay=stay,
            egress=site.egress,
            received=site.limits,
        )
        epochs = self.chain.epochs()
        return rules if len(epochs.all) == 1 and not epochs.leaving else rules.amended(epochs)

    def _heartbeats(self) -> Heartbeats:
        return Heartbeats(
            own=self.own.name,
            peers=self.machine.rules.known,
            federation=self.federation,
            site=self.site,
            addresses=self.addresses,
            client=self.client,
            service=self.service,
            report=self.report,
            diagnose=self._diagnose,
            follow=self.amendments.follow,
            ask_why=self.amendments.ask_why,
        )

    def _diagnose(self, peer: SiteName, address: str) -> handshake.Diagnosis:
        """Dial a peer once more, to distinguish faults that gRPC reports as one."""
        host, port = split_address(address)
        return handshake.diagnose(host, port, pki=self._pki, site=peer, proxy=self._proxy_for(peer, address))

    def _equivocation_watch(self, refused: Container[str]) -> EquivocationWatch:
        return EquivocationWatch(
            federation=self.federation.digest,
            authorities=lambda: (self.own.ca, *self._pki.later()),
            site=self.own.name,
            roster=CurrentSites(lambda: self.chain.pins),
            journal=self.journal,
            service=self.service,
            client=self.client,
            refused=refused,
            report=self.report,
        )

    def _setting_of(self, order: commands.Command) -> worker_protocol.WorkerSetting:
        """Return the worker's setting for an order, with the stages and parameters of the round's epoch."""
        round = getattr(order, "round", None)
        if round is None or not self.chain.chain.links:
            return self._setting
        federation = self.chain.settings(self.machine.lived_rules.epoch(round).digest).model_dump(mode="json")
        amended = {key: federation[key] for key in ("stages", "method")}
        return dataclasses.replace(self._setting, federation={**self._setting.federation, **amended})

    def report(self, event: events.Event) -> None:
        if not self.amendments.holds(event):
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
            bind: called once before any peer can hear of this site. Everything that may make the start fail
                belongs here: peers would begin round 1 with a site that greeted them and ended.
            ready: called once with the bound port, when peers can be served.

        Raises:
            PeerError: the site cannot continue; all finished work is on disk.
        """
        try:
            if unknown := self.ledger.close_open_intents():
                log.warning("transfers of an earlier run have no known end", extra={"transfers": unknown})
            self.store.put_strays_aside(self.home / STRAY_FOLDER, self.journal.mentions)
            await bind()
            port = await self.server.start(self.site.listen)
            self.served = f"{self.site.listen.rpartition(':')[0]}:{port}"
            if self.relay is not None:
                await start_relay(self.relay, self.site, port=port)
            added = self.chain.is_added
            if not added:
                await ready(port)
                await self._await_amendment()
            if self._exit is None and self._fatal is None:
                self.heartbeats.start(port)
                self.parkings.start(port)
                await self._process(events.Began())
                if added:
                    await ready(port)
                await self._dispatch()
            if self._fatal is None and not self._stopped and self.notice_wait.waits():
                await self._close_workers()  # otherwise they would occupy the device meanwhile
                self._wake_followers()
                await self.notice_wait.stay(self._events, poll_s=self.federation.beat_s)
        finally:
            closing = (self.parkings, self.heartbeats, self.fetcher, self.sums, self.evidence, self.amendments)
            await asyncio.gather(*(each.close() for each in closing), return_exceptions=True)
            self.served, self.ended = "", True
            self._wake_followers()
            if self.relay is not None:
                await self.relay.stop()
            await self.server.stop()  # before the worker ends, which may take a while
            await self.client.close()
            await self._close_workers()
            if self._alarm is not None:
                self._alarm.cancel()
            self.journal.close()
            self.ledger.close()
        if self._fatal is not None:
            raise self._fatal
        assert self._exit is not None
        return self._exit

    async def _close_workers(self) -> None:
        await asyncio.gather(self.worker_process.close(), self.evaluation_process.close())

    async def _await_amendment(self) -> None:
        """Ask the peers for the chain until an amendment adds this site, or the operator stops it."""
        log.info("waiting for the amendment that adds this site")
        while self._exit is None and self._fatal is None and not self.chain.is_added:
            for peer in self.federation.roster:
                await self.amendments.follow(peer, None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.federation.beat_s):
                    while self._fatal is None and not self.chain.is_added:
                        if isinstance(await self._events.get(), events.StopRequested):
                            self._exit = commands.Exit()
                            return
        self.machine.rules = self.machine.rules.amended(self.chain.epochs())

    async def _dispatch(self) -> None:
        """Process events one by one until the site ends."""
        while self._exit is None and self._fatal is None:
            await self._process(await self._events.get())

    async def _process(self, event: events.Event) -> None:
        loop, rules = asyncio.get_running_loop(), self.machine.rules
        if isinstance(event, events.Trained | events.Aggregated | events.Adopted):
            await self.store.sync(event.round)
        if isinstance(event, events.WorkResult):
            digests = [artifact.sha256 for artifact in events.made_artifacts(event)]
            if missing := self.store.lacks(digests):
                reason = f"its artifact {missing[0][:12]} is gone"
                event = events.WorkFailed(event.generation, event.attempt, "disk", reason)
        self._durable = False  # for good if one of the next two fails: memory is then ahead of the disk
        ordered = self.machine.handle(event, now_s=loop.time())
        self._write_rows(ordered)
        self._durable = True
        for command in ordered:
            await self._carry_out(command)
        if isinstance(event, events.ArtifactArrived | events.ArtifactMasked | events.MaskedAdded):
            self.store.release(event.artifact.sha256)  # held since it is on disk
        if isinstance(event, events.EpochsLearned):
            self.heartbeats.announce(away=True)
        if isinstance(event, events.PeerGreeted):
            self.evidence.hand_on(event.site)
        self._stopped = self._stopped or isinstance(event, events.StopRequested)
        if isinstance(event, events.StopRequested) and self.machine.phase == Phase.LEAVING:
            log.info("leaving once the worker has written its checkpoint", extra={"limit_s": HALT_S})
        written = {command.kind for command in ordered if isinstance(command, commands.Persist)}
        if self.machine.rules is not rules or written - access.CHANGE_NO_ANSWER:
            self.service.wake_waiting_calls()
        self._wake_followers()

    def _wake_followers(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _write_rows(self, ordered: Sequence[commands.Command]) -> None:
        """Write the rows and manifests of one event before its other commands, with one sync of the disk.

        Artifacts are published after that, because a full disk rolls all of it back.
        """
        persisted = [command for command in ordered if isinstance(command, commands.Persist)]
        published = [command for command in ordered if isinstance(command, commands.Publish)]
        if not persisted and not published:
            return
        with self.journal.together():
            for row in persisted:
                self.journal.append(row.kind, row.round, row.body, row.cause)
                if row.kind == "committed":
                    self._journal_message_counts()
            signed = [
                self.service.sign(command.round, command.artifact, evaluation=command.evaluation)
                for command in published
            ]
        for command, manifest in zip(published, signed, strict=True):
            self.service.publish(command.round, command.artifact, manifest, evaluation=command.evaluation)
        for row in persisted:
            if row.kind == "committed":
                self._recent.add(CommittedRound.of_row(row.round, row.body, time_s=time.time()))
            log_row(row.kind, row.round, row.body)
            if row.kind == "compared" and not row.body["agrees"]:
                self.evidence.compare(SiteName(row.body["site"]), row.round)

    async def _carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Persist() | commands.Publish():
                pass  # already done by `_write_rows`
            case commands.Fetch():
                self.fetcher.fetch(command)
            case commands.CancelFetch(origin, purpose):
                self.fetcher.cancel(origin, purpose)
            case commands.Discard(sha256):
                self.store.discard(sha256)
            case commands.Announce():
                self.heartbeats.announce(away=self.machine.phase in AWAY)
            case commands.Measure():
                await self.evaluation_process.send(command)
            case commands.Dismiss():
                self.evaluation_process.dismiss()
            case commands.SendReport():
                self.fetcher.send_report(command)
            case commands.ShowSum():
                self.service.wake_waiting_calls()
            case _ if isinstance(command, SumCommand):
                self.sums.carry_out(command)
            case commands.WakeAt(at_s):
                self._set_alarm(at_s)
            case commands.Exit():
                await self.heartbeats.send_farewell()
                self._journal_message_counts()
                self._exit = command
            case _:
                await self.worker_process.use(self._setting_of(command))
                await self.worker_process.send(command)

    def _journal_message_counts(self) -> None:
        """Journal the counts of messages other than artifacts since this daemon started."""
        counts = {name: self.service.account(name).spoken for name in self.machine.rules.others}
        by_peer = {str(name): rows.MessageCount(count.messages, count.bytes) for name, count in counts.items()}
        self.journal.write(rows.SpokenRow(self.machine.number, by_peer=by_peer))

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_at(at_s + 0.001, self.report, events.Ticked())

    def status(self) -> SiteStatus:
        now_s = asyncio.get_running_loop().time()
        machine = machine_status(self.machine, now_s=now_s)
        held = why_held(self.machine, self.chain.chain, is_added=self.chain.is_added, now_s=now_s)
        left_s = self._recent.left_s(machine["rounds"] - machine["committed"], now_s=time.time())
        return {
            "daemon": "running",
            "federation": self.federation.name,
            **machine,
            "peers": {name: self._peer(SiteName(name), seen) for name, seen in machine["peers"].items()},
            "waiting_for": [*machine["waiting_for"], *self.notice_wait.waits()],
            "last_round": self._recent.last,
            "contributions": self._recent.contributions(machine["peers"]),
            "held": held,
            "left_s": None if held else left_s,
            "certificate_days": certificates.certificate_days(self._certificate(), now()),
            "datalist": self._datalist_change,
            "transfers": [*self.fetcher.receiving.values(), *self.service.sending.values()],
            "listen": self.served,
            "relays": self.parkings.states(),
            "relayed": {} if self.relay is None else self.relay.traffic(),
            "pid": os.getpid(),
            "worker_pid": self.worker_process.pid,
            "started": self.started_s,
            "software": f"mhfl-peer {__version__}",
        }

    @property
    def _datalist_change(self) -> str:
        """How many people left the datalist since the last trained round; empty once the journal may be closed."""
        return "" if self.ended else datalist_change(self.journal, self.site.folder / self.site.data.datalist)

    def _peer(self, name: SiteName, seen: PeerProgress) -> PeerStatus:
        """Return a peer's status: the state machine's view, and the connections' figures."""
        account = self.service.account(name)
        skew_s, greeting, address = account.clock_skew_s, account.greeting, self.addresses.address(name)
        pulse, answers = self.machine.peers.pulse(name), self.addresses.answers(name)
        return {
            **seen,
            "spoken": {"messages": account.spoken.messages, "bytes": account.spoken.bytes},
            "artifact_bytes": {"in": self.fetcher.received_bytes[name], "out": account.sent_bytes},
            "clock_skew_s": round(skew_s, 1) if skew_s is not None else None,
            "software": greeting.software if greeting is not None else None,
            "protocol": common_protocol(greeting) if greeting is not None else None,
            "features": list(greeting.features) if greeting is not None else None,
            "address": address,
            "route": describe_route(self.addresses, self._proxy_for, name, address) if address and answers else None,
            "problem": self.heartbeats.problem(name),
            "epoch": None if pulse is None else pulse.head.number if pulse.head is not None else 0,
            "called_s": self.service.called_s(name),
        }

    def summary(self) -> str:
        """Describe the site's round and phase in a few words."""
        site = self.machine
        return f"round {site.number} of {site.rules.rounds}, {site.phase}" + (
            f": {site.failure}" if site.failure else ""
        )

    def _certificate(self) -> x509.Certificate:
        """Return the certificate on disk, renewed or expired; the first one if the files are unusable."""
        try:
            return self._pki.certificate()
        except errors.CertificateError:
            return self.own.certificate

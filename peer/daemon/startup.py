"""Starts a site's daemon from its folder after all checks, and runs it until its exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Any

from peer import errors
from peer.allocator import keep_memory_small
from peer.audit.folder_check import INTENTS_CHECKED, check_folder
from peer.audit.folder_permissions import check_permissions
from peer.cohorts import Cohorts
from peer.core import commands, events
from peer.core.roster import SiteName
from peer.daemon.control_server import ControlServer
from peer.daemon.dispatch import Daemon, now
from peer.daemon.operator_service import FOLLOW_MAX_S, OperatorService
from peer.daemon.systemd_notify import notify, watch
from peer.daemon.worker_process import WORKER
from peer.site.config import logs
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_folder import SiteFolder, make_private
from peer.site.identity.certificates import Identity, read_authority
from peer.site.identity.expiry import ExpiryWatcher
from peer.site.membership.folder import MembershipFolder
from peer.site.records.journal import Journal
from peer.site.records.kept_configuration import keep_configuration
from peer.site.records.ledger import Ledger
from peer.stop_signals import stop_signals

log = logging.getLogger(__name__)

FAULTS: Mapping[str, type[errors.PeerError]] = {
    "data": errors.DataError,
    "configuration": errors.ModelError,
    "divergence": errors.ModelError,
    "disk": errors.DiskError,
}
WATCH_AGAIN_S = 10.0
"""Delay before a failed watcher starts again: a lasting failure must not flood the log."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `start`; ``worker`` is the command that starts the worker."""

    resume: str = "auto"
    accept_change: bool = False
    without: tuple[str, ...] = ()
    stay: bool = False
    debug: bool = False
    quiet: bool = False
    log_format: str = "text"
    worker: Sequence[str] = WORKER


def load(folder: SiteFolder) -> tuple[FederationConfig, SiteConfig, Identity]:
    """Load the site's files; check each by itself and against the others; raise ``PeerError`` if one is wrong."""
    federation = FederationConfig.load(folder.federation_toml)
    site = SiteConfig.load(folder.site_toml)
    membership = MembershipFolder(folder.membership)
    head = membership.chain(federation).head if federation.ca_certificate is not None else None
    check_site(federation, site, folder.site, newcomers=membership.newcomers(federation, folder.site))
    pem = () if head is None else head.authorities[1:]
    own = Identity.load(
        folder.pki,
        name=folder.site,
        ca_certificate=federation.ca_certificate,
        now=now(),
        pinned_key=None if head is None else head.keys.get(folder.site),
        later=[read_authority(text.encode()) for text in pem],
        joined_later=folder.site not in federation.roster,
    )
    return federation, site, own


def run(folder: SiteFolder, options: Options) -> None:
    """Run the daemon of a site until it leaves; raise ``PeerError`` if it cannot start or continue."""
    check_permissions(folder)
    federation, site, own = load(folder)
    without = _absent(federation, folder.site, options.without)
    make_private(folder.logs)
    with folder.locked():
        remarks = check_folder(folder, federation, own, fresh=options.resume == "fresh")
        keep_memory_small()
        allow_descriptors()
        generation = _generation(folder, options)
        ids = {"site": folder.site, "federation": federation.digest[:12], "generation": generation}
        logs.set_up(folder.logs, ids, quiet=options.quiet, debug=options.debug, json_lines=options.log_format == "json")
        for remark in remarks:
            log.warning("an older state was restored", extra={"reason": remark})
        keep_configuration(folder, generation, federation, site, accept=options.accept_change)
        try:
            Cohorts(folder.generation(generation)).create()
        except OSError as error:
            raise errors.DiskError(f"{error.filename} cannot be written: {error.strerror}") from error
        try:
            # Until `_serve` has its handlers: a KeyboardInterrupt between two steps of asyncio leaks resources.
            signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
            asyncio.run(_serve(folder, federation, site, own, generation, without, options))
        except errors.PeerError:
            raise
        except Exception:
            log.exception("the daemon failed")  # the command line shows one line only
            raise


def allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard limit; shells and containers often set 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    own: Identity,
    generation: int,
    without: frozenset[SiteName],
    options: Options,
) -> None:
    daemon: Daemon | None = None

    def request_stop() -> None:
        if daemon is not None:
            daemon.report(events.StopRequested())

    # Before the first resource is opened: asyncio's own reaction to Ctrl-C would interrupt the opening.
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, request_stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())
    daemon = Daemon(
        folder=folder,
        federation=federation,
        site=site,
        own=own,
        generation=generation,
        without=without,
        stay=options.stay,
        worker=options.worker,
        chance=SystemRandom().random(),
    )
    control = ControlServer(OperatorService(daemon))
    services = contextlib.AsyncExitStack()

    facts: dict[str, Any] = {"federation_name": federation.name, "method": federation.method.name}

    async def bind() -> None:
        if site.metrics.listen is not None:
            facts["metrics_port"] = await services.enter_async_context(_metrics(daemon, site.metrics.listen))

    async def ready(port: int) -> None:
        facts["port"] = port
        log.info("serving", extra={**facts, "committed": daemon.machine.memory.committed})
        if daemon.machine.memory.finished:
            log.info("every round is finished; serving what others still need")
        notify("READY=1")
        expiry = ExpiryWatcher(folder.pki, now)
        for name, watcher in (("systemd watchdog", lambda: watch(daemon.summary)), ("certificate", expiry.watch)):
            services.push_async_callback(cancel, asyncio.create_task(keep_running(name, watcher), name=name))

    await control.start(folder.prepare_control_socket())
    try:
        ended: commands.Exit = await daemon.run(ready, bind)
    finally:
        notify("STOPPING=1")
        await services.aclose()
        await control.stop(FOLLOW_MAX_S)  # followers get a last document
    if ended.fault:
        raise FAULTS.get(ended.fault, errors.WorkerFailed)(ended.reason)
    reason = {"reason": ended.reason} if ended.reason else {}
    log.info("left", extra={"committed": daemon.machine.memory.committed, **reason})


async def keep_running(
    name: str, watcher: Callable[[], Coroutine[Any, Any, None]], *, again_s: float = WATCH_AGAIN_S
) -> None:
    """Run a watcher until it returns; if it fails, log the failure with its traceback and run it again.

    A watcher only warns. Its failure must neither end the rounds nor go unnoticed.
    """
    while True:
        try:
            return await watcher()
        except Exception:
            log.exception("watcher failed and is started again", extra={"watcher": name, "again_s": again_s})
        await asyncio.sleep(again_s)


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _metrics(daemon: Daemon, address: str) -> AsyncIterator[int]:
    """Serve metrics for Prometheus on the yielded port; import its library only here."""
    from peer.daemon.metrics_server import MetricsServer

    server = MetricsServer(daemon)
    yield await server.start(address)
    await server.stop()


def _absent(federation: FederationConfig, own: SiteName, names: tuple[str, ...]) -> frozenset[SiteName]:
    for name in names:
        if name not in federation.roster or name == own:
            others = ", ".join(federation.roster.others(own))
            raise errors.UsageError(f"--without {name}: not another site of this federation", f"there are {others}")
    return frozenset(SiteName(name) for name in names)


def _generation(folder: SiteFolder, options: Options) -> int:
    newest = max(folder.generations(), default=0)
    if options.resume == "require" and not _begun(folder, newest):
        raise errors.StateError(
            f"{folder.path} holds nothing to resume", "start with --resume auto, or restore the backup first"
        )
    if options.resume == "fresh" or not newest:
        return folder.create_generation(next_generation(folder))
    return newest


def next_generation(folder: SiteFolder) -> int:
    """Return the number after every generation that peers may have seen, even of a restored backup or lost journal."""
    number = max(folder.generations(), default=0)
    path = folder.generation(number) / "journal.db"
    generations = [number]
    if path.exists():
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            generations += [int(body["generation"]) for _, _, body in journal.newest(("regenerated",))]
    if folder.egress_db.exists():
        with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
            generations += [int(intent["generation"]) for intent in ledger.newest_intents(INTENTS_CHECKED)]
    return 1 + max(generations)


def _begun(folder: SiteFolder, generation: int) -> bool:
    """Return whether the generation's journal names a state of the model to continue from."""
    path = folder.generation(generation) / "journal.db"
    if not path.exists():
        return False
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        return bool(journal.records(("initialised",), last=1))

"""All checks of a site, in the order in which a start would fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from peer import errors
from peer.audit.folder_check import check_folder
from peer.audit.folder_permissions import check_permissions
from peer.core.roster import SiteName
from peer.daemon import startup
from peer.daemon.worker_process import WORKER
from peer.net.transport.control import ControlClient
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.toml import split_address
from peer.site.identity.certificates import Identity
from peer.site.records.kept_configuration import find_change
from peer.train.inference import model_state
from peer.view.preflight import local
from peer.view.preflight.finding import Finding
from peer.view.preflight.guarantees import check_guarantees
from peer.view.preflight.membership import check_membership
from peer.view.preflight.peers import ReachabilityCheck
from peer.view.preflight.receivers import check_receivers
from peer.view.preflight.training import Trial, rehearse, silent


def check(
    folder: SiteFolder,
    *,
    train: bool = True,
    worker: Sequence[str] = WORKER,
    begin: Callable[[str], None] = silent,
) -> Iterator[Finding]:
    """Check everything, and change nothing.

    Import this module only after ``local.check_packages`` found nothing.

    Args:
        train: also start a worker, load the data, build the model and try a step of each stage.
            That takes a while, and is not done while a daemon runs.
        begin: gets the name of each stage that begins.
    """
    begin("checking the configuration and the folder")
    try:
        check_permissions(folder)
    except errors.PeerError as error:
        yield Finding("permissions", "failure", error.message, error.remedy)
    try:
        federation, site, own = startup.load(folder)
    except errors.PeerError as error:
        yield Finding("configuration", "failure", error.message, error.remedy)
        return
    name = federation.method.name
    yield Finding("configuration", "ok", f"{federation.name}, digest {federation.digest[:12]}, {name}")
    for finding in check_membership(folder, federation):
        yield finding
        if finding.subject == "membership":
            return
    running, status = _check_daemon(folder)
    if running is None:
        yield from _check_folder(folder, federation, site, own)
    if running is not None:
        yield running
    begin("checking certificates and ports")
    yield from local.check_certificates(own, federation)
    yield local.check_confinement()
    yield from local.check_environment(folder, site)
    ports = list(_check_ports(site, running is not None, status))
    yield from ports
    yield from local.check_descriptors(folder, federation, site)
    yield from local.check_neighbours(folder, site)
    begin("reading the datalist and its images")
    data, samples, test_samples = local.check_data(federation, site)
    yield data
    yield from local.check_people(folder, site)
    # Beside a training daemon, a second worker could take the memory that the first one needs.
    samples_to_try = samples if train and running is None and data.verdict != "failure" else None
    reachability = None if running is not None and status is None else (status, ports[0].verdict == "ok")
    with model_state.exit_on_sigterm():
        trial, peers = asyncio.run(
            _try_and_dial(folder, federation, site, own.name, worker, samples_to_try, reachability, begin)
        )
    begin("checking policy, disk and receivers")
    yield from trial.findings
    unaccepted = local.find_unaccepted(folder, federation, site)
    visitor_bytes = local.largest_received(folder) if site.egress.bytes_per_round_max is not None else None
    yield local.check_policy(federation, site, trial.artifact_bytes, unaccepted, visitor_bytes=visitor_bytes)
    yield from check_guarantees(federation, site)
    yield from local.check_disk(folder, federation, trial.artifact_bytes)
    yield from check_receivers(federation, site, own.name)
    yield from local.check_distillation(folder)
    yield from local.check_global_test(federation, site, test_samples)
    yield from peers


def try_configuration(
    folder: SiteFolder, federation: FederationConfig, site: SiteConfig, *, worker: Sequence[str] = WORKER
) -> Iterator[Finding]:
    """Check the data and try a step of each stage with a configuration that no file has yet."""
    data, samples, test_samples = local.check_data(federation, site)
    yield data
    if data.verdict != "failure":
        with model_state.exit_on_sigterm():
            trial = asyncio.run(rehearse(folder, federation, site, folder.site, worker=worker, samples=samples))
        yield from trial.findings
        yield from local.check_global_test(federation, site, test_samples)


def _check_folder(
    folder: SiteFolder, federation: FederationConfig, site: SiteConfig, own: Identity
) -> Iterator[Finding]:
    """Return the reasons why a start would refuse the folder; only while no daemon writes there."""
    try:
        for remark in check_folder(folder, federation, own):
            yield Finding("folder", "warning", remark, 'see "Back up and restore" in `mhfl-peer help site`')
    except errors.PeerError as error:
        yield Finding("folder", "failure", error.message, error.remedy)
        return
    yield from local.check_strays(folder)
    change = find_change(folder, federation, site)
    if change is not None:
        yield Finding("journal", "failure", change.message, change.remedy)


def _check_daemon(folder: SiteFolder) -> tuple[Finding | None, dict[str, Any] | None]:
    """Return a finding if another process has locked the folder, and the status if a daemon answers."""
    try:
        with folder.locked():
            return None, None
    except errors.LockedError as error:
        locked = error
    except errors.DiskError as error:
        return Finding("daemon", "failure", error.message, error.remedy), None
    try:
        status = ControlClient(folder.control_socket()).show("status")
    except errors.PeerError as error:
        return Finding(
            "daemon", "warning", f"{locked.message}, which does not answer: {error.message}", locked.remedy
        ), None
    where = f"round {status['round']} of {status['rounds']}, {status['phase']}"
    return Finding("daemon", "ok", f"runs, as process {status['pid']}: {where}; no step is tried beside it"), status


def _check_ports(site: SiteConfig, running: bool, status: dict[str, Any] | None) -> Iterator[Finding]:
    """Return the addresses that the daemon listens on: first the one for peers."""
    if running:
        address = status["listen"] if status else site.listen
        changed = address != site.listen and split_address(site.listen)[1] != 0
        says = f", and site.toml says {site.listen}" if changed else ""
        remedy = "restart the daemon, which has read site.toml at its start" if changed else ""
        yield Finding.by_remedy("listen", f"the daemon has {address}{says}", remedy)
        return
    yield local.check_port("listen", site.listen, key="listen")
    if site.metrics.listen is not None:
        yield local.check_port("metrics", site.metrics.listen, key="[metrics] listen")
    if site.connect.relay_listen is not None:
        yield local.check_port("relay port", site.connect.relay_listen, key="[connect] relay_listen")


async def _try_and_dial(
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    name: SiteName,
    worker: Sequence[str],
    samples: int | None,
    reachability: tuple[dict[str, Any] | None, bool] | None,
    begin: Callable[[str], None],
) -> tuple[Trial, list[Finding]]:
    """Try a worker and dial the peers at the same time: both mostly wait."""

    async def trial() -> Trial:
        if samples is None:
            begin("calling the peers")
            return Trial(())
        begin("calling the peers, and starting a worker, which reads the data and builds the network")
        return await rehearse(folder, federation, site, name, worker=worker, samples=samples, begin=begin)

    async def peers() -> list[Finding]:
        if reachability is None:
            return []
        status, listening = reachability
        return await ReachabilityCheck(folder, federation, site, name, status).run(listening=listening)

    return await asyncio.gather(trial(), peers())

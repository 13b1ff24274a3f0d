"""Everything that a start needs, in the order in which it would fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from peer import errors
from peer.audit.folder_check import consistent
from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.core.roster import SiteName
from peer.daemon import startup
from peer.daemon.worker_process import WORKER
from peer.identity.certificates import Identity
from peer.inference import model_state
from peer.preflight import local
from peer.preflight.finding import Finding
from peer.preflight.peers import Reach
from peer.preflight.training import Trial, rehearse
from peer.transport.control import ControlClient


def check(folder: SiteFolder, *, train: bool = True, worker: Sequence[str] = WORKER) -> Iterator[Finding]:
    """Look at everything, and change nothing; ``peer.preflight.local`` comes before this can be imported.

    Args:
        folder: the site's.
        train: also start a worker, load the data, build the model and try a step of each stage, which takes a while;
            not while a daemon runs.
        worker: what to execute as the worker.
    """
    try:
        federation, site, own = startup.load(folder)
    except errors.PeerError as error:
        yield Finding("configuration", "failure", error.message, error.remedy)
        return
    name = federation.method.name
    yield Finding("configuration", "ok", f"{federation.name}, digest {federation.digest[:12]}, {name}")
    running, status = _daemon(folder)
    if running is None:
        yield from _folder(folder, federation, site, own)
    if running is not None:
        yield running
    yield from local.certificate_findings(own, federation)
    ports = list(_ports(site, running is not None, status))
    yield from ports
    data, samples = local.data(federation, site)
    yield data
    # Beside a daemon that trains, a second worker could take the memory that the first one needs.
    steps = samples if train and running is None and data.verdict != "failure" else None
    reach = None if running is not None and status is None else (status, ports[0].verdict == "ok")
    with model_state.exit_on_sigterm():
        trial, peers = asyncio.run(_together(folder, federation, site, own.name, worker, steps, reach))
    yield from trial.findings
    yield local.policy(federation, site, trial.artifact_bytes)
    yield from local.disk(folder, federation, trial.artifact_bytes)
    yield from local.distillation(folder)
    yield from local.global_test(federation, site)
    yield from peers


def _folder(folder: SiteFolder, federation: FederationConfig, site: SiteConfig, own: Identity) -> Iterator[Finding]:
    """What a start would say to what is in the folder; only while nobody writes there."""
    try:
        for remark in consistent(folder, federation, own):
            yield Finding("folder", "warning", remark, 'see "Back up and restore" in `mhfl-peer help site`')
    except errors.PeerError as error:
        yield Finding("folder", "failure", error.message, error.remedy)
        return
    change = startup.changed(folder, federation, site)
    if change is not None:
        yield Finding("journal", "failure", change.message, change.remedy)


def _daemon(folder: SiteFolder) -> tuple[Finding | None, dict[str, Any] | None]:
    """Whether a daemon has the folder, and what it says of itself."""
    try:
        with folder.locked():
            return None, None
    except errors.LockedError as error:
        held = error
    except errors.DiskError as error:
        return Finding("daemon", "failure", error.message, error.remedy), None
    try:
        with ControlClient(folder.control_socket()) as client:
            status = client.show("status")
    except errors.PeerError as error:
        return Finding(
            "daemon", "warning", f"{held.message}, which does not answer: {error.message}", held.remedy
        ), None
    where = f"round {status['round']} of {status['rounds']}, {status['phase']}"
    return Finding("daemon", "ok", f"runs, as process {status['pid']}: {where}; no step is tried beside it"), status


def _ports(site: SiteConfig, running: bool, status: dict[str, Any] | None) -> Iterator[Finding]:
    """The addresses that the daemon listens on: peers' first."""
    if running:
        yield Finding("listen", "ok", f"the daemon has {status['listen'] if status else site.listen}")
        return
    yield local.port("listen", site.listen, key="listen")
    if site.metrics.listen is not None:
        yield local.port("metrics", site.metrics.listen, key="[metrics] listen")


async def _together(
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    name: SiteName,
    worker: Sequence[str],
    samples: int | None,
    reach: tuple[dict[str, Any] | None, bool] | None,
) -> tuple[Trial, list[Finding]]:
    """The worker's trial and the look at the peers, which both mostly wait."""

    async def trial() -> Trial:
        if samples is None:
            return Trial(())
        return await rehearse(folder, federation, site, name, worker=worker, samples=samples)

    async def peers() -> list[Finding]:
        if reach is None:
            return []
        status, listening = reach
        return await Reach(folder, federation, site, name, status).look(listening=listening)

    return await asyncio.gather(trial(), peers())

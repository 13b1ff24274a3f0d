"""What `check` looks at before a site runs: each finding is ok, a warning or a failure, with what to do about it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peer import errors, identity, lifecycle
from peer.config import Federation, Site
from peer.core import commands, events, limits, work
from peer.core.facts import Greeting
from peer.core.replay import round_records
from peer.core.roster import SiteName, round_key_tag
from peer.daemon import now
from peer.datalist import inspect_datalist
from peer.foreman import WORKER, Foreman
from peer.home import SiteFolder
from peer.journal import Journal
from peer.toml import split_address
from peer.transport import handshake, tls
from peer.transport.client import ExchangeClient, ExchangeError, Unreachable

Verdict = Literal["ok", "warning", "failure"]

CERTIFICATE_DAYS_MIN = 30
"""Enough for the founder to be on holiday."""
FREE_BYTES_MIN = 5 << 30
"""A few rounds of a ResNet-101's artifacts and checkpoints."""
DISTILLATION_SHARE_MIN = 0.01
"""Below this share of the supervised loss, distillation hardly moves a weight (METHODS of FedSKD: choose gamma)."""
SAMPLE_S = 2.0
"""A large volume on a slow network disk is read in less."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the preflight."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def check(folder: SiteFolder, *, train: bool = True, worker: Sequence[str] = WORKER) -> Iterator[Finding]:
    """Look at everything that a start needs, in the order in which it would fail.

    Args:
        folder: the site's.
        train: also start a worker, load the data and build the model, which takes a while.
        worker: what to execute as the worker.
    """
    try:
        federation, site, own = lifecycle.load(folder)
    except errors.PeerError as error:
        yield Finding("configuration", "failure", error.message, error.remedy)
        return
    yield Finding(
        "configuration", "ok", f"{federation.name}, digest {federation.digest[:12]}, {federation.method.name}"
    )
    change = lifecycle.changed(folder, federation, site)
    if change is not None:
        yield Finding("journal", "failure", change.message, change.remedy)
    running = _runs(folder)
    yield from _certificate(own)
    yield from _disk(folder)
    yield from _packages()
    yield _port(site, running=running)
    data, samples = _data(federation, site)
    yield data
    if train and data.verdict != "failure":
        limit_s = limits.WORKER_START_S + SAMPLE_S * samples
        yield asyncio.run(_worker(folder, federation, site, own.name, command=worker, limit_s=limit_s))
    yield from _distillation(folder)
    yield from global_test(federation, site)
    for peer in federation.roster.others(own.name):
        yield _peer(folder, federation, site, peer)


def _runs(folder: SiteFolder) -> bool:
    try:
        with folder.locked():
            return False
    except errors.LockedError:
        return True


def _certificate(own: identity.Identity) -> Iterator[Finding]:
    days = identity.certificate_days(own.certificate, now())
    few = days < CERTIFICATE_DAYS_MIN
    renew = "run `mhfl-peer site init --renew` and have the founder admit it"
    yield Finding("certificate", "warning" if few else "ok", f"valid for {days} more days", renew if few else "")
    ca_days = identity.certificate_days(own.ca, now())
    if ca_days < 2 * CERTIFICATE_DAYS_MIN:
        yield Finding("CA", "warning", f"valid for {ca_days} more days", "the founder must found the federation anew")


def _disk(folder: SiteFolder) -> Iterator[Finding]:
    free = shutil.disk_usage(folder.path).free
    try:
        with tempfile.TemporaryFile(dir=folder.path):
            pass
    except OSError as error:
        yield Finding(
            "disk", "failure", f"{folder.path} is not writable: {error.strerror}", "give this user the folder"
        )
        return
    low = free < FREE_BYTES_MIN
    remedy = "free space: artifacts and checkpoints of several rounds are kept" if low else ""
    yield Finding("disk", "warning" if low else "ok", f"{free / 2**30:.1f} GiB free at {folder.path}", remedy)


def _packages() -> Iterator[Finding]:
    """Another distribution's ``models`` or ``losses`` would be imported instead of ours."""
    home = Path(__file__).resolve().parent.parent
    for name in ("models", "losses"):
        found = importlib.util.find_spec(name)
        where = Path(found.origin).resolve().parent.parent if found is not None and found.origin else None
        if where != home:
            yield Finding(
                "packages", "failure", f"package {name!r} comes from {where}, not from mhfl-peer in {home}",
                "uninstall the other distribution, or use a virtual environment for mhfl-peer alone",
            )  # fmt: skip


def _port(site: Site, *, running: bool) -> Finding:
    if running:
        return Finding("listen", "ok", f"the daemon runs and serves {site.listen}")
    host, port = split_address(site.listen)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "change `listen` in site.toml or stop what uses the port"
            return Finding("listen", "failure", f"cannot listen on {site.listen}: {error.strerror}", remedy)
    return Finding("listen", "ok", f"{site.listen} is free")


def global_test(federation: Federation, site: Site) -> Iterator[Finding]:
    """Whether this site takes part in measuring models at every site, where the federation does that."""
    kept_home = federation.plan.kept_home
    if not federation.global_test or kept_home:
        return
    if site.egress.evaluate:
        yield Finding("global test", "ok", "this site's model is measured at other sites, and theirs here")
    else:
        yield Finding(
            "global test", "warning", "[egress] evaluate is false: no model is measured here, and this site's nowhere",
            "set it to true in site.toml if this site's policy allows it",
        )  # fmt: skip


def _data(federation: Federation, site: Site) -> tuple[Finding, int]:
    """What the datalist says, and how many samples it names."""
    path = site.folder / site.data.datalist
    root = site.folder / site.data.root if site.data.root is not None else None
    try:
        found = inspect_datalist(path, root=root, task=federation.task.kind, classes=federation.task.classes)
    except (OSError, ValueError, RecursionError) as error:
        return Finding("data", "failure", f"{path}: {error}", "correct [data] in site.toml or the datalist"), 0
    samples = len(found.training) + len(found.test)
    if found.problems:
        first, more = found.problems[0], len(found.problems) - 1
        text = first if str(path) in first else f"{path}: {first}"
        rest = f", and see {more} more with `mhfl-peer data validate`" if more else ""
        return Finding("data", "failure", text, f"correct [data] in site.toml or the datalist{rest}"), samples
    counts = ", ".join(f"{count} of class {label}" for label, count in found.counts("training").items())
    text = f"{len(found.training)} training samples{counts and f' ({counts})'}, {len(found.test)} for the test"
    return Finding("data", "ok" if found.test else "warning", text, "" if found.test else "add a 'test' list"), samples


async def _worker(
    folder: SiteFolder, federation: Federation, site: Site, name: SiteName, *, command: Sequence[str], limit_s: float
) -> Finding:
    """Load every sample and build the model where they will be used: in a worker."""
    answers: asyncio.Queue[events.Event] = asyncio.Queue()
    with tempfile.TemporaryDirectory(prefix="mhfl-check-") as home:
        for part in ("artifacts", "checkpoints"):
            (Path(home) / part).mkdir()
        setting = work.Setting(
            site_name=name,
            federation_digest=federation.digest,
            federation=federation.model_dump(mode="json"),
            site=site.model_dump(mode="json"),
            home=home,
            base_folder=str(folder.path),
        )
        foreman = Foreman(setting, Path(home) / "worker.log", answers.put_nowait, command=command)
        try:
            await foreman.send(commands.Initialise(1, 1))
            async with asyncio.timeout(limit_s):
                answer = await answers.get()
        except TimeoutError:
            return Finding("worker", "failure", f"no answer within {limit_s:.0f} s", "look at the disk")
        finally:
            await foreman.close()
    if not isinstance(answer, events.Initialised):
        remedies = {"data": "correct [data] in site.toml", "configuration": "correct [model] in site.toml"}
        fault, reason = getattr(answer, "fault", "crash"), getattr(answer, "reason", "")
        return Finding("worker", "failure", reason, remedies.get(fault, "see the reason"))
    unreadable = answer.samples.get("unreadable", 0)
    size = f", {answer.artifact.bytes / 2**20:.1f} MiB a model" if answer.artifact is not None else ""
    text = f"{site.model.name} on {answer.device} with {answer.threads} threads{size}, {unreadable} unreadable samples"
    return Finding("worker", "warning" if unreadable else "ok", text, "see `data validate`" if unreadable else "")


def _distillation(folder: SiteFolder) -> Iterator[Finding]:
    numbers = folder.generations()
    path = folder.generation(numbers[-1]) / "journal.db" if numbers else None
    if path is None or not path.exists():
        return
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        shares = [record["metrics"].get("distillation_ratio") for record in round_records(journal.rows(("committed",)))]
    known = [share for share in shares if share is not None]
    if known and known[-1] < DISTILLATION_SHARE_MIN:
        text = f"distillation is {known[-1]:.2%} of the supervised loss in the last round: it hardly moves a weight"
        yield Finding("gamma", "warning", text, "choose a larger gamma with the federation's other sites")


def _peer(folder: SiteFolder, federation: Federation, site: Site, peer: SiteName) -> Finding:
    address = site.addresses.get(peer) or federation.addresses.get(peer)
    if address is None:
        return Finding(peer, "warning", "no address is known", "add it to [addresses] in site.toml")
    pki = tls.Pki(folder.pki, folder.site, federation.ca_certificate or "", now)
    diagnosis = handshake.diagnose(*split_address(address), pki=pki, site=peer)
    if diagnosis.fault == handshake.Fault.UNREACHABLE:
        remedy = "start that site, or correct its address or the firewall"
        return Finding(peer, "warning", diagnosis.detail, remedy)
    if diagnosis.fault != handshake.Fault.NONE:
        return Finding(peer, "failure", f"{diagnosis.fault}: {diagnosis.detail}", "settle it with that site's operator")
    return asyncio.run(_greet(federation, peer, pki, lambda name: address if name == peer else None))


async def _greet(
    federation: Federation, peer: SiteName, pki: tls.Pki, address: Callable[[SiteName], str | None]
) -> Finding:
    """Compare digests and clocks. Generation 0 says that this is only a question, not a site that takes part."""
    client = ExchangeClient(pki=pki, federation=federation.digest, address=address)
    mine = Greeting(
        protocol=limits.PROTOCOL_VERSION,
        federation=federation.digest,
        roster=federation.roster.digest,
        generation=0,
        clock_s=time.time(),
        round_key_tag=round_key_tag(pki.load().round_key, federation.digest),
    )
    try:
        theirs = await client.hello(peer, mine)
    except Unreachable as error:
        return Finding(peer, "warning", f"does not answer now: {error.reason}", "look again in a minute")
    except ExchangeError as error:
        return Finding(peer, "failure", error.reason, "compare `mhfl-peer federation show` at both sites")
    finally:
        await client.close()
    skew_s = theirs.clock_s - time.time()
    text = f"answers as {theirs.software or 'a peer'}, same federation, clock {skew_s:+.1f} s"
    late = abs(skew_s) > limits.CLOCK_SKEW_WARNING_S
    return Finding(peer, "warning" if late else "ok", text, "set both clocks (NTP)" if late else "")

"""Whether `models` and `losses` are ours: another distribution may have packages of these names.

This module imports nothing that needs them, so that it can say so where nothing else could.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.config.toml import split_address
from peer.core import limits
from peer.core.roster import round_key_tag
from peer.daemon.dispatch import now
from peer.data.datalist import inspect_datalist
from peer.identity import certificates
from peer.preflight.finding import Finding
from peer.records.history import recent_rounds
from peer.records.journal import Journal

OURS = "mhfl-peer"
NAMES = ("models", "losses")
REMEDY = f"uninstall the other distribution, or use a virtual environment for {OURS} alone"


def packages() -> Iterator[Finding]:
    """Where another distribution's ``models`` or ``losses`` would be imported instead of ours, or lies over them."""
    home = Path(__file__).resolve().parents[2]
    owners = importlib.metadata.packages_distributions()
    for name in NAMES:
        found = importlib.util.find_spec(name)
        where = Path(found.origin).resolve().parents[1] if found is not None and found.origin else None
        others = sorted(set(owners.get(name, ())) - {OURS})
        if where != home:
            what = f"comes from {where}, not from {OURS} in {home}" if where else f"is missing from {OURS} in {home}"
        elif others:
            what = f"is also that of {', '.join(others)}, whose files may have replaced those of {OURS}"
        else:
            continue
        yield Finding(f"package {name}", "failure", f"package {name!r} {what}", REMEDY)


FREE_BYTES_MIN = 5 << 30
"""A few rounds of a ResNet-101's artifacts and checkpoints: asked for where the model's own size is not known."""
ADAM_STATES = 3
"""A checkpoint's states a parameter: the weight and Adam's two moments."""
CHECKPOINTS_MAX = limits.CHECKPOINTS_KEPT + 3
"""The kept ones, the stages of a round that is under way, and a partial one."""
DISTILLATION_SHARE_MIN = 0.01
"""Below this share of the supervised loss, distillation hardly moves a weight (METHODS of FedSKD: choose gamma)."""
REMOTE = frozenset({"afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "nfs", "nfs4", "smb3"})
"""File systems of a network, on which neither SQLite's log nor a lock can be relied upon."""
MOUNTS = Path("/proc/self/mountinfo")


def certificate_findings(own: certificates.Identity, federation: FederationConfig) -> Iterator[Finding]:
    """How long the site's certificate and the federation's CA are valid, and which round key the site has."""
    days = certificates.certificate_days(own.certificate, now())
    renew = "run `mhfl-peer site init --renew` and have the founder admit it"
    yield Finding.judged(
        "certificate", f"valid for {days} more days", renew if days < limits.CERTIFICATE_DAYS_MIN else ""
    )
    ca_days = certificates.certificate_days(own.ca, now())
    anew = "the founder must found the federation anew"
    yield Finding.judged(
        "CA", f"valid for {ca_days} more days", anew if ca_days < 2 * limits.CERTIFICATE_DAYS_MIN else ""
    )
    tag = round_key_tag(own.round_key, federation.digest)
    yield Finding("round key", "ok", f"tag {tag[:12]}, which peers compare when they greet")


def disk(folder: SiteFolder, federation: FederationConfig, artifact_bytes: int | None) -> Iterator[Finding]:
    """Whether the site's folder can be written, and holds what is kept of several rounds.

    Args:
        folder: the site's.
        federation: says how many artifacts of how many sites are kept.
        artifact_bytes: the size of what the site sends; nothing where that is not known.
    """
    path = folder.path
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        yield Finding("disk", "failure", f"{path} is not writable: {error.strerror}", "give this user the folder")
        return
    free, needed, what = shutil.disk_usage(path).free, FREE_BYTES_MIN, "artifacts and checkpoints of several rounds"
    if artifact_bytes is not None:
        received = len(federation.site) - 1 if federation.plan.pattern == "all_to_all" else 1
        files = federation.pace.artifact_rounds_max + received + ADAM_STATES * CHECKPOINTS_MAX
        needed, what = files * artifact_bytes, f"{files} times {artifact_bytes / 2**20:.1f} MiB are kept of rounds"
    remedy = f"free space: {what}" if free < needed else ""
    yield Finding.judged("disk", f"{free / 2**30:.1f} GiB free at {path}", remedy)
    kind = filesystem(path)
    if kind in REMOTE:
        remedy = "keep the state folder (--home, MHFL_HOME) on a disk of this machine: data may lie elsewhere"
        yield Finding("disk", "warning", f"{path} is on a network file system ({kind}), where locks may fail", remedy)


def filesystem(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a path is on; empty where the system does not say."""
    try:
        lines = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    where = path.resolve()
    # Mount point in field 5; type after a lone hyphen; the last mount on a point is the one seen. See proc(5).
    found = [
        (len(point.parts), number, fields[fields.index("-") + 1])
        for number, fields in enumerate(lines)
        if "-" in fields and where.is_relative_to(point := Path(fields[4].replace("\\040", " ")))
    ]
    return max(found)[2] if found else ""


def port(subject: str, address: str, *, key: str) -> Finding:
    """Whether an address that a key of site.toml names can be listened on."""
    host, number = split_address(address)
    try:
        family, kind, _, _, name = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(name)
            probe.listen()
    except OSError as error:
        remedy = f"change `{key}` in site.toml or stop what uses the port"
        return Finding(subject, "failure", f"cannot listen on {address}: {error.strerror}", remedy)
    return Finding(subject, "ok", f"{address} is free")


def policy(federation: FederationConfig, site: SiteConfig, artifact_bytes: int | None) -> Finding:
    """What may leave, and whether a bound on bytes lets a round's artifacts through."""
    plan, egress = federation.plan, site.egress
    if plan.artifact is None:
        return Finding("policy", "ok", f"{federation.method.name} sends nothing")
    limit, others = egress.bytes_per_round_max, len(federation.site) - 1
    receivers = others if plan.pattern == "all_to_all" else min(1, others)
    bound = "" if limit is None else f", at most {limit} bytes a round"
    text = f"a {plan.artifact} may leave for {', '.join(egress.receivers).replace('*', 'every site')}{bound}"
    if limit is None or artifact_bytes is None or limit >= receivers * artifact_bytes:
        return Finding("policy", "ok", text)
    need = f"{receivers} times {artifact_bytes}" if receivers > 1 else str(artifact_bytes)
    remedy = f"set [egress] bytes_per_round_max in site.toml to at least {receivers * artifact_bytes}, or leave it out"
    failure = limit < artifact_bytes
    return Finding.judged("policy", f"{text}, but a round needs {need} bytes", remedy, failure=failure)


def global_test(federation: FederationConfig, site: SiteConfig) -> Iterator[Finding]:
    """Whether this site takes part in measuring models at every site, where the federation does that."""
    if not federation.global_test or federation.plan.evaluation_denied is not None:
        return
    if site.egress.evaluate:
        yield Finding("global test", "ok", "this site's model is measured at other sites, and theirs here")
    else:
        yield Finding(
            "global test", "warning", "[egress] evaluate is false: no model is measured here, and this site's nowhere",
            "set it to true in site.toml if this site's policy allows it",
        )  # fmt: skip


def data(federation: FederationConfig, site: SiteConfig) -> tuple[Finding, int]:
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
    return Finding.judged("data", text, "" if found.test else "add a 'test' list"), samples


def distillation(folder: SiteFolder) -> Iterator[Finding]:
    """Whether the newest finished round learnt anything from what came."""
    numbers = folder.generations()
    path = folder.generation(numbers[-1]) / "journal.db" if numbers else None
    if path is None or not path.exists():
        return
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        shares = [committed.metrics.get("distillation_ratio") for committed in recent_rounds(journal)]
    known = [share for share in shares if share is not None]
    if known and known[-1] < DISTILLATION_SHARE_MIN:
        text = f"distillation is {known[-1]:.2%} of the supervised loss in the last round: it hardly moves a weight"
        yield Finding("gamma", "warning", text, "choose a larger gamma with the federation's other sites")

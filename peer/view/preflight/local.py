"""The checks of this machine: packages, certificates, disk, ports, policy, data and the last round.

Another distribution may have packages named `models` or `losses`. This module imports neither, so
that it can report that where all other modules fail to import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from peer import landlock
from peer.cohorts import person_of
from peer.core import limits
from peer.core.plan import visits
from peer.core.roster import round_key_tag
from peer.core.tasks import CLASSIFYING
from peer.daemon.dispatch import now
from peer.errors import ConfigError
from peer.files import ARTIFACT_SUFFIX, STRAY_FOLDER
from peer.net.relay.server import PARKED_PER_SITE_MAX
from peer.net.transport import descriptors
from peer.quantities import size
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder, home_folder, sites
from peer.site.config.toml import split_address
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.history import History, recent_rounds
from peer.site.records.journal import Journal
from peer.site.records.trained_people import datalist_change
from peer.train.data.copies import copy_problems
from peer.train.data.datalist import Datalist, inspect_datalist
from peer.train.data.survey import header_warnings
from peer.view.preflight.finding import Finding

DISTRIBUTION = "mhfl-peer"
NAMES = ("models", "losses")
HOME_VARIABLES = ("MHFL_HOME", "XDG_STATE_HOME")
PROXY_VARIABLES = ("https_proxy", "all_proxy", "no_proxy")
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
REMEDY = f"uninstall the other distribution, or use a virtual environment for {DISTRIBUTION} alone"


def check_packages() -> Iterator[Finding]:
    """Findings where another distribution's ``models`` or ``losses`` hide these."""
    home = Path(__file__).resolve().parents[3]
    owners = importlib.metadata.packages_distributions()
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        where = Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else None
        others = sorted(set(owners.get(name, ())) - {DISTRIBUTION})
        if where != home:
            problem = (
                f"comes from {where}, not from {DISTRIBUTION} in {home}"
                if where
                else f"is missing from {DISTRIBUTION} in {home}"
            )
        elif others:
            problem = f"is also that of {', '.join(others)}, whose files may have replaced those of {DISTRIBUTION}"
        else:
            continue
        yield Finding(f"package {name}", "failure", f"package {name!r} {problem}", REMEDY)


FREE_BYTES_MIN = 5 << 30
"""Artifacts and checkpoints of a few rounds of a ResNet-101: required where the model's own size is
unknown.
"""
FREE_BYTES_ROUND = 64 << 20
"""Journal, ledger and logs of a round, however small the model is: with less the check fails."""
ADAM_STATES = 3
"""Values per parameter in a checkpoint: the weight and Adam's two moments."""
CHECKPOINTS_MAX = limits.CHECKPOINTS_KEPT + 4
"""The finished rounds', the best round's, those of the current stages, and one being written."""
DISTILLATION_SHARE_MIN = 0.01
"""Below this share of the supervised loss, FedSKD's distillation hardly moves a weight."""
NETWORK_FILE_SYSTEMS = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "nfs", "nfs4", "smb3"}
)
"""Network file systems, on which SQLite's log and locks are unreliable."""
MOUNTS = Path("/proc/self/mountinfo")


def check_certificates(own: certificates.Identity, federation: FederationConfig) -> Iterator[Finding]:
    """Report the days until both certificates expire, and the tag of the site's round key."""
    days = certificates.certificate_days(own.certificate, now())
    renew = "run `mhfl-peer site init --renew` and have the founder admit it"
    yield Finding.by_remedy(
        "certificate", f"valid for {days} more days", renew if days < limits.CERTIFICATE_DAYS_MIN else ""
    )
    ca_days = certificates.certificate_days(own.ca, now())
    anew = "the founder must found the federation anew"
    yield Finding.by_remedy(
        "CA", f"valid for {ca_days} more days", anew if ca_days < 2 * limits.CERTIFICATE_DAYS_MIN else ""
    )
    if own.round_key is None:
        yield Finding(
            "round key", "ok", "none of federation.toml: the first member that is reached gives this site its own"
        )
    else:
        tag = round_key_tag(own.round_key, federation.digest)
        yield Finding("round key", "ok", f"tag {tag[:12]}, which peers compare when they greet")


def check_confinement() -> Finding:
    """Check whether the worker, which runs network code, can be kept from the keys of this machine's sites."""
    if version := landlock.abi():
        text = f"Landlock {version}: the worker cannot read pki/, nor write outside its own folders"
        return Finding("confinement", "ok", text)
    text = "this kernel has no Landlock: network code that the worker runs could read the private key"
    return Finding("confinement", "warning", text, "use a kernel from 5.13 on with landlock in `lsm=`, or trusted code")


def check_environment(
    folder: SiteFolder, site: SiteConfig, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Return a finding that names the variables of this command's environment that set something, or seem to."""
    remarks = []
    if name := next((name for name in HOME_VARIABLES if environ.get(name)), ""):  # the first one hides the other
        of_variable = home_folder(environ={name: environ[name]})
        used = (
            f"names the state folder, {of_variable}"
            if folder.home == of_variable
            else f"is not used: the state folder is {folder.home}"
        )
        remarks.append(f"{name} {used}")
    proxies = sorted(name for name in environ if name.lower() in PROXY_VARIABLES and environ[name])
    if proxies:
        obeyed = "environment" in (site.connect.proxy, *site.connect.peers.values())
        says = "used, by [connect]" if obeyed else 'not used: [connect] does not say proxy = "environment"'
        remarks.append(f"{', '.join(proxies)} {says}")
    if GPU_VARIABLE in environ:
        remarks.append(f"{GPU_VARIABLE}={environ[GPU_VARIABLE]} limits the GPUs")
    if remarks:
        text = f"{'; '.join(remarks)}. A daemon that a service starts has its own environment"
        yield Finding("environment", "ok", text)


def check_disk(folder: SiteFolder, federation: FederationConfig, artifact_bytes: int | None) -> Iterator[Finding]:
    """Check whether the site's folder is writable, and its disk has room for the files of several rounds.

    Args:
        federation: its rules give the number of artifacts to keep.
    """
    path = folder.path
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        yield Finding("disk", "failure", f"{path} is not writable: {error.strerror}", "give this user the folder")
        return
    free, needed, need = shutil.disk_usage(path).free, FREE_BYTES_MIN, "artifacts and checkpoints of several rounds"
    if artifact_bytes is not None:
        hosted = visits(federation.plan, sites=len(federation.site), parameters=federation.parameters)
        received = len(federation.site) - 1 if federation.plan.pattern == "all_to_all" else max(1, 2 * hosted)
        files = (1 + hosted) * federation.pace.artifact_rounds_max + received + ADAM_STATES * CHECKPOINTS_MAX
        needed, need = files * artifact_bytes, f"{files} times {size(artifact_bytes)} are kept of rounds"
    remedy = f"free space: {need}" if free < max(needed, FREE_BYTES_ROUND) else ""
    first_round = (2 + ADAM_STATES) * artifact_bytes if artifact_bytes is not None else 0
    full = free < max(FREE_BYTES_ROUND, first_round)
    yield Finding.by_remedy("disk", f"{size(free)} free at {path}", remedy, failure=full)
    kind = filesystem_type(path)
    if kind in NETWORK_FILE_SYSTEMS:
        remedy = "keep the state folder (--home, MHFL_HOME) on a disk of this machine: data may lie elsewhere"
        yield Finding("disk", "warning", f"{path} is on a network file system ({kind}), where locks may fail", remedy)


def check_strays(folder: SiteFolder) -> Iterator[Finding]:
    """Return a warning about artifacts that a start has put aside."""
    paths = [folder.generation(number) / STRAY_FOLDER for number in folder.generations()]
    sizes = [file.stat().st_size for path in paths for file in path.glob(f"*{ARTIFACT_SUFFIX}")]
    if sizes:
        where = ", ".join(str(path) for path in paths if path.exists())
        text = f"{where}: {len(sizes)} artifacts ({size(sum(sizes))}) that no row of the journal names"
        yield Finding("strays", "warning", text, f"delete {where} unless a newer journal of this site turns up")


def filesystem_type(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that has the path.

    Empty where the operating system does not tell it.
    """
    try:
        lines = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    where = path.resolve()
    # proc(5): the mount point is field 5, the type follows a single hyphen; the last mount on a
    # point hides the others.
    fitting = [
        (len(point.parts), number, fields[fields.index("-") + 1])
        for number, fields in enumerate(lines)
        if "-" in fields and where.is_relative_to(point := Path(fields[4].replace("\\040", " ")))
    ]
    return max(fitting)[2] if fitting else ""


def check_port(subject: str, address: str, *, key: str) -> Finding:
    """Check whether the daemon could listen on an address, which this key of site.toml has."""
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


def check_descriptors(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> Iterator[Finding]:
    """Check whether this process may open enough files for a daemon that every site may call."""
    head = MembershipFolder(folder.membership).chain(federation).head
    sites, configured = len(head.used_names - head.expelled), site.limits.connections_max
    most = descriptors.open_files_max()
    needed = descriptors.descriptors_needed(configured, sites=sites)
    relaying = 0 if site.connect.relay_listen is None else 2 * PARKED_PER_SITE_MAX
    remedy = f"raise the limit to {needed + relaying} where the daemon starts (LimitNOFILE in its unit, ulimit -n)"
    if most >= needed:
        limit = "any number of" if most == math.inf else f"{most:.0f}"
        yield Finding("open files", "ok", f"{needed} at most among {sites} sites, and this user may open {limit}")
    else:
        accepted = descriptors.connections_max(configured, sites=sites)
        text = f"this user may open {most:.0f}, {sites} sites may need {needed}: a start takes {accepted} connections"
        failure = accepted < limits.CONNECTIONS_PER_PEER_RESERVED * (sites - 1)
        yield Finding.by_remedy("open files", f"{text} here", remedy, failure=failure)
    if relaying and descriptors.relay_connections(configured, sites=sites) < PARKED_PER_SITE_MAX:
        text = f"a relay needs {relaying} more than the {needed} of this site, and this user may open {most:.0f}"
        yield Finding("relay", "failure", text, f"{remedy}, or leave [connect] relay_listen out")


def check_neighbours(folder: SiteFolder, site: SiteConfig) -> Iterator[Finding]:
    """Return a warning about sites of this home that listen at a port of this one: only one of them can run."""
    own, shared = listening_ports(site), []
    for neighbour in sites(folder.home):
        with contextlib.suppress(ConfigError):  # its own check says so
            ports = own & listening_ports(SiteConfig.load(neighbour.site_toml)) if neighbour != folder else ()
            shared += [f"{neighbour.federation}/{neighbour.site} has port {port}" for port in sorted(ports)]
    if shared:
        remedy = f"take another port in {site.where}, unless only one of them ever runs"
        yield Finding("ports", "warning", f"of the sites of this machine, {', '.join(shared)}, too", remedy)


def listening_ports(site: SiteConfig) -> set[int]:
    """Return the ports that the daemon listens at: for peers, for metrics, and as a relay."""
    addresses = (site.listen, site.metrics.listen, site.connect.relay_listen)
    return {split_address(address)[1] for address in addresses if address is not None} - {0}


def find_unaccepted(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> tuple[str, ...]:
    """Find the newcomers that get nothing from this site before its operator accepts them."""
    if site.egress.newcomers == "accept":
        return ()
    kept = MembershipFolder(folder.membership)
    permitted = {*federation.roster, *site.egress.receivers, *kept.accepted(), folder.site}
    return tuple(name for name in kept.chain(federation).head.members if name not in permitted)


def largest_received(folder: SiteFolder) -> int | None:
    """Return the bytes of the largest artifact that the site has received, or None."""
    received = History(folder, received=True).read_all().received
    return max((transfer.bytes for transfer in received), default=None)


def check_policy(
    federation: FederationConfig,
    site: SiteConfig,
    artifact_bytes: int | None,
    unaccepted: Sequence[str] = (),
    *,
    visitor_bytes: int | None = None,
) -> Finding:
    """Report the artifacts that may leave, and whether ``bytes_per_round_max`` suffices for a round.

    Args:
        unaccepted: newcomers that get nothing yet.
        visitor_bytes: the size of the largest model that visits; a return has the size of the visitor's model.
    """
    plan, egress = federation.plan, site.egress
    if plan.artifact is None:
        return Finding("policy", "ok", f"{federation.method.name} sends nothing")
    limit, others = egress.bytes_per_round_max, len(federation.site) - 1
    hosted = visits(plan, sites=len(federation.site), parameters=federation.parameters)
    receivers = others if plan.pattern == "all_to_all" else hosted or min(1, others)
    at_most = "" if limit is None else f", at most {limit} bytes a round"
    kinds = " and a ".join(plan.sends)
    text = f"a {kinds} may leave for {', '.join(egress.receivers).replace('*', 'every site')}{at_most}"
    accept = ""
    if unaccepted:
        text += f"; {', '.join(unaccepted)} joined later: nothing is sent there yet"
        commands = ", ".join(f"`mhfl-peer federation accept {name}`" for name in unaccepted)
        accept = f"run {commands} here, if this site's policy permits it"
    if limit is None or artifact_bytes is None:
        return Finding.by_remedy("policy", text, accept)
    returned = max(artifact_bytes, visitor_bytes or 0) if hosted else 0
    needed = receivers * artifact_bytes + hosted * returned
    if limit >= needed and (visitor_bytes is not None or not hosted):
        return Finding.by_remedy("policy", text, accept)
    need = f"{receivers} times {artifact_bytes}" if receivers > 1 else str(artifact_bytes)
    if hosted:
        need += f" and, for returns, {hosted} times the largest model of the others"
        need += " (not known here yet)" if visitor_bytes is None else f", {returned}"
    least = str(needed)
    if hosted and visitor_bytes is None:  # `check` at each site says the size of its model
        least = f"{receivers * artifact_bytes} and {hosted} times the largest model that `check` shows at the others"
    remedy = f"set [egress] bytes_per_round_max in site.toml to at least {least}, or leave it out"
    remedy += f"; {accept}" if accept else ""
    failure = limit < artifact_bytes + returned
    return Finding.by_remedy("policy", f"{text}, but a round needs {need} bytes", remedy, failure=failure)


def check_global_test(federation: FederationConfig, site: SiteConfig, test_samples: int) -> Iterator[Finding]:
    """Check whether the site takes part in the Global Test, if the federation has one, and has enough test samples."""
    if not federation.global_test or federation.plan.evaluation_denied is not None:
        return
    least = site.egress.evaluation_samples_min
    if site.egress.evaluate and test_samples >= least:
        yield Finding("global test", "ok", "this site's model is measured at other sites, and theirs here")
    elif site.egress.evaluate:
        yield Finding(
            "global test", "warning",
            f"this site has {test_samples} test samples, fewer than [egress] evaluation_samples_min = {least}: the "
            'others read "withheld" instead of what their models reach here, and no model has a mean of all sites',
            "add test samples, or lower the bound in site.toml if this site's policy allows it",
        )  # fmt: skip
    else:
        yield Finding(
            "global test", "warning", "[egress] evaluate is false: no model is measured here, and this site's nowhere",
            "set it to true in site.toml if this site's policy allows it",
        )  # fmt: skip


def check_data(federation: FederationConfig, site: SiteConfig) -> tuple[Finding, int, int]:
    """Check whether the datalist is valid; count all samples that it has, and those for the test."""
    path = site.folder / site.data.datalist
    root = site.folder / site.data.root if site.data.root is not None else None
    try:
        task = federation.task
        survey = inspect_datalist(path, root=root, learns=federation.plan.predicts, **task.labelling())
    except (OSError, ValueError, RecursionError) as error:
        return Finding("data", "failure", f"{path}: {error}", "correct [data] in site.toml or the datalist"), 0, 0
    samples, tests = len(survey.training) + len(survey.test), len(survey.test)
    if problems := [*survey.problems, *copy_problems(survey, values=True)]:
        first, more = problems[0], len(problems) - 1
        text = first if str(path) in first else f"{path}: {first}"
        rest = f", and see {more} more with `mhfl-peer data validate`" if more else ""
        return Finding("data", "failure", text, f"correct [data] in site.toml or the datalist{rest}"), samples, tests
    counts = ", ".join(f"{count} of class {label}" for label, count in survey.counts("training").items())
    text = f"{len(survey.training)} training samples{counts and f' ({counts})'}, {len(survey.test)} for the test"
    # What trains is said here; advice to set a key of [data] is for `data inspect`.
    settled = ["spacing", "normalise", *(["orientation"] if site.data.orientation is not None else [])]
    remedies = [*([] if survey.test else ["add a 'test' list"]), *survey.notes, *header_warnings(survey, settled)]
    if task.kind in CLASSIFYING and task.target == "class":
        remedies += _metrics_without_value(survey, site.data.validation_share)
    if survey.class_names and not task.class_names:
        named = ", ".join(f"{number} {name}" for number, name in sorted(survey.class_names.items()))
        remedies.append(
            f"compare the classes' numbers with the other sites ({named}): federation.toml has no class_names, which "
            "would do it"
        )
    return Finding.by_remedy("data", text, "; ".join(remedies)), samples, tests


def _metrics_without_value(listed: Datalist, validation_share: float) -> Iterator[str]:
    """Say before the first round of which classes no sample can measure the AUC."""
    trained, tested = listed.counts("training"), listed.counts("test")
    if len(tested) == 1:
        yield f"add test samples of other classes: all are of class {next(iter(tested))}, so that no AUC can be had"
    elif tested and (lacking := sorted(trained.keys() - tested.keys())):
        names = ", ".join(map(str, lacking))
        yield f"add test samples of class {names}, or the AUC of the test leaves it out"
    people: dict[int, set[str]] = {label: set() for label in trained}
    for sample in listed.training:
        people[sample.label if isinstance(sample.label, int) else 0].add(person_of(sample.name, sample.subject))
    rare = [str(label) for label, subjects in people.items() if round(validation_share * len(subjects)) == 0]
    if validation_share > 0 and rare:
        few = f"of class {', '.join(rare)}, validation_share = {validation_share:g} holds out nobody"
        yield f"raise it, or validation has no AUC of that class: {few}"


def check_people(folder: SiteFolder, site: SiteConfig) -> Iterator[Finding]:
    """Return a warning if people of the last trained round have left the datalist."""
    path = folder.generation(max(folder.generations(), default=0)) / "journal.db"
    if not path.exists():
        return
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        change = datalist_change(journal, site.folder / site.data.datalist)
    if change:
        remedy = "the next start trains without them; `mhfl-peer withdraw` says what may hold them, and who has it"
        yield Finding("people", "warning", change, remedy)


def check_distillation(folder: SiteFolder) -> Iterator[Finding]:
    """Return a warning if distillation hardly contributed to the newest finished round."""
    numbers = folder.generations()
    path = folder.generation(numbers[-1]) / "journal.db" if numbers else None
    if path is None or not path.exists():
        return
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        shares = [committed.metrics.get("distillation_ratio") for committed in recent_rounds(journal)]
    measured = [share for share in shares if share is not None]
    if measured and measured[-1] < DISTILLATION_SHARE_MIN:
        text = f"distillation is {measured[-1]:.2%} of the supervised loss in the last round: it hardly moves a weight"
        yield Finding("gamma", "warning", text, "choose a larger gamma with the federation's other sites")

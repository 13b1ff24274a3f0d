"""The page for a data protection officer: what may leave a site, what left, to whom and when, and the proofs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.audit import verification
from peer.documents.commands import LedgerVerified
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.site_tables import EgressConfig
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.history import OPEN, History, Transfer
from peer.site.records.ledger import UNKNOWN
from peer.site.records.members import Members
from peer.site.records.snapshot import SentTotal
from peer.view.dashboard.collect import sent_totals
from peer.view.dashboard.elements import clock, size, table, text
from peer.view.tracking.scalars import EXPORT
from peer.web_page import render_page

STYLE = Path(__file__).with_name("page.css")
PRINT_STYLE = """
@page { size: A4 portrait; margin: 16mm; }
.sign { display: flex; flex-wrap: wrap; gap: 2.5rem; margin-top: 3rem; break-inside: avoid; }
.sign span { flex: 1 1 12rem; border-top: 1px solid var(--ink); padding-top: .25rem; color: var(--faint); }
.verdict { border-left: 4px solid var(--well); background: var(--shade); padding: .5rem .9rem; font-weight: 600; }
.verdict.broken { border-color: var(--lost); background: var(--warn); }
tr { break-inside: avoid; }
"""
KIND_WORDS: Mapping[str, str] = {
    "model": "the weights and buffers of the site's network",
    "head": "the weights of the network's last layers",
    "proxy": "the weights of a small network that learns beside the site's own, which stays",
    "messenger": "the weights of a small network that carries knowledge between sites",
    "return": "the weights of another site's network that trained here, back to its owner alone",
    "prototype": "the mean feature of each class, over this site's training samples",
    "prediction": "what the network predicts for a public set of images, which all sites have",
    "metrics": "figures of this site's test split, such as an AUC, with the number of its samples",
}
PURPOSE_WORDS: Mapping[str, str] = {
    "train": "training at another site",
    "handback": "a model that circulates, on its way home",
    "return": "a model that visited this site, on its way home",
    "evaluate": "evaluation at another site",
    "metrics": "another site's evaluation",
    EXPORT: "a file that the operator exported",
}
NOT_LEFT = "No image, signal, label, file name or patient's record is sent: the program has no message for them."
RISK = (
    "Weights can reveal something of the data that they were trained on, and nothing here adds noise to them: whether "
    "they may leave is a decision of this site."
)
PROOF = (
    "Before the first byte of a transfer, the daemon writes a row to the ledger, and after the last another one. The "
    "rows form a chain of hashes. The other sites receive the head of this chain, signed, with every artifact: a copy "
    "of the head from another site shows whether rows were removed later."
)


@dataclass(frozen=True, slots=True)
class EgressReport:
    """What the page shows."""

    folder: SiteFolder
    federation: FederationConfig
    site: SiteConfig
    receivers: tuple[str, ...]
    sent: tuple[Transfer, ...]
    verified: LedgerVerified
    certificate: str
    time_s: float

    @property
    def totals(self) -> list[SentTotal]:
        return sent_totals(self.sent)


def read_report(folder: SiteFolder, witnesses: Sequence[Path], *, time_s: float) -> EgressReport:
    """Read policy and ledger, and verify the ledger against these witnesses.

    Raises:
        PeerError: a file cannot be read. Faults of the ledger are in ``verified`` instead.
    """
    verified = verification.verify(folder, witnesses)
    certificate = certificates.find_certificate(folder.pki)
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    return EgressReport(
        folder,
        federation,
        site,
        tuple(find_receivers(folder, federation, site.egress)),
        tuple(History(folder, sent=True).read_all().sent),
        verified,
        "" if certificate is None else certificates.fingerprint(certificates.certificate_key(certificate)),
        time_s,
    )


def find_receivers(folder: SiteFolder, federation: FederationConfig, egress: EgressConfig) -> Iterator[str]:
    """The other members to which artifacts may leave; a newcomer only once it was accepted."""
    members, accepted = Members.read(folder), MembershipFolder(folder.membership).accepted()
    for name in federation.roster.names if members is None else members.present():
        is_new = name not in federation.roster and name not in egress.receivers
        permitted = egress.newcomers == "accept" or name in accepted if is_new else egress.permits_receiver(name)
        if permitted and name != folder.site:
            yield name


def write_report(report: EgressReport, *, version: str) -> str:
    """The page as HTML, to read or to print."""
    site, federation = report.folder.site, report.federation
    body = [
        "<main>",
        f"<h1>What left {text(site)}<small>{text(federation.name)}</small></h1>",
        f'<p class="facts"><span>written {clock(report.time_s)}</span><span>{_period(report)}</span></p>',
        *_summary(report),
        "<h2>What may leave</h2>",
        "<p>By the method of the federation and by <code>[egress]</code> in this site's <code>site.toml</code>, as "
        "they are today:</p>",
        table(("what", "rule"), policy(federation, report.site, report.receivers)),
        f"<p>{RISK} Beside artifacts, sites exchange greetings, heartbeats (round, phase, progress) and signed "
        "descriptions of artifacts (shapes, digest, the architecture's name).</p>",
        "<h2>What left, to whom</h2>",
        *_receivers(report),
        "<h2>What left, month by month</h2>",
        *_months(report),
        "<h2>Proofs</h2>",
        *_proofs(report),
        f"</main>\n<footer>mhfl-peer {text(version)}. An officer can verify this without trust in this machine: "
        "<code>mhfl-peer help audit</code>.</footer>",
    ]
    style = STYLE.read_text("utf-8") + PRINT_STYLE
    return render_page(f"What left {site} – mhfl-peer", "\n".join(body), style=style)


def policy(federation: FederationConfig, site: SiteConfig, receivers: Sequence[str]) -> list[tuple[str, str]]:
    """What may leave, in words: a subject and its rule."""
    plan, egress = federation.plan, site.egress
    method = federation.method.name
    kinds = [kind for kind in plan.sends if kind in egress.permitted_kinds(plan)]
    rules = [(f"a {kind}", f"{KIND_WORDS[kind]}; at most as the schedule of each round says") for kind in kinds]
    if not kinds:
        rules.append(("artifacts", f"none: {method} sends nothing"))
    stays = [kind for kind in plan.never_leaves if kind not in kinds]
    if stays:
        rules.append(("never", f"no setting lets a {' or a '.join(stays)} leave with {method}"))
    rules.append(("receivers", ", ".join(receivers) or "none"))
    limit = egress.bytes_per_round_max
    rules.append(("amount", "no bound" if limit is None else f"at most {size(limit)} a round, for all receivers"))
    if federation.global_test and egress.evaluate and plan.evaluation_denied is None:
        least = egress.evaluation_samples_min
        rules.append(
            ("evaluation", "other sites may measure this site's model on their test data, and get figures of this "
             f"site's test split, if it has at least {least} samples")
        )  # fmt: skip
    else:
        rules.append(("evaluation", "no model leaves for it, and no figure of this site's data"))
    size_told = "the other sites may learn it" if egress.training_set_size else "the other sites do not learn it"
    rules.append(("number of training samples", size_told))
    again = "may be part of models that others export" if egress.reexport else "may not be part of models they export"
    rules.append(("what the receivers do", f"what they receive from this site {again}"))
    return rules


def _period(report: EgressReport) -> str:
    if not report.sent:
        return "no transfer yet"
    first, last = report.sent[0].time_s, max(transfer.time_s for transfer in report.sent)
    return f"transfers from {clock(first)} to {clock(last)}"


def _summary(report: EgressReport) -> Iterator[str]:
    receivers = {total["receiver"] for total in report.totals if total["purpose"] != EXPORT}
    count, total_bytes = len(report.sent), sum(transfer.bytes for transfer in report.sent)
    verified = report.verified
    if report.sent:
        sites = "one site" if len(receivers) == 1 else f"{len(receivers)} sites"
        transfers = "one transfer" if count == 1 else f"{count} transfers"
        yield f"<p>{transfers} with {size(total_bytes)} left this site for {sites}. {NOT_LEFT}</p>"
    else:
        yield f"<p>Nothing has left this site. {NOT_LEFT}</p>"
    if verified["problems"]:
        yield f'<p class="verdict broken">The ledger is not whole: {text(verified["problems"][0])}.</p>'
    else:
        witnesses = ", ".join(witness["by"] for witness in verified["witnesses"])
        seen = f"; {witnesses} confirmed its first {verified['vouched_rows']} rows" if witnesses else ""
        yield f'<p class="verdict">The ledger of these transfers is whole{text(seen)}.</p>'


def _receivers(report: EgressReport) -> Iterator[str]:
    rows = [
        (
            total["receiver"],
            total["kind"],
            PURPOSE_WORDS.get(total["purpose"], total["purpose"]),
            total["transfers"],
            total["complete"],
            size(total["bytes"]),
            clock(total["last"]),
        )
        for total in report.totals
    ]
    columns = ("receiver", "what", "for", "transfers", "complete", "bytes", "last")
    yield table(columns, rows, numbers=("transfers", "complete", "bytes")) if rows else "<p>Nothing.</p>"
    if any(transfer.outcome in (OPEN, UNKNOWN) for transfer in report.sent):
        yield '<p class="note">A transfer whose end is open or unknown counts with all its bytes.</p>'


def _months(report: EgressReport) -> Iterator[str]:
    months: dict[str, list[Transfer]] = {}
    for transfer in report.sent:
        month = datetime.datetime.fromtimestamp(transfer.time_s).strftime("%Y-%m")
        months.setdefault(month, []).append(transfer)
    rows = [
        (month, total["receiver"], total["kind"], total["transfers"], size(total["bytes"]))
        for month, transfers in sorted(months.items())
        for total in sent_totals(transfers)
    ]
    columns = ("month", "receiver", "what", "transfers", "bytes")
    yield table(columns, rows, numbers=("transfers", "bytes")) if rows else "<p>Nothing.</p>"
    yield '<p class="note"><code>mhfl-peer egress</code> lists each transfer.</p>' if rows else ""


def _proofs(report: EgressReport) -> Iterator[str]:
    verified = report.verified
    head = verified["head"]
    yield f"<p>{text(PROOF)}</p>"
    rows: list[tuple[str, object]] = [
        ("rows", f"{verified['rows']}, of {verified['transfers']} transfers; {len(verified['open'])} have no end yet"),
        ("head of the ledger", f"row {head['count']}, SHA-256 {head['hash']}"),
        ("settings of the federation", f"SHA-256 {report.federation.digest}"),
        ("this site's key", f"fingerprint {report.certificate or 'unknown: no certificate can be read'}"),
        ("own signed heads", f"{verified['own_manifests'] or 0} compared"),
    ]
    rows += [
        ("witness", f"{witness['by']} has seen the first {witness['rows']} rows, up to round {witness['round']}")
        for witness in verified["witnesses"]
    ]
    for restored in verified["restored"]:
        rows.append(("restored", f"{clock(restored['time'])}: an older backup; reported by {restored['reported_by']}"))
    rows += [("problem", problem) for problem in verified["problems"]]
    rows += [("not proven", claim) for claim in verified["unproven"]]
    yield table(("proof", "result"), rows)
    yield (
        '<p class="sign"><span>place and date</span><span>operator of this site</span>'
        "<span>data protection officer</span></p>"
    )

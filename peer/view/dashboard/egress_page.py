"""The page for a data protection officer: the egress policy, the transfers with receiver and time, and the proofs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.audit import verification
from peer.core.leak import ANSWER_WORDS, LeakFacts
from peer.core.privacy import Noise, describe_contradiction, explain_guarantee, power_of_ten
from peer.documents.commands import LedgerVerified
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.site_tables import EgressConfig
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.history import OPEN, History, Transfer
from peer.site.records.ledger import OPENING, UNKNOWN
from peer.site.records.members import Members
from peer.site.records.snapshot import SentTotal
from peer.view.dashboard.collect import sent_totals
from peer.view.tracking.scalars import EXPORT
from peer.web_page import PageTable, clock, environment, render_page, size

STYLES = ("dashboard.css", "egress.css")
KIND_WORDS: Mapping[str, str] = {
    "model": "the weights and buffers of the site's network",
    "head": "the weights of the network's last layers",
    "proxy": "the weights of a small network that learns beside the site's own, which stays",
    "messenger": "the weights of a small network that carries knowledge between sites",
    "return": "the weights of another site's network that trained here, back to its owner alone",
    "prototype": "the mean feature of each class, over this site's training samples",
    "prediction": "what the network predicts for a public set of images, which all sites have",
    "sums": "numbers added up over this site's samples, whose number they tell: counts, or products of features and "
    "targets",
    OPENING: "seeds that remove this site's masks from a sum; nobody learns its artifact from them",
    "metrics": "figures of this site's test split, such as an AUC, with the number of its samples",
}
MEMBERSHIP: Mapping[str, float] = {
    "model": 0.74,
    "head": 0.51,
    "proxy": 0.69,
    "messenger": 0.51,
    "return": 0.75,
    "prototype": 0.52,
    "prediction": 0.56,
    "sums": 1.0,
}
"""By kind, how well a membership inference attack did after the last round: the largest AUC in guarantees.md."""
LEAK_UNKNOWN: Mapping[str, str] = {"send": "leaves", "refuse": "stays, too"}
PURPOSE_WORDS: Mapping[str, str] = {
    "train": "training at another site",
    "handback": "a model that circulates, on its way home",
    "return": "a model that visited this site, on its way home",
    "evaluate": "evaluation at another site",
    "metrics": "another site's evaluation",
    EXPORT: "a file that the operator exported",
}


@dataclass(frozen=True, slots=True)
class EgressReport:
    """The data of the page."""

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
    """Find the other members to which artifacts may leave; a newcomer only once it was accepted."""
    members, accepted = Members.read(folder), MembershipFolder(folder.membership).accepted()
    for name in federation.roster.names if members is None else members.present():
        is_new = name not in federation.roster and name not in egress.receivers
        permitted = egress.newcomers == "accept" or name in accepted if is_new else egress.permits_receiver(name)
        if permitted and name != folder.site:
            yield name


def write_report(report: EgressReport, *, version: str) -> str:
    """Return the page as HTML, to read or to print."""
    sent, totals, plan = report.sent, report.totals, report.federation.plan
    return render_page(
        "egress.html.j2",
        title=f"What left {report.folder.site} – mhfl-peer",
        styles=STYLES,
        report=report,
        first_s=sent[0].time_s if sent else None,
        last_s=max((transfer.time_s for transfer in sent), default=None),
        receivers=len({total["receiver"] for total in totals if total["purpose"] != EXPORT}),
        policy_rules=PageTable(("what", "rule"), policy(report.federation, report.site, report.receivers)),
        totals=_totals(totals),
        membership={kind: MEMBERSHIP[kind] for kind in report.site.egress.permitted_kinds(plan) if plan.predicts},
        is_open=any(transfer.outcome in (OPEN, UNKNOWN) for transfer in sent),
        opening=KIND_WORDS[OPENING] if any(transfer.kind == OPENING for transfer in sent) else None,
        leaks=leaks(sent),
        guarantee=guarantee(report.federation, sent),
        months=_months(sent),
        proofs=_proofs(report),
        version=version,
    )


def write_assessment(report: EgressReport, *, version: str) -> str:
    """Return the draft of a data protection impact assessment as Markdown, with this site's figures and blanks."""
    content = {
        "policy_rules": PageTable(("what", "rule"), policy(report.federation, report.site, report.receivers)),
        "totals": _totals(report.totals),
        "leaks": leaks(report.sent),
        "guarantee": guarantee(report.federation, report.sent),
    }
    return environment().get_template("dpia.md.j2").render(report=report, version=version, **content)


def policy(federation: FederationConfig, site: SiteConfig, receivers: Sequence[str]) -> list[tuple[str, str]]:
    """Return the egress policy in words: a subject and its rule."""
    plan, egress = federation.plan, site.egress
    method = federation.method.name
    kinds = [kind for kind in plan.sends if kind in egress.permitted_kinds(plan)]
    rules = [(f"a {kind}", f"{KIND_WORDS[kind]}; at most as the schedule of each round says") for kind in kinds]
    if not kinds:
        rules.append(("artifacts", f"none: {method} sends nothing"))
    stays = [kind for kind in plan.never_leaves if kind not in kinds]
    if stays:
        rules.append(("never", f"no setting lets a {' or a '.join(stays)} leave with {method}"))
    if federation.aggregate.secure:
        colluders = federation.aggregate.colluders_max
        least = federation.aggregate.contributors_min(len(federation.roster))
        rule = f"masks hide each {plan.artifact}; the receivers learn the sum of {least} sites or more, with this one's"
        rules.append(("secure sums", f"{rule}, unless more than {colluders} of them conspire"))
    if (noise := federation.noise) is not None:
        spendable = min(noise.epsilon, site.privacy.epsilon_max or noise.epsilon)
        rule = _noise_rule(federation, noise)
        bound = f"ε {spendable:g} (δ {power_of_ten(noise.delta)})"
        rules.append(("noise", f"{rule}; nothing more leaves once {bound} is spent"))
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
    if egress.leak_auc_max is not None and not federation.aggregate.secure:
        rule = f"what an attack here tells with an AUC above {egress.leak_auc_max:g} stays here; where so few people"
        rules.append(("measured leak", f"{rule} cannot tell, it {LEAK_UNKNOWN[egress.leak_unknown]}"))
    size_told = "the other sites may learn it" if egress.training_set_size else "the other sites do not learn it"
    rules.append(("number of training samples", size_told))
    again = "may be part of models that others export" if egress.reexport else "may not be part of models they export"
    rules.append(("what the receivers do", f"what they receive from this site {again}"))
    return rules


def _totals(totals: Sequence[SentTotal]) -> PageTable:
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
        for total in totals
    ]
    columns = ("receiver", "what", "for", "transfers", "complete", "bytes", "last")
    return PageTable(columns, rows, numbers=["transfers", "complete", "bytes"])


def _noise_rule(federation: FederationConfig, noise: Noise) -> str:
    """Say what of each person is bounded, and what noise is added to it."""
    if not federation.plan.sensitivity:
        return f"each person's gradient is clipped, and their sum has noise of {noise.sigma:.3g} times the clip"
    rule = f"each person counts alike in the sums, which have noise of {noise.sigma:.3g} times what one person changes"
    if noise.sharers == 1:
        return rule
    return (
        f"{rule}, a part of it from each site; if all other sites conspire, this one's part gives "
        f"ε {noise.epsilon_alone:.3g}"
    )


def guarantee(federation: FederationConfig, sent: Sequence[Transfer]) -> list[str]:
    """Return sentences on what noise and masks guarantee to a person, and what contradicts it."""
    private = [(transfer, transfer.spent) for transfer in sent if transfer.spent is not None]
    if private:
        sentences = [explain_guarantee(private[-1][1])]
    elif federation.noise is not None:
        sentences = ["Person-level privacy: nothing is spent, since nothing that was trained has left."]
    else:
        nothing = "what leaves has no noise, so nothing bounds what an attack could tell of a person"
        sentences = [f"Person-level privacy: none, since {nothing}."]
    for transfer, spent in private:
        if transfer.leak is not None and (words := describe_contradiction(transfer.leak, spent)):
            artifact = f"the {transfer.kind} of round {transfer.round}"
            sentences.append(f"Of {artifact}, {words}. Send nothing before that is clear.")
    if federation.aggregate.secure:
        colluders = federation.aggregate.colluders_max
        least = federation.aggregate.contributors_min(len(federation.roster))
        masked = f"only sums of at least {least} sites, unless more than {colluders} of the others conspired"
        sentences.append(f"Nobody saw this site's updates: {masked}.")
    return list(dict.fromkeys(sentences))


def leaks(sent: Sequence[Transfer]) -> PageTable:
    """Return what this site's own attack told of the newest artifact of each kind that left and was measured."""
    newest = {transfer.kind: transfer for transfer in sent if transfer.leak is not None}
    rows = [(kind, transfer.round, *_leak_cells(transfer.leak)) for kind, transfer in newest.items() if transfer.leak]
    columns = (
        *("what", "round", "AUC", "interval", "people", "one receiver, added up", "all receivers", "detected"),
        *("classes", "answer"),
    )
    return PageTable(columns, rows, numbers=["round", "AUC"])


def _leak_cells(leak: LeakFacts) -> tuple[str, ...]:
    answer, mix = leak["answer"], leak["class_mix"]
    return (
        f"{leak['auc']:.2f}",
        f"{leak['low']:.2f} to {leak['high']:.2f}",
        f"{leak['members']} + {leak['others']}",
        f"{leak['receiver_auc']:.2f}",
        f"{leak['all_auc']:.2f}, of {leak['artifacts']} artifacts",
        f"{leak['detected_share']:.0%} ({leak['detected_low']:.0%} to {leak['detected_high']:.0%})",
        "not compared" if mix is None else f"{mix:.2f}",
        "no bound is set" if answer is None else ANSWER_WORDS[answer].format(leak["bound"]),
    )


def _months(sent: Sequence[Transfer]) -> PageTable:
    months: dict[str, list[Transfer]] = {}
    for transfer in sent:
        month = datetime.datetime.fromtimestamp(transfer.time_s).strftime("%Y-%m")
        months.setdefault(month, []).append(transfer)
    rows = [
        (month, total["receiver"], total["kind"], total["transfers"], size(total["bytes"]))
        for month, transfers in sorted(months.items())
        for total in sent_totals(transfers)
    ]
    return PageTable(("month", "receiver", "what", "transfers", "bytes"), rows, numbers=["transfers", "bytes"])


def _proofs(report: EgressReport) -> PageTable:
    verified = report.verified
    head = verified["head"]
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
    return PageTable(("proof", "result"), rows)

"""``mhfl-peer federation``: the founder's commands, and ``show``, which everybody can use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, output, shared_options
from peer.cli.amendments import amend, hold, resume
from peer.cli.governance import longest_chain
from peer.cli.members import accept, choose
from peer.cli.proposals import approve, enact, propose
from peer.cli.site_command import SiteCall, site_command
from peer.core.messages import ChainHead
from peer.documents.commands import (
    CertificateAuthority,
    FederationCreated,
    FederationShown,
    RelayCertified,
    SiteAdmitted,
)
from peer.errors import BundleError, UsageError
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import must_be_new, write_atomically
from peer.site.identity import certificates
from peer.site.identity.bundle import read_received_file
from peer.site.identity.enrolment import FEDERATION_FILE, Authority
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder

PATH = click.Path(path_type=Path)
KEYS_SHOWN = ("rounds", "seed", "weighting", "quorum", "global_test", "evaluation_every", "image_axes")
DAYS = click.IntRange(min=1, max=36500)


@click.group()
@shared_options
def federation() -> None:
    """Found a federation, show it, admit sites."""


for governing in (amend, hold, resume, propose, approve, enact, accept, choose):
    federation.add_command(governing)


@federation.command()
@click.argument("draft", type=GIVEN_FILE)
@click.option("--out", type=PATH, required=True, help="The CA folder to create; keep it offline.")
@click.option(
    "--days", type=DAYS, default=certificates.CA_DAYS, show_default=True, help="How long the CA certificate is valid."
)
@output.json_option
@shared_options
def create(draft: Path, out: Path, days: int, as_json: bool) -> None:
    """Create the CA, the round key and the final federation.toml from a draft.

    \b
    mhfl-peer federation create draft.toml --out ca
    """
    authority = Authority.create(out, toml.read(draft), str(draft), now=datetime.now(UTC), days=days)
    document: FederationCreated = {
        "federation": authority.federation.name,
        "digest": authority.federation.digest,
        "folder": str(out),
        "federation_toml": str(out / FEDERATION_FILE),
        "ca_fingerprint": certificates.fingerprint(certificates.certificate_key(authority.certificate)),
        "ca_days": certificates.certificate_days(authority.certificate, datetime.now(UTC)),
        "sites": list(authority.federation.roster),
        "notes": list(_notes(authority.federation)),
    }
    output.emit(document, as_json=as_json, render=_render_created)


@site_command(group=federation)
@click.argument("file", type=GIVEN_FILE, required=False)
@click.option(
    "--out",
    "--chain",
    "chain",
    type=PATH,
    help="Write the chain of amendments to this file, for `mhfl-peer relay amend`.",
)
def show(call: SiteCall, file: Path | None, chain: Path | None) -> None:
    """Show the digest, the roster, the method and every parameter of a federation.toml or a draft.

    Without a file: the members, and the amendments that changed them, as a site of this machine has
    them. With its daemon up, also which amendment each peer has.

    \b
    mhfl-peer federation show federation.toml
    mhfl-peer federation show --site europe
    mhfl-peer federation show --site europe --out chain.json
    """
    if file is None:
        from peer.cli import rendering
        from peer.cli.watch import read_document

        folder = call.folder
        if chain is not None:
            write_atomically(chain, MembershipFolder(folder.membership).chain_file(), 0o644)
        document = read_document(folder, "membership", {})
        call.emit(document, rendering.membership)
        return
    if call.site_name is not None or chain is not None:
        raise UsageError("a file and a site are two things to show", "leave one of them out")
    call.emit(_describe(FederationConfig.load(file), datetime.now(UTC)), _render_shown)


@site_command(group=federation)
@click.argument("request", metavar="CSR", type=GIVEN_FILE)
@click.option("--ca", type=PATH, required=True, help="The CA folder that `federation create` wrote.")
@click.option("--out", type=PATH, required=True, help="The bundle to write; only the site can read its secrets.")
@click.option("--fingerprint", help="The fingerprint that the site's people read out  [default: ask the founder].")
@click.option(
    "--days", type=DAYS, default=certificates.SITE_DAYS, show_default=True, help="How long the certificate is valid."
)
@click.option("--replace", is_flag=True, help="Admit a key although the site was admitted with another one.")
@click.option("--relay", is_flag=True, help="Certify a relay, which is no site: --out gets its certificate.")
def admit(
    call: SiteCall, request: Path, ca: Path, out: Path, fingerprint: str | None, days: int, replace: bool, relay: bool
) -> None:
    """Certify a site's key and encrypt the round key for it; the same key again renews its
    certificate.

    A site that an amendment added, or gave another key, is admitted as the chain of a site of this
    machine says. A relay gets none of the names in that chain.

    \b
    mhfl-peer federation admit --ca ca europe.csr --out europe.bundle
    mhfl-peer federation admit --ca ca europe-renewed.csr --out europe-renewed.bundle --replace
    mhfl-peer federation admit --ca ca gate.csr --out gate.pem --relay
    """
    now = datetime.now(UTC)
    authority = Authority.load(ca, now=now)
    content = read_received_file(request)
    must_be_new(out)
    if fingerprint is None:
        fingerprint = _ask_for_confirmation(content, request)
    _, chain = longest_chain(call.home, call.site_name, authority.federation) or (None, None)
    if relay:
        used_names = frozenset() if chain is None else chain.head.used_names
        certificate = authority.certify_relay(
            content, fingerprint=fingerprint, now=now, days=days, used_names=used_names
        )
        write_atomically(out, certificates.certificate_pem(certificate), 0o644)
        der = certificates.certificate_der(certificate)
        certified: RelayCertified = {
            "certificate": str(out),
            "fingerprint": certificates.fingerprint(certificates.certificate_key(certificate)),
            "certificate_sha256": certificates.certificate_sha256(der),
            "not_after": certificate.not_valid_after_utc.isoformat(),
        }
        call.emit(certified, _render_certified)
        return
    members, added = (None, None) if chain is None else (chain.head.keys, _added(chain, content))
    admitted = authority.admit(
        content, fingerprint=fingerprint, now=now, days=days, replace=replace, members=members, added=added
    )
    write_atomically(out, admitted.bundle, 0o644)
    document: SiteAdmitted = {
        "site": admitted.site,
        "bundle": str(out),
        "fingerprint": admitted.admission.fingerprint,
        "certificate_sha256": admitted.admission.certificate_sha256,
        "not_after": admitted.admission.not_after,
        "renewal": admitted.renewal,
        "replaced": list(admitted.replaced),
    }
    call.emit(document, _render_admitted)


def _added(chain: Chain, request: bytes) -> ChainHead | None:
    """Return the amendment that added a request's site; ``None`` for an unknown site or one in federation.toml."""
    with contextlib.suppress(ValueError):
        name, _ = certificates.read_request(request)
        return next((link.after.head for link in chain.links if name in link.after.newcomers), None)
    return None


def _ask_for_confirmation(content: bytes, request: Path) -> str:
    """Show the key's fingerprint; return it once the founder has typed the site's name."""
    try:
        name, public_key = certificates.read_request(content)
    except ValueError as error:
        raise BundleError(f"{request} is refused: {error}", "ask the site for a new one") from error
    fingerprint = certificates.fingerprint(public_key)
    click.echo(f"{request} asks to admit {name[:80]!r} with the key\n  {fingerprint}", err=True)
    click.echo("Compare it with what the site's people read out to you.", err=True)
    click.echo("To admit the site, type its name: ", nl=False, err=True)
    if sys.stdin.readline().strip() != name:
        raise UsageError(f"{request} was not admitted", "type the site's name, or give --fingerprint")
    return fingerprint


def _describe(federation: FederationConfig, now: datetime) -> FederationShown:
    """Build the document of ``show``; ``ca`` is ``None`` for a draft."""
    plan = federation.plan
    ca: CertificateAuthority | None = None
    if federation.ca_certificate is not None:
        certificate = certificates.pinned_authority(federation.ca_certificate)
        ca = {
            "fingerprint": certificates.fingerprint(certificates.certificate_key(certificate)),
            "days": certificates.certificate_days(certificate, now),
        }
    return {
        "federation": federation.name,
        "digest": federation.digest,
        "roster_digest": federation.roster.digest,
        "ca": ca,
        "method": federation.method.name,
        "pattern": plan.pattern,
        "artifact": plan.artifact,
        "phases": list(plan.phases),
        "parameters": federation.parameters,
        "description": federation.description,
        "rounds": federation.rounds,
        "seed": federation.seed,
        "weighting": federation.weighting,
        "quorum": federation.quorum,
        "global_test": federation.global_test,
        "evaluation_every": federation.evaluation_every,
        "image_axes": federation.image_axes,
        "task": federation.task.model_dump(mode="json"),
        "stages": _stages(federation),
        "aggregate": federation.aggregate.model_dump(mode="json"),
        "schedule": federation.schedule.model_dump(mode="json"),
        "fallback": federation.fallback.model_dump(mode="json"),
        "pace": federation.pace.model_dump(mode="json"),
        "shared_model": None if federation.shared_model is None else federation.shared_model.model_dump(mode="json"),
        "beat_s": federation.beat_s,
        "sites": [
            {
                "index": federation.roster.index(entry.name),
                "name": entry.name,
                "address": entry.address,
                "description": entry.description,
            }
            for entry in sorted(federation.site, key=lambda entry: entry.name)
        ],
    }


def _stages(federation: FederationConfig) -> dict[str, Any]:
    """Return the stages; a draft also gets the counts that `create` will write."""
    stages = {name: stage.model_dump(mode="json") for name, stage in federation.stages.items()}
    if federation.ca_certificate is None:
        for name, count in federation.derived_counts.items():
            stages[name]["count"] = count
    return stages


def _render_shown(document: dict[str, Any]) -> output.RenderableType:
    from rich.console import Group

    ca = document["ca"]
    pairs: list[tuple[str, object]] = [
        ("federation", document["federation"]),
        ("description", document["description"] or None),
        ("digest", document["digest"]),
        ("CA", f"{ca['fingerprint']}, {ca['days']} days left" if ca else "none: this is a draft"),
        ("method", f"{document['method']}: {document['pattern']} of {document['artifact'] or 'nothing'}"),
        *((key, document[key]) for key in KEYS_SHOWN),
    ]
    tables = {"task": document["task"], "parameters": document["parameters"]}
    tables |= {f"stage {name}": keys for name, keys in document["stages"].items()}
    tables |= {
        name: document[name] for name in ("aggregate", "schedule", "fallback", "pace", "shared_model") if document[name]
    }
    for name, keys in tables.items():
        pairs += [(f"{name}: {key}", ", ".join(map(str, v)) if isinstance(v, tuple) else v) for key, v in keys.items()]
    rows = [(site["index"], site["name"], site["address"], site["description"]) for site in document["sites"]]
    return Group(output.fields(pairs), output.table(("index", "site", "address", "description"), rows))


def _render_created(document: dict[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("federation", document["federation"]),
            ("digest", document["digest"]),
            ("CA folder", f"{document['folder']}: keep it offline, and give it to nobody"),
            ("CA key", document["ca_fingerprint"]),
            ("next", f"give {document['federation_toml']} to every site: {', '.join(document['sites'])}"),
            *(("note", note) for note in document["notes"]),
        )
    )


def _notes(federation: FederationConfig) -> Iterator[str]:
    """Warn of valid settings under which sites learn nothing from each other, or measure nothing."""
    if len(federation.roster) == 1:
        yield "the roster has one [[site]]: it will train alone; add the others before any site enrols"
    if federation.global_test and federation.plan.evaluation_denied is not None:
        yield f"global_test = true measures nothing: {federation.plan.evaluation_denied}"
    task = federation.task
    if task.kind != "super_resolution" and task.target == "class" and not task.class_names:
        yield (
            "[task] has no class_names: a site that numbers the classes otherwise is noticed only where datalists name "
            "them, and predictions say only their numbers"
        )


def _render_certified(document: dict[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("key", document["fingerprint"]),
            ("valid until", document["not_after"]),
            ("next", f"send {document['certificate']} to the relay's people, who run `mhfl-peer relay join`"),
        )
    )


def _render_admitted(document: dict[str, Any]) -> output.RenderableType:
    pairs = [
        ("renewed" if document["renewal"] else "admitted", document["site"]),
        ("key", document["fingerprint"]),
        ("valid until", document["not_after"]),
        ("next", f"send {document['bundle']} to {document['site']}, who runs `mhfl-peer site join`"),
    ]
    pairs += [("every site should add to refuse_certificates", digest) for digest in document["replaced"]]
    return output.fields(pairs)

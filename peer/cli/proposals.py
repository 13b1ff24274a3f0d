"""``mhfl-peer federation propose``, ``approve`` and ``enact``: amendments that members sign in turn."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, Settings, output
from peer.cli.amendments import (
    ask_for_consent,
    change_options,
    from_round_option,
    instead_option,
    make_proposal,
    missing_addresses,
    read_changes,
    sign_as_founder,
    yes_option,
)
from peer.cli.governance import SiteChain, longest_chain, render_enacted
from peer.cli.site_command import SiteCall, site_command
from peer.core.roster import SiteName
from peer.documents.membership import ProposalSigned
from peer.errors import CertificateError, LockedError, MembershipError, StateError
from peer.quantities import duration
from peer.site.config import toml
from peer.site.config.site_folder import home_folder, must_be_new, write_atomically
from peer.site.identity.bundle import read_received_file
from peer.site.identity.enrolment import FEDERATION_FILE
from peer.site.membership.amendment import Amendment, AmendmentRefused
from peer.site.membership.chain import amended, check_place
from peer.site.membership.epoch_rules import Genesis
from peer.site.membership.folder import CHAIN_FILE, FILES, decode_chain
from peer.site.membership.proposal import (
    SIGNING_S,
    Proposal,
    SignatureCount,
    check_settings,
    count_by_genesis,
    count_signatures,
    is_never_late,
)
from peer.site.membership.shown import words_of
from peer.site.membership.signatures import FOUNDER
from peer.site.membership.wording import changes_in_words

FILE = click.Path(path_type=Path, dir_okay=False)
SIGNS_NEXT = "send it to who signs next, with `mhfl-peer federation approve`"
MEMBERS_SIGN = (
    "by federation.toml {needed} of the {members} members sign; the founder's signature counts only if an amendment "
    "has changed that"
)
FOUNDER_SIGNS = "by federation.toml the founder signs; the signature does not count if an amendment has changed that"
ENACT_COMPARES = "`federation enact` compares it with the chain of a site"


@site_command(short_help="Propose an amendment to the members, and sign it.")
@change_options
@click.option("--hold", "hold", flag_value="hold", help="Let no site open another round.")
@click.option("--resume", "hold", flag_value="resume", help="End a hold.")
@click.option("--out", type=FILE, required=True, help="The proposal to write, for the next member.")
@instead_option
@from_round_option
def propose(
    call: SiteCall, /, out: Path, hold: str | None, instead: bool, from_round: int | None, **options: Any
) -> None:
    """Propose an amendment in a federation whose members govern: take the chain of this site, write
    the next amendment to a file, and sign it. The other members sign the file in turn.

    To expel a site, have the other members' daemons running: the new round key is encrypted for each
    that answers.

    The amendment must be enacted before its first round begins. Without --from-round, the others have
    about an hour to sign, by this site's recent rounds, or a tenth of the rounds that are left.

    Where the founder signs, the file is for the machine with the CA's key: `federation approve --ca`.

    \b
    mhfl-peer federation propose --expel asia --out expel-asia.json
    mhfl-peer federation propose --expel asia --from-round 120 --out expel-asia.json
    mhfl-peer federation propose --hold --out hold.json
    """
    must_be_new(out)
    site = SiteChain.open(call.folder)
    changes = read_changes(site, **options) | ({} if hold is None else {"hold": hold == "hold"})
    notes = site.check_newest(besides=changes.get("expel"), instead=instead) + missing_addresses(changes)
    members_sign = site.chain.head.governance.members is not None
    keys, unreachable = _member_keys(site) if changes.get("expel") and members_sign else ({}, {})
    signing_s = 0.0 if changes == {"hold": False} else SIGNING_S  # an amendment that ends a hold is never late
    proposal = make_proposal(site, keys, changes, from_round, signing_s=signing_s)
    write_atomically(out, proposal.encode(), 0o644)  # written unsigned first, so that no signed proposal lacks a file
    if members_sign:
        try:
            proposal = _sign(site, proposal, instead=instead)
        except (MembershipError, StateError, LockedError):  # refused
            out.unlink(missing_ok=True)
            raise
        write_atomically(out, proposal.encode(), 0o644)
    left = proposal.amendment.expel
    notes += [f"{name} gets the round key later: {reason}" for name, reason in unreachable.items() if name != left]
    call.emit(_signed(site, proposal, out, notes), _render_signed)


@site_command(short_help="Sign another member's proposal.")
@click.argument("file", type=GIVEN_FILE)
@yes_option
@click.option(
    "--ca",
    type=click.Path(path_type=Path, file_okay=False),
    help="Sign as the founder, with the key in this CA folder; no site needs to be on this machine. Where one is, its "
    "chain judges the proposal.",
)
@instead_option
def approve(call: SiteCall, file: Path, yes: bool, ca: Path | None, instead: bool) -> None:
    """Show what a proposal changes, and sign it once its number is typed. The file then has this
    site's signature, too: send it to the next member, or enact it.

    Refused is a proposal that is not next in the chain, one whose first round is past, and one whose
    new round key seems to have been searched for. What was signed is recorded before: a second
    amendment of one number needs --instead, since both together prove that this site signed twice.

    \b
    mhfl-peer federation approve expel-asia.json
    mhfl-peer federation approve --ca ca hold.json
    """
    proposal = _read(file)
    if ca is not None:
        document = _approve_as_founder(ca, call.settings, call.site_name, proposal, file, yes=yes, instead=instead)
        call.emit(document, _render_signed_by_founder)
        return
    site = SiteChain.open(call.folder)
    notes = site.check_newest(besides=proposal.amendment.expel, instead=instead)
    _check_in_time(site, proposal)
    if not yes:
        count = _check(site, proposal, file)
        signatures = f"signed by {', '.join(count.by) or 'nobody'}; {count.needed} signatures are needed"
        time_left = _time_left_in_words(*_time_left(site, proposal.amendment))
        changes = words_of(proposal.amendment, site.chain.head, site.genesis)
        sentences = [*changes, signatures, *(f"enact it {text}" for text in time_left)]
        ask_for_consent(proposal, sentences, str(file))
    signed = _sign(site, proposal, instead=instead)
    write_atomically(file, signed.encode(), 0o644)
    call.emit(_signed(site, signed, file, notes), _render_signed)


@site_command(short_help="Make a signed proposal the next amendment.")
@click.argument("files", metavar="FILE...", type=GIVEN_FILE, nargs=-1, required=True)
@instead_option
def enact(call: SiteCall, files: tuple[Path, ...], instead: bool) -> None:
    """Make a proposal that enough members signed the next amendment of this site's chain. The other
    sites get it from this site's daemon. Several copies of one proposal count together. A file of
    `federation show --out` gives its first amendment that this site's chain lacks, even one whose
    first round is past; name the proposal's file, too, if it brings a new round key.

    \b
    mhfl-peer federation enact expel-asia.json
    """
    site = SiteChain.open(call.folder)
    try:
        proposals = [_next_in_file(site, file) for file in files]
        proposal = functools.reduce(Proposal.merged, (each for each, _ in proposals))
    except AmendmentRefused as error:
        raise MembershipError(error.message, error.remedy) from error
    notes = site.check_newest(besides=proposal.amendment.expel, instead=instead)
    is_followed = any(followed for _, followed in proposals)
    if not is_followed:
        _check_in_time(site, proposal)
    document = site.act("enact", proposal=proposal.encode().decode(), is_followed=is_followed)
    document["notes"][:0] = notes
    call.emit(document, render_enacted)


def _read(file: Path) -> Proposal:
    try:
        proposal = Proposal.decode(read_received_file(file))
        proposal.amendment  # noqa: B018 - decode now, so that the error names the file
        return proposal
    except AmendmentRefused as error:
        raise MembershipError(f"{file}: {error.message}", error.remedy) from error


def _next_in_file(site: SiteChain, file: Path) -> tuple[Proposal, bool]:
    """Return the proposal in a file, or the first amendment of the chain in it that the site's chain lacks.

    The second value is whether the file holds a chain, which a member follows.
    """
    content = read_received_file(file)
    if FILES[CHAIN_FILE].encode() not in content:
        return _read(file), False
    theirs = decode_chain(content, site.genesis.config)
    if not theirs.links:
        raise AmendmentRefused(f"{file} holds no amendment", "ask a site that has one for the file")
    own = {link.after.digest for link in site.chain.links}
    lacking = [link for link in theirs.links if link.after.digest not in own]
    return Proposal((lacking or theirs.links[-1:])[0].signed), True


def _sign(site: SiteChain, proposal: Proposal, *, instead: bool) -> Proposal:
    document = site.act("approve", proposal=proposal.encode().decode(), instead=instead)
    return Proposal.decode(document["proposal"].encode())


def _member_keys(site: SiteChain) -> tuple[Mapping[SiteName, Any], Mapping[SiteName, str]]:
    from peer.view.preflight.member_keys import member_keys

    return member_keys(site.folder, site.genesis.config, site.chain.head, site.status)


def _check(site: SiteChain, proposal: Proposal, file: Path) -> SignatureCount:
    """Return who has signed; raise ``MembershipError`` if the proposal cannot be next in the site's chain."""
    try:
        amended(site.chain.head, proposal.amendment, proposal.digest)
        return count_signatures(site.chain, proposal)
    except AmendmentRefused as error:
        raise MembershipError(f"{file}: {error.message}", error.remedy) from error


def _approve_as_founder(
    ca: Path, settings: Settings, site_name: str | None, proposal: Proposal, file: Path, *, yes: bool, instead: bool
) -> ProposalSigned:
    """Sign with the CA's key, on a machine that may have no site and so no chain."""
    genesis = Genesis.parse(toml.read(ca / FEDERATION_FILE), str(ca / FEDERATION_FILE))
    amendment = proposal.amendment
    if amendment.federation != genesis.config.digest:
        raise MembershipError(f"{file} is of another federation than {ca / FEDERATION_FILE}", "name its CA folder")
    try:
        check_settings(genesis, proposal)
    except AmendmentRefused as error:
        remedy = f"{error.remedy}; a site with the chain can judge it, too: `federation amend`"
        raise MembershipError(f"{file}: {error.message}", remedy) from error
    changes, count = changes_in_words(amendment, None, {}), count_by_genesis(genesis, proposal)
    notes = [ENACT_COMPARES]
    judged = _judge_at_site(settings, site_name, genesis, proposal, file)
    members_sign = genesis.config.governance_members is not None and not judged
    if members_sign:
        notes.insert(0, MEMBERS_SIGN.format(needed=count.needed, members=len(genesis.config.roster)))
    elif not judged:
        notes.insert(0, FOUNDER_SIGNS)
    if not yes:
        ask_for_consent(proposal, [*changes, *notes], str(file))
    signed = sign_as_founder(proposal, ca, instead=instead)
    write_atomically(file, signed.encode(), 0o644)
    return {
        "file": str(file),
        "number": amendment.number,
        "digest": proposal.digest,
        "from_round": amendment.from_round,
        "enact_until_round": _until_round(amendment),
        "enact_left_s": None,
        "changes": changes,
        "signed_by": list(count.by) if members_sign else [FOUNDER],
        "needed": count.needed if members_sign else 1,
        "keys_for": sorted(proposal.keys),
        "notes": notes,
    }


def _judge_at_site(settings: Settings, site_name: str | None, genesis: Genesis, proposal: Proposal, file: Path) -> bool:
    """Return whether a site of this machine has the chain that the proposal is next in.

    Raise ``MembershipError`` if, by that chain or by a member's signature, the founder's signature would not count.
    """
    refusal = MembershipError(
        f"the members of {genesis.config.name} sign its amendments, not the founder",
        f"send {file} to the members, who sign it with `mhfl-peer federation approve`",
    )
    known, site = longest_chain(home_folder(settings.home), site_name, genesis.config), None
    if known is not None and known[1].head.number + 1 >= proposal.amendment.number:
        with contextlib.suppress(CertificateError):  # that site may not be enrolled yet
            site = SiteChain.open(known[0])
    if site is None:
        if genesis.config.governance_members is None and any(each.certificate_der for each in proposal.signed.by):
            raise refusal
        return False
    _check(site, proposal, file)
    if site.chain.head.governance.members is not None:
        raise refusal
    _check_in_time(site, proposal)
    return True


def _until_round(amendment: Amendment) -> int | None:
    """Return the last round in which a site can enact the amendment; ``None`` if there is no limit."""
    return None if is_never_late(amendment) else amendment.from_round - 1


def _time_left(site: SiteChain, amendment: Amendment) -> tuple[int | None, float | None]:
    """Return the last round in which a site can enact it, and the estimated seconds until that round ends here."""
    until_round = _until_round(amendment)
    return until_round, None if until_round is None else site.until_round_s(amendment.from_round)


def _time_left_in_words(until_round: int | None, left_s: float | None) -> Iterator[str]:
    if until_round is not None:
        about = "" if left_s is None else f", in about {duration(left_s)}"
        yield f"before round {until_round + 1} begins{about}"


def _is_past(site: SiteChain, amendment: Amendment) -> bool:
    until_round = _until_round(amendment)
    return until_round is not None and until_round < site.status["round"]


def _why_past(site: SiteChain, amendment: Amendment) -> tuple[str, str]:
    """Return the reason, that this site opened the amendment's first round without it, and the remedy."""
    reason = f"round {amendment.from_round} is past: this site has opened round {site.status['round']}"
    signing_s = max(SIGNING_S, 2 * (time.time() - amendment.issued))  # the members have needed that long so far
    if (first := site.first_round(signing_s=signing_s)) <= site.reached_round:
        return reason, "no round is left that an amendment could begin with"
    return reason, (
        f"propose it again with --from-round {first} and --instead; who has signed this one signs that one with "
        "--instead, too"
    )


def _check_in_time(site: SiteChain, proposal: Proposal) -> None:
    """Raise ``MembershipError`` if the proposal is next in the chain, but this site has opened its first round."""
    amendment = proposal.amendment
    try:
        check_place(amendment, site.chain.head)
        why_past = _why_past(site, amendment) if _is_past(site, amendment) else None
    except AmendmentRefused:  # the action gives the reason, or already has the amendment
        return
    if why_past is not None:
        raise MembershipError(*why_past)


def _signed(site: SiteChain, proposal: Proposal, file: Path, notes: Sequence[str]) -> ProposalSigned:
    amendment, count = proposal.amendment, count_signatures(site.chain, proposal)
    until_round, left_s = _time_left(site, amendment)
    return {
        "file": str(file),
        "number": amendment.number,
        "digest": proposal.digest,
        "from_round": amendment.from_round,
        "enact_until_round": until_round,
        "enact_left_s": left_s,
        "changes": words_of(amendment, site.chain.head, site.genesis),
        "signed_by": list(count.by),
        "needed": count.needed,
        "keys_for": sorted(proposal.keys),
        "notes": list(notes),
    }


def _render_signed_by_founder(document: Mapping[str, Any]) -> output.RenderableType:
    if document["signed_by"] == [FOUNDER]:
        return _render_signed(document)
    return _render_signed(document, following=f"{SIGNS_NEXT}; the founder cannot tell here whether it is complete")


def _render_signed(document: Mapping[str, Any], *, following: str = "") -> output.RenderableType:
    enough = len(document["signed_by"]) >= document["needed"]
    following = following or ("enact it" if enough else SIGNS_NEXT)
    signers = ", ".join(document["signed_by"]) or "nobody"
    return output.fields(
        (
            ("proposal", document["file"]),
            ("amendment", f"{document['number']}, {document['digest']}"),
            ("from round", document["from_round"]),
            *(
                ("enact it", text)
                for text in _time_left_in_words(document["enact_until_round"], document["enact_left_s"])
            ),
            *(("change", sentence) for sentence in document["changes"]),
            ("signed by", f"{signers}: {len(document['signed_by'])} of {document['needed']}"),
            *((("round key for", ", ".join(document["keys_for"])),) if document["keys_for"] else ()),
            *(("note", note) for note in document["notes"]),
            ("next", following),
        )
    )

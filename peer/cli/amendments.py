"""``mhfl-peer federation amend``, ``hold`` and ``resume``: amendments of the founder."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from peer.cli import GIVEN_FILE, output
from peer.cli.governance import SiteChain, complete_member, render_enacted
from peer.cli.site_command import SiteCall, site_command
from peer.core import roster
from peer.core.limits import PROTOCOL_VERSION_MAX
from peer.core.messages import AMENDMENTS, FEATURES
from peer.core.roster import Sha256, SiteName
from peer.errors import CertificateError, ConfigError, LockedError, MembershipError, UsageError
from peer.site.config import toml
from peer.site.identity import certificates
from peer.site.identity.bundle import read_received_file
from peer.site.identity.enrolment import CA_KEY_FILE
from peer.site.membership import proposal
from peer.site.membership.amendment import AmendmentRefused, Governance, Newcomer, Requirements
from peer.site.membership.chain import merged
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.proposal import Proposal
from peer.site.membership.shown import words_of
from peer.site.membership.signatures import endorse_as_founder, notices_of

NO_CA = "name the CA folder that `federation create` wrote with --ca"
NO_ADDRESS = (
    "the amendment has no address of {name}, as --add {name}=HOST:PORT would give, and no later one can: the others "
    "find it by [addresses] in their site.toml, or by discovery"
)
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

ca_option = click.option(
    "--ca",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The CA folder that `federation create` wrote.",
)
from_round_option = click.option(
    "--from-round",
    type=click.IntRange(1),
    help="The first round that it holds for  [default: the first that no site can have begun; `propose` leaves "
    "time to sign].",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
instead_option = click.option(
    "--instead",
    is_flag=True,
    help="Go on although another amendment of this number was signed here, or a peer states one.",
)


def complete_feature(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the features that this program knows."""
    return sorted(feature for feature in FEATURES if feature.startswith(incomplete))


def change_options(command: AnyCallable) -> AnyCallable:
    """Add the options that say what an amendment changes."""
    options = (
        click.option("--add", multiple=True, metavar="NAME=HOST:PORT", help="Add a site, whose --request has its key."),
        click.option(
            "--request",
            "requests",
            multiple=True,
            type=GIVEN_FILE,
            help="The signing request of a site that --add or --rekey names.",
        ),
        click.option(
            "--expel",
            multiple=True,
            metavar="NAME",
            shell_complete=complete_member,
            help="Take a member out; the round key changes.",
        ),
        click.option("--leave", is_flag=True, help="Take out the members whose notices this site has."),
        click.option(
            "--rekey",
            multiple=True,
            metavar="NAME[=KEY]",
            shell_complete=complete_member,
            help="Pin a member's key: that of its --request, or 64 hex digits.",
        ),
        click.option("--rounds", type=click.IntRange(1), help="Change the number of rounds."),
        click.option(
            "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a setting, such as pace.wait_max_s=600."
        ),
        click.option("--settings", "settings_file", type=GIVEN_FILE, help="Change the settings in this TOML file."),
        click.option(
            "--requires",
            multiple=True,
            metavar="FEATURE",
            shell_complete=complete_feature,
            help="Require that every site's program knows this.",
        ),
        click.option(
            "--protocol", type=click.IntRange(1), help="Require that every site's program speaks this protocol."
        ),
        click.option("--authority", type=GIVEN_FILE, help="Change the CA: its certificate, in PEM."),
        click.option(
            "--governance",
            metavar="founder|M",
            help="Change who signs: the founder, or a majority and at least M members.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@site_command(short_help="Change the members or the settings, as the founder.")
@ca_option
@change_options
@yes_option
@instead_option
@from_round_option
def amend(call: SiteCall, /, ca: Path, yes: bool, instead: bool, from_round: int | None, **options: Any) -> None:
    """Change the members or the settings of a federation whose founder signs: take the chain of a
    site of this machine, show the next amendment, sign it once its number is typed, and enact it
    there. The other sites get it from that site's daemon. Compare a key that --add or --rekey pins
    with what the site's people read out to you.

    What is signed is recorded in the CA folder before: a second amendment of one number needs
    --instead, since the sites that have the first would take this one for a fork.

    \b
    mhfl-peer federation amend --ca ca --add oslo=oslo.example.org:7443 --request oslo.csr
    mhfl-peer federation amend --ca ca --expel asia
    mhfl-peer federation amend --ca ca --leave
    mhfl-peer federation amend --ca ca --rounds 300 --set pace.wait_max_s=7200
    """
    site = SiteChain.open(call.folder)
    changes = read_changes(site, **options)
    _enact_as_founder(site, ca, changes, from_round, yes=yes, instead=instead, as_json=call.as_json)


def _hold_command(name: str, hold: bool, short_help: str, text: str) -> Any:
    @site_command(name, short_help=short_help, help=f"{text}\n\n\b\nmhfl-peer federation {name} --ca ca")
    @ca_option
    @yes_option
    @instead_option
    @from_round_option
    def command(call: SiteCall, ca: Path, yes: bool, instead: bool, from_round: int | None) -> None:
        site = SiteChain.open(call.folder)
        if site.chain.head.hold == hold:
            raise MembershipError(
                "the federation is held already" if hold else "the federation is not held", "nothing needs to be done"
            )
        _enact_as_founder(site, ca, {"hold": hold}, from_round, yes=yes, instead=instead, as_json=call.as_json)

    return command


hold = _hold_command(
    "hold",
    True,
    "Let no site open another round, for a night of maintenance.",
    "Let no site open another round: every site ends its round, serves the others, and waits for `federation resume`.",
)
resume = _hold_command(
    "resume",
    False,
    "End a hold: the sites open rounds again.",
    "End a hold: every site opens the round that it was held before.",
)


def read_changes(site: SiteChain, **options: Any) -> dict[str, Any]:
    """Convert the options of ``change_options`` to the arguments of ``Amendment``."""
    keys = dict(_read_request(path) for path in options["requests"])
    changes: dict[str, Any] = {
        "add": tuple(_newcomer(text, keys) for text in options["add"]),
        "rekey": dict(_new_key(text, keys) for text in options["rekey"]),
        "settings": _settings(options["pairs"], options["settings_file"], options["rounds"]),
    }
    if keys:
        raise UsageError(f"--request of {', '.join(keys)}", "add --add or --rekey with the same name")
    if len(options["expel"]) > 1:
        raise UsageError(
            f"--expel {', '.join(options['expel'])}: an amendment expels one site", "make an amendment for each"
        )
    for name in options["expel"]:
        changes["expel"] = _site(name, "--expel")
        if name == site.folder.site and len(site.chain.head.members) > 1:
            raise MembershipError(
                f"{name} would be expelled by its own amendment", "name the site of another member with --site"
            )
    if options["leave"]:
        changes["leave"] = _notices(site)
    if options["requires"] or options["protocol"]:
        changes["requires"] = Requirements(options["protocol"] or 0, tuple(options["requires"]))
    if options["authority"] is not None:
        changes["authority"] = _pem(options["authority"])
    if options["governance"] is not None:
        changes["governance"] = _governance(options["governance"])
    return {key: value for key, value in changes.items() if value not in ((), {})}


def missing_addresses(changes: Mapping[str, Any]) -> list[str]:
    """Return a note for each added site that has no address."""
    return [NO_ADDRESS.format(name=site.name) for site in changes.get("add", ()) if site.address is None]


def make_proposal(
    site: SiteChain,
    recipients: Mapping[SiteName, Any],
    changes: Mapping[str, Any],
    from_round: int | None,
    *,
    signing_s: float = 0.0,
) -> Proposal:
    """Build the next amendment of the site's chain, unsigned; raise ``MembershipError`` if it is refused.

    Args:
        site: the site that proposes it.
        recipients: the members whose keys are known: a new round key is encrypted for each.
        changes: the arguments of ``Amendment``.
        from_round: its first round; ``None`` for the first that no site can have opened yet.
        signing_s: the time that members get to sign it before that.
    """
    _check_programs(site, changes)
    try:
        return proposal.make(
            site.chain,
            site.genesis,
            site.own,
            recipients,
            changes,
            from_round=site.first_round(signing_s=signing_s) if from_round is None else from_round,
            reached_round=site.reached_round,
            issued=int(time.time()),
        )
    except AmendmentRefused as error:
        raise MembershipError(error.message, error.remedy) from error


def _check_programs(site: SiteChain, changes: Mapping[str, Any]) -> None:
    """Raise ``MembershipError`` if this program, or that of a member in contact, could not follow the amendment.

    A site whose program cannot follow one holds for good: no later amendment withdraws a requirement.
    """
    requires = changes.get("requires") or Requirements()
    unknown = sorted(set(requires.features) - set(FEATURES))
    if unknown or requires.protocol > PROTOCOL_VERSION_MAX:
        lacking = ", ".join(unknown) or f"protocol {requires.protocol}"
        raise MembershipError(
            f"this program does not know {lacking}, and would hold itself",
            f"it knows {', '.join(sorted(FEATURES))}, and protocol {PROTOCOL_VERSION_MAX} at most; correct the name, "
            "or sign with a program that knows it",
        )
    needed = {AMENDMENTS, *requires.features}
    for name, peer in site.status["peers"].items():
        if name == changes.get("expel") or peer["features"] is None:
            continue
        lacks = sorted(needed - set(peer["features"]))
        if peer["protocol"] < requires.protocol:
            lacks.append(f"protocol {requires.protocol}")
        if lacks:
            raise MembershipError(
                f"{name} runs {peer['software']}, which does not know {', '.join(lacks)}",
                "let its operator update it first: until then it would hold",
            )


def sign_as_founder(proposal: Proposal, ca: Path, *, instead: bool) -> Proposal:
    """Sign with the CA's key, after recording in the CA folder what is signed.

    Raise ``MembershipError`` if another amendment of this number was signed, unless ``instead`` is set.
    """
    key = certificates.read_key(ca / CA_KEY_FILE, if_missing=NO_CA)
    body = proposal.signed.body
    MembershipFolder(ca).approve(proposal.amendment.number, body, instead=instead, signer="the founder")
    return proposal.with_signature(endorse_as_founder(key, body))


def _enact_as_founder(
    site: SiteChain,
    ca: Path,
    changes: Mapping[str, Any],
    from_round: int | None,
    *,
    yes: bool,
    instead: bool,
    as_json: bool,
) -> None:
    head = site.chain.head
    if head.governance.members is not None:
        raise MembershipError(
            f"the members of {site.genesis.config.name} sign its amendments, not the founder",
            "make a proposal for them with `mhfl-peer federation propose`",
        )
    key = certificates.read_key(ca / CA_KEY_FILE, if_missing=NO_CA)
    if key.public_key() != certificates.read_authority(head.authorities[-1].encode()).public_key():
        raise CertificateError(
            f"{ca / CA_KEY_FILE} is not the key of the CA of {site.genesis.config.name}", "name its CA folder with --ca"
        )
    notes = site.check_newest(besides=changes.get("expel"), instead=instead) + missing_addresses(changes)
    unsigned, record = make_proposal(site, {}, changes, from_round), MembershipFolder(ca)
    if not yes:
        sentences = [*words_of(unsigned.amendment, head, site.genesis), *notes]
        ask_for_consent(unsigned, sentences, f"amendment {unsigned.amendment.number}")
    before = record.approvals()
    signed = sign_as_founder(unsigned, ca, instead=instead)
    try:
        document = site.act("enact", proposal=signed.encode().decode())
    except (MembershipError, LockedError):  # refused, and the signature was never published
        record.save_approvals(before)
        raise
    document["notes"][:0] = notes
    output.emit(document, as_json=as_json, render=render_enacted)


def ask_for_consent(proposal: Proposal, sentences: Sequence[str], subject: str) -> None:
    """Show the changes in words; return once the amendment's number was typed.

    Args:
        subject: what was not signed otherwise.
    """
    amendment = proposal.amendment
    click.echo(f"amendment {amendment.number}, from round {amendment.from_round} on, {proposal.digest}", err=True)
    for sentence in sentences:
        click.echo(f"  {sentence}", err=True)
    if amendment.add or amendment.rekey:
        click.echo("Compare each key with what the site's people read out to you.", err=True)
    click.echo("To sign it, type the amendment's number: ", nl=False, err=True)
    if sys.stdin.readline().strip() != str(amendment.number):
        raise UsageError(f"{subject} was not signed", "type the amendment's number, or give --yes")


def _read_request(path: Path) -> tuple[str, Sha256]:
    try:
        name, key = certificates.read_request(read_received_file(path))
    except ValueError as error:
        raise UsageError(f"--request {path}: {error}", "ask the site for the file that `site init` wrote") from error
    return name, certificates.key_digest(key)


def _newcomer(text: str, keys: dict[str, Sha256]) -> Newcomer:
    name, _, address = text.partition("=")
    site = _site(name, "--add")
    if site not in keys:
        raise _missing_key("--add", site, keys)
    if address:
        try:
            toml.check_dialable(toml.check_route(address))
        except ValueError as error:
            raise UsageError(f"--add {text}: {error}", "give NAME=HOST:PORT") from error
    return Newcomer(site, keys.pop(site), address or None)


def _new_key(text: str, keys: dict[str, Sha256]) -> tuple[SiteName, Sha256]:
    name, separator, key = text.partition("=")
    site = _site(name, "--rekey")
    if separator:
        try:
            return site, roster.sha256(key.replace(":", "").lower())
        except ValueError as error:
            raise UsageError(f"--rekey {text}: {error}", "give the 64 hex digits of the key's SHA-256") from error
    if site not in keys:
        raise _missing_key("--rekey", site, keys)
    return site, keys.pop(site)


def _missing_key(option: str, site: SiteName, keys: Mapping[str, Sha256]) -> UsageError:
    given = f": --request is of {', '.join(keys)}" if keys else ""
    return UsageError(
        f"{option} {site}: its key is missing{given}", f"give the signing request of {site} with --request"
    )


def _site(name: str, option: str) -> SiteName:
    try:
        return roster.site_name(name)
    except ValueError as error:
        raise UsageError(f"{option} {name}: {error}", "give the name of a site") from error


def _settings(pairs: Iterable[str], file: Path | None, rounds: int | None) -> dict[str, Any]:
    """Merge the settings of a file, of ``KEY=VALUE`` and of ``--rounds``; later ones override earlier ones."""
    settings: dict[str, Any] = {} if file is None else toml.parse(toml.read(file), str(file))
    for pair in pairs:
        path, separator, text = pair.partition("=")
        if not separator or not all(path.split(".")):
            raise UsageError(f"--set {pair}: no KEY=VALUE", "such as --set pace.wait_max_s=600")
        value = _value(text)
        for key in reversed(path.split(".")):
            value = {key: value}
        settings = merged(settings, value)
    return settings | ({} if rounds is None else {"rounds": rounds})


def _value(text: str) -> Any:
    """Parse a TOML value; anything else is a string, so that the shell's quotes suffice."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _notices(site: SiteChain) -> tuple[Any, ...]:
    head = site.chain.head
    notices = notices_of(
        site.membership.notices(), federation=head.federation, authorities=head.authorities, keys=head.keys
    )
    if not notices:
        raise MembershipError(
            f"{site.folder.site} has no notice of a member that leaves", "that member runs `mhfl-peer leave` first"
        )
    return notices


def _pem(path: Path) -> str:
    try:
        return certificates.certificate_pem(certificates.read_authority(read_received_file(path))).decode("ascii")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "name the certificate of the new CA, in PEM") from error


def _governance(text: str) -> Governance:
    if text == "founder":
        return Governance()
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--governance {text}", "give `founder`, or how many members sign at least")
    return Governance(int(text))

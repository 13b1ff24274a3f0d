"""Signatures under amendments and notices, and the quorum of signers.

If a site's key is pinned, only that key counts. The dates of certificates do not matter: a signature
stays valid.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core import limits, roster
from peer.core.messages import Endorsement, SignedAmendment, SignedNotice
from peer.core.roster import Sha256, SiteName, canonical_json
from peer.site.identity import certificates
from peer.site.membership.amendment import Amendment, AmendmentRefused, Governance

AMENDMENT_LABEL = b"mhfl/amendment/v1\x00"
NOTICE_LABEL = b"mhfl/leave/v1\x00"
"""Each precedes a body under its signature, so that the signature fits nothing else signed with the key."""
FOUNDER = "the founder"
"""The signer of an endorsement without a certificate: the holder of the CA's key."""

Keys = Mapping[SiteName, Sha256 | None]
"""By member, the SHA-256 of its pinned key; ``None`` where any certificate of the CA counts."""


@dataclass(frozen=True, slots=True)
class LeaveNotice:
    """A site's statement that it leaves; ``issued`` is in Unix seconds."""

    federation: Sha256
    site: SiteName
    issued: int


def quorum(members: int, governance: Governance, *, expels: bool) -> int:
    """Return the number of members that must sign an amendment under ``governance`` by members.

    Any two quorums of one roster have a site in common.
    """
    wanted = governance.members or 1
    return max(members // 2 + 1, min(wanted, members - 1 if expels else members))


def endorse(own: certificates.Identity, body: bytes) -> Endorsement:
    """Sign an amendment's body as a member."""
    signature = certificates.sign(own.key, AMENDMENT_LABEL + body)
    return Endorsement(certificates.certificate_der(own.certificate), signature)


def endorse_as_founder(ca_key: ec.EllipticCurvePrivateKey, body: bytes) -> Endorsement:
    """Sign an amendment's body with the CA's key."""
    return Endorsement(b"", certificates.sign(ca_key, AMENDMENT_LABEL + body))


def signers(
    signed: SignedAmendment, *, authorities: Sequence[str], keys: Keys
) -> tuple[dict[str, Endorsement], list[str]]:
    """Verify the signatures: return one valid signature of each signer, and a line for each invalid one.

    Args:
        authorities: the federation's CA certificates in PEM, the current one last: its key is the
            founder's.
        keys: the members before the amendment.
    """
    founder = certificates.read_authority(authorities[-1].encode())
    valid: dict[str, Endorsement] = {}
    problems = []
    for endorsement in signed.by[: limits.SITES_MAX + 1]:
        signer: str
        try:
            if endorsement.certificate_der:
                signer, key = _signer(endorsement.certificate_der, authorities, keys)
            else:
                signer, key = FOUNDER, certificates.certificate_key(founder)
            try:
                certificates.verify_signature(key, endorsement.signature, AMENDMENT_LABEL + signed.body)
            except ValueError as error:
                raise ValueError(f"{signer}: {error}") from error
        except ValueError as error:
            problems.append(str(error))
        else:
            valid.setdefault(signer, endorsement)
    return valid, problems


def check_signatures(
    signed: SignedAmendment,
    amendment: Amendment,
    *,
    authorities: Sequence[str],
    keys: Keys,
    governance: Governance,
) -> SignedAmendment:
    """Return the amendment with one valid signature of each signer.

    Raise ``AmendmentRefused`` if too few have signed; it names them and the invalid signatures.
    """
    valid, problems = signers(signed, authorities=authorities, keys=keys)
    kept = SignedAmendment(signed.body, tuple(valid[name] for name in sorted(valid)))
    suffix = f" ({'; '.join(problems)})" if problems else ""
    if governance.members is None:
        if FOUNDER not in valid:
            raise AmendmentRefused(
                f"amendment {amendment.number} is not signed by the founder's CA key{suffix}",
                "the founder signs it with `federation amend --ca`",
            )
        return kept
    needed = quorum(len(keys), governance, expels=amendment.expel is not None)
    counted = counted_members(valid, amendment, authorities=authorities, keys=keys)
    if len(counted) < needed:
        named = f" ({', '.join(sorted(counted))})" if counted else ""
        raise AmendmentRefused(
            f"amendment {amendment.number} has {len(counted)} of the {needed} signatures that {len(keys)} members "
            f"need{named}{suffix}",
            "other members sign it with `federation approve`",
        )
    return kept


def counted_members(
    signed_by: Iterable[str], amendment: Amendment, *, authorities: Sequence[str], keys: Keys
) -> set[str]:
    """Return the members that count for an amendment where members sign: not the one that it expels.

    If `leave` is the only change, a notice counts as a signature. No notice signs the round key that
    amendment 1 states, so that none counts there. Raise ``AmendmentRefused`` for an invalid notice.

    Args:
        signed_by: the signers of the valid signatures.
        amendment: the signed amendment.
        authorities: the federation's CA certificates in PEM.
        keys: the members before the amendment.
    """
    counted = {name for name in signed_by if name not in (FOUNDER, amendment.expel)}
    if amendment.changes == {"leave"} and amendment.number > 1:
        counted |= {
            verify_notice(notice, federation=amendment.federation, authorities=authorities, keys=keys).site
            for notice in amendment.leave
        }
    return counted


def sign_notice(own: certificates.Identity, *, federation: Sha256, issued: int) -> SignedNotice:
    """Sign a notice that this site leaves the federation."""
    body = canonical_json({"federation": federation, "site": own.name, "issued": issued})
    signature = certificates.sign(own.key, NOTICE_LABEL + body)
    return SignedNotice(body, signature, certificates.certificate_der(own.certificate))


def verify_notice(notice: SignedNotice, *, federation: Sha256, authorities: Sequence[str], keys: Keys) -> LeaveNotice:
    """Verify a member's notice. Raise ``AmendmentRefused`` with the reason if it is invalid."""
    remedy = "the site that leaves runs `mhfl-peer leave` again"
    if len(notice.body) > limits.NOTICE_BYTES_MAX:
        raise AmendmentRefused(f"a notice has over {limits.NOTICE_BYTES_MAX} bytes", remedy)
    try:
        signer, key = _signer(notice.certificate_der, authorities, keys)
        certificates.verify_signature(key, notice.signature, NOTICE_LABEL + notice.body)
        content = json.loads(notice.body)
        if not isinstance(content, dict) or canonical_json(content) != notice.body:
            raise ValueError("it is no object in canonical JSON")
        if set(content) != {"federation", "site", "issued"}:
            raise ValueError("a notice has the keys federation, site and issued")
        issued = content["issued"]
        if not isinstance(issued, int) or isinstance(issued, bool) or not 0 <= issued <= limits.ISSUED_MAX:
            raise ValueError("issued is no Unix time in whole seconds")
    except (ValueError, RecursionError) as error:
        raise AmendmentRefused(f"a notice is refused: {error}", remedy) from None
    if content["federation"] != federation:
        raise AmendmentRefused("a notice is of another federation", remedy)
    if content["site"] != signer:
        raise AmendmentRefused(f"a notice of {str(content['site'])[:40]!r} is signed by {signer}", remedy)
    return LeaveNotice(federation, signer, issued)


def notices_of(
    notices: Iterable[SignedNotice], *, federation: Sha256, authorities: Sequence[str], keys: Keys
) -> tuple[SignedNotice, ...]:
    """Return the valid notices of current members, one of each."""
    by_site: dict[SiteName, SignedNotice] = {}
    for notice in notices:
        with contextlib.suppress(AmendmentRefused):
            leaver = verify_notice(notice, federation=federation, authorities=authorities, keys=keys)
            by_site.setdefault(leaver.site, notice)
    return tuple(by_site.values())


def _signer(
    certificate_der: bytes, authorities: Sequence[str], keys: Keys
) -> tuple[SiteName, ec.EllipticCurvePublicKey]:
    """Return a certificate's member and its key. Raise ``ValueError`` if it is not a member's."""
    name = member_name(certificate_der)
    if name not in keys:
        raise ValueError(f"{name} is no member")
    certificate = verify_member(certificate_der, name, authorities)
    try:
        certificates.verify_pinned(certificate, keys[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return name, certificates.certificate_key(certificate)


def member_name(certificate_der: bytes) -> SiteName:
    """Return the DNS name in an unverified certificate. Raise ``ValueError`` if it names no site."""
    if len(certificate_der) > limits.CERTIFICATE_BYTES_MAX:
        raise ValueError(f"a certificate has over {limits.CERTIFICATE_BYTES_MAX} bytes")
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return roster.site_name("".join(names.get_values_for_type(x509.DNSName)[:1]))
    except certificates.UNREADABLE as error:
        raise ValueError("a certificate cannot be read, or names no site") from error


def verify_member(certificate_der: bytes, name: SiteName, authorities: Iterable[str]) -> x509.Certificate:
    """Check that one of the federation's CAs issued the certificate to the site; dates do not matter."""
    reason: ValueError | None = None
    for pem in authorities:
        try:
            return certificates.verify_certificate(
                certificate_der, certificates.read_authority(pem.encode()), name, None
            )
        except ValueError as error:
            reason = error
    raise reason or ValueError("the federation has no CA")

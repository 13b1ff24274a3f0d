"""A federation with its CA and its sites' keys, which signs any amendment that a test wants."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from peer.core.messages import Endorsement, SignedAmendment, SignedNotice
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.site.config.schema import FederationConfig
from peer.site.identity import certificates
from peer.site.identity.certificates import Identity
from peer.site.membership.amendment import Amendment, Newcomer
from peer.site.membership.chain import Chain
from peer.site.membership.round_keys import amendment_tag
from peer.site.membership.signatures import endorse, endorse_as_founder, sign_notice
from tests.fakes.drafts import draft

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CA_KEY, CA = certificates.new_authority("trial", now=NOW)
GENESIS_KEY = RoundKey(bytes(range(32)))


def identity(name: str, generation: int = 1) -> Identity:
    """A site with a certificate of the CA; each generation has another key."""
    return _identity(name, generation)


@lru_cache(maxsize=256)
def _identity(name: str, generation: int) -> Identity:
    key = certificates.new_key()
    certificate = certificates.issue(CA_KEY, CA, name=SiteName(name), public_key=key.public_key(), now=NOW)
    return Identity(SiteName(name), key, certificate, CA, GENESIS_KEY)


def pin(name: str, generation: int = 1) -> Sha256:
    """The key that the chain pins for a site."""
    return certificates.key_digest(identity(name, generation).key.public_key())


def newcomer(name: str, generation: int = 1) -> Newcomer:
    return Newcomer(SiteName(name), pin(name, generation), f"{name}.example.org:7443")


def round_key(seed: int) -> RoundKey:
    """Another round key for each seed; 0 is the genesis'."""
    return GENESIS_KEY if seed == 0 else RoundKey(bytes([seed]) * 32)


class AmendedFederation:
    """A genesis, and whoever can sign."""

    def __init__(self, *names: str, members: int | None = None, rounds: int = 100, **keys: Any) -> None:
        site = [{"name": name} | ({} if members is None else {"key": pin(name)}) for name in names]
        governance = {} if members is None else {"governance": {"members": members}}
        pem = certificates.certificate_pem(CA).decode()
        self.toml = draft("trial", rounds=rounds, ca_certificate=pem, site=site, **governance, **keys)
        self.config = FederationConfig.parse(self.toml, "federation.toml")
        self.members = members

    def chain(self, *amendments: SignedAmendment) -> Chain:
        return Chain.of(self.config, amendments)

    def after(self, chain: Chain, *, from_round: int = 10, key: int = 0, **changes: Any) -> Amendment:
        """The amendment that is next in a chain."""
        head = chain.head
        return Amendment(
            federation=self.config.digest,
            number=head.number + 1,
            previous=head.digest,
            from_round=from_round,
            issued=1_780_272_000,
            round_key_tag=amendment_tag(round_key(key), self.config.digest),
            **changes,
        )

    def sign(
        self, amendment: Amendment | bytes, by: Iterable[str] = (), *, founder: bool | None = None
    ) -> SignedAmendment:
        """Signed by these sites, or by the founder where nobody is named."""
        body = amendment if isinstance(amendment, bytes) else amendment.encode()
        signatures = [endorse(identity(name), body) for name in by]
        if founder if founder is not None else not signatures:
            signatures.append(endorse_as_founder(CA_KEY, body))
        return SignedAmendment(body, tuple(signatures))

    def extend(self, chain: Chain, by: Iterable[str] = (), **changes: Any) -> Chain:
        return chain.extended(self.sign(self.after(chain, **changes), by))

    def notice(self, name: str, *, generation: int = 1, issued: int = 1) -> SignedNotice:
        return sign_notice(identity(name, generation), federation=self.config.digest, issued=issued)


def from_hex(entry: Mapping[str, Any]) -> SignedAmendment:
    """An amendment of ``proto/vectors/chain.json``."""
    by = tuple(
        Endorsement(bytes.fromhex(each["certificate_der"]), bytes.fromhex(each["signature"])) for each in entry["by"]
    )
    return SignedAmendment(bytes.fromhex(entry["body"]), by)


def tampered(signed: SignedAmendment) -> SignedAmendment:
    """The amendment with a digit of its time changed under the same signatures."""
    return replace(signed, body=signed.body.replace(b'"issued":178', b'"issued":179'))

"""The keys of a secure sum: each pair of members derives the seed of its masks, which nobody else can compute.

``s_ij = HKDF-SHA256(X25519(e_i, E_j), salt, info)``, 32 bytes. The salt is the federation's digest || the digest of the
amendment that the round's epoch begins with, or the federation's again where there is none. ``info`` is
``"mhfl secure sum 1" || 0x00 || u64be(round) || text(stage) || text(i) || text(j)``, i before j by bytes; ``text(x)``
is the length of x in UTF-8 as one byte, then x. Known answers: ``proto/vectors/secure_sum.json``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peer.core.roster import Sha256, SiteName

LABEL = b"mhfl secure sum 1\0"
SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class SumContext:
    """What a sum belongs to: all its members state the same.

    ``amendment`` is the digest of the amendment that the round's epoch begins with, the federation's where there is
    none. An amendment that arrives during a round and begins a later epoch does not change it.
    """

    federation: Sha256
    amendment: Sha256
    round: int
    stage: str


@dataclass(frozen=True, slots=True)
class SumSecrets:
    """A site's secrets of one sum, 32 bytes each. Neither a journal nor a backup may have them."""

    private_key: bytes
    own_seed: bytes

    @classmethod
    def draw(cls) -> SumSecrets:
        """Draw new ones."""
        return cls(secrets.token_bytes(SEED_BYTES), secrets.token_bytes(SEED_BYTES))

    def __repr__(self) -> str:
        return "SumSecrets(...)"

    @property
    def public_key(self) -> bytes:
        """The key that the other members get, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private_key).public_key().public_bytes_raw()

    def pair_seed(self, context: SumContext, *, own: SiteName, other: SiteName, other_key: bytes) -> bytes:
        """Derive the seed of a pair's masks, 32 bytes.

        Raises:
            ValueError: the other's key has not 32 bytes, or is of small order, so that anybody knows the shared secret.
        """
        public = X25519PublicKey.from_public_bytes(other_key)
        shared = X25519PrivateKey.from_private_bytes(self.private_key).exchange(public)
        salt = bytes.fromhex(context.federation) + bytes.fromhex(context.amendment)
        return HKDF(SHA256(), SEED_BYTES, salt, pair_info(context, own, other)).derive(shared)


def check_public_key(key: bytes) -> None:
    """Check a key of another site.

    Raises:
        ValueError: it has not 32 bytes, or is of small order, so that anybody knows every secret shared with it.
    """
    X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))


def pair_info(context: SumContext, one: SiteName, other: SiteName) -> bytes:
    """Encode what a pair's seed is for. Raises ``ValueError`` for one site, or a name of over 255 bytes."""
    if one == other:
        raise ValueError(f"{one} is not a pair")
    texts = (context.stage, min(one, other), max(one, other))
    return LABEL + context.round.to_bytes(8, "big") + b"".join(map(_text, texts))


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8")
    if len(encoded) > 255:
        raise ValueError(f"{text[:40]!r} has {len(encoded)} bytes; its length has one byte")
    return bytes([len(encoded)]) + encoded

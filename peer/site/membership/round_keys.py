"""Round keys of epochs: their tags, their copies sealed for one site, and a test for ground keys.

An amendment names its round key by a tag. The key itself travels beside the amendments, encrypted
for each site and unsigned: a copy that does not fit the tag is discarded.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core import schedule
from peer.core.roster import RoundKey, Sha256, SiteName, round_key
from peer.site.identity.bundle import SUITE
from peer.site.membership.amendment import AmendmentRefused

LABEL = b"mhfl/round-key/v2\x00"
PROBABILITY_MIN = 1e-4
"""Lower bound of the chance test: below it, a round key is refused as ground."""
ROUNDS_COUNTED_MAX = 2_000
"""Number of orders counted: a search can hardly bias more, and seven sites take 30 ms for them."""


def amendment_tag(key: RoundKey, federation: Sha256) -> Sha256:
    """Compute an amendment's ``round_key_tag``: HMAC-SHA256(key, label || federation digest)."""
    return Sha256(hmac.digest(key, LABEL + bytes.fromhex(federation), "sha256").hex())


def seal_key(key: RoundKey, public_key: ec.EllipticCurvePublicKey, *, federation: Sha256, site: SiteName) -> bytes:
    """Encrypt the round key for one site: HPKE's encapsulated key, then ciphertext and tag."""
    tag = amendment_tag(key, federation)
    return SUITE.encrypt(key, public_key, info=_info(federation, tag, site))


def open_key(
    sealed: bytes, key: ec.EllipticCurvePrivateKey, *, federation: Sha256, tag: Sha256, site: SiteName
) -> RoundKey:
    """Decrypt the tag's round key. Raise ``ValueError`` if the bytes hold another key, or none for this site."""
    try:
        opened = round_key(SUITE.decrypt(sealed, key, info=_info(federation, tag, site)))
    except (InvalidTag, ValueError):
        raise ValueError(f"the round key {tag[:12]}… was not sealed for {site}'s key") from None
    if not hmac.compare_digest(amendment_tag(opened, federation), tag):
        raise ValueError(f"a sealed key for {site} is not the round key {tag[:12]}…")
    return opened


def orders_of(
    key: RoundKey, *, federation: Sha256, members: Sequence[SiteName], first: int, last: int, kind: str
) -> list[tuple[int, ...]]:
    """Compute a round key's orders from round ``first`` to ``last``, at most ``ROUNDS_COUNTED_MAX``."""
    rounds = range(first, min(last, first + ROUNDS_COUNTED_MAX - 1) + 1)
    return [
        schedule.order(round_key=key, federation_digest=federation, round=round, sites=len(members), kind=kind)
        for round in rounds
    ]


def check_orders(orders: Sequence[tuple[int, ...]], *, members: Sequence[SiteName], kind: str) -> None:
    """Reject a round key that looks ground: pairing counts must pass a chance test.

    The author of a key could try many, and choose one with favourable orders. The test counts how often
    each site receives from each other, and judges the most striking pair, corrected for their number.

    Raises:
        AmendmentRefused: two sites meet so often, or so rarely, that chance does not explain it.
    """
    sites = len(members)
    if sites < 3 or not orders:
        return
    counts = Counter(pair for order in orders for pair in enumerate(order))
    chance = 1 / sites if kind == "permutation" else 1 / (sites - 1)
    pairs = [(i, j) for i in range(sites) for j in range(sites) if i != j]
    tails = {count: _tail(count, len(orders), chance) for count in {counts[pair] for pair in pairs}}
    pair = min(pairs, key=lambda pair: tails[counts[pair]])
    if tails[counts[pair]] * len(pairs) < PROBABILITY_MIN:
        receiver, origin = (members[index] for index in pair)
        raise AmendmentRefused(
            f"the new round key lets {receiver} receive from {origin} in {counts[pair]} of {len(orders)} rounds, which "
            f"chance does with a probability below {PROBABILITY_MIN:g}",
            "do not approve it: ask its author for an amendment with another key, and tell the other members",
        )


def _tail(count: int, trials: int, chance: float) -> float:
    """Return twice the smaller tail of a binomial distribution, the count included, at most 1."""
    if not 0 < chance < 1:
        return 1.0
    below = math.fsum(_binomial(k, trials, chance) for k in range(count + 1))
    above = math.fsum(_binomial(k, trials, chance) for k in range(count, trials + 1))
    return min(1.0, 2 * min(below, above))


def _binomial(count: int, trials: int, chance: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(chance) + (trials - count) * math.log1p(-chance))


def _info(federation: Sha256, tag: Sha256, site: SiteName) -> bytes:
    return LABEL + bytes.fromhex(federation) + bytes.fromhex(tag) + site.encode("ascii")

"""Seeds derived from their purpose, so that a resumed training needs no generator's state.

A seed is derived from (federation digest, site, round, stage, purpose, ...). The seed of a state that all sites must
share is derived without the site.
"""

from __future__ import annotations

import hashlib
import json

LABEL = "mhfl/seed/v1"


SEEDS = 1 << 63
"""All seeds are below it."""


def derive(*parts: str | int) -> int:
    """Derive a seed in [0, 2^63) from all parts: the first eight bytes of the SHA-256 of the parts as JSON."""
    text = json.dumps([LABEL, *parts], separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big") >> 1

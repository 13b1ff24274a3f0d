"""Which document a command prints with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.documents import commands, data, laboratory, membership, privacy, records, relay

PARTS = (records, commands, laboratory, membership, data, relay, privacy)
DOCUMENTS: Mapping[str, Any] = {name: document for part in PARTS for name, document in part.DOCUMENTS.items()}
"""By command, the type of its document: a record, a list of records, or records by name."""

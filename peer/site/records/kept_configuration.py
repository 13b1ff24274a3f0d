"""The configuration that a generation keeps: its journal has it, and a start compares it with the
files as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from peer.core import rows
from peer.errors import StateError
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal

KEPT_TABLES = ("data", "model", "training")
"""Tables of site.toml that a generation keeps: with other values, the same rounds would give other
bits.
"""
MAY_CHANGE = frozenset(
    {
        "training.checkpoint_s",
        "training.hang_s",
        "training.gpu",
        "training.gpu_folder",
        "training.readers",
        "data.cache",
        "data.unreadable_share_max",
    }
)
"""Keys in them that change no bit of any weight."""


def keep_configuration(
    folder: SiteFolder, generation: int, federation: FederationConfig, site: SiteConfig, *, accept: bool = False
) -> None:
    """Write the configuration into the generation's journal, or compare it with the one that is
    there.

    Args:
        accept: keep a changed site.toml from now on, instead of refusing it.

    Raises:
        StateError: the generation began with another federation, or with other kept keys of
            site.toml.
    """
    with contextlib.closing(Journal(folder.generation(generation) / "journal.db")) as journal:
        before, current = _read_kept(journal), settings_to_keep(federation, site)
        problem = _compare(before, current, site, generation) if before else None
        if problem is not None and not (accept and before["federation"] == current["federation"]):
            raise problem
        if problem is not None or not before:
            journal.write(rows.ConfiguredRow.from_body(0, current))


def find_change(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> StateError | None:
    """Find the reason why a start would refuse to go on with the newest generation; nothing is written."""
    generation = max(folder.generations(), default=0)
    path = folder.generation(generation) / "journal.db"
    if not path.exists():
        return None
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        before = _read_kept(journal)
    return _compare(before, settings_to_keep(federation, site), site, generation) if before else None


def settings_to_keep(federation: FederationConfig, site: SiteConfig) -> dict[str, Any]:
    """Return the federation's digest, and the keys of site.toml that must not change, as ``table.key``."""
    return {"federation": federation.digest, **_flatten(site.model_dump(mode="json"))}


def _read_kept(journal: Journal) -> dict[str, Any]:
    records = journal.records(("configured",), last=1)
    return dict(records[0]["body"]) if records else {}


def _compare(
    before: Mapping[str, Any], current: Mapping[str, Any], site: SiteConfig, generation: int
) -> StateError | None:
    if before["federation"] != current["federation"]:
        return StateError(
            f"generation {generation} belongs to federation {before['federation'][:12]}, "
            f"federation.toml is now {current['federation'][:12]}",
            "put the former federation.toml back, or begin anew with --resume fresh",
        )
    keys_in_file = _flatten(site.model_dump(mode="json", exclude_unset=True))
    for key in sorted(before.keys() | current.keys()):
        if key not in before and key not in keys_in_file:  # a newer program's key, at its default
            continue
        if before.get(key) != current.get(key):
            return StateError(
                f"{site.where}: {key} was {before.get(key)!r} when this generation began and is "
                f"{current.get(key)!r} now",
                "put it back, start with --accept-change to go on all the same, or --resume fresh to begin anew",
            )
    return None


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the keys that must not change, as ``table.key``."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if not prefix and key not in KEPT_TABLES:
            continue
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{path}."))
        elif path not in MAY_CHANGE:
            flat[path] = value
    return flat

"""Published maps from where samples come from to sites."""

from __future__ import annotations

from collections.abc import Mapping

ABIDE_REGIONS: Mapping[str, tuple[str, ...]] = {
    "europe": ("LEUVEN", "MAX_MUN", "TRINITY", "SBL"),
    "west-us": ("UCLA", "USM", "SDSU", "STANFORD", "OHSU", "CALTECH"),
    "central-us": ("UM", "PITT", "CMU"),
    "east-us": ("NYU", "YALE", "KKI", "OLIN"),
}
"""The four sites of FedASD and their 17 institutions (FedSKD, table I)."""

ABIDE_SAMPLES: Mapping[str, tuple[str, ...]] = {
    "LEUVEN": ("LEUVEN_1", "LEUVEN_2"),
    "UCLA": ("UCLA_1", "UCLA_2"),
    "UM": ("UM_1", "UM_2"),
}
"""Institutions that the Preprocessed Connectomes Project lists as two of its 20 ids."""


def spelled(value: object) -> str:
    """A value as published maps spell it: as a site's name is, so that ``MAX_MUN`` and ``max-mun`` are one."""
    return str(value).lower().replace("_", "-")


ABIDE: Mapping[str, str] = {
    spelled(name): region
    for region, institutions in ABIDE_REGIONS.items()
    for institution in institutions
    for name in (institution, *ABIDE_SAMPLES.get(institution, ()))
}
"""The site of every institution, and of every id of the Preprocessed Connectomes Project."""

MAPPINGS: Mapping[str, Mapping[str, str]] = {"abide": ABIDE}
"""The maps that an experiment can name; their keys are :func:`spelled`."""

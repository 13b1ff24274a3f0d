"""The ABIDE map has the paper's institutions and the archive's ids."""

from __future__ import annotations

from collections import Counter

import pytest

from peer.partition.regions import ABIDE, ABIDE_REGIONS, ABIDE_SAMPLES, spelled

# The archive's SITE_ID column.
IDS = (
    *("CALTECH", "CMU", "KKI", "LEUVEN_1", "LEUVEN_2", "MAX_MUN", "NYU", "OHSU", "OLIN", "PITT", "SBL", "SDSU"),
    *("STANFORD", "TRINITY", "UCLA_1", "UCLA_2", "UM_1", "UM_2", "USM", "YALE"),
)


def test_twenty_ids_are_seventeen_institutions_in_four_regions() -> None:
    assert len(IDS) == 20
    assert Counter(ABIDE[spelled(name)] for name in IDS) == {"west-us": 7, "europe": 5, "central-us": 4, "east-us": 4}
    assert {region: len(members) for region, members in ABIDE_REGIONS.items()} == {
        "europe": 4,
        "west-us": 6,
        "central-us": 3,
        "east-us": 4,
    }
    assert ABIDE.keys() == {spelled(name) for name in (*IDS, *ABIDE_SAMPLES)}


@pytest.mark.parametrize("institution", ABIDE_SAMPLES)
def test_halves_of_an_institution_are_at_its_site(institution: str) -> None:
    places = {ABIDE[spelled(name)] for name in (institution, *ABIDE_SAMPLES[institution])}
    assert places == {region for region, members in ABIDE_REGIONS.items() if institution in members}


def test_spelling_does_not_matter() -> None:
    assert spelled("MAX_MUN") == spelled("max-mun") == "max-mun"

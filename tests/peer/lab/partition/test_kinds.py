"""The ABIDE map has the paper's institutions and the archive's ids."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fakes.partition_pools import DERM7PT, pool_of
from peer.errors import DataError
from peer.lab.partition.divide import divide
from peer.lab.partition.groups import groups_of
from peer.lab.partition.kinds import (
    ABIDE,
    ABIDE_REGIONS,
    ABIDE_SAMPLES,
    KINDS,
    Dirichlet,
    Shards,
    canonical_spelling,
)

# The archive's SITE_ID column.
IDS = (
    *("CALTECH", "CMU", "KKI", "LEUVEN_1", "LEUVEN_2", "MAX_MUN", "NYU", "OHSU", "OLIN", "PITT", "SBL", "SDSU"),
    *("STANFORD", "TRINITY", "UCLA_1", "UCLA_2", "UM_1", "UM_2", "USM", "YALE"),
)


def test_twenty_ids_are_seventeen_institutions_in_four_regions() -> None:
    assert len(IDS) == 20
    assert Counter(ABIDE[canonical_spelling(name)] for name in IDS) == {
        "west-us": 7, "europe": 5, "central-us": 4, "east-us": 4,
    }  # fmt: skip
    assert {region: len(members) for region, members in ABIDE_REGIONS.items()} == {
        "europe": 4, "west-us": 6, "central-us": 3, "east-us": 4,
    }  # fmt: skip
    assert ABIDE.keys() == {canonical_spelling(name) for name in (*IDS, *ABIDE_SAMPLES)}


@pytest.mark.parametrize("institution", ABIDE_SAMPLES)
def test_halves_of_an_institution_are_at_its_site(institution: str) -> None:
    sites = {ABIDE[canonical_spelling(name)] for name in (institution, *ABIDE_SAMPLES[institution])}
    assert sites == {region for region, members in ABIDE_REGIONS.items() if institution in members}


SITES = ("africa", "america", "asia")


def labels(entries: list[Any]) -> Counter[int]:
    """How many entries have each class."""
    return Counter(entry["label"] for entry in entries)


# --- dirichlet ------------------------------------------------------------------------------------------------------
def test_samples_are_cut_at_the_cumulative_shares() -> None:
    groups = groups_of(pool_of((40, 10)))
    parts = Dirichlet(alpha=0.7).draw_parts(groups, 3, np.random.default_rng(5))
    again = np.random.default_rng(5)
    for label, size in ((0, 40), (1, 10)):
        again.permutation(size)
        cuts = np.cumsum(again.dirichlet([0.7] * 3)) * size
        expected = np.diff([0, *np.round(cuts[:2]), size])
        assert [sum(groups[index].label == label for index in part) for part in parts] == expected.tolist()


def test_a_draw_that_leaves_a_site_too_little_is_repeated() -> None:
    # With this alpha most draws leave some site with one class.
    groups = groups_of(DERM7PT)
    rule, draw = Dirichlet(alpha=0.1), np.random.default_rng(0)
    lacks_classes = [
        any(
            sum(count >= 5 for count in Counter(groups[index].label for index in part).values()) < 2
            for part in rule.draw_parts(groups, 3, draw)
        )
        for _ in range(50)
    ]
    assert sum(lacks_classes) > 10
    for seed in range(10):
        sites = divide(DERM7PT, "dirichlet", sites=SITES, seed=seed, alpha=0.1)
        assert all(sum(count >= 5 for count in labels(part).values()) >= 2 for part in sites.values())


def test_images_of_one_subject_count_once() -> None:
    # Two subjects a class with fifty images each: no fold of five could have them.
    with pytest.raises(DataError, match="1000 draws gave none in which every site has 5 samples of as many subjects"):
        divide(pool_of((2, 2), images=50), "dirichlet", sites=("a",), seed=0, alpha=1.0)


def test_what_no_draw_can_give_names_the_site_and_what_to_change() -> None:
    with pytest.raises(DataError) as refusal:
        divide(DERM7PT, "dirichlet", sites=SITES, seed=0, alpha=0.5, samples_min=300)
    assert "300 samples" in refusal.value.message
    assert "'africa'" in refusal.value.message
    assert "raise alpha" in refusal.value.remedy
    assert "samples_min" in refusal.value.remedy


@pytest.mark.parametrize(("kind", "options"), [("dirichlet", {"alpha": 1.0}), ("shards", {"shards": 2})])
def test_labels_that_are_files_cannot_be_skewed(kind: str, options: dict[str, Any]) -> None:
    entries = [{"image": f"{i}.png", "label": f"{i}-mask.png"} for i in range(20)]
    with pytest.raises(DataError, match=r"labels are no classes: 0.png, .* and 15 more; partition by a key"):
        divide(entries, kind, sites=SITES, seed=0, **options)


# --- a given size ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "options"), [("dirichlet", {"alpha": 0.5}), ("shards", {"shards": 4}), ("equal", {}), ("key", {})]
)
def test_every_site_keeps_exactly_so_many(kind: str, options: dict[str, Any]) -> None:
    entries = [entry | {"site": SITES[i % 3]} for i, entry in enumerate(pool_of((180,) * 10))]
    sites = divide(entries, kind, sites=SITES, seed=3, per_site=100, **options)
    assert [len(part) for part in sites.values()] == [100, 100, 100]
    names = [entry["image"] for part in sites.values() for entry in part]
    assert len(set(names)) == 300


def test_a_size_is_met_with_whole_subjects_or_refused() -> None:
    pairs = pool_of((30, 30), images=2)
    sites = divide(pairs, "equal", sites=("a", "b"), seed=0, per_site=10)
    assert all(set(Counter(entry["subject"] for entry in part).values()) == {2} for part in sites.values())
    with pytest.raises(DataError, match="per_site: no 11 samples of whole subjects come together for 'a'"):
        divide(pairs, "equal", sites=("a", "b"), seed=0, per_site=11)
    with pytest.raises(DataError, match="classes among exactly 11; the last left too few for 'a', 'b'"):
        divide(pairs, "dirichlet", sites=("a", "b"), seed=0, per_site=11, alpha=1.0)


# --- shards ---------------------------------------------------------------------------------------------------------
def test_shards_are_equal_and_of_neighbouring_classes() -> None:
    groups = groups_of(pool_of((1000,) * 8))
    parts = Shards(shards=4).draw_parts(groups, 8, np.random.default_rng(0))
    assert [len(part) for part in parts] == [1000] * 8
    for part in parts:  # 32 shards of 250, so that each is of one class
        assert all(count % 250 == 0 for count in Counter(groups[index].label for index in part).values())


def test_a_site_of_shards_of_one_class_only_is_drawn_again() -> None:
    entries = pool_of((140, 140, 140))  # six shards of 70, two a class
    rule, draw = Shards(shards=2), np.random.default_rng(0)
    groups = groups_of(entries)
    first = [[{groups[index].label for index in part} for part in rule.draw_parts(groups, 3, draw)] for _ in range(20)]
    assert any(len(classes) == 1 for classes_of_parts in first for classes in classes_of_parts)
    for seed in range(20):
        sites = divide(entries, "shards", sites=SITES, seed=seed, shards=2)
        assert all(len(labels(part)) == 2 for part in sites.values())


def test_more_shards_than_subjects_are_refused() -> None:
    with pytest.raises(DataError, match="10 subjects make no 12 shards; lower shards"):
        divide(pool_of((5, 5), images=3), "shards", sites=SITES, seed=0, shards=4)


# --- key ------------------------------------------------------------------------------------------------------------
CENTRES = [{"image": f"{i}.png", "label": i % 2, "centre": f"c{i % 4}"} for i in range(16)]


def test_the_value_is_the_site() -> None:
    sites = divide(CENTRES, "key", sites=("c1", "c0", "c3", "c2"), seed=0, key="centre")
    assert list(sites) == ["c1", "c0", "c3", "c2"]
    assert all({entry["centre"] for entry in part} == {site} for site, part in sites.items())


def test_a_mapping_joins_values() -> None:
    mapping = {"c0": "north", "c1": "north", "c2": "south", "c3": "south"}
    sites = divide(CENTRES, "key", sites=("north", "south"), seed=0, key="centre", mapping=mapping)
    assert {entry["centre"] for entry in sites["north"]} == {"c0", "c1"}
    assert len(sites["south"]) == 8


def test_a_published_mapping_is_known_by_its_name() -> None:
    entries = [
        {"image": f"{name}.nii", "label": 0, "institution": name} for name in ("UM_1", "max-mun", "UCLA", "NYU", "KKI")
    ]
    regions = ("europe", "west-us", "central-us", "east-us")
    sites = divide(entries, "key", sites=regions, seed=0, key="institution", published="abide")
    assert {site: [entry["institution"] for entry in part] for site, part in sites.items()} == {
        "europe": ["max-mun"], "west-us": ["UCLA"], "central-us": ["UM_1"], "east-us": ["KKI", "NYU"],
    }  # fmt: skip


def test_entries_of_no_site_are_refused_unless_they_are_to_be_dropped() -> None:
    with pytest.raises(DataError) as refusal:
        divide(CENTRES, "key", sites=("c0", "c1"), seed=0, key="centre")
    assert "'centre' that belongs to no site: c2 (4 entries), c3 (4 entries)" in refusal.value.message
    sites = divide(CENTRES, "key", sites=("c0", "c1"), seed=0, key="centre", others="drop")
    assert [len(part) for part in sites.values()] == [4, 4]
    with pytest.raises(DataError, match=r"'city' that belongs to no site: None \(16 entries\)"):
        divide(CENTRES, "key", sites=("c0", "c1"), seed=0, key="city")


def test_a_subject_at_two_sites_is_refused() -> None:
    entries = [entry | {"subject": "p1"} for entry in CENTRES[:2]]
    with pytest.raises(DataError, match="subject 'p1' is at several sites by 'centre': c0, c1"):
        divide(entries, "key", sites=("c0", "c1"), seed=0, key="centre")


# --- equal, ratio, resolution ---------------------------------------------------------------------------------------
def test_equal_sites_have_the_same_of_every_class() -> None:
    sites = divide(pool_of((30, 60, 9), images=2), "equal", sites=SITES, seed=0)
    assert all(labels(part) == {0: 20, 1: 40, 2: 6} for part in sites.values())


def test_a_ratio_gives_each_site_its_share_of_every_class() -> None:
    # The pneumonia data: 5863 images, of which 1583 are normal.
    shares = (0.6, 0.2, 0.08, 0.06, 0.04, 0.02)
    sites = divide(pool_of((1583, 4280)), "ratio", sites=tuple("abcdef"), seed=0, shares=shares)
    assert [len(part) for part in sites.values()] == pytest.approx([5863 * share for share in shares], abs=1)
    for share, part in zip(shares, sites.values(), strict=True):
        assert labels(part)[0] == pytest.approx(1583 * share, abs=1)


def test_resolution_gives_all_entries_to_every_site() -> None:
    sites = divide(DERM7PT, "resolution", sites=SITES, seed=0)
    assert sites["africa"] == sites["america"] == sites["asia"]
    assert len(sites["asia"]) == 1011


# --- all ------------------------------------------------------------------------------------------------------------
OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.5},
    "equal": {},
    "key": {"key": "site"},
    "ratio": {"shares": (0.5, 0.3, 0.2)},
    "resolution": {},
    "shards": {"shards": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_subject_is_split_and_no_entry_lost(kind: str) -> None:
    entries = [entry | {"site": SITES[int(entry["subject"][-1]) % 3]} for entry in pool_of((50, 60, 70), images=3)]
    sites = divide(entries, kind, sites=SITES, seed=1, **OPTIONS[kind])
    copies_of_image = Counter(entry["image"] for part in sites.values() for entry in part)
    sites_of_subject = Counter(subject for part in sites.values() for subject in {entry["subject"] for entry in part})
    copies = len(SITES) if kind == "resolution" else 1
    assert copies_of_image == {entry["image"]: copies for entry in entries}
    assert sites_of_subject == {entry["subject"]: copies for entry in entries}


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_pool_does_not_matter_and_the_seed_does(kind: str) -> None:
    entries = [entry | {"site": SITES[i % 3]} for i, entry in enumerate(pool_of((20, 60, 120)))]
    first = divide(entries, kind, sites=SITES, seed=1, **OPTIONS[kind])
    assert divide(entries[::-1], kind, sites=SITES, seed=1, **OPTIONS[kind]) == first
    second = divide(entries, kind, sites=SITES, seed=2, **OPTIONS[kind])
    assert (second == first) == (kind in ("key", "resolution"))

"""The table of who has how much of what has all its cells."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import DataError
from peer.lab.partition.groups import Group, SampleCount, class_of, counts, groups_of, image_names, stratify


def test_every_site_split_and_class_has_a_row() -> None:
    sites = {
        "europe": {
            "training": [
                {"image": "a.png", "label": 2, "subject": "p1"},
                {"image": "b.png", "label": 2, "subject": "p1"},
                {"image": "c.png", "label": 0, "subject": 2},
            ],
            "test": [],
        },
        "asia": {"training": [{"image": "d.png", "label": 2}]},
    }
    assert counts(sites) == [
        SampleCount("europe", "training", 0, samples=1, subjects=1),
        SampleCount("europe", "training", 2, samples=2, subjects=1),
        SampleCount("europe", "test", 0, samples=0, subjects=0),
        SampleCount("europe", "test", 2, samples=0, subjects=0),
        SampleCount("asia", "training", 0, samples=0, subjects=0),
        SampleCount("asia", "training", 2, samples=1, subjects=0),
    ]


def test_labels_that_are_files_are_no_class() -> None:
    sites = {"asia": {"test": [{"image": "d.png", "label": "m.png", "slide": "s"}, {"image": "e.png"}]}}
    assert counts(sites, by="slide") == [SampleCount("asia", "test", None, samples=2, subjects=1)]


def test_nothing_has_no_rows() -> None:
    assert counts({"asia": {"training": []}}) == []


ENTRIES = [
    {"image": "d.png", "label": 0},
    {"image": ["b.png", "c.png"], "label": 1, "subject": 7},
    {"image": "a.png", "label": 1, "subject": "7", "slide": "s"},
    {"image": "e.png", "label": 0, "subject": "8", "slide": "s"},
]


def single_groups(*labels: int) -> list[Group]:
    """One group a label, of one entry."""
    return [Group(f"g{index}", (index,), Counter([label])) for index, label in enumerate(labels)]


def test_a_subject_is_a_group_and_an_entry_without_one_is_alone() -> None:
    groups = groups_of(ENTRIES)
    assert [(group.name, group.entry_indices) for group in groups] == [("7", (2, 1)), ("d.png", (0,)), ("8", (3,))]
    assert [group.size for group in groups] == [2, 1, 1]


def test_another_key_can_say_what_stays_together() -> None:
    assert [group.entry_indices for group in groups_of(ENTRIES, "slide")] == [(2, 3), (1,), (0,)]
    assert all(group.size == 1 for group in groups_of(ENTRIES, "image"))


@given(st.permutations(range(len(ENTRIES))))
def test_groups_do_not_depend_on_the_order(order: list[int]) -> None:
    groups = groups_of([ENTRIES[index] for index in order])
    assert [[order[index] for index in group.entry_indices] for group in groups] == [[2, 1], [0], [3]]


def test_a_group_counts_as_its_most_frequent_class_and_a_tie_as_the_lowest() -> None:
    assert Group("p", (0, 1, 2), Counter([3, 1, 3])).label == 3
    assert Group("p", (0, 1), Counter([3, 1])).label == 1
    assert Group("p", (0, 1), Counter([None, 1])).label == 1


@pytest.mark.parametrize(("label", "expected"), [(2, 2), ("mask.png", None), (True, None), (1.0, None), (None, None)])
def test_only_whole_numbers_are_classes(label: object, expected: int | None) -> None:
    assert class_of({"image": "a.png", "label": label}) == expected


@pytest.mark.parametrize("image", [None, "", [], ["a.png", ""], 3])
def test_an_entry_without_an_image_is_refused(image: object) -> None:
    with pytest.raises(DataError, match=r"an entry has no image: .*'subject': 'p7'.*give its path"):
        image_names({"subject": "p7", "image": image})


def test_no_entries_are_refused() -> None:
    with pytest.raises(DataError, match="no entries"):
        groups_of([])


def test_equal_shares_are_dealt_evenly_in_every_class_and_in_all() -> None:
    groups = single_groups(*[0] * 7, *[1] * 8, *[2] * 3)
    parts = stratify(groups, lambda count: [count / 5] * 5, np.random.default_rng(0))
    assert sorted(index for part in parts for index in part) == list(range(18))
    assert sorted(len(part) for part in parts) == [3, 3, 4, 4, 4]
    per_class = [Counter(groups[index].label for index in part) for part in parts]
    assert {counts_of_part[0] for counts_of_part in per_class} == {1, 2}
    assert {counts_of_part[1] for counts_of_part in per_class} == {1, 2}
    assert {counts_of_part[2] for counts_of_part in per_class} == {0, 1}


def test_a_small_share_gets_its_samples_though_no_class_owes_it_one() -> None:
    # 2 % of ten samples are a fifth of one, twenty times.
    groups = single_groups(*[label for label in range(20) for _ in range(10)])
    shares = (0.6, 0.2, 0.08, 0.06, 0.04, 0.02)
    parts = stratify(groups, lambda count: [share * count for share in shares], np.random.default_rng(0))
    assert [len(part) for part in parts] == [120, 40, 16, 12, 8, 4]


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=2, max_size=40))
def test_every_class_meets_its_quota_whatever_the_sizes(seed: int, sizes: list[tuple[int, int]]) -> None:
    groups = [
        Group(str(index), tuple(range(size)), Counter({label: size})) for index, (label, size) in enumerate(sizes)
    ]
    parts = stratify(groups, lambda count: [0.5 * count, 0.3 * count, 0.2 * count], np.random.default_rng(seed))
    assert sorted(index for part in parts for index in part) == list(range(len(groups)))
    totals = Counter(group.label for group in groups)
    for share, part in zip((0.5, 0.3, 0.2), parts, strict=True):
        for label, count in Counter(groups[index].label for index in part).items():
            assert count < share * totals[label] + 1
    for label, total in totals.items():
        counts_of_label = [sum(groups[index].label == label for index in part) for part in parts]
        assert all(count > share * total - 1 for count, share in zip(counts_of_label, (0.5, 0.3, 0.2), strict=True))


def test_large_groups_are_dealt_first_so_that_small_ones_even_out() -> None:
    groups = [Group(str(size), tuple(range(size)), Counter({0: size})) for size in (1, 9, 2, 8, 3, 7, 4, 6)]
    parts = stratify(groups, lambda count: [count / 2] * 2, np.random.default_rng(0))
    assert [sum(groups[index].size for index in part) for part in parts] == [20, 20]

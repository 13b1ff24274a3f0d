"""Names that sites' own data give to classes: alike or not, by digests alone."""

import pytest

from peer.core import limits
from peer.core.class_numbering import (
    NUMBERS_DIFFER,
    add_own_name,
    differing_names,
    digest_names,
    find_conflict,
    listed_names,
)
from peer.core.roster import Sha256

OURS, OTHER = Sha256("ab" * 32), Sha256("cd" * 32)
NAMES = {0: "benign", 1: "malignant", 3: "cyst"}


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ({"0": "benign", "1": ""}, {0: "benign"}),
        ({"0": "benign", "1" * 5000: "x"}, {0: "benign"}),
        (["benign", "malignant"], {0: "benign", 1: "malignant"}),
        ({"benign": 0, "x": "y"}, {}),
        ("benign", {}),
        (None, {}),
    ],
)
def test_names_are_read_from_an_object_or_a_list(labels: object, names: dict[int, str]) -> None:
    assert listed_names({"labels": labels}) == names


def test_digests_stand_in_the_order_of_numbers_and_belong_to_one_federation() -> None:
    digests = digest_names(NAMES, OURS)
    assert [len(digest) for digest in digests] == [32, 32, 0, 32]
    assert digests == digest_names({0: " Benign", 1: "MALIGNANT", 3: "cy\u200bst"}, OURS)
    assert not set(digests) & set(digest_names({0: "benign", 1: "malignant"}, OTHER))
    assert digest_names({}, OURS) == ()
    assert digest_names({limits.CLASS_NAMES_MAX: "x"}, OURS) == ()


@pytest.mark.parametrize(
    ("theirs", "conflict"),
    [
        ({0: "benign", 1: "malignant"}, None),
        ({0: "gutartig", 1: "bösartig"}, None),
        ({}, None),
        ({0: "malignant", 1: "benign"}, "class 0 at oslo is class 1 at the other site"),
        ({1: "benign"}, "class 0 at oslo is class 1 at the other site"),
        ({0: "cyst"}, "class 3 at oslo is class 0 at the other site"),
    ],
)
def test_a_name_under_two_numbers_is_a_conflict_told_by_numbers(theirs: dict[int, str], conflict: str | None) -> None:
    conflicting = find_conflict("oslo", NAMES, digest_names(theirs, OURS), OURS)
    assert conflicting == (None if conflict is None else f"{NUMBERS_DIFFER}: {conflict}")


@pytest.mark.parametrize(
    ("one", "other", "conflicts"),
    [
        ({0: "other", 2: "other"}, {2: "other"}, False),
        ({0: "other", 1: "mel"}, {0: "other", 1: "mel", 2: "other"}, False),
        ({0: "other", 1: "other"}, {1: "other", 2: "other"}, False),
        ({0: "other", 1: "other"}, {2: "other", 3: "other"}, True),
        ({0: "other", 1: "other"}, {2: "other"}, True),
    ],
)
def test_two_sites_decide_alike_of_a_name_that_one_gives_twice(
    one: dict[int, str], other: dict[int, str], conflicts: bool
) -> None:
    for mine, theirs in ((one, other), (other, one)):
        assert (find_conflict("oslo", mine, digest_names(theirs, OURS), OURS) is not None) == conflicts


def test_each_site_reads_its_own_name_of_the_class() -> None:
    theirs = {0: "Malignant", 1: "Benign"}
    reason = find_conflict("oslo", NAMES, digest_names(theirs, OURS), OURS)
    assert reason is not None
    assert add_own_name(reason, "oslo", NAMES) == f"{reason}; class 0 here is 'benign'"
    assert add_own_name(reason, "bergen", theirs) == f"{reason}; class 1 here is 'Benign'"
    for other in (reason.replace("1", "7"), reason.replace("1", "77777"), "of another federation"):
        assert add_own_name(other, "bergen", theirs) == other


def test_two_names_of_one_number_are_listed() -> None:
    theirs = digest_names({0: "gutartig", 1: "malignant", 2: "more"}, OURS)
    assert list(differing_names(NAMES, theirs, OURS)) == ["0 'benign'"]

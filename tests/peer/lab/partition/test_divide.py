"""Options that are wrong are named, with what would be right, before there is any data."""

from typing import Any

import pytest

from peer.errors import ConfigError, DataError
from peer.lab.partition.divide import divide, rule
from peer.lab.partition.kinds import Dirichlet

SITES = ("a", "b")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("dirichlets", {}, "kind: unknown partition 'dirichlets' (did you mean 'dirichlet'?)"),
        ("dirichlet", {}, "alpha is missing"),
        ("dirichlet", {"alpha": 0.0}, "alpha: expected more than 0, found 0.0"),
        ("dirichlet", {"alpha": 1.0, "sample_min": 3}, "sample_min: unknown key (did you mean 'samples_min'?)"),
        ("shards", {"shards": 0}, "shards: expected at least 1, found 0"),
        ("equal", {"per_site": 1.5}, "per_site: expected a whole number, found 1.5"),
        ("ratio", {"shares": [0.5, 0.3, 0.2]}, "shares: there are 3 for 2 sites; give one each"),
        ("ratio", {"shares": [0.5, 0.4]}, "shares: add up to 0.9, not 1"),
        ("ratio", {"shares": [0.5, 0.5], "per_site": 5}, "per_site: unknown key"),
        ("key", {"published": "abyde"}, "published: unknown mapping 'abyde' (did you mean 'abide'?)"),
        ("key", {"published": "abide", "mapping": {"x": "a"}}, "mapping: give it, or the name of a published one"),
        ("key", {"mapping": {"x": "a", "y": "c"}}, "mapping: gives nothing to 'b'"),
        ("key", {"mapping": {"x": "a", "y": "c"}}, "mapping: gives samples to 'c', which is no site"),
        ("key", {"published": "abide"}, "published: gives nothing to 'a'"),
    ],
)
def test_wrong_options_are_named(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        rule(kind, SITES, options, where="skewed.toml: partitions.skewed")
    assert refusal.value.message.startswith("skewed.toml: partitions.skewed: ")
    assert message in refusal.value.message


@pytest.mark.parametrize(("sites", "message"), [((), "name at least one"), (("a", "b", "a"), "named twice: a")])
def test_wrong_sites_are_named(sites: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"partition: sites: {message}"):
        rule("equal", sites, {})


def test_a_rule_has_its_options() -> None:
    assert rule("dirichlet", SITES, {"alpha": 1, "per_site": 100}) == Dirichlet(alpha=1.0, per_site=100)


def test_more_samples_than_there_are_is_said_at_once() -> None:
    entries = [{"image": f"{i}.png", "label": i % 2} for i in range(8)]
    with pytest.raises(DataError, match="2 sites of 5 samples are more than the 8 that there are"):
        divide(entries, "dirichlet", sites=SITES, seed=0, alpha=1.0, per_site=5)


def test_a_site_without_a_sample_is_named() -> None:
    with pytest.raises(DataError, match="no sample is left for 'b'; name fewer sites"):
        divide([{"image": "a.png", "label": 0, "site": "a"}], "key", sites=SITES, seed=0)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("equal", {}, ([1, 2, 5, 6], [0, 3, 4, 7])),
        ("dirichlet", {"alpha": 1.0, "samples_min": 1}, ([0, 1, 2, 3, 5, 6], [4, 7])),
    ],
)
def test_partitions_stay_as_they_are(kind: str, options: dict[str, Any], expected: tuple[list[int], ...]) -> None:
    entries = [{"image": f"{i}.png", "label": i % 2} for i in range(8)]
    sites = divide(entries, kind, sites=SITES, seed=0, **options)
    assert sites == {site: [entries[i] for i in indices] for site, indices in zip(SITES, expected, strict=True)}

"""[aggregate]: the rules of a mean, and where a secure sum contradicts the method, the sites or another key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft
from peer.core.secure_sum import members_min
from peer.errors import ConfigError
from peer.methods.registry import PLANS
from peer.site.config.aggregate_table import SECURE_SITES_MAX
from peer.site.config.schema import FederationConfig
from peer.site.membership.amendment import NEVER, SETTINGS

SHARED = {"shared_model": {"name": "resnet10"}}
GOLDEN = Path(__file__).with_name("aggregate_table.json")
"""By method, why its exchange cannot be a secure sum; null if it can."""


def federation(*, sites: int = 3, method: Any = "fedavg", secure: Any = True, **keys: Any) -> FederationConfig:
    aggregate = {"secure": secure, **keys.pop("aggregate", {})}
    roster = [{"name": f"site-{number}"} for number in range(sites)]
    text = draft("trial", method=method, aggregate=aggregate, site=roster, **{**SHARED, **keys})
    return FederationConfig.parse(text, "federation.toml")


def test_a_sum_is_not_secure_unless_the_file_says_so() -> None:
    table = federation(secure=False).aggregate
    assert (table.secure, table.colluders_max, table.clip) == (False, 1, 64.0)
    table = federation(sites=5, aggregate={"colluders_max": 2, "clip": 0.5, "bounds": False}).aggregate
    assert (table.secure, table.colluders_max, table.clip) == (True, 2, 0.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"secure": 1}, "aggregate.secure: expected true or false"),
        ({"aggregate": {"colluders_max": 0}}, "aggregate.colluders_max: expected at least 1, found 0"),
        ({"aggregate": {"clip": 0}}, "aggregate.clip: expected at least 1e-06.*, found 0"),
        ({"aggregate": {"clip": 1e9}}, "aggregate.clip: expected at most 1e\\+06"),
        (
            {"secure": False, "aggregate": {"colluders_max": 2}},
            "aggregate.colluders_max: only a secure sum has a use for it; set secure = true, or leave it out",
        ),
        ({"secure": False, "aggregate": {"clip": 1.0}}, "aggregate.clip: only a secure sum has a use for it"),
        ({"secure": False, "aggregate": {"members_min": 3}}, "aggregate.members_min: only a secure sum has a use"),
        ({"aggregate": {"members_min": 2}}, "aggregate.members_min: expected at least 3, found 2"),
        ({"aggregate": {"members_min": 4}}, "aggregate.members_min: 4 is more than the 3 sites; lower it"),
        ({"method": "local"}, "aggregate.secure: local averages nothing; leave it out"),
        ({"method": "dflmoe_averaged"}, "aggregate.secure: dflmoe_averaged averages nothing; leave it out"),
        ({"method": "fedvisit"}, "aggregate.secure: fedvisit has no mean of all sites, which alone can be added up"),
        ({"method": "proxyfl"}, "aggregate.secure: proxyfl has no mean of all sites"),
        (
            {"method": "lc_fed", "task": {"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 2}},
            "aggregate.secure: lc_fed also uses what each site sends by itself; leave it out",
        ),
        (
            {"aggregate": {"rule": "median"}},
            "aggregate.rule: median compares contributions, which secure = true hides; leave out one of them",
        ),
        (
            {"method": "fedproto", "weighting": "samples"},
            "weighting: fedproto weighs each class, for which a secure sum has no weights; leave it out",
        ),
        (
            {"method": "fedproto", "aggregate": {"clip": 0.5}},
            "aggregate.clip: 0.5 is below 1, and fedproto counts the sites of a class; set it to 1 at least",
        ),
        (
            {"method": "pooled_head", "rounds": 2},
            "rounds: the difference of two rounds' sums of pooled_head may be one site's; set rounds = 1",
        ),
        ({"wire": "bfloat16"}, "wire: bfloat16 makes no masked artifact smaller; leave it out"),
        (
            {"method": "fedproto", "schedule": {"staleness": 1}},
            "schedule.staleness: a masked artifact is for the sum of its own round; leave it out",
        ),
        ({"global_test": True}, "global_test: a lent model leaves its site unmasked, but aggregate.secure = true; "),
        ({"sites": 2}, "aggregate.secure: colluders_max = 1 needs 3 sites at least, and here are 2"),
        (
            {"sites": 4, "aggregate": {"colluders_max": 3}},
            "aggregate.secure: colluders_max = 3 needs 5 sites at least, and here are 4",
        ),
        ({"sites": 65}, "aggregate.secure: a secure sum has 64 sites at most, and here are 65; leave it out"),
    ],
)  # fmt: skip
def test_a_secure_sum_that_contradicts_something_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        federation(**keys)


@pytest.mark.parametrize("colluders", [1, 2, 5, 62])
def test_the_least_number_of_sites_has_a_sum_and_one_less_has_none(colluders: int) -> None:
    least = max(3, colluders + 2)
    assert federation(sites=least, aggregate={"colluders_max": colluders}).aggregate.secure
    assert members_min(least, colluders) == least
    with pytest.raises(ConfigError, match=f"needs {least} sites"):
        federation(sites=least - 1, aggregate={"colluders_max": colluders})
    assert federation(sites=SECURE_SITES_MAX).aggregate.secure


@pytest.mark.parametrize(("least", "expected"), [(None, 4), (3, 4), (4, 4), (6, 6)])
def test_a_federation_may_ask_for_more_contributors_than_the_protocol(least: int | None, expected: int) -> None:
    keys = {} if least is None else {"members_min": least}
    assert federation(sites=6, aggregate=keys).aggregate.contributors_min(6) == expected


def secure_sum_problem(method: str) -> str | None:
    """Why the exchange of a method cannot be a secure sum."""
    plan, keys = PLANS[method], dict[str, Any]()
    if {"classification", "time_series"} <= {*plan.not_for}:
        keys["task"] = {"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 2}
    if plan.artifact == "sums":
        keys["rounds"] = 1
    elif plan.artifact != "prototype":
        keys["weighting"] = "samples"
    table = {"name": method, **({"public_sha256": "ab" * 32} if plan.public else {})}
    try:
        assert federation(method=table, **keys).aggregate.secure
    except ConfigError as error:
        return str(error).partition("; ")[0].removeprefix("federation.toml: aggregate.secure: ")
    return None


def test_these_methods_can_add_up_under_masks(rewrite: bool) -> None:
    """``--rewrite-scenarios`` writes the file as the program is now; read the difference first."""
    problems = {method: secure_sum_problem(method) for method in PLANS}
    if rewrite:
        GOLDEN.write_text(json.dumps(problems, indent=1) + "\n")
    assert problems == json.loads(GOLDEN.read_text())


def test_the_specification_says_of_each_of_them_what_is_summed_when() -> None:
    text = (Path(__file__).parents[4] / "proto" / "README.md").read_text("utf-8")
    table = re.search(r"\| methods \| kind of the artifact \| stage \|\n\|[-|]+\n((?:\|.*\n)+)", text)
    assert table is not None
    cells = [line.strip("| ").split(" | ") for line in table[1].splitlines()]
    stated = {
        name: (kind.lower(), f"`{PLANS[name].published}`" == stage)
        for names, kind, stage in cells
        for name in re.findall(r"`(\w+)`", names)
    }
    sums = {name for name, problem in json.loads(GOLDEN.read_text()).items() if problem is None}
    assert stated == {name: (PLANS[name].artifact, True) for name in sums}


def test_no_amendment_can_make_a_sum_secure_or_bare() -> None:
    assert "aggregate" in NEVER
    assert "aggregate" not in SETTINGS

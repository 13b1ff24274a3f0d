"""``mhfl-peer demo`` as a newcomer runs it, with less training: daemons, pooled bound, table and page."""

import html
import json
from pathlib import Path

import pytest

from fakes.cli import run_process

pytestmark = [pytest.mark.e2e, pytest.mark.data, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_a_demonstration_runs_daemons_and_the_pooled_bound_and_draws_its_page(tmp_path: Path) -> None:
    words = ("--rounds", 2, "--steps", 2, "--splits", 2, "--set", "visits=2")
    answer = run_process("demo", "--out", tmp_path / "demo", "--json", *words, timeout=None)
    assert answer.returncode == 0, answer.stderr[-2000:]
    document = json.loads(answer.stdout)
    assert list(document["methods"]) == [
        "local", "fedvisit", "pooled_head", "pooled_head-epsilon-1", "centralised",
    ]  # fmt: skip
    names = document["data"]["sites"]
    for label, method in document["methods"].items():
        assert method["sites"].keys() == names.keys()
        for name, site in method["sites"].items():
            assert site["local_test"] is not None, (label, name)
            assert site["global_test"] is not None, (label, name)
            rounds = ["1"] if label.startswith("pooled_head") else ["1", "2"]
            assert list(site["curve"]) == rounds
            assert site["curve"][rounds[-1]] == pytest.approx(site["local_test"])
    for name, site in document["methods"]["fedvisit"]["sites"].items():
        assert site["received_from"].keys() == {"1", "2"}
        for visitors in site["received_from"].values():
            assert len(set(visitors)) == 2
            assert name not in visitors
    assert {site: sum(split["samples"] for split in counts.values()) for site, counts in names.items()} == {
        "cleveland": 304,
        "hungary": 293,
        "switzerland": 123,
        "va-long-beach": 200,
    }
    intervals = document["splits"]["metrics"]["brier"]["local"]
    assert {label: set(sites) for label, sites in intervals.items()} == {
        label: set(names) for label in document["methods"]
    }
    assert all(interval["splits"] == 2 for sites in intervals.values() for interval in sites.values())
    assert document["gains"]["local"]["fedvisit"].keys() == {"gain", "room", "share"}
    page = Path(document["picture"]).read_text()
    assert document["conclusion"] in html.unescape(page)
    assert page.count("<svg ") == 4 + len(names) + 1  # over the splits, of each site, of FedVisit's visits

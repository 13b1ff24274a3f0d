"""``mhfl-peer demo`` as a newcomer runs it, with less training: daemons, pooled bound, table and page."""

import html
import json
from pathlib import Path

import pytest

from fakes.cli import run_process

pytestmark = [pytest.mark.e2e, pytest.mark.data, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_a_demonstration_runs_daemons_and_the_pooled_bound_and_draws_its_page(tmp_path: Path) -> None:
    words = ("--rounds", 2, "--steps", 2, "--set", "visits=2")
    answer = run_process("demo", "--out", tmp_path / "demo", "--json", *words, timeout=None)
    assert answer.returncode == 0, answer.stderr[-2000:]
    document = json.loads(answer.stdout)
    assert list(document["methods"]) == ["local", "fedvisit", "centralised"]
    names = document["data"]["sites"]
    for label, method in document["methods"].items():
        assert method["sites"].keys() == names.keys()
        for name, site in method["sites"].items():
            assert site["local_test"] is not None, (label, name)
            assert site["global_test"] is not None, (label, name)
            assert list(site["curve"]) == ["1", "2"]
            assert site["curve"]["2"] == pytest.approx(site["local_test"])
    for name, site in document["methods"]["fedvisit"]["sites"].items():
        assert site["received_from"].keys() == {"1", "2"}
        for visitors in site["received_from"].values():
            assert len(set(visitors)) == 2
            assert name not in visitors
    for counts in names.values():
        assert counts["test"]["samples"] > counts["training"]["samples"]
    assert document["gains"]["local"]["fedvisit"].keys() == {"gain", "room", "share"}
    page = Path(document["picture"]).read_text()
    assert document["conclusion"] in html.unescape(page)
    assert page.count("<svg ") == len(names) + 1

"""The studies of the demonstration: every document that they make is one that federation and site accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.config.schema import FederationConfig, SiteConfig, check_site
from peer.demo.presets import STUDIES, PresetSize, problem, usual
from peer.methods.registry import PLANS

ROSTER = """
[[site]]
name = "{0}"
address = "127.0.0.1:{1}"
"""
CASES = [(study, method) for study in STUDIES for method in PLANS if problem(study, method) is None]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_its_documents_are_valid(name: str, method: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    roster = "".join(ROSTER.format(site, 7000 + index) for index, site in enumerate(sorted(study.models)))
    federation = FederationConfig.parse(study.draft(method, PresetSize(steps=20)) + roster, "draft")
    assert federation.rounds == 15
    works = {stage: federation.work(stage) for stage in federation.plan.stages}
    assert {work.count for stage, work in works.items() if stage not in ("distill", "decide")} == {20}
    assert {work.count for stage, work in works.items() if stage in ("distill", "decide")} <= {5}
    for site in study.models:
        path = tmp_path / f"{site}.toml"
        path.write_text(study.site(site, method, tmp_path / site))
        check_site(federation, SiteConfig.load(path), site)


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"nodules"}))
def test_sites_have_networks_of_several_kinds(name: str) -> None:
    assert len({model["name"] for model in STUDIES[name].models.values()}) >= 3


def test_fedskd_alone_is_shown_with_four_widths_of_one_family() -> None:
    assert usual(["fedskd"]) == "nodules"
    assert usual(["fedskd", "dflmoe"]) == usual(["dflmoe"]) == "nodules-families"
    models = STUDIES["nodules"].models
    assert [models[site]["parameters"]["width"] for site in sorted(models)] == [16, 15, 14, 13]


def test_what_does_not_fit_is_said() -> None:
    assert problem("dermoscopy", "dflmoe") is None
    assert problem("dermoscopy", "local") is None
    assert "does not fit sites that enlarge by different factors" in str(problem("dermoscopy", "feddal"))

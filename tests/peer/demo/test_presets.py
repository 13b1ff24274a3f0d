"""The studies of the demonstration: every document that they make is one that federation and site accept."""

from pathlib import Path

import pytest

from peer.config import toml
from peer.config.schema import FederationConfig, SiteConfig, check_site
from peer.core.tasks import MINOR
from peer.demo.presets import FAMILIES, STUDIES, PresetSize, default_study, problem, study
from peer.demo.run import configuration
from peer.methods.registry import PLANS

CASES = [(name, method) for name in STUDIES for method in PLANS if problem(name, method) is None]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_its_documents_are_valid(name: str, method: str, tmp_path: Path) -> None:
    draft, sites = configuration(study(name, PresetSize(steps=20)), method, seed=0, data=tmp_path)
    roster = [{"name": site, "address": f"127.0.0.1:{7000 + index}"} for index, site in enumerate(sorted(sites))]
    federation = FederationConfig.parse(draft + toml.text({"site": roster}), "draft")
    assert federation.rounds == 15
    work_by_stage = {stage: federation.work(stage) for stage in federation.plan.stages}
    assert {work.count for stage, work in work_by_stage.items() if stage not in MINOR} == {20}
    assert {work.count for stage, work in work_by_stage.items() if stage in MINOR} <= {5}
    for site, text in sites.items():
        path = tmp_path / f"{site}.toml"
        path.write_text(text)
        check_site(federation, SiteConfig.load(path), site)


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"nodules"}))
def test_sites_have_networks_of_several_kinds(name: str) -> None:
    assert len({model.name for model in study(name, PresetSize()).models[FAMILIES].values()}) >= 3


def test_fedskd_alone_is_shown_with_four_widths_of_one_family() -> None:
    assert default_study(["fedskd"]) == "nodules"
    assert default_study(["fedskd", "dflmoe"]) == default_study(["dflmoe"]) == "nodules-families"
    models = STUDIES["nodules"]["models"][FAMILIES]
    assert [models[site]["width"] for site in sorted(models)] == [16, 15, 14, 13]


def test_what_does_not_fit_is_said() -> None:
    assert problem("dermoscopy", "dflmoe") is None
    assert problem("dermoscopy", "local") is None
    assert "does not fit sites that enlarge by different factors" in str(problem("dermoscopy", "feddal"))
    assert problem("tissue", "fedproto") == "fedproto is not defined for segmentation"

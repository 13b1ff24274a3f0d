"""Which methods a federation, or a site, could train with."""

from __future__ import annotations

import pytest

from fakes.drafts import draft, site_text
from peer.lab.advice.evidence import MeasuredGain, StudyRow
from peer.lab.advice.question import Question
from peer.site.config.schema import FederationConfig, SiteConfig

SITES = [{"name": name} for name in ("africa", "asia", "europe")]
ONE = {"shared_model": {"name": "resnet10", "width": 8}}


def measured(method: str, **parameters: int) -> StudyRow:
    return StudyRow(method, method, MeasuredGain(1.0), MeasuredGain(1.0), parameters=parameters)


def test_a_plan_a_site_or_this_machine_rules_methods_out() -> None:
    images = FederationConfig.parse(draft("trial", site=SITES), "federation.toml")
    segments = draft(
        "trial", site=SITES, task={"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 2}
    )
    masked = FederationConfig.parse(
        draft("trial", method="fedavg", site=SITES, aggregate={"secure": True}, **ONE), "toml"
    )
    site = SiteConfig.parse(site_text(egress={"kinds": ["proxy"]}), "site.toml")
    asked = [
        ("fedvisit", Question(images), None),
        ("other", Question(images), "unknown method 'other'"),
        ("fedproto", Question(FederationConfig.parse(segments, "toml")), "is not defined for segmentation"),
        ("fedvisit", Question(masked), "fedvisit has no mean of all sites, which alone can be added up under masks"),
        ("fedavg", Question(masked), None),
        ("fedvisit", Question(images, site), "sends a model, which [egress] of site.toml keeps at the site"),
        ("proxyfl", Question(images, site), None),
    ]
    for method, question, expected in asked:
        reason = question.refuse(measured(method))
        assert reason is None if expected is None else expected in (reason or ""), (method, reason)


@pytest.mark.parametrize(("method", "differ"), [("proxyfl", True), ("fedavg", False), ("fedvisit", False)])
def test_a_proxy_does_not_make_the_networks_one(method: str, differ: bool) -> None:
    assert (
        Question(FederationConfig.parse(draft("trial", method=method, site=SITES, **ONE), "toml")).networks_differ
        is differ
    )


def test_visits_are_those_of_the_row_and_at_most_all_others() -> None:
    three = Question(FederationConfig.parse(draft("trial", site=SITES), "toml"))
    two = Question(FederationConfig.parse(draft("trial", site=SITES[:2]), "toml"))
    twice = measured("fedvisit", visits=2)
    assert [three.count_visits(twice), two.count_visits(twice)] == [2, 1]
    assert three.count_visits(measured("fedvisit")) == 1
    assert three.count_visits(measured("fedskd")) is None

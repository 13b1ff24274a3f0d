"""The studies of the demonstration: every document that they make is one that federation and site accept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peer.core.tasks import MINOR
from peer.errors import ConfigError
from peer.lab.demo.presets import (
    FAMILIES,
    ONE_ROUND,
    PRIVATE_HEAD,
    STUDIES,
    PresetSize,
    describe_noise,
    problem,
    study,
)
from peer.lab.demo.run import configuration
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.pool import SamplePool
from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.experiments.runs import Run
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

METHODS = {name: [method for method in PLANS if problem(name, method) is None] for name in STUDIES}


def runs(experiment: Experiment, folder: Path) -> dict[str, Run]:
    """A run of each row, without files."""
    return {
        label: Run(folder / label, {"method": label, "models": network_set, "seed": experiment.seeds[0]}, {})
        for _, network_set, _, label in experiment.combinations()
    }


@pytest.mark.parametrize("name", STUDIES)
def test_its_documents_are_valid(name: str, tmp_path: Path) -> None:
    experiment = study(name, METHODS[name], PresetSize(rounds=15, steps=20, seed=3))
    every_run = runs(experiment, tmp_path)
    assert every_run.keys() == {*METHODS[name], *([] if name == "dermoscopy" else [CENTRALISED])}
    for run in every_run.values():
        draft, sites = configuration(experiment, run, SamplePool([], tmp_path, tmp_path / "regions.nii.gz"))
        roster = [{"name": site, "address": f"127.0.0.1:{7000 + index}"} for index, site in enumerate(sorted(sites))]
        federation = FederationConfig.parse(draft + toml.text({"site": roster}), "draft")
        rounds = 1 if run.document["method"] in ONE_ROUND else 15
        assert (federation.rounds, federation.seed, federation.evaluation_every) == (rounds, 3, 1)
        work_by_stage = {stage: federation.work(stage) for stage in federation.plan.stages}
        assert {work.count for stage, work in work_by_stage.items() if stage not in MINOR} == {20}
        assert {work.count for stage, work in work_by_stage.items() if stage in MINOR} <= {5}
        for site, text in sites.items():
            path = tmp_path / f"{site}.toml"
            path.write_text(text)
            config = SiteConfig.load(path)
            check_site(federation, config, site)
            assert config.data.datalist == str(run.folder / "sites" / site / "datalist.json")


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"blinks", "nodules"}))
def test_sites_have_networks_of_several_kinds(name: str) -> None:
    models: Mapping[str, Any] = STUDIES[name]["models"][FAMILIES]
    assert len({model["name"] for model in models.values()}) >= 3


def test_the_data_is_divided_by_the_seed_that_is_shown() -> None:
    experiment = study("nodules", ["local", "fedvisit"], PresetSize(seed=7))
    assert (experiment.seeds, experiment.data.options["seed"]) == ((7,), 7)


def test_a_parameter_goes_to_the_methods_that_have_it_and_is_checked() -> None:
    methods = ["local", "fedskd", "fedvisit", "dflmoe"]
    experiment = study("nodules", methods, PresetSize(), {"gamma": 10.0, "visits": 3})
    parameters = {label: dict(row.__pydantic_extra__) for label, row in experiment.methods.items()}
    assert parameters == {
        "local": {},
        "fedskd": {"gamma": 10.0},
        "fedvisit": {"gamma": 10.0, "visits": 3},
        "dflmoe": {},
        CENTRALISED: {},
    }
    with pytest.raises(ConfigError, match=r"methods\.fedskd\.gamma"):
        study("nodules", methods, PresetSize(), {"gamma": -1.0})


def test_fedvisit_has_a_rate_of_its_own_which_scales_with_the_studys() -> None:
    experiment = study("nodules", ["local", "fedvisit"], PresetSize(learning_rate=5e-4))
    rates = {label: experiment.stages(label)["train"]["learning_rate"] for label in ("local", "fedvisit", CENTRALISED)}
    assert rates == pytest.approx({"local": 5e-4, "fedvisit": 3e-3, CENTRALISED: 5e-4})


def test_what_does_not_fit_is_said() -> None:
    assert problem("dermoscopy", "dflmoe") is None
    assert problem("dermoscopy", "local") is None
    assert "does not fit sites that enlarge by different factors" in str(problem("dermoscopy", "feddal"))
    assert problem("tissue", "fedproto") == "fedproto is not defined for segmentation"


def test_the_guarantee_of_a_private_row_is_said_and_its_file_is_read() -> None:
    assert describe_noise("fedvisit") == ""
    assert describe_noise(PRIVATE_HEAD) == (
        "pooled_head-epsilon-1 has noise: ε 1 (δ 1e-4) for each person against any 1 other site, ε 1.87 if all others "
        "conspire; no attack on a person by one site has an AUC above 0.59."
    )
    experiment = study("heart-disease", ["local", PRIVATE_HEAD], PresetSize())
    sites = list(STUDIES["heart-disease"]["models"]["families"])
    federation = FederationConfig.parse(experiment.federation_text(PRIVATE_HEAD, "one", sites, seed=0), "demo")
    assert federation.noise is not None
    assert (federation.noise.epsilon, federation.noise.sharers) == (1.0, 3)

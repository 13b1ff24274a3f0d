"""federation.toml and site.toml: valid keys, defaults, and errors, alone and together."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.core.limits import EVALUATION_SAMPLES_MIN
from peer.core.plan import Work
from peer.core.roster import RoundKey, SiteName, federation_digest
from peer.errors import ConfigError
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_tables import EgressConfig

ROOT = Path(__file__).parents[4]
BASE: dict[str, Any] = {
    "name": "trial",
    "rounds": 3,
    "task": {"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
    "method": {"name": "fedskd"},
    "site": [{"name": "europe", "address": "a.example:1"}, {"name": "asia"}, {"name": "africa"}],
}
SITE: dict[str, Any] = {"data": {"input_size": [32, 32, 32]}}
VISITS = {"method": {"name": "fedvisit"}}


def federation(**changes: Any) -> FederationConfig:
    return FederationConfig.parse(toml.text({**BASE, **changes}), "federation.toml")


def site(tmp_path: Path, **changes: Any) -> SiteConfig:
    path = tmp_path / "site.toml"
    path.write_text(toml.text({**SITE, **changes}))
    return SiteConfig.load(path)


POOLED: dict[str, Any] = {"method": {"name": "pooled_head"}, "shared_model": {"name": "resnet10"}}


def task(**changes: Any) -> dict[str, Any]:
    return {"task": {**BASE["task"], **changes}}


def test_defaults_are_the_plans() -> None:
    config = federation()
    assert config.digest == federation_digest(tomllib.loads(toml.text(BASE)))
    assert list(config.roster) == ["africa", "asia", "europe"]
    assert config.addresses == {"europe": "a.example:1"}
    assert config.plan is PLANS["fedskd"]
    assert config.parameters == PLANS["fedskd"].defaults()
    assert config.work("train") == PLANS["fedskd"].stages["train"]
    assert (config.schedule.kind, config.quorum, config.pace.gather_s, config.pace.beat_s) == (
        "permutation", None, None, None,
    )  # fmt: skip
    assert (config.ca_certificate, config.shared_model) == (None, None)


def test_what_the_file_gives_wins_over_the_plan() -> None:
    config = federation(
        method={"name": "fedskd", "gamma": 100, "taps": [2, 3]}, stages={"train": {"unit": "epoch", "count": 5}}
    )
    assert config.parameters == {**PLANS["fedskd"].defaults(), "gamma": 100.0, "taps": (2, 3)}
    assert isinstance(config.parameters["gamma"], float)
    assert config.work("train") == Work("epoch", 5, 1e-4)


def test_a_method_of_a_package_is_part_of_the_digest_and_no_parameter(distribution: Callable[..., None]) -> None:
    pinned = {"name": "similar", "package": "some-methods==1.0"}
    with pytest.raises(ConfigError) as caught:
        federation(method=pinned)
    assert str(caught.value) == (
        "federation.toml: method 'similar' comes with some-methods==1.0, which is not installed; "
        "get some-methods==1.0 from its authors, and install that file in the environment of mhfl-peer"
    )
    distribution("some-methods", "1.0", "mhfl_peer.methods", similar="peer.methods.fedskd.plan:FEDSKD")
    config = federation(method=pinned)
    assert config.plan is PLANS["fedskd"]
    assert config.parameters == PLANS["fedskd"].defaults()
    assert config.model_dump(mode="json")["method"].items() >= pinned.items()
    assert config.digest == federation_digest(tomllib.loads(toml.text({**BASE, "method": pinned})))


def test_worker_gets_plain_json_with_every_default() -> None:
    dumped = federation().model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == dumped
    assert dumped["method"] == {"name": "fedskd", **json.loads(json.dumps(PLANS["fedskd"].defaults()))}
    train = {"unit": "step", "count": 20, "learning_rate": 0.0001, "weight_decay": 0.0, "decay": 1.0}
    assert dumped["stages"] == {"train": train}
    assert dumped["site"][1] == {"name": "asia", "address": None, "key": None, "description": ""}


def test_defaults_that_are_written_out_change_the_digest_but_not_the_meaning() -> None:
    """The digest is of the document: two sites must hold the same text, not merely the same meaning."""
    implicit, explicit = federation(), federation(seed=0)
    assert implicit.digest != explicit.digest
    assert implicit.model_dump() == explicit.model_dump()


def test_addresses_are_no_identity() -> None:
    moved = [{"name": "europe", "address": "b.example:2", "description": "moved"}, *BASE["site"][1:]]
    assert federation(site=moved).digest == federation().digest
    assert federation(description="text").digest == federation().digest


def test_large_federations_beat_less_often() -> None:
    many = [{"name": f"s{index}"} for index in range(33)]
    assert federation().beat_s == 3.0
    assert federation(site=many).beat_s == 5.0
    assert federation(site=many[:32]).beat_s == 3.0
    assert federation(site=many, pace={"beat_s": 2.0}).beat_s == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "A"}, "name: name 'A' must be"),
        ({"governance": "x"}, r"governance: expected 'founder' or a table, \[governance\] on a line of its own"),
        ({"governance": {"members": ["a"], "votes": 1}}, r"governance.votes: unknown key \(known: members\)"),
        ({"rounds": 0}, "rounds: expected at least 1, found 0"),
        ({"rounds": 1.0}, "rounds: expected a whole number, found 1.0"),
        ({"weighting": "size"}, "weighting: expected 'uniform' or 'samples'"),
        ({"wire": "int8"}, "wire: expected 'float32' or 'bfloat16'"),
        ({"wire": "bfloat16", "method": {"name": "local"}}, "wire: local sends nothing; leave it out"),
        (
            {"wire": "bfloat16", "method": {"name": "fedproto"}},
            "wire: fedproto sends prototypes and no weights; leave it out",
        ),
        (
            {"wire": "bfloat16", **POOLED},
            "wire: pooled_head sends sums and no weights; leave it out",
        ),
        (
            {"aggregate": {"rule": "median"}, **POOLED},
            "aggregate.rule: pooled_head adds up sums, which have no robust mean; leave it out",
        ),
        ({"method": {"name": "statistics"}}, "rounds: statistics has one round: a second round would tell"),
        (
            {"method": {"name": "statistics"}, "rounds": 1, "weighting": "samples"},
            "weighting: statistics adds up sums; leave it out",
        ),
        ({"method": {"name": "statistics", "bins": 1}}, "method.bins: 1 is below 2"),
        (
            {**POOLED, "method": {"name": "pooled_head", "ridge": 0}},
            "method.ridge: 0 is below 1e-06",
        ),
        ({"quorum": 3}, "quorum: 3 is more than the 2 other sites"),
        (task(kind="regression"), "task.kind: expected 'classification', 'segmentation'"),
        (task(spatial_dims=4), "task.spatial_dims: expected at most 3, found 4"),
        (task(classes=1), "task.classes: classification needs at least 2, not 1"),
        (task(kind="time_series"), "task.spatial_dims: a time series has 1, not 3"),
        ({"task": {}}, "task.kind is missing, and task.spatial_dims is missing"),
        ({"method": {}}, "method.name is missing"),
        ({"method": {"name": "fedskd", "package": 1}}, "method.package: must be a string, not 1"),
        ({"method": {"name": "fedskd", "gama": 1}}, r"method.gama: unknown key \(did you mean 'gamma'\?\)"),
        ({"method": {"name": "fedskd", "gamma": -1}}, "method.gamma: -1 is below 0.0"),
        ({"method": {"name": "fedskd", "gamma": "1"}}, "method.gamma: must be a number, not '1'"),
        ({"method": {"name": "fedskd", "gamma": float("inf")}}, "method.gamma = inf: only finite numbers"),
        ({"method": {"name": "fedskd", "terms": ["batsch"]}}, "method.terms: 'batsch' is none of batch"),
        ({"method": {"name": "local", "gamma": 1.0}}, "method.gamma: unknown key"),
        ({"task": {**BASE["task"], "class_names": ["a"]}}, "task.class_names: needs 2 different names, one a class"),
        ({"task": {**BASE["task"], "class_names": ["a", "A "]}}, "task.class_names: needs 2 different names"),
        ({"task": {**BASE["task"], "class_names": ["a", "\n"]}}, ".*is not a text of 1 to 64 printable characters"),
        ({"stages": {"trian": {"count": 1}}}, r"stages.trian: unknown stage \(did you mean 'train'\?\)"),
        ({"stages": {"train": {"unit": "hour"}}}, "stages.train.unit: expected 'step' or 'epoch'"),
        ({"stages": {"train": 3}}, r"stages.train: expected a table, \[stages.train\] on"),
        ({"stages": 3}, "stages: expected a table"),
        ({"aggregate": {"rule": "krum"}}, "aggregate.rule: expected 'mean', 'capped', 'trimmed_mean' or 'median'"),
        ({"aggregate": {"rule": "median"}}, "aggregate.rule: fedskd averages nothing; leave it out"),
        ({"schedule": {"kind": "star"}}, 'schedule.kind: expected .*permutation.*, found the text "star"'),
        ({"schedule": {"kind": "derangement"}, "site": [{"name": "a"}]}, "schedule.kind: a derangement needs"),
        (VISITS | {"schedule": {"kind": "derangement"}}, "schedule.kind: fedvisit visits along a ring; leave it out"),
        (VISITS | {"fallback": {"kind": "stale"}}, "fallback.kind: fedvisit averages"),
        (VISITS | {"aggregate": {"rule": "median"}}, "aggregate.rule: fedvisit averages a model with its own copies"),
        ({"method": {"name": "fedvisit", "visits": 3}}, "method.visits: 3 is above the 2 other sites; set it to 2, or"),
        ({"method": {"name": "fedvisit", "visits": 0}}, "method.visits: 0 is below 1"),
        ({"fallback": {"kind": "wait"}}, "fallback.kind: expected 'self' or 'stale'"),
        ({"pace": {"silence_s": 8}}, "pace.silence_s: 8.0 leaves no room for 3 beats of 3.0 s"),
        ({"pace": {"wait_max_s": 30}}, "pace.deadline_floor_s: 60.0 is above wait_max_s"),
        ({"pace": {"gather_s": 0}}, "pace.gather_s: expected at least 0.001.*, found 0"),
        ({"site": [{"name": "a"}, {"name": "a"}]}, "site: 'a' is in the roster 2 times"),
        ({"site": [{"name": "a-"}]}, r"site\[0\].name: name 'a-' must be .* \(such as 'a'\)"),
        ({"site": [{"name": "a", "address": "host"}]}, r"site\[0\].address: 'host' is not host:port"),
        ({"site": [{"name": "a", "address": "host:0"}]}, r"site\[0\].address: 'host:0' has port 0, .* dial; "),
        ({"site": [{"name": n, "address": "h:1"} for n in "ab"]}, "site: 2 sites have the address 'h:1'"),
        ({"site": [{"name": "a", "address": "relay h:1"}]}, r"site\[0\].address: 'h:1' is not the relay's name and"),
        ({"seed": -1}, "seed: expected at least 0, found -1"),
    ],
)  # fmt: skip
def test_wrong_federations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        federation(**changes)


@pytest.mark.parametrize(
    "line", ["method = {name = 'fedskd', gamma = 2026-01-01}", "method = {name = 3}", "method = 3"]
)
def test_odd_toml_types_are_config_errors(line: str) -> None:
    bare = toml.text({key: value for key, value in BASE.items() if key != "method"})
    with pytest.raises(ConfigError, match=r"federation.toml: method"):
        FederationConfig.parse(f"{line}\n{bare}", "federation.toml")


def test_shared_model_takes_any_hyper_parameter() -> None:
    config = federation(shared_model={"name": "resnet10", "width": 16, "channels": [1, 2]})
    assert config.model_dump(mode="json")["shared_model"] == {"name": "resnet10", "width": 16, "channels": [1, 2]}


@pytest.mark.parametrize("method", ["feddal", "proxyfl", "fedavg"])
def test_a_method_with_a_shared_network_needs_its_name(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"shared_model: {method} needs one"):
        federation(method={"name": method})
    assert federation(method={"name": method}, shared_model={"name": "resnet10"}).plan.shared != "maybe"
    assert federation(method={"name": "mh_pflid"}).shared_model is None


def test_what_a_method_is_not_defined_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method.name: feddal is not defined for super_resolution"):
        federation(**task(kind="super_resolution"), method={"name": "feddal"}, shared_model={"name": "srcnn"})
    stale = {"fallback": {"kind": "stale"}, "shared_model": {"name": "resnet10"}}
    with pytest.raises(ConfigError, match=r"fallback.kind: proxyfl averages, and a mean takes no stale artifact"):
        federation(method={"name": "proxyfl"}, **stale)


OLDER = frozenset(
    {"dflmoe", "dflmoe_models", "ds_pfl", "fedmd", "fedproto", "fedskd", "fedtgp", "kt_pfl", "pfeddf", "pooled_head"}
)
"""The methods in which a site may use artifacts that are a round older."""


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"name": "local"}, "local sends nothing"),
        ({"name": "fedvisit"}, "takes a visiting model home in the round in which it left"),
        ({"name": "fedcross"}, "fedcross circulates models, and each host trains what the host of the round before"),
        ({"name": "fedskd", "activation": 0.5}, "fedskd circulates models"),
        ({"name": "feddal"}, "feddal averages weights, and all sites must average those of one round"),
        ({"name": "mh_pflid"}, "mh_pflid averages weights"),
        ({"name": "proxyfl"}, "proxyfl averages weights"),
        ({"name": "dflmoe_averaged"}, "is not made for artifacts that are one round older"),
    ],
)
def test_a_method_that_needs_the_artifacts_of_the_round_refuses_older_ones(method: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"schedule.staleness: .*{reason}.*; leave it out"):
        federation(method=method, schedule={"staleness": 1}, shared_model={"name": "resnet10"})


def test_sums_leave_only_where_the_number_of_samples_may(tmp_path: Path) -> None:
    config, model = federation(**POOLED), {"name": "resnet10", "parameters": {}}
    with pytest.raises(ConfigError, match=r"egress.training_set_size: the sums of pooled_head tell it"):
        check_site(config, site(tmp_path, model=model), "europe")
    check_site(config, site(tmp_path, model=model, egress={"training_set_size": True}), "europe")
    config = federation(method={"name": "statistics"}, rounds=1)
    for egress, reason in (
        ({}, "egress.training_set_size: the sums of statistics tell it"),
        ({"kinds": ["model"]}, "egress.kinds: statistics sends a sums, which is not listed"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_site(config, site(tmp_path, egress=egress), "europe")
    check_site(config, site(tmp_path, egress={"training_set_size": True}), "europe")


def test_the_methods_that_take_older_artifacts_are_these() -> None:
    taken = {name for name, plan in PLANS.items() if plan.staleness_problem(plan.defaults()) is None}
    assert taken == OLDER
    assert federation(method={"name": "fedskd"}, schedule={"staleness": 1}).schedule.staleness == 1
    with pytest.raises(ConfigError, match=r"schedule.staleness"):
        federation(method={"name": "fedskd"}, schedule={"staleness": 2})


def test_a_public_set_is_pinned_by_the_federation_and_named_by_every_site(tmp_path: Path) -> None:
    for digest in ({}, {"public_sha256": "AB" * 32}):
        with pytest.raises(ConfigError, match=r"method.public_sha256: fedmd needs the digest of its public set"):
            federation(method={"name": "fedmd", **digest})
    config = federation(method={"name": "fedmd", "public_sha256": "ab" * 32})
    data = {"input_size": [48, 48, 48]}
    with pytest.raises(ConfigError, match=r"data.public: fedmd needs the datalist of its public set of images"):
        check_site(config, site(tmp_path, data=data), "europe")
    check_site(config, site(tmp_path, data={**data, "public": "public/datalist.json"}), "europe")


def test_a_newcomer_that_has_not_joined_yet_is_told_to_join(tmp_path: Path) -> None:
    reason = r"^federation.toml: the roster \(africa, asia, europe\) does not name this site, 'oslo'"
    with pytest.raises(ConfigError, match=reason) as refused:
        check_site(federation(), site(tmp_path), "oslo")
    assert "a site that an amendment adds first runs `mhfl-peer site join`" in refused.value.remedy
    check_site(federation(), site(tmp_path), "oslo", newcomers=("oslo",))


@pytest.mark.parametrize("method", ["fedavg", "fedskd"])
def test_the_one_model_of_all_must_be_every_site_s(tmp_path: Path, method: str) -> None:
    config = federation(method={"name": method}, shared_model={"name": "resnet10", "width": 8})
    check_site(config, site(tmp_path, model={"name": "resnet10", "parameters": {"width": 8}}), "europe")
    with pytest.raises(ConfigError, match=r"model: \w+ trains one model, \[shared_model\] resnet10 {'width': 8}"):
        check_site(config, site(tmp_path, model={"name": "resnet10", "parameters": {"width": 4}}), "europe")


def test_site_defaults(tmp_path: Path) -> None:
    config = site(tmp_path)
    assert config.folder == tmp_path
    assert config.where == str(tmp_path / "site.toml")
    assert config.listen == "127.0.0.1:7443"
    assert config.data.datalist == "datalist.json"
    assert config.model.name == "resnet10"
    assert config.training.device == "auto"
    assert config.egress.receivers == ("*",)
    assert (config.egress.evaluate, config.egress.evaluation_samples_min) == (False, EVALUATION_SAMPLES_MIN)
    assert (config.metrics.listen, config.discovery.zeroconf) == (None, False)
    dumped = config.model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == dumped


def test_refused_certificates_in_any_spelling(tmp_path: Path) -> None:
    digest = "ab" * 32
    config = site(tmp_path, refuse_certificates=[digest, digest.upper(), ":".join(["AB"] * 32)])
    assert config.refuse_certificates == (digest,) * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"input_size": [8], "augmentation": {"flip": 2}}}, "data.augmentation.flip: expected at most 1"),
        (
            {"data": {"input_size": [8], "orientation": "RAR"}},
            'data.orientation: write three directions such as "RAS"',
        ),
        ({"data": {"input_size": [8], "spacing": [0]}}, r"data.spacing\[0\]: expected .*0"),
        (
            {"data": {"input_size": [8], "intensity": ["window", 40, 0]}},
            "data.intensity: a window is its centre and its width",
        ),
        ({"data": {"input_size": [8], "intensity": ["range", 1, 0]}}, "data.intensity: .*the lower number first"),
        (
            {"data": {"input_size": [8], "intensity": ["percentiles", 1, 101]}},
            "data.intensity: percentiles are from 0 to 100",
        ),
        ({"data": {"input_size": [8], "scale": 3}}, "data.scale: expected 2, 4 or 8"),
        (
            {"training": {"class_weights": "equal"}},
            "training.class_weights: expected 'balanced' or a list, found the text",
        ),
        ({"training": {"class_weights": [1, 0]}}, r"training.class_weights\[1\]: expected more than 0, found 0; "),
        ({"training": {"label_smoothing": 1}}, "training.label_smoothing: expected .*1"),
        ({"training": {"clip_norm": 0}}, "training.clip_norm: expected .*0"),
        ({"reference": {"metric": "auc", "alone": 0.9, "pooled": 0.9}}, "reference.pooled: 0.9 is not above alone"),
        ({"refuse_certificates": ["ab"]}, r"refuse_certificates\[0\]: 'ab' is not a SHA-256"),
        ({"allow_models": ["package.Class"]}, r"allow_models\[0\]: 'package.Class' is not package.module:Class"),
        ({"allow_models": ["os:system; x"]}, r"allow_models\[0\]"),
        ({"addresses": {"asia": "x"}}, "addresses.asia: 'x' is not host:port"),
        ({"model": {"name": "../x"}}, "model.name: '../x' is not a model's name"),
        ({"training": {"device": "cuda:x"}}, "training.device: 'cuda:x' is not auto, cpu, cuda or cuda:N"),
        ({"training": {"processes": 17}}, "training.processes: expected at most 16"),
        (
            {"training": {"processes": 2, "device": "cuda:1"}},
            r'training.processes: each process takes a GPU of its own, and device = "cuda:1" names one; take "cuda"',
        ),
        (
            {"training": {"processes": 2, "gpu": "turns"}},
            r'training.processes: gpu = "turns" queues for one GPU; take "shared", or processes = 1',
        ),
        (
            {"training": {"processes": 4, "batch_size": 7}},
            "training.processes: each needs 2 samples of a batch, and batch_size is 7; raise it to 8, or lower",
        ),
        ({"training": {"threads": 0}}, "training.threads: expected at least 1"),
        ({"egress": {"evaluation_samples_min": 0}}, "egress.evaluation_samples_min: expected at least 1"),
        ({"egress": {"count_min": 0}}, "egress.count_min: expected at least 1"),
        ({"metrics": {"listen": "127.0.0.1"}}, "metrics.listen: '127.0.0.1' is not host:port"),
    ],
)
def test_wrong_sites(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(str(tmp_path))}/site.toml: {message}"):
        site(tmp_path, **changes)


def test_more_visits_than_other_sites_are_refused_and_the_default_is_lowered() -> None:
    sites = [{"name": "asia"}, {"name": "europe"}]
    assert make_rules(federation(**VISITS, site=sites), SiteName("asia"), RoundKey(bytes(32))).visits == 1
    two = federation(method={"name": "fedvisit", "visits": 2})
    assert make_rules(two, SiteName("asia"), RoundKey(bytes(32))).visits == 2
    assert federation(**VISITS, schedule={"kind": "ring"}).schedule.kind == "ring"


def test_site_that_fits(tmp_path: Path) -> None:
    check_site(federation(), site(tmp_path), "europe")
    check_site(federation(method={"name": "local"}), site(tmp_path, egress={"receivers": []}), "europe")
    check_site(federation(), site(tmp_path, egress={"kinds": ["model"], "receivers": ["africa", "asia"]}), "europe")
    check_site(federation(**VISITS), site(tmp_path), "europe")
    check_site(federation(**VISITS), site(tmp_path, egress={"kinds": ["model", "return"]}), "europe")


LARGER = task(kind="super_resolution", classes=1)
SMALLER = {"data": {"input_size": [8] * 3, "scale": 2}}


@pytest.mark.parametrize(
    "model",
    [
        {"name": "srcnn", "parameters": {"scale": 4}},
        {"name": "srcnn", "parameters": {"side": 32}},
        {"name": "a.b:C"},
    ],
)
def test_a_site_of_super_resolution(tmp_path: Path, model: dict[str, Any]) -> None:
    config = site(tmp_path, data={"input_size": [8] * 3, "scale": 4}, model=model)
    check_site(federation(**LARGER), config, "europe")


@pytest.mark.parametrize(
    ("federation_changes", "site_changes", "message"),
    [
        ({}, {"addresses": {"asa": "h:1"}}, r"addresses.asa: not in the roster \(did you mean 'asia'\?\)"),
        ({}, {"connect": {"relays": ["europe h:443"]}}, "connect.relays: europe is this site; write the"),
        ({}, {"egress": {"receivers": ["asia"]}}, "egress.receivers: fedskd also sends to africa"),
        ({}, {"limits": {"connections_max": 7}}, "limits.connections_max: 2 other sites need 8 at least; leave it out"),
        ({}, {"egress": {"kinds": []}}, "egress.kinds: fedskd sends a model, which is not listed"),
        (VISITS, {"egress": {"kinds": ["model"]}}, "egress.kinds: fedvisit sends a return, which is not listed"),
        ({"method": {"name": "local"}}, {"egress": {"kinds": ["model"]}}, "egress.kinds: local never lets a model"),
        ({"weighting": "samples"}, {}, "egress.training_set_size: weighting = \"samples\" tells it"),
        ({}, {"reference": {"metric": "psnr", "alone": 20, "pooled": 30}}, "reference.metric: classification has auc"),
        ({}, {"data": {"input_size": [8] * 3, "scale": 2}}, "data.scale: classification has none; leave it out"),
        (LARGER, {}, "data.scale: super-resolution needs 2, 4 or 8"),
        ({}, {"training": {"class_weights": [1, 2, 3]}}, "training.class_weights: 3 numbers for 2 classes"),
        (LARGER, SMALLER | {"training": {"class_weights": "balanced"}},
         "training.class_weights: super_resolution has no classes; leave it out"),
        (LARGER, SMALLER | {"training": {"label_smoothing": 0.1}},
         "training.label_smoothing: super_resolution has no classes; leave it out"),
        (task(kind="segmentation") | {"method": {"name": "fedskd", "segmentation_loss": "dice"}},
         {"training": {"label_smoothing": 0.1}},
         'training.label_smoothing: segmentation_loss = "dice" .* has no cross-entropy'),
        ({"method": {"name": "dfml", "absent_classes": "left_out"}}, {"training": {"label_smoothing": 0.1}},
         r"training.label_smoothing: dfml leaves out classes \(absent_classes\), over which labels would be spread"),
        (task(spatial_dims=2), {"data": {"input_size": [8, 8], "orientation": "RAS"}},
         "data.orientation: only volumes have one; leave it out"),
        ({}, {"data": {"input_size": [8, 8, 8], "spacing": [1.0, 1.0]}},
         "data.spacing: 2 distances for spatial_dims = 3"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2, "spacing": [1.0] * 3}},
         "data.spacing: would interpolate what the network must learn"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2, "intensity": ["range", 0, 1]}},
         "data.intensity: super-resolution takes images with values from 0 to 1; leave it out"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2, "nan": "background"}},
         "data.nan: super-resolution would learn the filled places; leave it out"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2, "normalise": "unit"}},
         "data.normalise: unit would part an image from its target; super-resolution takes none"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2}, "model": {"name": "srcnn"}},
         r"model.parameters.scale: srcnn must have 2, as \[data\] scale has"),
        (LARGER, {"data": {"input_size": [8] * 3, "scale": 2}, "model": {"name": "srcnn", "parameters": {"scale": 4}}},
         "model.parameters.scale: srcnn must have 2"),
        (LARGER, {"data": {"input_size": [8, 8, 4], "scale": 2},
          "model": {"name": "srcnn", "parameters": {"side": 16}}},
         r"model.parameters.side: \[data\] scale times \[data\] input_size is \[8, 16\]"),
    ],
)  # fmt: skip
def test_sites_that_do_not_fit(
    tmp_path: Path, federation_changes: dict[str, Any], site_changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"site.toml: {message}"):
        check_site(federation(**federation_changes), site(tmp_path, **site_changes), "europe")


def test_every_problem_of_a_site_is_named_at_once(tmp_path: Path) -> None:
    bad = site(tmp_path, egress={"receivers": ["asia"]}, data={"input_size": [32]})
    with pytest.raises(ConfigError, match=r"data.input_size: .*, and egress.receivers: "):
        check_site(federation(), bad, "europe")


def test_needs_neither_torch_nor_grpc() -> None:
    heavy = {"torch", "monai", "numpy", "grpc", "cryptography"}
    script = f"import sys, peer.site.config.schema; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_kinds_and_receivers_are_the_method_s_and_all_unless_the_policy_names_others() -> None:
    plan = PLANS["fedskd"]
    assert EgressConfig().permitted_kinds(plan) == ("model",)
    assert EgressConfig(kinds=("head",)).permitted_kinds(plan) == ("head",)
    assert EgressConfig(kinds=("model",)).permitted_kinds(PLANS["local"]) == ()
    assert EgressConfig().permitted_kinds(PLANS["local"]) == ()
    assert EgressConfig().permits_receiver("asia")
    only = EgressConfig(receivers=("asia",))
    assert [only.permits_receiver(name) for name in ("asia", "africa")] == [True, False]


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "127.8.8.8:1", "[::1]:9464", "localhost:9464"])
def test_an_address_of_this_machine_alone_is_free(tmp_path: Path, address: str) -> None:
    assert site(tmp_path, metrics={"listen": address}).metrics.listen == address


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "10.0.0.7:9464", "[::]:9464", "gpu-server:9464"])
def test_an_address_that_others_reach_must_be_asked_for(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(address)} can be .*`public = true`"):
        site(tmp_path, metrics={"listen": address})
    assert site(tmp_path, metrics={"listen": address, "public": True}).metrics.listen == address


def _without_upper_bound(schema: object, path: str = "") -> Iterator[str]:
    """The places of numbers in a JSON schema that may be of any size."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and not {"maximum", "exclusiveMaximum", "enum"} & schema.keys():
            yield path
        for key, value in schema.items():
            yield from _without_upper_bound(value, f"{path}/{key}")


def test_every_number_that_sites_sign_has_an_upper_bound() -> None:
    unbounded = set(_without_upper_bound(FederationConfig.model_json_schema()))
    assert {path for path in unbounded if "/properties/range/" not in path} == set()  # those of a measured value

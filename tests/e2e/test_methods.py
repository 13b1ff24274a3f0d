"""Every method between real daemons: whole rounds over TLS, one kind leaves, and a simulation has the same bits."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import safetensors.torch
import torch

from peer.lab.demo.local_federation import LocalFederation
from peer.methods.registry import PLANS
from peer.site.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 3
ROUNDS_IN_CI = 2
"""The first round trains on what nobody trained, the second on what travelled; nightly runs go on to a third."""
BESIDE = '[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2'
ALIKE = '[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2'
SHARED: Mapping[str, str] = {
    **{name: BESIDE if plan.shared == "beside" else ALIKE for name, plan in PLANS.items() if plan.shared != "maybe"},
    "mh_pflid": '[shared_model]\nname = "messenger_classification"\nwidth = 4',
    "lc_fed": '[shared_model]\nname = "unet"\nwidth = 4\ndepth = 2',
}
FAMILIES = {
    "asia": 'name = "resnet10"\nparameters = {width = 8, stem_stride = 2}',
    "europe": 'name = "vgg11"\nparameters = {width = 4}',
    "africa": 'name = "mobilenet_v1"\nparameters = {width = 4}',
}

UNET = 'name = "unet"\nparameters = {width = 4, depth = 2}'
PROJECTED = {site: model.replace("}", ", projection = 16}") for site, model in FAMILIES.items()}
"""The same families, whose heads all take sixteen features: what is averaged must be alike."""


THREE_SITES = frozenset({"dflmoe", "fedcross", "feddal", "fedskd", "fedvisit", "mh_pflid"})
"""What differs from another method in its worker alone is shown by two sites, which start sooner."""


PAIRS = frozenset(
    {
        "dflmoe",
        "fedavg",
        "fedcross",
        "feddal",
        "fedproto",
        "fedskd",
        "fedvisit",
        "fedvisit_twin",
        "kt_pfl",
        "mh_pflid",
        "pooled_head",
        "proxyfl",
    }
)
"""One method of each pair of pattern and artifacts: that daemons and simulator agree is a property of the pair."""


COLD = "fedproto"
"""Its sites are started as an operator starts them: ``mhfl-peer start`` and ``python -m peer.train.worker``."""


@pytest.fixture
def run(found: Callable[..., LocalFederation], tools: Any) -> Callable[..., LocalFederation]:
    """Run a federation of a method to its end."""

    def run(method: str, rounds: int = ROUNDS, top: str = "", schedule: str = "") -> LocalFederation:
        alike = PLANS[method].shared == "itself"
        families = PROJECTED if method in ("dflmoe_averaged", "lg_fedavg") else FAMILIES
        dense = "classification" in PLANS[method].not_for
        models = dict.fromkeys(FAMILIES, UNET if dense else FAMILIES["asia"]) if alike else families
        stages = "".join(
            f'[stages.{stage}]\nunit = "step"\ncount = 2\nlearning_rate = 1e-3\n' for stage in PLANS[method].stages
        )
        sites = tools.sites if method in THREE_SITES else tools.sites[:2]
        options = {"stages": stages, "shared": SHARED.get(method, "") + schedule, "models": models, "top": top}
        options["cold"] = method == COLD and not schedule
        options |= {"kind": "segmentation"} if dense else {}
        options |= {"site": "[egress]\ntraining_set_size = true\n"} if PLANS[method].artifact == "sums" else {}
        with found(sites=sites, method=method, rounds=rounds, **options) as loopback:
            tools.start(loopback, sites)
            tools.finish_well(loopback)
        return loopback

    return run


def test_each_pair_of_pattern_and_artifacts_has_its_method() -> None:
    pairs = [(PLANS[name].pattern, PLANS[name].sends) for name in PAIRS]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(plan.pattern, plan.sends) for plan in PLANS.values() if plan.sends}


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        *((name, ROUNDS_IN_CI) for name in sorted(PAIRS)),
        *(
            pytest.param(name, ROUNDS, marks=pytest.mark.nightly)
            for name, plan in sorted(PLANS.items())
            if plan.predicts  # test_tables.py has the one that does not
        ),
    ],
)
def test_families_come_to_the_last_round_and_to_the_simulators_bits(
    run, assert_simulated, tools, method: str, rounds: int
) -> None:
    loopback, plan = run(method, rounds), PLANS[method]
    sites = loopback.federation.roster.names
    records = {name: tools.records(loopback, name) for name in sites}
    for name in sites:
        assert [record["round"] for record in records[name]] == list(range(1, rounds + 1))
        assert not any(record["missing"] for record in records[name])
        if plan.pattern == "visit":
            visits = min(loopback.federation.parameters[plan.visits], len(sites) - 1)
            assert [len(record["returned"]) for record in records[name]] == [visits] * rounds
            assert not any(record["missing_returns"] for record in records[name])
        ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
        sent = ledger.transfers()
        ledger.close()
        kinds, own = {row["kind"] for row in sent}, set(plan.sends)
        assert kinds <= own  # a permutation may keep a site at home in every round
        assert kinds == own or plan.pattern not in ("all_to_all", "visit")
    if plan.pattern == "all_to_all" and "aggregate" in plan.phases:
        for round in range(rounds - len(plan.last_round)):
            assert len({records[name][round]["aggregate_sha256"] for name in sites}) == 1
            assert all(records[name][round]["contributors"] == sorted(sites) for name in sites)
    assert_simulated(loopback)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedavg", "fedvisit"])
def test_weights_travel_as_bfloat16_with_the_simulators_bits(run, assert_simulated, tools, method: str) -> None:
    loopback = run(method, top='wire = "bfloat16"')
    assert_simulated(loopback)
    for name in loopback.federation.roster.names:
        real = loopback.folder(name).generation(1)
        artifacts = [safetensors.torch.load_file(path) for path in (real / "artifacts").glob("*.safetensors")]
        floats = {tensor.dtype for each in artifacts for tensor in each.values() if tensor.is_floating_point()}
        assert floats == {torch.bfloat16}
        assert not any(record["missing"] for record in tools.records(loopback, name))


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedskd", "fedproto"])
def test_artifacts_of_the_round_before_give_the_simulators_bits(run, assert_simulated, tools, method: str) -> None:
    loopback = run(method, schedule="[schedule]\nstaleness = 1\n")
    assert_simulated(loopback)
    names = loopback.federation.roster.names
    records = {name: tools.records(loopback, name) for name in names}
    for name in names:
        served = [body["artifact"]["sha256"] for kind, _, body in tools.rows(loopback, name) if kind == "published"]
        assert len(served) == ROUNDS
        assert served[0] == served[1] != served[2]
        assert not any(record["missing"] for record in records[name])
    if method == "fedproto":
        assert all(len({records[name][round]["aggregate_sha256"] for name in names}) == 1 for round in range(ROUNDS))

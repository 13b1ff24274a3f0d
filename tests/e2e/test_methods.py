"""Every method between real daemons: whole rounds over TLS, one kind leaves, and a simulation has the same bits."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from peer.core import site_memory
from peer.demo.local_federation import LocalFederation
from peer.methods.registry import PLANS
from peer.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 3
SHARED: Mapping[str, str] = {
    "feddal": '[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2',
    "proxyfl": '[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2',
    "mh_pflid": '[shared_model]\nname = "messenger_classification"\nwidth = 4',
    **dict.fromkeys(
        ("fedavg", "fedprox", "fedbn", "fedavg_ft", "fedprox_ft", "ditto", "fedrep", "scaffold", "scaffold_ft", "apfl"),
        '[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2',
    ),
}
FAMILIES = {
    "asia": 'name = "resnet10"\nparameters = {width = 8, stem_stride = 2}',
    "europe": 'name = "mobilenet_v2"\nparameters = {width = 8}',
    "africa": 'name = "shufflenet_v2"\nparameters = {width = 8}',
}

PROJECTED = {site: model.replace("width = 8", "width = 8, projection = 16") for site, model in FAMILIES.items()}
"""The same families, whose heads all take sixteen features: what is averaged must be alike."""


THREE_SITES = frozenset({"dflmoe", "fedcross", "feddal", "fedskd", "fedvisit", "mh_pflid"})
"""What differs from another method in its worker alone is shown by two sites, which start sooner."""


COLD = "fedskd"
"""Its sites are started as an operator starts them: ``mhfl-peer start`` and ``python -m peer.training.worker``."""


@pytest.fixture
def run(found: Callable[..., LocalFederation], tools: Any) -> Callable[[str], LocalFederation]:
    """Run a federation of a method to its end."""

    def run(method: str) -> LocalFederation:
        alike = PLANS[method].shared == "itself"
        families = PROJECTED if method in ("dflmoe_averaged", "lg_fedavg") else FAMILIES
        models = dict.fromkeys(FAMILIES, FAMILIES["asia"]) if alike else families
        stages = "".join(
            f'[stages.{stage}]\nunit = "step"\ncount = 4\nlearning_rate = 1e-3\n' for stage in PLANS[method].stages
        )
        sites = tools.sites if method in THREE_SITES else tools.sites[:2]
        options = {"stages": stages, "shared": SHARED.get(method, ""), "models": models, "cold": method == COLD}
        with found(sites=sites, method=method, rounds=ROUNDS, **options) as loopback:
            for name in sites:
                loopback.start(name)
            tools.finish_well(loopback)
        return loopback

    return run


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(name for name, plan in PLANS.items() if not plan.public))
def test_families_come_to_the_last_round_and_to_the_simulators_bits(run, simulated, tools, method: str) -> None:
    loopback, plan = run(method), PLANS[method]
    sites = loopback.federation.roster.names
    records = {name: tools.records(loopback, name) for name in sites}
    for name in sites:
        assert [record["round"] for record in records[name]] == list(range(1, ROUNDS + 1))
        assert not any(record["missing"] for record in records[name])
        if plan.pattern == "visit":
            assert [len(record["returned"]) for record in records[name]] == [len(sites) - 1] * ROUNDS
            assert not any(record["missing_returns"] for record in records[name])
        ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
        sent = ledger.transfers()
        ledger.close()
        kinds, own = {row["kind"] for row in sent}, set(plan.sends)
        assert kinds <= own  # a permutation may keep a site at home in every round
        assert kinds == own or plan.pattern not in ("all_to_all", "visit")
    if plan.pattern == "all_to_all" and "aggregate" in plan.phases:
        for round in range(ROUNDS - len(plan.last_round)):
            assert len({records[name][round]["aggregate_sha256"] for name in sites}) == 1
            assert all(records[name][round]["contributors"] == sorted(sites) for name in sites)
    simulation = simulated(loopback)
    for name in sites:
        real, home = loopback.folder(name).generation(1), simulation.home(name)
        state = site_memory.recover(tools.rows(loopback, name)).state
        assert tools.weights(real, state)
        assert tools.weights(real, state) == tools.weights(home, state), f"{name} has other weights"


def test_the_private_model_of_feddal_never_leaves(run: Callable[[str], LocalFederation], tools: Any) -> None:
    loopback = run("feddal")
    for name in tools.sites:
        secrets = []
        folder = loopback.folder(name)
        for path in (folder.generation(1) / "checkpoints").rglob("dam.safetensors"):
            secrets += [
                tensor.numpy().tobytes() for tensor in safetensors.torch.load_file(path).values() if tensor.numel() > 64
            ]
        assert secrets
        elsewhere = [path for path in Path(loopback.home).rglob("*.safetensors") if name not in path.parts]
        assert elsewhere
        for path in [*elsewhere, *(folder.generation(1) / "artifacts").iterdir()]:
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets)


@pytest.mark.slow
def test_sites_killed_in_a_round_of_visits_come_to_the_simulators_bits(found, simulated, tools) -> None:
    """One dies while it waits for its returns, one while it trains two visitors; nobody gives them up."""
    stages = '[stages.train]\nunit = "step"\ncount = 40\nlearning_rate = 1e-3\n'
    pace = "silence_s = 300\nwait_max_s = 300\ndeadline_floor_s = 300\nbeat_s = 0.5"
    with found(method="fedvisit", rounds=ROUNDS, stages=stages, models=FAMILIES, pace=pace) as loopback:
        for name in tools.sites:
            loopback.start(name)
        for name, phase in (("asia", "returns"), ("europe", "train"), ("africa", "returns")):
            tools.wait_until(lambda name=name, phase=phase: loopback.show(name, "status")["phase"] == phase)
            loopback.kill(name)
            loopback.start(name)
        tools.finish_well(loopback)
    for name in loopback.federation.roster.names:
        for record in tools.records(loopback, name):
            assert len(record["returned"]) == 2
            assert not record["missing"] | record["missing_returns"]
    simulation = simulated(loopback)
    for name in loopback.federation.roster.names:
        state = site_memory.recover(tools.rows(loopback, name)).state
        real = tools.weights(loopback.folder(name).generation(1), state)
        assert real == tools.weights(simulation.home(name), state), f"{name} has other weights"

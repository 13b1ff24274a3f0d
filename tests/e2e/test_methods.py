"""Every method between real daemons: whole rounds over TLS, one kind leaves, equal means have equal digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from peer.core.plan import PLANS
from peer.egress import Ledger
from peer.loopback import Loopback

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 3
SHARED: Mapping[str, str] = {
    "feddal": '[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2',
    "proxyfl": '[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2',
    "mh_pflid": '[shared_model]\nname = "messenger_classification"\nwidth = 4',
    "fedavg": '[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2',
}
FAMILIES = {
    "asia": 'name = "resnet10"\nparameters = {width = 8, stem_stride = 2}',
    "europe": 'name = "mobilenet_v2"\nparameters = {width = 8}',
    "africa": 'name = "shufflenet_v2"\nparameters = {width = 8}',
}


@pytest.fixture
def run(found: Callable[..., Loopback], tools: Any) -> Callable[[str], Loopback]:
    """Run a federation of a method to its end."""

    def run(method: str) -> Loopback:
        alike = PLANS[method].shared == "itself"
        models = dict.fromkeys(FAMILIES, FAMILIES["asia"]) if alike else FAMILIES
        stages = "".join(
            f'[stages.{stage}]\nunit = "step"\ncount = 4\nlearning_rate = 1e-3\n' for stage in PLANS[method].stages
        )
        made = found(method=method, rounds=ROUNDS, stages=stages, shared=SHARED.get(method, ""), models=models)
        with made as loopback:
            for name in tools.sites:
                loopback.start(name)
            codes = tools.finish(loopback)
        assert codes == dict.fromkeys(codes, 0), {name: loopback.console(name)[-2000:] for name in codes}
        return loopback

    return run


@pytest.mark.parametrize("method", sorted(set(PLANS) - {"local", "fedskd", "fedprox", "fedbn", "dflmoe_models"}))
def test_three_families_come_to_the_last_round(run: Callable[[str], Loopback], tools: Any, method: str) -> None:
    loopback, plan = run(method), PLANS[method]
    records = {name: tools.records(loopback, name) for name in tools.sites}
    for name in tools.sites:
        assert [record["round"] for record in records[name]] == list(range(1, ROUNDS + 1))
        assert not any(record["missing"] for record in records[name])
        last = records[name][-1]["metrics"] or tools.records(loopback, name)
        assert last
        ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
        sent = ledger.transfers()
        ledger.close()
        assert sent
        assert {row["kind"] for row in sent} == {plan.artifact}
    if plan.pattern == "all_to_all" and "aggregate" in plan.phases:
        for round in range(ROUNDS):
            assert len({records[name][round]["aggregate_sha256"] for name in tools.sites}) == 1
            assert all(records[name][round]["contributors"] == sorted(tools.sites) for name in tools.sites)


def test_the_private_model_of_feddal_never_leaves(run: Callable[[str], Loopback], tools: Any) -> None:
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

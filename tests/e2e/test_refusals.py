"""Bad input over real TLS: a member of the federation sends one forgery a round, and every round goes on without it.

The forger (``forger.py``) has a real daemon, key and certificate, so that nothing stops it before its artifacts are
looked at. Where each is stopped: kinds and file headers by the daemon that fetches, all else by its worker, on the CPU,
before anything of it is built there or reaches the device.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes.warm import Warm
from peer.core.roster import site_name
from peer.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FORGER = Path(__file__).parent / "forger.py"
DAEMON = Path(__file__).parents[1] / "fakes" / "daemon.py"
MALLORY = "mallory"
SCHEDULE = '[schedule]\nkind = "derangement"\n'
"""Of two sites each receives from the other in every round."""


@dataclass(frozen=True)
class Attack:
    """What the forger sends under a method, round by round, with words of the refusal; and the honest sites."""

    forgeries: Sequence[tuple[str, str]]
    shared: str = ""
    parameters: str = ""
    honest: tuple[str, ...] = ("europe",)


ATTACKS: Mapping[str, Attack] = {
    "fedskd": Attack(
        forgeries=(
            ("unlisted", "model 'os.path:join' is not one that another site may name here"),
            ("classes", "classes = 3 is not this federation's 2"),
            ("names", "tensor 'bn1.bias' is only in the spec"),
            ("shape", "tensor 'bn1.bias' is F32 [1] in the manifest, F32 [8] in the spec"),
            ("dtype", "tensor 'bn1.bias' is F16 [8] in the manifest, F32 [8] in the spec"),
            ("nan", "holds a NaN or an infinity"),
            ("overflow", "predicts a NaN or an infinity for an image of zeros"),
            ("another-method", "manifest: kind is messenger, asked for was model"),
            ("file", "tensor 'layer4.0.downsample.1.weight' is F32 [64] in the file, F32 [64, 1] in the manifest"),
        ),
    ),
    "dflmoe": Attack(
        forgeries=(
            ("unlisted", "model 'os.path:join' is not one that another site may name here"),
            ("classes", "classes = 3 is not this federation's 2"),
            ("width", "its head takes 5 features, this body gives 64, and transform = false"),
            ("shape", "tensor 'fc.bias' is F32 [1] in the manifest, F32 [2] in the spec"),
            ("nan", "tensor 'fc.weight' holds a NaN or an infinity"),
            ("another-method-too", "manifest: kind is proxy, asked for was head"),
        ),
        parameters="transform = false",
    ),
    "mh_pflid": Attack(
        forgeries=(
            ("another-method-too", "manifest: kind is proxy, asked for was messenger"),
            ("another-spec", "its spec is not this site's messenger_classification, with which it is averaged"),
            ("names", "tensor 'body.0.bias' is only in the spec"),
            ("inf", "holds a NaN or an infinity"),
            ("file", "tensor 'classifier.2.weight' is F32 [2, 32] in the file, F32 [32, 2, 1] in the manifest"),
        ),
        shared='[shared_model]\nname = "messenger_classification"\nwidth = 4',
    ),
    "feddal": Attack(
        forgeries=(
            ("another-method", "manifest: kind is messenger, asked for was proxy"),
            ("another-spec", "its spec is not this site's resnet10, with which it is averaged"),
            ("classes", "its spec is not this site's resnet10, with which it is averaged"),
            ("dtype", "tensor 'bn1.bias' is F16 [4] in the manifest, F32 [4] in the spec"),
            ("inf", "holds a NaN or an infinity"),
        ),
        shared='[shared_model]\nname = "resnet10"\nwidth = 4\nstem_stride = 2',
        honest=("asia", "europe"),
    ),
}


@dataclass
class Aftermath:
    """What the honest sites show and hold after the attack."""

    status: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[tuple[str, int, Any]]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)


def start_forger(loopback: LocalFederation, worker: Sequence[str]) -> None:
    """Start the forger's daemon; the loopback stops it with the others."""

    class ForgerLoopback(LocalFederation):
        program = (sys.executable, "-P", str(DAEMON), json.dumps(worker))

    loopback.daemons[site_name(MALLORY)] = ForgerLoopback(loopback.home, loopback.federation).start(MALLORY)


@pytest.fixture(scope="module")
def attacked(found: Callable[..., LocalFederation], warm_workers: Warm, tools: Any) -> Callable[[str], Aftermath]:
    """The honest sites of a method after the last round; each federation runs once."""
    seen: dict[str, Aftermath] = {}

    def attack(method: str) -> Aftermath:
        if method in seen:
            return seen[method]
        plan = ATTACKS[method]
        names, rounds = (*plan.honest, MALLORY), len(plan.forgeries)
        stages, top = plan.parameters + stages_of(method), SCHEDULE if len(names) == 2 else ""
        options = {"sites": names, "rounds": rounds, "method": method, "stages": stages, "top": top}
        after = seen[method] = Aftermath()
        with found(**options, shared=plan.shared) as loopback:
            forgeries = ",".join(name for name, _ in plan.forgeries)
            start_forger(loopback, warm_workers.command(str(FORGER), "--forge", forgeries))
            for name in plan.honest:
                loopback.start(name, "--stay")
            for name in plan.honest:
                tools.wait_until(
                    lambda name=name: loopback.show(name, "status")["phase"] == "done",
                    limit_s=120,
                    what=lambda name=name: loopback.console(name) + loopback.console(MALLORY),
                )
                after.status[name] = loopback.show(name, "status")
                after.rows[name], after.records[name] = tools.rows(loopback, name), tools.records(loopback, name)
                artifacts = loopback.folder(name).generation(1) / "artifacts"
                after.files[name] = {path.stem for path in artifacts.glob("*.safetensors")}
        return after

    return attack


def stages_of(method: str) -> str:
    """One step a stage: what is learnt does not matter here."""
    from peer.methods.registry import PLANS

    return "".join(f'\n[stages.{stage}]\nunit = "step"\ncount = 1\n' for stage in PLANS[method].stages)


CASES = [
    (method, round, name, reason)
    for method, plan in ATTACKS.items()
    for round, (name, reason) in enumerate(plan.forgeries, start=1)
]


@pytest.mark.parametrize(
    ("method", "round", "name", "reason"), CASES, ids=[f"{method}-{name}" for method, _, name, _ in CASES]
)
def test_what_must_not_be_sent_is_refused_by_name_and_the_round_goes_on(
    attacked: Callable[[str], Aftermath], method: str, round: int, name: str, reason: str
) -> None:
    after, honest = attacked(method), ATTACKS[method].honest
    for site in honest:
        noted = [body for kind, at, body in after.rows[site] if kind == "refused" and at == round]
        assert [body["origin"] for body in noted] == [MALLORY]
        assert reason in noted[0]["reason"]
        assert {"site": MALLORY, "round": round, "reason": noted[0]["reason"]} in after.status[site]["refusals"]
        record = after.records[site][round - 1]
        assert record["round"] == round
        assert record["missing"] == {MALLORY: "refused"}
        assert record["contributors"] == list(honest)
        assert [source["site"] for source in record["sources"]] == [other for other in honest if other != site]
        received = [body for kind, _, body in after.rows[site] if kind == "received"]
        assert not {body["sha256"] for body in received if body["peer"] == MALLORY} & after.files[site]


@pytest.mark.parametrize("method", ATTACKS)
def test_every_honest_site_comes_to_the_last_round(attacked: Callable[[str], Aftermath], method: str) -> None:
    after, plan = attacked(method), ATTACKS[method]
    for site in plan.honest:
        assert [record["round"] for record in after.records[site]] == list(range(1, len(plan.forgeries) + 1))
        assert len(after.status[site]["refusals"]) == len(plan.forgeries)
        assert after.status[site]["failure"] in ("", None)
        assert 0 <= after.records[site][-1]["metrics"]["auc"] <= 1
        assert not any(kind == "work_failed" for kind, _, _ in after.rows[site])
    means = {tuple(record["aggregate_sha256"] for record in after.records[site]) for site in plan.honest}
    assert len(means) == 1, "who refuses the same has the same mean"

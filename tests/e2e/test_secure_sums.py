"""A federation of four daemons that add up under masks: undisturbed, then killed between any two messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peer.core.sum_messages import commitment
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SITES = ("africa", "america", "asia", "europe")
ROUNDS = 3
MODEL = 'name = "resnet10"\n{table}width = 4\nstem_stride = 2'
STAGES = "[stages.train]\ncount = 1\nlearning_rate = 1e-3\n[aggregate]\nsecure = true"


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    """Enrolled, never started."""
    return found(
        sites=SITES,
        rounds=ROUNDS,
        method="fedavg",
        stages=STAGES,
        shared="[shared_model]\n" + MODEL.format(table=""),
        models=dict.fromkeys(SITES, MODEL.format(table="[model.parameters]\n")),
    )


@pytest.fixture(scope="module")
def calm(enrolled: LocalFederation, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """The same federation after an undisturbed run."""
    with tools.copy_of(enrolled, tmp_path_factory.mktemp("calm") / "sites") as loopback:
        tools.start(loopback, SITES)
        tools.finish_well(loopback)
    return loopback


def of_kind(tools: Any, loopback: LocalFederation, name: str, kind: str) -> list[tuple[int, Any]]:
    return [(round, body) for each, round, body in tools.rows(loopback, name) if each == kind]


def test_all_sites_have_one_mean_of_all_in_each_round(calm: LocalFederation, tools: Any) -> None:
    means = []
    for name in SITES:
        records = tools.records(calm, name)
        assert [record["contributors"] for record in records] == [list(SITES)] * ROUNDS
        means.append([record["aggregate_sha256"] for record in records])
        steps = [body["step"] for round, body in of_kind(tools, calm, name, "sum") if round == ROUNDS]
        assert steps == ["keyed", "masked", "committed", "opened", "completed"]
    assert means == [means[0]] * len(SITES)
    assert len(set(means[0])) == ROUNDS


def test_the_simulator_computes_the_same_bits(calm: LocalFederation, assert_simulated: Callable[..., None]) -> None:
    assert_simulated(calm)


def test_what_left_is_masked_and_each_opening_is_in_the_ledger(calm: LocalFederation, tools: Any) -> None:
    for name in SITES:
        trained = {body["artifact"]["sha256"] for _, body in of_kind(tools, calm, name, "trained") if body["artifact"]}
        sent = tools.transfers(calm, name)
        models = [each for each in sent if each["kind"] == "model"]
        assert len(models) == ROUNDS * 3
        assert all(each["masked"] and each["sha256"] not in trained for each in models)
        opened = [(each["round"], each["peer"]) for each in sent if each["kind"] == "opening"]
        assert sorted(opened) == [(round, peer) for round in range(1, ROUNDS + 1) for peer in SITES if peer != name]


def test_no_file_or_log_keeps_a_secret(calm: LocalFederation, tools: Any) -> None:
    for name in SITES:
        home = calm.folder(name).generation(1)
        assert not list((home / "sums").iterdir())
        masked = of_kind(tools, calm, name, "sum")
        commitments = {body["commitments"][name] for _, body in masked if body["step"] == "masked"}
        others = [other for other in SITES if other != name]
        openings = [
            body["openings"][name]["own"]
            for other in others
            for _, body in of_kind(tools, calm, other, "sum")
            if body["step"] == "completed"
        ]
        assert {commitment(bytes.fromhex(seed)) for seed in openings} == commitments, "the others learnt these seeds"
        texts = [path.read_text(errors="replace") for path in calm.folder(name).logs.iterdir()]
        assert not [seed for seed in openings for text in texts if seed in text]


STEPS = ("keyed", "masked", "committed", "opened", "completed")
NIGHTLY = [pytest.param(step, step, marks=pytest.mark.nightly) for step in STEPS]


@pytest.mark.parametrize(("first", "second"), [("masked", "committed"), *NIGHTLY])
def test_kill_9_after_a_step_changes_no_bit(
    first: str,
    second: str,
    calm: LocalFederation,
    enrolled: LocalFederation,
    copied: Callable[[LocalFederation], LocalFederation],
    tools: Any,
) -> None:
    wild = copied(enrolled)
    tools.start(wild, SITES)
    for round, name, step in ((1, "africa", first), (2, "europe", second)):
        tools.wait_until(
            lambda round=round, name=name, step=step: (
                (round, step) in [(at, body["step"]) for at, body in of_kind(tools, wild, name, "sum")]
            )
        )
        wild.kill(name)
        wild.start(name, "--resume", "require")
    tools.finish_well(wild)
    for name in SITES:
        bits = [record["aggregate_sha256"] for record in tools.records(calm, name)]
        assert [record["aggregate_sha256"] for record in tools.records(wild, name)] == bits

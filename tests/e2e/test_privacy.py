"""Three daemons with noise on what leaves: undisturbed, killed, and one that may spend less than the others."""

from __future__ import annotations

import json
import math
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import run_json
from peer.core.privacy import epsilon_of, mu_of
from peer.lab.demo.local_federation import LocalFederation
from peer.site.identity.noise_key import read_noise_key

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SITES = ("africa", "asia", "europe")
ROUNDS, STEPS, EPSILON, DELTA = 4, 3, 8.0, 0.005
THRIFTY = "europe"
VERIFY = Path(__file__).parents[2] / "deploy" / "verify_export.py"
MODEL = 'name = "resnet10"\n{table}width = 4\nstem_stride = 2\nnorm = "group"'
STAGES = (
    f"[stages.train]\ncount = {STEPS}\nlearning_rate = 1e-3\n"
    f'[privacy]\nmechanism = "noise"\nepsilon = {EPSILON}\ndelta = {DELTA}\npeople = 8'
)


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    """Enrolled, with the secrets of their noise, never started."""
    loopback = found(
        sites=SITES,
        rounds=ROUNDS,
        method="fedavg",
        stages=STAGES,
        shared="[shared_model]\n" + MODEL.format(table=""),
        models=dict.fromkeys(SITES, MODEL.format(table="[model.parameters]\n")),
    )
    for name in SITES:
        read_noise_key(loopback.folder(name).pki)
        path = loopback.folder(name).site_toml
        path.write_text(path.read_text() + f'\n[privacy]\npopulation = "{name}"\n')
    return loopback


@pytest.fixture(scope="module")
def calm(enrolled: LocalFederation, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """The same federation after an undisturbed run."""
    with tools.copy_of(enrolled, tmp_path_factory.mktemp("calm") / "sites") as loopback:
        tools.start(loopback, SITES)
        tools.finish_well(loopback)
    return loopback


def sent(tools: Any, loopback: LocalFederation, name: str) -> list[Any]:
    return [each for each in tools.transfers(loopback, name) if each["kind"] == "model" and "spent" in each]


def spent(tools: Any, loopback: LocalFederation, name: str) -> list[float]:
    """Return what the ledger says is spent in each round, once for each receiver."""
    return [each["spent"]["epsilon"] for each in sent(tools, loopback, name)]


def entries(loopback: LocalFederation) -> list[dict[str, Any]]:
    account = json.loads((loopback.home / ".privacy" / "budget.json").read_bytes())
    return list(account["entries"].values())


def test_the_last_round_spends_what_the_federation_permits(calm: LocalFederation, tools: Any) -> None:
    for name in SITES:
        epsilons = spent(tools, calm, name)
        assert len(epsilons) == ROUNDS * 2
        assert epsilons == sorted(epsilons)
        assert epsilons[-1] == pytest.approx(EPSILON, abs=1e-3)
    account = calm.home / ".privacy" / "budget.json"
    assert stat.S_IMODE(account.stat().st_mode) == 0o600
    assert len(entries(calm)) == ROUNDS * len(SITES)
    total = sum(entry["mu_squared"] for entry in entries(calm)) / len(SITES)
    assert epsilon_of(total**0.5, DELTA) == pytest.approx(EPSILON, abs=1e-6)


def test_an_outsider_derives_the_same_figures_from_an_export(calm: LocalFederation, tmp_path: Path) -> None:
    run_json("--home", calm.home, "egress", "export", "--site", "asia", "--out", tmp_path / "asia.json")
    command = [sys.executable, "-I", VERIFY, tmp_path / "asia.json", calm.folder("asia").federation_toml]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert "holds  receivers: africa (4 artifacts), europe (4 artifacts)" in lines
    assert lines[3].startswith(f"holds  guarantee: epsilon 8.0000 of {EPSILON} (delta {DELTA}), no attack beyond AUC ")


def test_the_simulator_computes_the_same_bits(calm: LocalFederation, assert_simulated: Callable[..., None]) -> None:
    assert_simulated(calm)


def test_no_file_that_others_read_has_the_key(calm: LocalFederation) -> None:
    for name in SITES:
        key = read_noise_key(calm.folder(name).pki).hex()
        files = [path for path in calm.folder(name).path.rglob("*") if path.is_file()]
        assert [path.name for path in files if key.encode() in path.read_bytes()] == ["noise.key"]


@pytest.mark.parametrize("method", ["pooled_head", "statistics"])
def test_sums_have_shared_noise_under_masks(
    found: Callable[..., LocalFederation], assert_simulated: Callable[..., None], tools: Any, method: str
) -> None:
    delta = DELTA if method == "pooled_head" else DELTA / 5  # a table is of the people of all splits
    text = f'[privacy]\nmechanism = "noise"\nepsilon = {EPSILON}\ndelta = {delta}\n'
    with found(
        sites=SITES,
        rounds=1,
        method=method,
        stages=f"{text}[aggregate]\nsecure = true\nmembers_min = {len(SITES)}\n",
        shared="[shared_model]\n" + MODEL.format(table=""),
        models=dict.fromkeys(SITES, MODEL.format(table="[model.parameters]\n")),
    ) as loopback:
        for name in SITES:
            path = loopback.folder(name).site_toml
            path.write_text(path.read_text() + f'\n[privacy]\npopulation = "{name}"\n')
        tools.start(loopback, SITES)
        tools.finish_well(loopback)
    records = [tools.records(loopback, name)[0] for name in SITES]
    assert [record["contributors"] for record in records] == [list(SITES)] * len(SITES)
    assert len({record["aggregate_sha256"] for record in records}) == 1
    for name in SITES:
        sums = [each for each in tools.transfers(loopback, name) if each["kind"] == "sums" and "spent" in each]
        assert {(each["spent"]["epsilon"], each["spent"]["colluders"], each["masked"]) for each in sums} == {
            (EPSILON, 1, True)
        }
    assert_simulated(loopback)
    if method == "statistics":
        shown = run_json("statistics", "--home", loopback.home, "--site", SITES[0])
        assert (shown["noise"]["epsilon"], shown["noise"]["delta"]) == (EPSILON, delta)
        expected = math.sqrt(2) / mu_of(EPSILON, delta) * math.sqrt(len(SITES) / (len(SITES) - 1))
        assert shown["noise"]["count_error"] == pytest.approx(expected, rel=1e-6)


def test_a_twin_visits_and_the_personal_model_stays_through_a_kill(
    found: Callable[..., LocalFederation], assert_simulated: Callable[..., None], tools: Any
) -> None:
    """Twin and visiting twins of a stage are charged once; the simulator, which nobody kills, has the same bits."""
    with found(
        sites=SITES,
        rounds=2,
        method="fedvisit_twin",
        stages=STAGES,
        models={name: MODEL.format(table="[model.parameters]\n") for name in SITES},
    ) as loopback:
        for name in SITES:
            path = loopback.folder(name).site_toml
            path.write_text(path.read_text() + f'\n[privacy]\npopulation = "{name}"\n')
        tools.start(loopback, SITES)
        tools.wait_until(lambda: any(kind == "opened" and at == 1 for kind, at, _ in tools.rows(loopback, "asia")))
        loopback.kill("asia")
        loopback.start("asia", "--resume", "require")
        tools.finish_well(loopback)
    for name in SITES:
        trained = [each for each in tools.transfers(loopback, name) if "spent" in each]
        assert {each["kind"] for each in trained} == {"proxy", "return"}
        assert max(each["spent"]["epsilon"] for each in trained) == pytest.approx(EPSILON, abs=1e-3)
        assert [len(record["returned"]) for record in tools.records(loopback, name)] == [len(SITES) - 1] * 2
    assert len(entries(loopback)) == 2 * len(SITES)
    assert_simulated(loopback)


def test_kill_9_in_training_spends_nothing_twice_and_changes_no_bit(
    calm: LocalFederation, enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any
) -> None:
    wild = copied(enrolled)
    tools.start(wild, SITES)
    for round, name in ((1, "africa"), (2, "europe")):
        tools.wait_until(
            lambda round=round, name=name: any(
                at == round for at, kind in [(at, kind) for kind, at, _ in tools.rows(wild, name)] if kind == "opened"
            )
        )
        wild.kill(name)
        wild.start(name, "--resume", "require")
    tools.finish_well(wild)
    for name in SITES:
        bits = [record["aggregate_sha256"] for record in tools.records(calm, name)]
        assert [record["aggregate_sha256"] for record in tools.records(wild, name)] == bits
        assert spent(tools, wild, name)[-1] == spent(tools, calm, name)[-1]
    assert len(entries(wild)) == ROUNDS * len(SITES)


def test_a_site_that_has_spent_what_it_may_receives_and_sends_nothing(
    enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any
) -> None:
    """Of four equal rounds, epsilon 6 of 8 permits two: mu grows with the square root of the rounds."""
    thrifty = copied(enrolled)
    path = thrifty.folder(THRIFTY).site_toml
    path.write_text(path.read_text() + "epsilon_max = 6\n")
    tools.start(thrifty, SITES)
    tools.finish_well(thrifty)
    rounds = sorted({each["round"] for each in sent(tools, thrifty, THRIFTY)})
    assert rounds == [1, 2]
    assert max(spent(tools, thrifty, THRIFTY)) < 6 < max(spent(tools, thrifty, "asia"))
    for name in SITES:
        contributors = [record["contributors"] for record in tools.records(thrifty, name)]
        others = [each for each in SITES if each != THRIFTY]
        assert contributors[:2] == [list(SITES)] * 2
        assert contributors[2:] == [list(SITES) if name == THRIFTY else others] * 2
    log = (thrifty.folder(THRIFTY).logs / "daemon.log").read_text()
    assert "stays here: what this site's people may lose is spent" in log


def forget_account(loopback: LocalFederation, member: str) -> float:
    """Take a site's entries out of the account, as another machine has none; return the mu that they add up to."""
    path = loopback.home / ".privacy" / "budget.json"
    account = json.loads(path.read_bytes())
    own = [each["mu_squared"] for each in account["entries"].values() if each["member"].endswith(f"/{member}")]
    account["entries"] = {key: each for key, each in account["entries"].items() if not each["member"].endswith(member)}
    path.write_text(json.dumps(account))
    return float(sum(own) ** 0.5)


def test_a_site_from_an_old_backup_on_another_machine_goes_on_from_what_its_peers_manifests_say(
    enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any, tmp_path: Path
) -> None:
    three = copied(enrolled)
    tools.start(three, SITES)
    tools.wait_until(lambda: three.show(THRIFTY, "status")["committed"] >= 1)
    file, home = tmp_path / "old.tar", ("--home", three.home)
    backup = run_json(*home, "backup", file, "--site", THRIFTY, "--with-key")

    def has_arrived(name: str) -> bool:
        arrived = [(round, body) for kind, round, body in tools.rows(three, name) if kind == "arrived"]
        return any(round > backup["round"] + 1 and body["source"]["origin"] == THRIFTY for round, body in arrived)

    tools.wait_until(lambda: any(has_arrived(name) for name in SITES if name != THRIFTY))
    for name in SITES:
        three.kill(name)
    left = max(each["spent"]["mu"] for each in sent(tools, three, THRIFTY))
    assert forget_account(three, THRIFTY) >= left
    shutil.rmtree(three.folder(THRIFTY).path)
    restored = run_json(*home, "restore", file, "--site", THRIFTY)
    known = max(each["spent"]["mu"] for each in sent(tools, three, THRIFTY))
    assert known < left, "the backup's ledger is older"
    tools.start(three, SITES, "--resume", "require")
    tools.finish_well(three)
    own = [each for each in entries(three) if each["member"].endswith(f"/{THRIFTY}")]
    recalled = [each for each in own if each["generation"] < restored["generation"]]
    assert sum(each["mu_squared"] for each in recalled) == pytest.approx(left**2)
    assert [each for each in own if each["generation"] >= restored["generation"]]
    later = [each["spent"]["mu"] for each in sent(tools, three, THRIFTY) if each["generation"] > backup["generation"]]
    assert all(left < mu <= mu_of(EPSILON, DELTA) + 1e-6 for mu in later)
    log = (three.folder(THRIFTY).logs / "daemon.log").read_text()
    assert "a peer's manifest of this site tells of more spending than its account" in log

"""The check of an installed package: what is wrong is named, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from models.spec import ENTRY_POINTS as NETWORKS
from models.spec import INTERFACE_ENTRY_POINTS
from peer.lab.datasets import ENTRY_POINTS as DATA_SETS
from peer.lab.experiments.plugin_check import check_package, find_distribution
from peer.lab.statistics.further_metrics import ENTRY_POINTS as METRICS
from peer.methods.registry import ENTRY_POINTS as METHODS

Install = Callable[..., None]
UNNAMED = "names no version of the interface"


def problems(tmp_path: Path) -> dict[str, str]:
    """What is wrong with each part of the installed package, by the part's name."""
    parts = check_package(find_distribution("some-package"), tmp_path / "trials")
    return {part.name: part.problem for part in parts if part.problem is not None}


@pytest.mark.parametrize(
    ("group", "name", "target", "problem"),
    [
        (METHODS, "local", "peer.methods.fedskd.plan:FEDSKD", "is the name of a built-in method"),
        (METHODS, "mine", "peer.methods.registry:PLANS", "names no plan"),
        (METHODS, "mine", "no.such:PLAN", "cannot be loaded"),
        (NETWORKS, "unet", "models:Network", "is the name of a built-in network"),
        (DATA_SETS, "digits", "peer.lab.datasets.digits", "is the name of a built-in data set"),
        (DATA_SETS, "mine", "no.such", "No module named 'no'"),
        (METRICS, "kappa", "peer.lab.statistics.further_metrics:kappa", "is the name of a built-in metric"),
        (METRICS, "mine", "peer.lab.statistics.further_metrics:kappa", "names no FurtherMetric"),
        (
            "mhfl_peer.method",
            "mine",
            "no.such:PLAN",
            "unknown group of entry points (did you mean 'mhfl_peer.methods'?)",
        ),
    ],
)
def test_a_wrong_part_is_named(
    distribution: Install, tmp_path: Path, group: str, name: str, target: str, problem: str
) -> None:
    distribution("some-package", "1.0", group, **{name: target})
    interface, part = problems(tmp_path).items()
    assert interface == ("1", f'{UNNAMED}: add 1 = "MODULE" to the group {INTERFACE_ENTRY_POINTS}')
    assert part[0] == (name if group != "mhfl_peer.method" else group)
    assert problem in part[1]


@pytest.mark.e2e
def test_a_plan_that_loads_torch_is_wrong(distribution: Install, tmp_path: Path) -> None:
    distribution("some-package", "1.0", METHODS, heavy="heavy_plan:PLAN")
    module = tmp_path / "some-package-1.0" / "heavy_plan.py"
    module.write_text("import torch\nfrom peer.methods.local.plan import LOCAL as PLAN\n")
    assert problems(tmp_path)["heavy"] == "the plan's module loads torch, which daemons do without"


@pytest.mark.parametrize(("named", "is_right"), [("1", True), ("2", False)])
def test_a_package_for_another_interface_is_wrong(
    distribution: Install, tmp_path: Path, named: str, is_right: bool
) -> None:
    distribution("some-package", "1.0", INTERFACE_ENTRY_POINTS, **{named: "peer"})
    expected = {} if is_right else {"1": "some-package is for version 2 of the interface, and this program has 1"}
    assert problems(tmp_path) == expected


@pytest.mark.e2e
@pytest.mark.parametrize(("plan", "problem"), [("peer.methods.local.plan:LOCAL", None), ("bad:PLAN", "no Method with")])
def test_a_method_is_trained(
    distribution: Install, tmp_path: Path, plan: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text(
        "import dataclasses\nfrom peer.methods.local.plan import LOCAL\n"
        'PLAN = dataclasses.replace(LOCAL, implementation="peer.methods.local.stages:train")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    distribution("some-package", "1.0", METHODS, mine=plan)
    result = problems(tmp_path).get("mine")
    assert result is None if problem is None else problem in str(result)

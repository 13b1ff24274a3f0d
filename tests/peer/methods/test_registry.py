"""Methods of installed packages are found by name and package; an error about a missing one has a
remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.errors import ConfigError
from peer.methods.fedskd.plan import FEDSKD
from peer.methods.registry import ENTRY_POINTS, PLANS, find_plan, installed_methods, method_names

PLAN = "peer.methods.fedskd.plan:FEDSKD"
Install = Callable[..., None]


def refusal(name: str, package: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        find_plan(name, package)
    return str(caught.value)


def test_a_built_in_method_needs_no_package() -> None:
    assert find_plan("fedskd") is FEDSKD
    assert refusal("fedskd", "other==1.0") == (
        "method 'fedskd' is built in, and comes with no package; leave package out"
    )


def test_an_installed_package_adds_methods_and_replaces_none(distribution: Install) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=PLAN, local=PLAN)
    assert installed_methods() == [("similar", "some-methods==1.0")]
    assert method_names() == [*PLANS, "similar"]
    assert find_plan("local") is PLANS["local"]


@pytest.mark.parametrize("package", ["some-methods==1.0", "some_methods==1.0", "Some.Methods==1.0"])
def test_a_distribution_is_named_as_pip_names_it(distribution: Install, package: str) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=PLAN)
    assert find_plan("similar", package) is FEDSKD


def test_of_two_packages_with_one_name_the_named_one_counts(distribution: Install) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=PLAN)
    distribution("other-methods", "2.0", ENTRY_POINTS, similar="peer.methods.local.plan:LOCAL")
    assert find_plan("similar", "some-methods==1.0") is FEDSKD
    assert find_plan("similar", "other-methods==2.0") is PLANS["local"]


def test_a_method_of_a_package_needs_the_package_in_the_file(distribution: Install) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=PLAN)
    assert refusal("similar") == (
        "method 'similar' comes with a package, which must be the same one at every site; "
        'write package = "some-methods==1.0" below the name of the method'
    )


def test_what_is_missing_is_said_with_what_to_install(distribution: Install) -> None:
    install = "; get some-methods==1.0 from its authors, and install that file in the environment of mhfl-peer"
    assert refusal("similar") == "unknown method 'similar'; `mhfl-peer methods` lists all that are here"
    missing = refusal("similar", "some-methods==1.0")
    assert missing == f"method 'similar' comes with some-methods==1.0, which is not installed{install}"
    distribution("some-methods", "1.1", ENTRY_POINTS, similar=PLAN)
    other = refusal("similar", "some-methods==1.0")
    assert other == f"method 'similar' comes with some-methods==1.0, but 1.1 is installed{install}"
    assert refusal("dissimilar", "some-methods==1.1") == (
        "some-methods==1.1 has no method 'dissimilar'; `mhfl-peer methods` lists all that are here"
    )


@pytest.mark.parametrize("package", ["some-methods", "some-methods>=1.0", "-e .==1", "==1.0", "a b==1"])
def test_a_package_is_a_distribution_and_a_version(package: str) -> None:
    assert f"package = {package!r} of method 'similar' is not DISTRIBUTION==VERSION" in refusal("similar", package)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("peer.methods.registry:PLANS", "names no plan, but {"),
        ("peer.methods.registry:NOTHING", "cannot be loaded: module 'peer.methods.registry' has no attribute"),
        ("no.such.module:PLAN", "cannot be loaded: No module named 'no'"),
    ],
)
def test_an_entry_point_that_gives_no_plan_is_refused(distribution: Install, value: str, reason: str) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=value)
    assert reason in refusal("similar", "some-methods==1.0")


def test_a_package_for_another_version_of_the_interface_is_refused(distribution: Install, tmp_path: Path) -> None:
    distribution("some-methods", "1.0", ENTRY_POINTS, similar=PLAN)
    points = tmp_path / "some-methods-1.0/some_methods-1.0.dist-info/entry_points.txt"
    points.write_text(f"{points.read_text()}[mhfl_peer.interface]\n2 = peer\n")
    assert refusal("similar", "some-methods==1.0") == (
        "method 'similar': some-methods is for version 2 of the interface, and this program has 1; "
        "install a version of the package that fits"
    )
    points.write_text(f"{points.read_text()}1 = peer\n")
    assert find_plan("similar", "some-methods==1.0") is FEDSKD

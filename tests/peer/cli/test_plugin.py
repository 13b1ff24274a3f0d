"""``mhfl-peer plugin``: a new package works as it is, and a wrong one is refused part by part."""

import json
import tomllib
from pathlib import Path

import pytest

from fakes.cli import refused, run, run_json
from fakes.packages import forget_packages
from peer.errors import ConfigError


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs the package in a folder as an editable installation does."""

    def install(folder: Path) -> None:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        groups = project["entry-points"].items()
        lines = [
            line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        (info / "top_level.txt").write_text(project["name"].replace("-", "_"))
        monkeypatch.syspath_prepend(folder)

    yield install
    forget_packages()


def test_a_new_package_has_its_own_names_everywhere(tmp_path: Path) -> None:
    document = run_json("plugin", "new", "my-method", "--out", tmp_path / "package")
    assert {"pyproject.toml", "my_method/plan.py", "my_method/network.py", "tests/test_my_method.py"} <= {
        *document["files"]
    }
    for name in document["files"]:
        text = (tmp_path / "package" / name).read_text()
        assert not [
            word for word in ("mhfl-example", "mhfl_example", "fedper", "FEDPER", "two_convolutions") if word in text
        ]
    points = tomllib.loads((tmp_path / "package/pyproject.toml").read_text())["project"]["entry-points"]
    assert points["mhfl_peer.interface"] == {"1": "my_method"}
    assert points["mhfl_peer.methods"] == {"my_method": "my_method.plan:MY_METHOD"}
    assert points["mhfl_peer.models"] == {"my_method_network": "my_method.network:TwoConvolutions"}
    assert points["mhfl_peer.datasets"] == {"my_method_shapes": "my_method.shapes"}


@pytest.mark.parametrize("name", ["My-method", "my method", "my--method", "../x", "ab"])
def test_a_name_that_is_none_of_a_package_is_refused(tmp_path: Path, name: str) -> None:
    assert "is no name of a package" in refused("UsageError", "plugin", "new", name, "--out", tmp_path / "package")


def test_a_folder_with_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    assert "is not empty" in refused("StateError", "plugin", "new", "my-method", "--out", tmp_path)


def test_a_package_that_is_not_installed_is_refused_with_what_to_do() -> None:
    problem = refused("UsageError", "plugin", "check", "no-such-package")
    assert "no package 'no-such-package' is installed here; run `pip install -e FOLDER`" in problem


@pytest.mark.e2e
def test_a_new_package_passes_its_check_under_both_names_until_it_is_broken(
    tmp_path: Path, install, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trial-method"
    assert run("plugin", "new", "trial-method", "--out", folder).exit_code == 0
    install(folder)
    document = run_json("plugin", "check", "trial_method")
    assert document["package"] == "trial-method==1.0"
    assert [(part["kind"], part["name"], part["problem"]) for part in document["parts"]] == [
        ("interface", "1", None),
        ("data set", "trial_method_shapes", None),
        ("method", "trial_method", None),
        ("network", "trial_method_network", None),
    ]
    monkeypatch.setattr("trial_method.network.TwoConvolutions", dict)
    broken = run("plugin", "check", "trial-method", "--json")
    assert broken.exit_code == ConfigError.exit_code
    problems = {part["name"]: part["problem"] for part in json.loads(broken.stdout)["parts"] if part["problem"]}
    assert problems.keys() == {"trial_method_network"}
    assert "makes no models.Network with the name 'trial_method_network'" in problems["trial_method_network"]

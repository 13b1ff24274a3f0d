"""`prune` lists, asks, and deletes only with an answer, while no daemon runs."""

from pathlib import Path

import pytest

from fakes.cli import refused, run, run_json
from fakes.trained_site import TrainedSite


@pytest.fixture
def site(tmp_path: Path) -> TrainedSite:
    site = TrainedSite(tmp_path / "sites")
    site.train(1, ["p1"])
    site.begin()
    site.train(1, ["p1"])
    return site


def test_it_lists_asks_and_deletes(site: TrainedSite) -> None:
    options = ("--home", site.folder.home, "prune", "--older-than", "0d")
    former = site.folder.generation(1) / "artifacts"
    document = run_json(*options)
    assert [kind["kind"] for kind in document["kinds"]] == [
        "artifacts of former generations",
        "checkpoints of former generations",
    ]
    assert (document["deleted"], document["kinds"][0]["bytes"]) == (False, 3)
    result = run(*options, answer="n\n")
    assert result.exit_code != 0
    assert "nothing was deleted" in result.stderr
    assert any(former.iterdir())
    assert "They are deleted." in run(*options, answer="y\n").stdout
    assert not any(former.iterdir())
    assert "Nothing that may go" in run(*options, "--yes").stdout


def test_what_is_young_stays(site: TrainedSite) -> None:
    assert run_json("--home", site.folder.home, "prune", "--yes")["kinds"] == []
    assert run_json("--home", site.folder.home, "prune", "--older-than", "2w")["older_than_s"] == 14 * 86400.0


def test_a_running_daemon_is_to_be_stopped_first(site: TrainedSite) -> None:
    with site.folder.locked():
        assert "mhfl-peer stop" in refused("LockedError", "--home", site.folder.home, "prune", "--yes")


@pytest.mark.parametrize("age", ["90", "d", "-1d", "1.5d", "90 d"])
def test_an_age_has_a_unit(site: TrainedSite, age: str) -> None:
    assert "is no age" in run("--home", site.folder.home, "prune", f"--older-than={age}").stderr

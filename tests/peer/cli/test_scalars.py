"""`mhfl-peer scalars`: its document, nothing written twice, and a site followed to its end."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import Result

from fakes.cli import PROGRAM, ROOT, refused_in_one_line, run
from fakes.sites import append_rows, round_body
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder

LIMIT_S = 60.0
ROUND = round_body(metrics={"train_total": 0.5})


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    """A site with one finished round, while its daemon is down."""
    folder = enrolled.folder("asia")
    append_rows(folder, ("began", 0, {}), ("committed", 1, ROUND))
    return folder


def call(folder: SiteFolder, *words: str) -> Result:
    return run("--home", folder.home, "scalars", "--site", "asia", *words)


def test_what_was_added_is_said_and_nothing_is_added_twice(folder: SiteFolder, tmp_path: Path) -> None:
    out = str(tmp_path / "runs")
    result = call(folder, "--tensorboard", out, "--json")
    assert result.exit_code == 0, result.stderr
    run = {"generation": 1, "rounds": 1, "scalars": 6, "finished": False}
    document = {"site": "asia", "added": {"tensorboard": 6}, "runs": [run], "tensorboard": out, "mlflow": None}
    assert json.loads(result.stdout) == document
    result = call(folder, "--tensorboard", out)
    assert result.exit_code == 0
    assert "asia: finished rounds: 1; scalars added: 0 to tensorboard" in result.stdout


@pytest.mark.parametrize(
    ("words", "name", "reason"),
    [
        ((), "UsageError", "nowhere to write to; give --tensorboard DIR or --mlflow sqlite:///FILE"),
        (("--mlflow", "http://tracker"), "UsageError", "metrics stay at the site; name sqlite:///FILE"),
        (("--mlflow", "sqlite:////nowhere/x/ml.db"), "DiskError", "/nowhere/x does not exist; make the folder first"),
        (("--tensorboard", "/dev/null/runs"), "DiskError", "cannot be written"),
    ],
)
def test_what_cannot_be_written_to_is_one_line(
    folder: SiteFolder, words: tuple[str, ...], name: str, reason: str
) -> None:
    assert reason in refused_in_one_line(name, "--home", folder.home, "scalars", "--site", "asia", *words)


def test_following_ends_when_the_site_has_left_after_its_last_round(folder: SiteFolder, tmp_path: Path) -> None:
    append_rows(folder, ("finished", 1, {}), ("left", 1, {}))
    result = call(folder, "--tensorboard", str(tmp_path / "runs"), "--follow", "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["runs"][0]["finished"] is True


def test_following_writes_each_new_round_until_it_is_interrupted(folder: SiteFolder, tmp_path: Path) -> None:
    words = ["--site", "asia", "--tensorboard", str(tmp_path / "runs"), "--follow", "--json"]
    command = [*PROGRAM, "--home", str(folder.home), "scalars", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stderr is not None
        assert json.loads(following.stdout.readline())["added"] == {"tensorboard": 6}
        append_rows(folder, ("committed", 2, ROUND))
        second = json.loads(following.stdout.readline())
        assert (second["added"], second["runs"][0]["rounds"]) == ({"tensorboard": 6}, 2)
        following.send_signal(signal.SIGINT)
        assert following.wait(LIMIT_S) == 0
        assert (following.stdout.read(), following.stderr.read()) == ("", "")

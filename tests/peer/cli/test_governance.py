"""What `federation show` says of a site's chain, for people."""

from pathlib import Path

import pytest

from fakes.cli import refused, run, run_json
from fakes.governed import SILENT, GovernedFederation
from fakes.operators_daemon import OperatorsDaemon


def test_show_without_an_amendment(tmp_path: Path) -> None:
    federation = GovernedFederation.create(tmp_path, "asia", "europe")
    words = ("--home", federation.home, "federation", "show", "--site", "asia")
    document = run_json(*words)
    assert document["head"] == {"number": 0, "digest": federation.federation.digest}
    assert [member["name"] for member in document["members"]] == ["asia", "europe"]
    shown = run(*words).stdout
    assert "federation.toml: no amendment" in shown
    assert f"{SILENT}:2" in shown


def test_show_takes_a_file_or_a_site(tmp_path: Path) -> None:
    federation = GovernedFederation.create(tmp_path, "asia", "europe")
    file = federation.ca / "federation.toml"
    assert "two things to show" in refused("UsageError", "federation", "show", file, "--site", "asia")
    several = refused("UsageError", "--home", federation.home, "federation", "show")
    assert "several sites live under" in several


def test_an_action_of_a_daemon_that_does_not_answer_may_have_been_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = GovernedFederation.create(tmp_path, "asia", "europe")
    daemon = OperatorsDaemon(monkeypatch, federation.folder("asia"))
    words = ("--home", federation.home, "federation", "hold", "--ca", federation.ca, "--site", "asia")
    daemon.silent = True
    problem = refused("DaemonDown", *words)
    assert "`enact` may have been carried out; look at `mhfl-peer federation show`" in problem
    assert federation.chain("asia").head.number == 0

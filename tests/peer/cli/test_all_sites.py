"""All sites of a home at once: their list, their start in the background, their end."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused_in_one_line, run, run_json
from fakes.governed import GovernedFederation
from fakes.sites import append_rows, round_body
from peer.cli.all_sites import START_S, start_all
from peer.errors import EXIT_CODES, DaemonDown, PortInUse
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config import site_folder
from peer.site.membership.folder import MembershipFolder

DAEMON = Path(__file__).parents[2] / "fakes" / "daemon.py"


@pytest.fixture
def program(enrolled: LocalFederation, fake_worker: Callable[..., tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """A daemon whose worker needs no torch; those that run are stopped at the end."""
    yield (sys.executable, "-P", str(DAEMON), json.dumps(fake_worker("obeys")))
    run("--home", enrolled.home, "stop", "--all", "--wait")


def starts(enrolled: LocalFederation, program: tuple[str, ...], limit_s: float = START_S) -> Any:
    return start_all(site_folder.sites(enrolled.home), ["--stay"], program=program, limit_s=limit_s)


def test_sites_that_do_not_run_are_listed(enrolled: LocalFederation) -> None:
    listed = run_json("--home", enrolled.home, "list")
    assert [(row["site"], row["daemon"], row["round"], row["since"]) for row in listed] == [
        ("asia", "down", 0, None),
        ("europe", "down", 0, None),
    ]
    assert listed[0]["address"] == enrolled.federation.addresses[listed[0]["site"]]
    enrolled.folder("asia").site_toml.write_text("listen = 1")
    asia, europe = run_json("--home", enrolled.home, "list")
    assert (asia["daemon"], europe["daemon"]) == ("unreadable", "down")
    assert "listen" in asia["problem"]
    assert "trial/europe" in run("--home", enrolled.home, "list").stdout


def test_a_site_that_is_no_member_is_listed_as_such_and_not_started(founded: GovernedFederation) -> None:
    founded.amend("asia", "--expel", "europe")
    europe = founded.folder("europe")
    MembershipFolder(europe.membership).save_chain(founded.chain("asia"))
    asia, listed = run_json("--home", founded.home, "list")
    expelled = "this site was expelled from the federation by amendment 1: ask the members why"
    assert (asia["problem"], listed["daemon"], listed["problem"]) == ("", "down", expelled)
    assert "was expelled from the federation" in " ".join(run("--home", founded.home, "list").stdout.split())
    (started,) = start_all([europe], program=("/nowhere",))
    assert (started["effect"], started["exit_code"], started["problem"]) == ("is not started", 0, expelled)


def test_a_site_whose_rounds_are_all_over_is_left_alone_unless_it_was_killed(enrolled: LocalFederation) -> None:
    asia, rounds = enrolled.folder("asia"), enrolled.federation.rounds
    append_rows(asia, ("began", 0, {"generation": 1}), ("committed", rounds, round_body()), ("finished", rounds, {}))
    (killed,) = start_all([asia], program=("/nowhere",))
    append_rows(asia, ("left", rounds, {"fault": "", "reason": ""}))
    (outcome,) = start_all([asia], program=("/nowhere",))
    assert killed["effect"] == "did not start"
    assert (outcome["effect"], outcome["exit_code"]) == ("is not started: all rounds are over", 0)


@pytest.mark.e2e
def test_all_start_are_listed_and_stop(enrolled: LocalFederation, program: tuple[str, ...]) -> None:
    assert [(each["site"], each["effect"], each["problem"]) for each in starts(enrolled, program)] == [
        ("asia", "its daemon serves", ""),
        ("europe", "its daemon serves", ""),
    ]
    assert {each["effect"] for each in starts(enrolled, program)} == {"its daemon runs already"}
    listed = run_json("--home", enrolled.home, "list")
    assert [row["daemon"] for row in listed] == ["running", "running"]
    assert all(row["since"] is not None for row in listed)
    ended = run_json("--home", enrolled.home, "stop", "--all", "--wait")
    assert [(each["site"], each["effect"]) for each in ended] == [
        ("asia", "the daemon has ended"),
        ("europe", "the daemon has ended"),
    ]
    assert "no daemon runs" in run("--home", enrolled.home, "stop", "--all").stdout


@pytest.mark.e2e
def test_the_site_that_fails_is_named_and_the_others_run(enrolled: LocalFederation, program: tuple[str, ...]) -> None:
    europe = enrolled.folder("europe")
    text = europe.site_toml.read_text()
    europe.site_toml.write_text(text.replace("listen", "liste", 1))
    outcomes = starts(enrolled, program)
    assert [(each["site"], EXIT_CODES[each["exit_code"]].name if each["exit_code"] else "") for each in outcomes] == [
        ("asia", ""),
        ("europe", "ConfigError"),
    ]
    assert "liste: unknown key" in outcomes[1]["problem"]
    assert europe.holder() is None


def test_the_exit_code_is_that_of_the_first_that_failed(
    enrolled: LocalFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    from peer.cli.all_sites import emit_outcomes, outcome

    asia, europe = site_folder.sites(enrolled.home)
    emit_outcomes([outcome(asia, "its daemon serves")], as_json=True)
    outcomes = [outcome(asia, "did not start", PortInUse.exit_code, "in use"), outcome(europe, "starts", 14, "slow")]
    with pytest.raises(PortInUse, match=r"2 of 2 sites failed: \S+/asia \(exit 8\), \S+/europe \(exit 14\)"):
        emit_outcomes(outcomes, as_json=False)
    with pytest.raises(DaemonDown):
        emit_outcomes([outcome(asia, "serves"), outcomes[1]], as_json=True)
    assert "in use" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("start", "--all", "--site", "asia"), "--all all of them"),
        (("start", "--all", "--resume", "fresh"), "--all takes only"),
        (("start", "--all", "--without", "asia"), "--all takes only"),
        (("start", "--json"), "leave --json out"),
        (("stop", "--all", "--site", "asia"), "--all all of them"),
    ],
)
def test_what_makes_no_sense_together_is_refused(
    enrolled: LocalFederation, words: tuple[str, ...], reason: str
) -> None:
    assert reason in refused_in_one_line("UsageError", "--home", enrolled.home, *words)


@pytest.mark.parametrize("words", [("list",), ("start", "--all"), ("stop", "--all"), ("overview",), ("dashboard",)])
def test_a_home_without_a_site_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "no site lives under" in refused_in_one_line("UsageError", "--home", tmp_path, *words)

"""`plan`: every site shows the same plan."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fakes.cli import refused, run, run_json
from fakes.drafts import draft, site_text
from fakes.governed import GovernedFederation
from fakes.operators_daemon import OperatorsDaemon
from fakes.sites import append_paced_rounds, append_rows, round_body
from peer.daemon import startup
from peer.documents.records import PlanDocument, PlannedRound
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.rules import make_rules


def call(loopback: LocalFederation, *words: str) -> Result:
    return run("--home", loopback.home, "plan", *words)


def document(loopback: LocalFederation, *words: str) -> Any:
    return run_json("--home", loopback.home, "plan", *words)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    sites = dict.fromkeys(("africa", "asia", "europe"), site_text())
    return LocalFederation.create(tmp_path_factory.mktemp("plan"), draft("trial", rounds=4), sites)


def test_every_site_shows_the_same_plan_and_it_is_the_schedule(three: LocalFederation) -> None:
    plans = [document(three, "--site", name) for name in three.federation.roster]
    assert plans[0] == plans[1] == plans[2]
    plan = plans[0]
    assert plan.keys() == PlanDocument.__annotations__.keys()
    assert plan["rounds"][0].keys() == PlannedRound.__annotations__.keys()
    assert (plan["federation"], plan["digest"]) == ("trial", three.federation.digest)
    assert plan["sites"] == ["africa", "asia", "europe"]
    assert [round["round"] for round in plan["rounds"]] == [1, 2, 3, 4]
    federation, _, own = startup.load(three.folder("asia"))
    rules = make_rules(federation, own.name, own.round_key, without=frozenset(), stay=False)
    for round in plan["rounds"]:
        turn = rules.turn(round["round"])
        assert round["receives_from"].get("asia", ["asia"]) == [turn]
        assert sorted(round["order"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        (("--rounds", "2"), [1, 2]),
        (("--first", "3"), [3, 4]),
        (("--first", "2", "--rounds", "1"), [2]),
        (("--first", "9"), []),
    ],
)
def test_a_part_of_the_plan(three: LocalFederation, words: tuple[str, ...], rounds: list[int]) -> None:
    assert [round["round"] for round in document(three, "--site", "asia", *words)["rounds"]] == rounds


@pytest.mark.parametrize(("opened", "first"), [(2, 3), (3, 3), (4, 4), (100, 100)])
def test_the_plan_begins_with_the_site_s_coming_round(tmp_path: Path, opened: int, first: int) -> None:
    founded = GovernedFederation.create(tmp_path, "asia", "europe")
    append_paced_rounds(founded.folder("asia"), 1, 2, pace_s=60.0)
    if opened > 2:
        append_rows(founded.folder("asia"), ("opened", opened, {"sources": [], "jumped": False}))
    planned = run_json("--home", founded.home, "plan", "--site", "asia", "--rounds", "3")
    assert planned["rounds"][0]["round"] == first


def test_after_the_end_the_plan_shows_the_last_rounds(tmp_path: Path) -> None:
    over = LocalFederation.create(tmp_path, draft("over", rounds=4), dict.fromkeys(("asia", "europe"), site_text()))
    append_rows(over.folder("asia"), ("committed", 4, round_body()))
    assert [round["round"] for round in document(over, "--site", "asia", "--rounds", "3")["rounds"]] == [2, 3, 4]


def test_people_see_a_table_of_names(three: LocalFederation) -> None:
    plan, text = document(three, "--site", "asia"), call(three, "--site", "asia").stdout
    title, head, *rows = [line for line in text.splitlines() if line.strip() and "──" not in line]
    assert title.strip() == "trial: whose model each site receives (permutation)"
    assert head.split() == ["round", "africa", "asia", "europe"]
    for round, row in zip(plan["rounds"], rows, strict=True):
        received = [round["receives_from"].get(name, ["itself"]) for name in plan["sites"]]
        assert row.split() == [str(round["round"]), *(", ".join(names) for names in received)]


def test_older_artifacts_are_told_by_plan_and_overview(tmp_path: Path) -> None:
    text = draft("older", rounds=4, schedule={"staleness": 1})
    older = LocalFederation.create(tmp_path, text, dict.fromkeys(("asia", "europe"), site_text()))
    assert [round["made_in"] for round in document(older, "--site", "asia")["rounds"]] == [0, 0, 1, 2]
    _, head, *rows = [line for line in call(older, "--site", "asia").stdout.splitlines() if line.strip()]
    assert head.split()[-3:] == ["made", "in", "round"]
    assert [row.split()[-1] for row in rows[1:]] == ["initial", "initial", "1", "2"]
    assert "Before round 1 of 4" in run("--home", older.home, "overview").stdout


def test_a_method_without_exchange_says_so(tmp_path: Path) -> None:
    text = draft("apart", rounds=4, method="local")
    alone = LocalFederation.create(tmp_path, text, dict.fromkeys(("asia", "europe"), site_text()))
    assert [round["receives_from"] for round in document(alone, "--site", "asia")["rounds"]] == [{}] * 4
    assert call(alone, "--site", "asia").stdout == "apart: with this method nobody sends anything\n"


def test_without_the_round_key_there_is_no_plan(enrolled: LocalFederation) -> None:
    (enrolled.folder("asia").pki / "round.key").unlink()
    assert "round.key" in refused("CertificateError", "--home", enrolled.home, "plan", "--site", "asia")


@pytest.fixture
def amended(tmp_path: Path) -> GovernedFederation:
    """Asia has the amendment that expels oceania, from round 3 on, with the new round key."""
    founded = GovernedFederation.create(tmp_path, "asia", "europe", "oceania")
    founded.amend("asia", "--expel", "oceania")
    return founded


def test_the_plan_follows_the_amendments(amended: GovernedFederation) -> None:
    words = ("--home", amended.home, "plan", "--rounds", "4", "--site")
    asia, europe = run_json(*words, "asia"), run_json(*words, "europe")
    assert asia["rounds"][:2] == europe["rounds"][:2]
    assert [len(round["order"]) for round in asia["rounds"]] == [3, 3, 2, 2]
    assert asia["rounds"][2]["members"] == ["asia", "europe"]
    assert run(*words, "asia").stdout.split()[-1] == "–"


def test_no_order_is_drawn_without_its_key(amended: GovernedFederation) -> None:
    (amended.folder("asia").membership / "round_keys.json").unlink()
    words = ("--home", amended.home, "plan", "--site", "asia", "--rounds")
    assert "asia has no round key for round 3; a member gives it" in refused("CertificateError", *words, "4")
    assert [len(round["order"]) for round in run_json(*words, "2")["rounds"]] == [3, 3]


def test_a_running_daemon_shows_its_own_plan(three: LocalFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = OperatorsDaemon(monkeypatch, three.folder("asia"))
    daemon.documents["plan"] = {"federation": "trial", "rounds": []}
    assert document(three, "--site", "asia") == daemon.documents["plan"]
    (three.folder("asia").path / "socket").unlink()


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--first", "0"), ("--rounds", "many")])
def test_counts_begin_at_one(three: LocalFederation, words: tuple[str, str]) -> None:
    assert call(three, "--site", "asia", *words).exit_code == 2

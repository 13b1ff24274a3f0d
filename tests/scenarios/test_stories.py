"""`events --why`: what the journal of a played transcript tells of its rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.core import events, liveness, story
from peer.core.messages import Unavailable
from peer.site.records.folder_documents import why
from peer.site.records.journal import Journal

Tell = Callable[[str, int], dict[str, Any]]


@pytest.fixture
def tell(scenario: Any, tmp_path: Path) -> Tell:
    """The story of a round of a transcript, told from a journal on disk."""

    def tell_story(name: str, round: int) -> dict[str, Any]:
        played = scenario((Path(__file__).parent / f"{name}.txt").read_text())
        played.play()
        journal = Journal(tmp_path / f"{name}.db")
        for row in played.persisted:
            journal.append(row.kind, row.round, row.body, row.cause)
        return why([journal], site=played.rules.site, round=round)

    return tell_story


def texts(document: dict[str, Any]) -> list[str]:
    return [sentence["text"] for sentence in document["story"]]


def test_a_calm_round(tell: Tell) -> None:
    document = tell("calm_round", 1)
    assert (document["round"], document["state"]) == (1, "committed")
    assert document["waited_for"] == [{"site": "asia", "outcome": "came"}]
    assert document["refused"] == []
    assert document["went_on"] == {"because": "an artifact arrived from asia", "waited_s": 2.0}
    assert texts(document) == [
        "The daemon of europe started.",
        "europe began round 1 when asia said hello.",
        "asia's model arrived at europe (100 bytes).",
        "europe waited for asia for 2 s.",
        "europe went on with asia's model when an artifact arrived from asia: all that it waited for was there.",
        "europe trained (train) for 60 s.",
        "europe committed round 1; contributors: asia, europe.",
    ]


def test_a_peer_that_was_silent(tell: Tell) -> None:
    document = tell("silent_origin", 1)
    assert document["waited_for"] == [{"site": "asia", "outcome": "silent"}]
    assert texts(document)[1:] == [
        "europe began round 1 when asia said hello.",
        "europe waited for asia for 15 s.",
        "europe did without asia: it was not heard for so long that it counts as silent.",
        "europe went on with nothing from other sites when a deadline passed: nothing was left to wait for.",
        "europe trained (train) for 60 s.",
        "europe committed round 1; contributors: europe.",
    ]


def test_an_older_copy_in_place_of_a_silent_peer_s(tell: Tell) -> None:
    document = tell("stale_fallback", 2)
    used = "europe went on with asia's model of round 1, an older copy when asia answered that it has none"
    assert f"{used}: nothing was left to wait for." in texts(document)
    assert document["waited_for"] == [{"site": "asia", "outcome": "skipped"}]


def test_a_refusal(tell: Tell) -> None:
    document = tell("refused_artifact", 1)
    assert document["refused"] == [
        {"site": "asia", "reason": "sent the artifact of round 2 for round 1", "declined": False}
    ]
    assert texts(document)[2:5] == [
        "europe refused asia: sent the artifact of round 2 for round 1.",
        "europe waited for asia for 2 s.",
        "europe did without asia: it sent what was not acceptable.",
    ]


def test_what_the_worker_rejects_is_done_without(tell: Tell) -> None:
    document = tell("rejected_by_the_worker", 1)
    assert document["waited_for"] == [{"site": "asia", "outcome": "refused"}]
    assert sum(text.startswith("europe waited for") for text in texts(document)) == 1
    went_on = "europe went on with nothing from other sites when the worker rejected what asia sent"
    assert f"{went_on}: nothing was left to wait for." in texts(document)


def test_a_round_that_was_left_out(tell: Tell) -> None:
    document = tell("jump", 3)
    assert (document["state"], document["went_on"]) == ("skipped", None)
    why_not = "because its peers were further when the training was over"
    assert texts(document) == [f"europe left out rounds 3 to 8, {why_not}."]


def test_a_restart_in_a_round_belongs_to_its_story(tell: Tell) -> None:
    document = tell("restart_in_exchange", 1)
    assert document["state"] == "open"
    assert texts(document).count("The daemon of europe started.") == 2


def test_a_round_to_come_has_no_story(tell: Tell) -> None:
    document = tell("calm_round", 900)
    assert (document["state"], document["waited_for"], document["went_on"]) == ("unknown", [], None)


def test_a_slow_wait_is_as_long_as_it_was() -> None:
    body = {"position": 0, "sources": [], "missing": {"asia": "slow"}, "waited_s": 20.0, "below_quorum": True}
    row = {"time": 1.0, "kind": "chosen", "round": 3, "body": body, "cause": None}
    document = story.tell([row], site="europe", round=3)
    assert document["went_on"] == {"because": "", "waited_s": 10.0}
    assert texts(document) == [
        "europe waited for asia for 10 s.",
        "europe did without asia: it did not deliver before the deadline.",
        "europe went on with nothing from other sites: nothing was left to wait for.",
        "Fewer peers contributed than the federation's quorum asks for.",
    ]


def test_every_event_and_reason_has_its_words() -> None:
    event_names = {kind.__name__ for kind in vars(events).values() if isinstance(kind, type)}
    assert story.CAUSES.keys() <= event_names
    assert story.MISSING.keys() >= liveness.AWAY | {str(answer) for answer in Unavailable if answer != "not_yet"}


def test_rows_without_a_cause_are_told_all_the_same() -> None:
    row = {"time": 1.0, "kind": "opened", "round": 3, "body": {"sources": []}, "cause": None}
    assert texts(story.tell([row], site="asia", round=3)) == ["asia began round 3."]


def test_visits_and_what_came_home(tell: Tell) -> None:
    document = tell("visit", 1)
    assert document["waited_for"] == [{"site": "america", "outcome": "came"}, {"site": "asia", "outcome": "came"}]
    assert document["returns"] == [{"site": "africa", "outcome": "paused"}, {"site": "asia", "outcome": "came"}]
    assert texts(document)[-6:] == [
        "europe's return from asia arrived at europe (100 bytes).",
        "europe waited for africa, asia for 3 s.",
        "europe did without africa's copy of its model: it was paused.",
        "europe went on with europe's return from asia when a sign of life came from africa: "
        "nothing was left to wait for.",
        "europe averaged its model with the copies from asia.",
        "europe committed round 1; contributors: america, asia, europe.",
    ]
    assert "europe trained (train) for 60 s, and beside its own the models america's, asia's." in texts(document)
    assert tell("visit", 2)["refused"] == [
        {
            "site": "america",
            "reason": "head.weight is 9 times its size away from the model that left",
            "declined": False,
        }
    ]

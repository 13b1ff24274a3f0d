"""Documents of a site with the daemon up, down, dead and on its way."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.cli import PROGRAM, ROOT, refused, refused_in_one_line, run, run_json
from fakes.sites import TRANSFER, append_rows, round_body
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.site.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("at_home")]

DOCUMENTS = ("status", "rounds", "evaluation", "peers", "transfers", "egress", "events")
LIMIT_S = 60.0


def shown(*words: str) -> Any:
    return run_json(*words, "--site", "asia")


@pytest.fixture
def folder(enrolled: LocalFederation) -> SiteFolder:
    return enrolled.folder("asia")


@pytest.fixture
def history(folder: SiteFolder) -> SiteFolder:
    """A site that sent one artifact and left with a fault."""
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        ledger.settle(ledger.intend(**TRANSFER, bytes=2048), bytes=1024, outcome="broken")
    denied = {"caller": "europe", "call": "model for round 1", "reason": "not\x1b[2J its turn"}
    left = {"fault": "data", "reason": "no\ndata"}
    append_rows(folder, ("began", 0, {"generation": 1}), ("denied", 1, denied), ("left", 1, left))
    return folder


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_site_that_never_ran_has_every_document(name: str) -> None:
    document = shown(name)
    assert document if name in ("status", "peers") else document == []
    result = run(name, "--site", "asia")
    assert result.exit_code == 0
    assert "Traceback" not in result.output


def test_a_stopped_site_shows_what_its_disk_knows(history: SiteFolder) -> None:
    status = shown("status")
    assert (status["daemon"], status["failure"]) == ("down", "data: no\ndata")
    assert shown("peers") == status["peers"]
    assert [(row["bytes"], row["outcome"]) for row in shown("egress")] == [(1024, "broken")]
    assert shown("transfers") == shown("egress")
    assert [row["kind"] for row in shown("events")] == ["began", "denied", "left"]
    assert [row["kind"] for row in shown("events", "--last", "1")] == ["left"]


def test_the_peers_of_a_daemon_that_ended_are_as_their_newest_artifacts_left_them(folder: SiteFolder) -> None:
    assert (
        "The daemon is down: nothing was begun yet. No artifact of a peer has arrived."
        in run("peers", "--site", "asia").stdout
    )
    body = {
        "peer": "europe",
        "purpose": "train",
        "kind": "model",
        "sha256": "ab" * 32,
        "bytes": 7,
        "outcome": "complete",
    }
    finished = ("finished", 2, {})
    append_rows(folder, *(("received", number, body) for number in (1, 2)), ("committed", 2, round_body()), finished)
    peer = shown("peers")["europe"]
    assert (peer["state"], peer["round"], peer["phase"]) == ("unknown", 2, None)
    assert 0 <= peer["last_seen_s"] < LIMIT_S
    lines = [" ".join(line.split()) for line in run("peers", "--site", "asia").stdout.splitlines()]
    assert any(line.startswith("europe unknown 2 - - ") and line.endswith(" ago - -") for line in lines)
    text = " ".join(lines)
    assert "The daemon is down: this is what the journal says. Its newest row is of 20" in text
    assert "and round 2 of 3 was its last. Round and last seen are of the newest artifact of each peer" in text


def test_what_others_say_is_shown_without_its_escapes(history: SiteFolder) -> None:
    for name, words in (("events", "not [2J its turn"), ("status", "Failed: data: no data")):
        text = run(name, "--site", "asia").stdout
        assert words in text
        assert "\x1b" not in text


def test_a_broken_federation_toml_is_one_line_with_its_code(folder: SiteFolder) -> None:
    folder.federation_toml.write_text("rounds = [")
    words = ("status", "--site", "asia")
    assert "federation.toml" in refused_in_one_line("ConfigError", *words)


def test_a_journal_of_a_newer_program_is_one_line_with_its_code(history: SiteFolder) -> None:
    connection = sqlite3.connect(history.generation(1) / "journal.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for name in ("status", "rounds", "events"):
        assert "newer mhfl-peer" in refused("StateError", name, "--site", "asia")


def test_the_newest_rounds_can_be_asked_for(folder: SiteFolder) -> None:
    append_rows(folder, *(("committed", number, round_body()) for number in (1, 2, 3)))
    assert [record["round"] for record in shown("rounds", "--last", "2")] == [2, 3]
    assert [record["round"] for record in shown("rounds")] == [1, 2, 3]


@pytest.mark.parametrize("words", [("--last", "0"), ("--last", "x")])
def test_how_many_events_must_be_a_count(words: tuple[str, str]) -> None:
    assert run("events", "--site", "asia", *words).exit_code == 2


def test_a_running_daemon_answers_and_a_killed_one_does_not_stand_in_the_way(program: Any, folder: SiteFolder) -> None:
    process = program.start_and_wait("asia")
    status = shown("status")
    assert (status["daemon"], status["pid"]) == ("running", process.pid)
    assert [row["kind"] for row in shown("events", "--last", "1", "--all")] == ["manifest"]
    assert "Waiting for europe: hello" in run("status", "--site", "asia").stdout
    process.kill()
    process.wait()
    assert folder.control_socket().exists()
    assert shown("status")["daemon"] == "down"


def test_a_status_loads_no_more_than_it_needs(program: Any, folder: SiteFolder) -> None:
    def loaded() -> set[str]:
        script = "import sys, peer.cli as c\ntry: c.main(sys.argv[1:])\nexcept SystemExit: print(*sys.modules)"
        command = [sys.executable, "-c", script, "--home", str(folder.home), "status", "--site", "asia"]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return set(finished.stdout.splitlines()[-1].split())

    down = loaded()
    program.start_and_wait("asia")
    up = loaded()
    assert not {"asyncio", "cryptography", "google", "grpc", "jinja2", "numpy", "pydantic", "torch"} & (down | up)
    assert not {"peer.core.commands", "peer.core.events", "peer.core.messages", "peer.core.state"} & (down | up)
    assert not {"peer.core.rows", "sqlite3"} & up


class Watch:
    """`--watch --json` in a process of its own."""

    def __init__(self, loopback: LocalFederation, *words: str) -> None:
        command = [*PROGRAM, "--home", str(loopback.home), *words, "--watch", "--json"]
        self.process = subprocess.Popen(
            [*command, "--site", "asia"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def next(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def until(self, daemon: str) -> Any:
        while (document := self.next())["daemon"] != daemon:
            pass
        return document

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(LIMIT_S)
        return self.process.returncode, self.process.stderr.read()


@pytest.fixture
def watch(enrolled: LocalFederation) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def begin(*words: str) -> Watch:
            watch = Watch(enrolled, *words)
            stack.callback(watch.process.communicate)
            stack.callback(watch.process.kill)
            return watch

        yield begin


def test_a_watch_outlives_the_daemon_and_ends_quietly(watch: Any, program: Any) -> None:
    following = watch("status")
    assert following.next()["daemon"] == "down"
    process = program.start("asia")
    assert following.until("running")["pid"] == process.pid
    process.terminate()
    process.wait(LIMIT_S)
    following.until("down")
    assert following.end() == (0, "")


def test_a_watch_says_that_the_daemon_does_not_answer(watch: Any, program: Any) -> None:
    process = program.start_and_wait("asia")
    following = watch("status")
    following.until("running")
    process.send_signal(signal.SIGSTOP)
    try:
        assert following.until("unresponsive")["pid"] == process.pid
    finally:
        process.send_signal(signal.SIGCONT)
    following.until("running")
    assert following.end() == (0, "")


def test_a_watch_says_nothing_twice(watch: Any, history: SiteFolder) -> None:
    following = watch("rounds")
    assert following.next() == []
    append_rows(history, ("ignored", 1, {}), ("committed", 1, round_body()))
    assert [record["round"] for record in following.next()] == [1]
    assert following.end() == (0, "")
    assert following.process.stdout.read() == ""


def test_a_watch_into_a_closed_pipe_ends_quietly(enrolled: LocalFederation) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "--home", str(enrolled.home), "events", "--site", "asia"]
    process = subprocess.run(
        [*command, "--watch", "--json"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (1, b"")


def test_the_story_of_a_round(folder: SiteFolder) -> None:
    chosen = {"position": 0, "sources": [], "missing": {"europe": "silent"}, "waited_s": None, "below_quorum": False}
    greeted = {"event_number": 4, "event": "PeerGreeted", "peer": "europe"}
    ticked = {"event_number": 9, "event": "Ticked", "peer": ""}
    lost, superseded = {"sha256": "ab" * 32, "lost": True}, {"sha256": "cd" * 32}
    append_rows(folder, ("opened", 1, {"sources": []}, greeted), ("discarded", 1, lost), ("discarded", 1, superseded))
    append_rows(folder, ("chosen", 1, chosen, ticked))
    story = shown("events", "--why", "1")
    assert story["state"] == "open"
    assert story["waited_for"] == [{"site": "europe", "outcome": "silent"}]
    assert story["went_on"] == {"because": "a deadline passed", "waited_s": None}
    assert [sentence["text"] for sentence in story["story"][:2]] == [
        "asia began round 1 when europe said hello.",
        "The file of an artifact that asia had received was gone, so asia asked for it again.",
    ]
    result = run("events", "--why", "1", "--site", "asia")
    assert result.exit_code == 0
    assert "asia did without europe: it was not heard for so long that it counts as silent." in result.stdout
    assert "The round is not over" in result.stdout


def test_a_round_that_the_journal_does_not_know_has_no_story(history: SiteFolder) -> None:
    reason = refused("StateError", "events", "--why", "7", "--site", "asia")
    assert "the journal knows nothing of round 7; see `rounds` and `status`" in reason

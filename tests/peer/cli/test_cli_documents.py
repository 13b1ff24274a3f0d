"""What commands about a site print with ``--json``, with its daemon up and with it down, against one file.

``--rewrite-scenarios`` writes the file as the program is now; read the difference first.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes import daemon
from fakes.amended_daemons import WatchedDaemons
from fakes.cli import run_json
from fakes.drafts import DERANGEMENT, draft, site_text
from tests.meta.test_help import COMMANDS, shows

pytestmark = pytest.mark.e2e

GOLDEN = Path(__file__).with_name("documents.json")
BOTH = (
    "list", "overview", "status", "peers", "rounds", "evaluation", "transfers", "egress", "egress verify",
    "egress report --html @report.html", "egress export --out @ledger.json",
    "egress witness --of europe --out @witness.json", "evidence", "events --all --last 1000", "events --why 1", "plan",
    "federation show", "withdraw --subject nobody", "scalars --tensorboard @runs", "backup @backup",
    "bugreport --yes --out @bugreport.zip",
)  # fmt: skip
"""Commands that answer with a daemon and without one; @ is a folder of the test."""
UP = ("health", "pause", "resume", "stop --wait")
"""Commands that a daemon answers; the last one ends it."""
DOWN = ("prune --older-than 1d",)
"""Commands that a daemon stands in the way of."""
ELSEWHERE = {
    *("check", "dashboard", "data", "demo", "export", "federation", "help", "leave", "methods", "models", "plugin"),
    *("advise", "predict", "relay", "report", "restore", "simulate", "site", "start", "statistics"),
}
"""Commands and groups that need torch, a person, a second machine or no site: other tests have their documents."""

VARIES = {
    *("added", "address", "aggregate_sha256", "artifact_bytes", "bytes", "called_s", "certificate_days", "files"),
    *("clock_skew_s", "duration_s", "elapsed_s", "head", "last_seen_s", "ledger_rows", "left_s", "listen", "made"),
    *("phase_s", "pid", "problem", "progress", "route", "rows", "scalars", "since", "software", "spoken", "started"),
    *("threads", "time", "training_s", "worker_pid"),
}
"""Keys whose value depends on the machine, its clock, or the order in which two daemons meet."""
TEXTS = {
    r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b": "<digest>",
    r"(?:[0-9a-f]{2}:){8,}[0-9a-f]{2}": "<fingerprint>",
    r"\b127\.0\.0\.1:\d+": "<address>",
}


class StayingDaemons(WatchedDaemons):
    program = daemon.program("paced", 64)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The folder of two sites that have trained all rounds, and whose daemons run on."""
    text = draft("trial", schedule=DERANGEMENT, pace={"beat_s": 0.2, "silence_s": 120, "wait_max_s": 240})
    sites = dict.fromkeys(("asia", "europe"), site_text())
    with StayingDaemons.create(tmp_path, text, sites) as daemons:
        for name in sites:
            daemons.start(name, "--stay")
        for name in sites:
            daemons.until(name, lambda status: status["phase"] == "done" and not status["waiting_for"])
        reached = {"state": "heard", "phase": "done", "route": "direct"}
        daemons.until("asia", lambda status: reached.items() <= status["peers"]["europe"].items())
        yield daemons.home


def shown(command: str, home: Path, out: Path) -> Any:
    """The document of a command, without what differs from run to run."""
    site = () if command in ("list", "overview") else ("--site", "asia")
    document = run_json(*(word.replace("@", f"{out}/") for word in command.split()), *site, "--home", home)
    if command.startswith("events"):  # which rows there are, and so which sentences, depends on who is first
        (document,) = {json.dumps(keys(record)) for record in (document if isinstance(document, list) else [document])}
        return json.loads(document)
    document = normalised(document, {str(out): "<out>", str(home): "<home>"})
    return sorted(document, key=json.dumps) if command == "transfers" else document


def keys(record: Mapping[str, Any]) -> dict[str, str]:
    return {key: type(value).__name__ for key, value in record.items()}


def normalised(value: Any, folders: Mapping[str, str], key: str = "") -> Any:
    """The value with the name of its type where it varies, and without digests, addresses and folders."""
    if key in VARIES and value is not None:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        return {name: normalised(inner, folders, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [normalised(inner, folders) for inner in value]
    if isinstance(value, str):
        for folder, name in folders.items():
            value = value.replace(folder, name)
        for pattern, name in TEXTS.items():
            value = re.sub(pattern, name, value)
    return value


def test_every_command_is_here_or_elsewhere() -> None:
    here = {command.partition(" -")[0].partition(" @")[0] for command in (*BOTH, *UP, *DOWN)}
    others = {name for name, command in COMMANDS.items() if shows(command) and name not in here}
    assert {name.partition(" ")[0] for name in others} == ELSEWHERE


def test_documents_are_those_of_the_file(home: Path, tmp_path: Path, rewrite: bool) -> None:
    documents: dict[str, dict[str, Any]] = {}
    for state, commands in (("up", (*BOTH, *UP)), ("down", (*BOTH, *DOWN))):
        (tmp_path / state).mkdir()
        for command in commands:
            documents.setdefault(command, {})[state] = shown(command, home, tmp_path / state)
    for command, by_state in documents.items():
        if by_state.get("up") == by_state.get("down"):
            documents[command] = {"up and down": by_state["up"]}
    if rewrite:
        GOLDEN.write_text(json.dumps(documents, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert documents.keys() == golden.keys()
    for command, by_state in documents.items():
        assert by_state == golden[command], command

"""All sites of a machine in a table, in a browser, and in a file."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from fakes.cli import PROGRAM, ROOT, refused_in_one_line, run, run_json
from fakes.sites import append_rows
from peer.lab.demo.local_federation import LocalFederation

pytestmark = pytest.mark.usefixtures("at_home")
LIMIT_S = 60.0


def test_the_overview_has_a_row_for_each_site_of_the_roster(enrolled: LocalFederation) -> None:
    append_rows(enrolled.folder("asia"), ("began", 0, {"generation": 1}))
    shown = run("overview").stdout
    assert "asia     down" in shown
    assert "europe   new" in shown
    assert "asia: its daemon does not run" in shown
    assert "says" not in shown


def test_the_overview_shows_how_much_of_its_room_a_site_has_taken(enrolled: LocalFederation) -> None:
    assert "of room" not in run("overview").stdout
    folder = enrolled.folder("asia")
    append_rows(folder, ("evaluated", 2, {"metrics": {"auc": 0.85}}))
    with folder.site_toml.open("a") as file:
        file.write('\n[reference]\nmetric = "auc"\nalone = 0.8\npooled = 0.9\n')
    shown = run("overview").stdout
    assert "of room" in shown
    assert "50%" in shown
    append_rows(folder, ("evaluated", 3, {"metrics": {"auc": 0.4}}))
    assert "below alone" in run("overview").stdout


def test_of_one_site_the_overview_is_that_sites_view() -> None:
    (document,) = run_json("overview", "--site", "asia")
    assert [(row["site"], row["seen_by"], row["state"]) for row in document["sites"]] == [
        ("asia", "asia", "new"),
        ("europe", "asia", "unknown"),
    ]
    assert "says" in run("overview", "--site", "asia").stdout


def test_the_status_is_written_to_a_page_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "asia.html"
    for _ in range(2):
        answer = run("status", "--site", "asia", "--out", page)
        assert (answer.exit_code, answer.stdout.strip()) == (0, f"asia: {page} is written")
    text = page.read_text()
    assert "trial" in text
    assert "<script" not in text
    document = run_json("status", "--site", "asia", "--html", page)  # the option's earlier name
    assert document["site"] == "asia"
    page.write_text("{}")
    assert "exists; remove it" in refused_in_one_line("StateError", "status", "--site", "asia", "--out", page)


def test_a_page_is_written_once(tmp_path: Path) -> None:
    words = ("status", "--site", "asia", "--watch", "--out", tmp_path / "page.html")
    assert "leave --watch out" in refused_in_one_line("UsageError", *words)


@pytest.mark.e2e
def test_the_dashboard_serves_until_ctrl_c_and_ends_quietly(enrolled: LocalFederation) -> None:
    command = [*PROGRAM, "--home", str(enrolled.home), "dashboard", "--site", "asia", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        document = json.loads(process.stdout.readline())
        assert document["sites"] == ["trial/asia"]
        with urllib.request.urlopen(document["link"], timeout=LIMIT_S) as answer:
            assert b"trial" in answer.read()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, rest) == (0, ("", ""))

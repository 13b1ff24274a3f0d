"""`check` as an operator and a script see it."""

import json
import re
from typing import Any

import pytest
from click.testing import Result

from fakes.cli import run
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder


def call(*words: str) -> Result:
    return run("check", "--site", "asia", "--fast", *words)


@pytest.fixture
def folder(at_home: LocalFederation) -> SiteFolder:
    """Asia's folder, with data that are there."""
    folder = at_home.folder("asia")
    items = [{"image": f"{index}.npz", "label": index % 2} for index in range(4)]
    for item in items:
        (folder.path / str(item["image"])).write_text(str(item["image"]))
    (folder.path / "datalist.json").write_text(json.dumps({"training": items[:2], "test": items[2:]}))
    return folder


def test_a_site_that_would_run_exits_0(folder: SiteFolder) -> None:
    result = call("--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document: Any = json.loads(result.stdout)
    assert document.keys() == {"site", "would_run", "findings"}
    assert (document["site"], document["would_run"]) == ("asia", True)
    assert all(finding.keys() == {"subject", "verdict", "message", "remedy"} for finding in document["findings"])


def test_a_failure_exits_16_with_the_document_and_one_line(folder: SiteFolder) -> None:
    (folder.path / "datalist.json").unlink()
    result = call("--json")
    assert result.exit_code == 16
    document = json.loads(result.stdout)
    assert document["would_run"] is False
    (failure,) = [finding for finding in document["findings"] if finding["verdict"] == "failure"]
    assert result.stderr == f"mhfl-peer: data: {failure['message']}; {failure['remedy']}\n"


def test_off_a_terminal_each_stage_has_a_line_when_it_begins_and_ends(folder: SiteFolder) -> None:
    lines = call().stderr.splitlines()
    begun = [line.removesuffix(" ...") for line in lines[::2]]
    assert begun == [
        "checking the installed packages", "checking the configuration and the folder",
        "checking certificates and ports", "reading the datalist and its images", "calling the peers",
        "checking policy, disk and receivers",
    ]  # fmt: skip
    assert all(re.fullmatch(rf"{stage}: [0-9.]+ s", line) for stage, line in zip(begun, lines[1::2], strict=True))


def test_people_see_what_to_do(folder: SiteFolder) -> None:
    text = " ".join(call().stdout.split())
    assert "configuration ok trial, digest" in text
    assert "europe warning nothing answers at" in text
    assert "start that site, or the relay there; or correct its address or the firewall" in text

"""Shell completion: the names offered at each place, few imports, and the script in bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from fakes.cli import ROOT, run, run_json
from fakes.governed import GovernedFederation
from peer.cli import COMMANDS, PROGRAM, main
from peer.cli.completion import SHELLS, VARIABLE
from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.forks import prove


def complete(line: str) -> list[str]:
    """The words that a shell offers at the end of this line."""
    *words, incomplete = line.split(" ")
    items = ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(words, incomplete)
    return [item.value for item in items]


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with ``asia`` in one federation and ``europe`` in two."""
    for name in ("trial/asia", "trial/europe", "study/europe"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "federation.toml").touch()
    monkeypatch.setenv("MHFL_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def federation(founded: GovernedFederation, monkeypatch: pytest.MonkeyPatch) -> GovernedFederation:
    monkeypatch.setenv("MHFL_HOME", str(founded.home))
    return founded


def test_every_command_is_offered_with_its_help() -> None:
    assert complete("") == list(COMMANDS)
    items = ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions([], "rou")
    assert [(item.value, item.help) for item in items] == [("rounds", COMMANDS["rounds"][1])]


def test_options_and_their_values_are_offered() -> None:
    assert complete("--h") == ["--home", "--help"]
    assert complete("plan --r") == ["--rounds"]
    assert complete("start --resume r") == ["require"]
    assert complete("completion ") == list(SHELLS)
    assert complete("federation ad") == ["admit"]
    assert complete("federation amend --requires am") == ["amendments"]


def test_a_site_is_offered_by_the_name_that_finds_it(sites: Path) -> None:
    assert complete("status --site ") == ["asia", "study/europe", "trial/europe"]
    assert complete("status --site tri") == ["trial/asia", "trial/europe"]
    assert complete("status --site as") == ["asia"]
    assert complete("status --site trial/") == ["trial/asia", "trial/europe"]


def test_the_home_that_was_typed_counts(sites: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    (other / "trial" / "africa").mkdir(parents=True)
    (other / "trial" / "africa" / "federation.toml").touch()
    assert complete(f"--home {other} rounds --site ") == ["africa"]
    assert complete(f"rounds --home {other} --site ") == ["africa"]
    assert complete(f"rounds --home {other / 'nowhere'} --site ") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_calls_the_program_back(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in result.stdout
    assert PROGRAM in result.stdout


def test_bash_completes_commands_and_sites(sites: Path, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m peer.cli "$@"\n')
    program.chmod(0o755)
    ask = """
    eval "$(mhfl-peer completion bash)"
    function_of() { complete -p mhfl-peer | sed 's/.*-F \\([^ ]*\\).*/\\1/'; }
    COMP_WORDS=(mhfl-peer ev) COMP_CWORD=1
    "$(function_of)" mhfl-peer; echo "${COMPREPLY[@]}"
    COMPREPLY=() COMP_WORDS=(mhfl-peer status --site as) COMP_CWORD=3
    "$(function_of)" mhfl-peer; echo "${COMPREPLY[@]}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    command, environment = ["bash", "--norc", "-c", ask], {**os.environ, "PATH": path}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["evaluation evidence events", "asia"]


def complete_apart(words: str) -> tuple[list[str], set[str]]:
    """What a process of its own offers for the last of the words, and the modules that it loaded."""
    place = {"COMP_WORDS": f"{PROGRAM} {words}", "COMP_CWORD": str(len(words.split()))}
    command, environment = [sys.executable, "-X", "importtime", "-m", "peer.cli"], {**os.environ, **place}
    environment[VARIABLE] = "bash_complete"
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    return process.stdout.splitlines(), {line.rpartition("|")[2].strip() for line in lines}


def test_names_are_completed_without_loading_the_commands() -> None:
    offered, loaded = complete_apart("s")
    assert "plain,status" in offered
    ours = {name for name in loaded if name.partition(".")[0] == "peer"}
    assert ours == {"peer", "peer.cli", "peer.errors"}
    assert not loaded & {"cryptography", "grpc", "numpy", "pydantic", "rich", "torch"}


def test_members_are_offered_where_a_command_names_one(federation: GovernedFederation) -> None:
    assert complete("federation amend --site asia --expel ") == ["asia", "europe"]
    assert complete("federation amend --expel ") == ["asia", "europe"]  # of either site, as long as none is named
    assert complete("federation amend --expel eu") == ["europe"]
    assert complete("federation amend --site nowhere --expel ") == []
    assert complete("start --site trial/asia --without ") == ["asia", "europe"]


def test_newcomers_are_offered_until_they_are_accepted(federation: GovernedFederation, tmp_path: Path) -> None:
    (tmp_path / "oslo.csr").write_bytes(certificates.signing_request(certificates.new_key(), SiteName("oslo")))
    words = ("--ca", federation.ca, "--site", "asia", "--add", "oslo", "--request", tmp_path / "oslo.csr")
    run_json("federation", "amend", "--yes", *words)
    assert complete("federation accept --site asia ") == ["oslo"]
    assert complete("federation accept --site europe ") == []
    run_json("federation", "accept", "oslo", "--site", "asia")
    assert complete("federation accept ") == []


def test_the_digests_of_forks_are_offered(federation: GovernedFederation) -> None:
    assert complete("federation choose ") == []
    for site, rounds in (("asia", "150"), ("europe", "200")):
        words = ("--ca", federation.ca, "--site", site, "--rounds", rounds, "--instead")
        run_json("federation", "amend", "--yes", *words)
    own, other = federation.chain("asia"), federation.chain("europe")
    fork = prove(own, 1, other.links[0].signed)
    MembershipFolder(federation.folder("asia").membership).save_fork(fork, kept=own.links[0].signed)
    assert complete("federation choose ") == [other.head.digest]
    assert complete("federation choose --site europe ") == []


def test_members_are_completed_without_the_packages_that_train(federation: GovernedFederation) -> None:
    offered, loaded = complete_apart("federation amend --expel as")
    assert offered == ["plain,asia"]
    assert not loaded & {"grpc", "numpy", "torch"}

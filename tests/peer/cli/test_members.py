"""What a site decides about itself: to leave, whom to accept, which chain to follow; no daemon runs."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run, run_json
from fakes.governed import GovernedFederation
from fakes.operators_daemon import OperatorsDaemon
from fakes.sites import append_rows
from peer.core import rows
from peer.core.roster import SiteName
from peer.net.transport.control import DaemonSilent
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.forks import prove
from peer.site.records.journal import Journal


def test_a_site_leaves_once_its_operator_confirms(founded: GovernedFederation) -> None:
    words = ("--home", founded.home, "leave", "--site", "europe")
    folder = MembershipFolder(founded.folder("europe").membership)
    assert "europe stays; type the site's name, or give --yes" in refused("UsageError", *words, answer="yes\n")
    assert folder.notices() == ()
    left = run_json(*words, answer="europe\n")
    assert (left["site"], left["unreached"]) == ("europe", ["asia"])
    (notice,) = folder.notices()
    again = run_json(*words, "--yes")
    assert again["unreached"] == [], "nothing here says who was told since"
    assert again["notes"][0].startswith("this site gave its notice before")
    assert folder.notices() == (notice,)
    MembershipFolder(founded.folder("asia").membership).save_notices([notice])
    shown = run_json("--home", founded.home, "federation", "show", "--site", "asia")
    assert [each["site"] for each in shown["notices"]] == ["europe"]
    founded.amend("asia", "--leave")
    assert founded.chain("asia").head.members == ("asia",)
    folder.save_chain(founded.chain("asia"))
    assert "europe has left trial; nothing is left to do" in refused("MembershipError", *words, "--yes")


def test_who_is_no_member_cannot_leave(founded: GovernedFederation) -> None:
    founded.amend("asia", "--expel", "europe")
    MembershipFolder(founded.folder("europe").membership).save_chain(founded.chain("asia"))
    words = ("--home", founded.home, "leave", "--yes", "--site", "europe")
    assert "europe was expelled from trial; nothing is left to do" in refused("MembershipError", *words)


def test_a_newcomer_is_accepted(founded: GovernedFederation, tmp_path: Path) -> None:
    words = ("--home", founded.home, "federation", "accept", "--site", "asia")
    assert "so far no amendment added one" in refused("MembershipError", *words, "oslo")
    (tmp_path / "oslo.csr").write_bytes(certificates.signing_request(certificates.new_key(), SiteName("oslo")))
    founded.amend("asia", "--add", "oslo", "--request", tmp_path / "oslo.csr")
    assert "amendments added oslo" in refused("MembershipError", *words, "europe")
    show = ("--home", founded.home, "federation", "show", "--site", "asia")
    assert "gets nothing from here before" in run(*show).stdout
    assert run_json(*words, "oslo")["accepted"] == ["oslo"]
    assert "gets nothing from here before" not in run(*show).stdout
    assert MembershipFolder(founded.folder("asia").membership).accepted() == {"oslo"}


def test_an_operator_hands_the_other_chain_to_a_site_that_cannot_ask_for_it(
    founded: GovernedFederation, tmp_path: Path
) -> None:
    home, ca, file = ("--home", founded.home, "federation"), ("--ca", founded.ca), tmp_path / "chain.json"
    amend = (*home, "amend", "--yes", *ca, "--from-round", 5)
    run_json(*amend, "--rounds", "150", "--site", "europe")
    append_rows(founded.folder("europe"), ("opened", 6, {"sources": [], "jumped": False}))
    theirs = run_json(
        *home, "amend", "--yes", *ca, "--instead", "--rounds", "200", "--from-round", 5, "--site", "asia"
    )["digest"]
    run_json(*home, "hold", "--yes", *ca, "--from-round", 6, "--site", "asia")  # which europe has opened
    run_json(*home, "show", "--site", "asia", "--out", file)
    run_json(*home, "show", "--site", "asia", "--chain", file)  # by its former name; a later chain replaces the file
    problem = refused("MembershipError", *home, "enact", file, "--site", "europe")
    assert f"it keeps this one as a fork; take it with `mhfl-peer federation choose {theirs[:12]}`" in problem
    run_json(*home, "choose", theirs[:12], "--site", "europe")
    assert founded.chain("europe").head.digest == theirs
    for number in (2, 2):  # the second time, nothing is lacking
        assert run_json(*home, "enact", file, "--site", "europe")["number"] == number
    assert founded.chain("europe").head.digest == founded.chain("asia").head.digest


def test_an_operator_chooses_the_other_chain(founded: GovernedFederation) -> None:
    founded.amend("europe", "--rounds", "150")
    founded.amend("asia", "--rounds", "200", "--instead")
    own, other = founded.chain("asia"), founded.chain("europe")
    words = ("--home", founded.home, "federation", "choose", "--site", "asia")
    assert "the beginning of no other amendment" in refused("MembershipError", *words, other.head.digest)
    fork = prove(own, 1, other.links[0].signed)
    folder = founded.folder("asia")
    MembershipFolder(folder.membership).save_fork(fork, kept=own.links[0].signed)
    with contextlib.closing(Journal(folder.generation(folder.create_generation()) / "journal.db")) as journal:
        journal.write(rows.OpenedRow(own.head.from_round, sources=()))
    for typed in ("", other.head.digest[:7], own.head.digest):
        assert "or 8 digits of it" in refused("MembershipError", *words, typed)
    assert run_json(*words, other.head.digest[:12].upper())["head"] == {"number": 1, "digest": other.head.digest}
    assert founded.chain("asia") == other
    shown = run("--home", founded.home, "federation", "show", "--site", "asia").stdout
    assert f"another amendment 1, {own.head.digest}, exists; signed both: the founder" in shown


class LeavingDaemon(OperatorsDaemon):
    """Takes the notice; its peers answer one after the other, and then it ends, or falls silent."""

    answers: list[list[str]]

    def show(self, topic: str, **arguments: Any) -> Mapping[str, Any]:
        return {"daemon": "running", "waiting_for": [], "heads": {}}

    def follow(self, topic: str, *, silence_s: float) -> Iterator[Mapping[str, Any]]:
        for unreached in self.answers:
            waits = [{"site": name, "kind": "notice"} for name in unreached] + [{"site": "oslo", "kind": "model"}]
            yield {"daemon": "running", "waiting_for": waits}
        if self.silent:
            raise DaemonSilent(f"no answer within {silence_s} s")

    def act(self, action: str, **arguments: Any) -> Any:
        return {"site": "europe", "issued": 1, "unreached": ["africa", "asia"], "notes": []}


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(
    ("answers", "unreached"),
    [([["africa"], []], []), ([["africa", "asia"], ["asia"]], ["asia"]), ([], ["africa", "asia"])],
)
def test_who_leaves_is_told_who_has_not_answered(
    founded: GovernedFederation,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[list[str]],
    unreached: list[str],
    silent: bool,
) -> None:
    daemon = LeavingDaemon(monkeypatch, founded.folder("europe"))
    daemon.answers, daemon.silent = answers, silent
    words = ("--home", founded.home, "leave", "--site", "europe", "--yes")
    left = run_json(*words)
    assert (left["unreached"], [note[:23] for note in left["notes"]]) == (
        unreached,
        ["whoever has the notice "] * bool(unreached),
    )
    assert ("not told yet" in run(*words).stdout) is bool(unreached)


@pytest.mark.e2e
def test_whose_answer_is_on_its_way_when_the_daemon_ends_counts_as_told(program: Any) -> None:
    program.start("europe", "mute")
    leaving = program.start("asia", "mute")
    program.until("asia", lambda status: status["peers"]["europe"]["called_s"] is not None)
    left = run_json("--home", program.loopback.home, "leave", "--site", "asia", "--yes")
    assert (left["unreached"], left["notes"]) == ([], [])
    assert leaving.wait(60) == 0


@pytest.mark.e2e
def test_a_notice_that_was_signed_while_no_daemon_ran_is_told_at_the_next_start(program: Any) -> None:
    home = program.loopback.home
    program.start_and_wait("europe")
    left = run_json("--home", home, "leave", "--site", "asia", "--yes")
    assert left["notes"] == ["no daemon runs here: its next start tells the other sites"]
    leaving = program.start("asia")
    folder = MembershipFolder(program.loopback.folder("europe").membership)
    program.until("europe", lambda status: bool(folder.notices()))
    assert leaving.wait(60) == 0

"""Members amend their federation: a proposal goes from folder to folder, and no daemon runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run, run_json
from fakes.governed import GovernedFederation
from fakes.operators_daemon import OperatorsDaemon
from fakes.sites import append_paced_rounds, append_rows
from peer.core.messages import ChainHead
from peer.core.roster import Sha256, SiteName
from peer.net.transport.control import AMENDING_S
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> GovernedFederation:
    names = ("africa", "asia", "europe", "oceania")
    return GovernedFederation.create(tmp_path_factory.mktemp("template"), *names, members=2)


@pytest.fixture
def governed(template: GovernedFederation, tmp_path: Path) -> GovernedFederation:
    return template.copy(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "proposal.json"


def at(federation: GovernedFederation, site: str, *words: object) -> tuple[object, ...]:
    return ("--home", federation.home, "federation", *words, "--site", site)


def test_a_newcomer_is_added_by_three_of_four(governed: GovernedFederation, tmp_path: Path, file: Path) -> None:
    key = certificates.new_key()
    (tmp_path / "oslo.csr").write_bytes(certificates.signing_request(key, SiteName("oslo")))
    words = ("--add", "oslo=oslo.example.org:7443", "--request", tmp_path / "oslo.csr", "--out", file)
    proposed = run_json(*at(governed, "africa", "propose", *words))
    assert (proposed["signed_by"], proposed["needed"], proposed["keys_for"]) == (["africa"], 3, [])
    fingerprint = certificates.fingerprint(key.public_key())
    assert proposed["changes"] == [f"adds oslo at oslo.example.org:7443, with the key {fingerprint}"]
    too_few = refused("MembershipError", *at(governed, "asia", "enact", file))
    assert "has 1 of the 3 signatures that 4 members need (africa); other members sign it" in too_few
    before = file.read_bytes()
    braces = shutil.copy(file, tmp_path / "{number} {x}.json")
    for copied in (file, braces):
        refusal = refused("UsageError", *at(governed, "asia", "approve", copied), answer="yes\n")
        assert f"{copied} was not signed" in refusal
    assert (file.read_bytes(), MembershipFolder(governed.folder("asia").membership).approvals()) == (before, {})
    shown = run(*at(governed, "asia", "approve", file), answer="1\n")
    assert f"amendment 1, from round 3 on, {proposed['digest']}" in shown.stderr
    assert fingerprint in shown.stderr
    assert "send it to who signs next" in shown.stdout
    assert run_json(*at(governed, "europe", "approve", "--yes", file))["signed_by"] == ["africa", "asia", "europe"]
    enacted = run_json(*at(governed, "oceania", "enact", file))
    assert (enacted["members"][-1], enacted["signed_by"]) == ("oslo", ["africa", "asia", "europe"])
    assert governed.chain("oceania").head.digest == proposed["digest"]
    assert run_json(*at(governed, "oceania", "enact", file))["number"] == 1
    (approved,) = run_json(*at(governed, "asia", "show"))["approved"]
    assert approved == {"number": 1, "digest": proposed["digest"]}


def proposed_at_round_38(governed: GovernedFederation, file: Path, *words: object, pace_s: float = 900.0) -> Any:
    append_paced_rounds(governed.folder("africa"), 35, 38, pace_s=pace_s)
    return run_json(*at(governed, "africa", "propose", "--hold", "--out", file, *words))


@pytest.mark.parametrize(
    ("pace_s", "from_round"),
    [(900.0, 45), (7200.0, 41), (10.0, 47)],
    ids=["four rounds an hour", "none", "a tenth of the 62 rounds that are left"],
)
def test_members_have_time_to_sign(governed: GovernedFederation, file: Path, pace_s: float, from_round: int) -> None:
    proposed = proposed_at_round_38(governed, file, pace_s=pace_s)
    assert (proposed["from_round"], proposed["enact_until_round"]) == (from_round, from_round - 1)
    assert proposed["enact_left_s"] == pytest.approx((from_round - 1 - 38) * pace_s, abs=60.0)


def test_who_signs_is_told_until_when_the_proposal_can_be_enacted(governed: GovernedFederation, file: Path) -> None:
    proposed_at_round_38(governed, file)
    unknown = run(*at(governed, "europe", "approve", file), answer="1\n")  # it has committed no round
    assert "enact it before round 45 begins\n" in unknown.stderr
    append_paced_rounds(governed.folder("asia"), 35, 40, pace_s=900.0)
    shown = run(*at(governed, "asia", "approve", file), answer="1\n")
    assert "enact it before round 45 begins, in about 60 min" in shown.stderr
    assert "enact it    before round 45 begins, in about 60 min" in shown.stdout


def test_a_proposal_that_came_too_late_is_proposed_again(
    governed: GovernedFederation, tmp_path: Path, file: Path
) -> None:
    proposed_at_round_38(governed, file, "--from-round", "40")
    for site in ("asia", "europe", "oceania"):
        append_paced_rounds(governed.folder(site), 38, 42, pace_s=900.0)
        append_rows(governed.folder(site), ("opened", 43, {"sources": [], "jumped": False}))
    again = "propose it again with --from-round 50 and --instead; who has signed this one signs that one with --instead"
    past = "round 40 is past: this site has opened round 43"
    before = file.read_bytes()
    for command in (("approve", "--yes"), ("approve",), ("enact",)):
        assert f"{past}; {again}" in refused("MembershipError", *at(governed, "asia", *command, file))
    assert (file.read_bytes(), MembershipFolder(governed.folder("asia").membership).approvals()) == (before, {})
    other = tmp_path / "again.json"
    run_json(*at(governed, "asia", "propose", "--hold", "--from-round", "50", "--instead", "--out", other))
    for site in ("africa", "europe"):
        run_json(*at(governed, site, "approve", "--yes", "--instead", other))
    assert run_json(*at(governed, "oceania", "enact", other))["from_round"] == 50
    assert run_json(*at(governed, "oceania", "enact", other))["number"] == 1


def test_after_the_last_round_began_nothing_is_proposed_again(governed: GovernedFederation, file: Path) -> None:
    proposed_at_round_38(governed, file)
    append_rows(governed.folder("asia"), ("opened", 100, {"sources": [], "jumped": False}))
    assert "no round is left that an amendment could" in refused(
        "MembershipError", *at(governed, "asia", "enact", file)
    )


def test_the_end_of_a_hold_is_never_late(governed: GovernedFederation, tmp_path: Path, file: Path) -> None:
    proposed_at_round_38(governed, file)
    for site in ("asia", "europe"):
        run_json(*at(governed, site, "approve", "--yes", file))
    run_json(*at(governed, "africa", "enact", file))
    proposed = run_json(*at(governed, "africa", "propose", "--resume", "--out", tmp_path / "resume.json"))
    assert (proposed["from_round"], proposed["enact_until_round"], proposed["enact_left_s"]) == (45, None, None)


def test_a_new_key_is_pinned_also_after_the_last_round_began(governed: GovernedFederation, file: Path) -> None:
    for site in ("africa", "asia", "europe"):
        append_rows(governed.folder(site), ("opened", 100, {"sources": [], "jumped": False}))
    proposed = run_json(*at(governed, "africa", "propose", "--rekey", f"oceania={'5' * 64}", "--out", file))
    assert (proposed["from_round"], proposed["enact_until_round"]) == (100, None)
    for site in ("asia", "europe"):
        run_json(*at(governed, site, "approve", "--yes", file))
    assert run_json(*at(governed, "asia", "enact", file))["number"] == 1


def test_copies_that_members_signed_apart_count_together(
    governed: GovernedFederation, tmp_path: Path, file: Path
) -> None:
    run_json(*at(governed, "africa", "propose", "--hold", "--out", file))
    copies = [tmp_path / "one.json", tmp_path / "two.json"]
    for copy, site in zip(copies, ("asia", "europe"), strict=True):
        copy.write_bytes(file.read_bytes())
        run_json(*at(governed, site, "approve", "--yes", copy))
    other = tmp_path / "other.json"
    run_json(*at(governed, "oceania", "propose", "--rounds", "200", "--out", other))
    assert "two proposals differ" in refused("MembershipError", *at(governed, "asia", "enact", *copies, other))
    assert run_json(*at(governed, "asia", "enact", *copies))["signed_by"] == ["africa", "asia", "europe"]
    assert "is not next in the chain" in refused("MembershipError", *at(governed, "asia", "enact", other))
    run_json(*at(governed, "asia", "propose", "--resume", "--out", tmp_path / "resume.json"))


def test_who_approves_two_amendments_of_one_number_must_mean_it(
    governed: GovernedFederation, tmp_path: Path, file: Path
) -> None:
    other = tmp_path / "other.json"
    run_json(*at(governed, "africa", "propose", "--hold", "--out", file))
    run_json(*at(governed, "asia", "propose", "--rounds", "200", "--out", other))
    before = other.read_bytes()
    words = at(governed, "africa", "approve", "--yes", other)
    assert "has approved another amendment 1" in refused("MembershipError", *words)
    assert other.read_bytes() == before
    assert run_json(*words, "--instead")["signed_by"] == ["africa", "asia"]
    assert len(json.loads(other.read_text())["amendment"]["by"]) == 2
    assert run_json(*words)["signed_by"] == ["africa", "asia"]
    assert len(json.loads(other.read_text())["amendment"]["by"]) == 2


def test_members_do_nothing_at_a_site_that_is_behind(
    governed: GovernedFederation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    run_json(*at(governed, "africa", "propose", "--hold", "--out", file))
    daemon = OperatorsDaemon(monkeypatch, governed.folder("asia"), europe=ChainHead(1, Sha256("ab" * 32)))
    other = tmp_path / "other.json"
    for words in (("propose", "--hold", "--out", other), ("approve", "--yes", file), ("enact", file)):
        assert "europe has amendment 1, and this site's chain" in refused(
            "MembershipError", *at(governed, "asia", *words)
        )
    assert (daemon.actions, other.exists()) == ([], False)
    assert run_json(*at(governed, "asia", "approve", "--yes", "--instead", file))["signed_by"] == ["africa", "asia"]


def test_a_proposal_is_both_signed_and_written_or_neither(governed: GovernedFederation, tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "hold.json"
    assert "cannot be written" in refused("DiskError", *at(governed, "africa", "propose", "--hold", "--out", nowhere))
    assert MembershipFolder(governed.folder("africa").membership).approvals() == {}
    run_json(*at(governed, "africa", "propose", "--hold", "--out", tmp_path / "hold.json"))
    words = at(governed, "africa", "propose", "--rounds", "200", "--out", tmp_path / "rounds.json")
    assert "has approved another amendment 1" in refused("MembershipError", *words)
    assert not (tmp_path / "rounds.json").exists()


def test_the_signature_of_a_silent_daemon_can_be_asked_for_again(
    governed: GovernedFederation, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    daemon = OperatorsDaemon(monkeypatch, governed.folder("africa"))
    daemon.silent = True
    problem = refused("DaemonDown", *at(governed, "africa", "propose", "--hold", "--out", file))
    assert "`approve` may have been carried out; look at `mhfl-peer federation show`" in problem
    assert daemon.answer_s == AMENDING_S
    daemon.silent = False
    assert run_json(*at(governed, "africa", "approve", "--yes", file))["signed_by"] == ["africa"]


def test_an_expulsion_needs_members_with_a_copy_of_the_new_round_key(governed: GovernedFederation, file: Path) -> None:
    """No daemon answers, so that only the author has a copy: the others cannot judge the key, and refuse."""
    proposed = run_json(*at(governed, "africa", "propose", "--expel", "oceania", "--out", file))
    assert proposed["keys_for"] == ["africa"]
    assert "no daemon runs here" in proposed["notes"][0]
    assert [note.partition(" gets the round key later: ")[0] for note in proposed["notes"][1:]] == ["asia", "europe"]
    assert "no copy of it for asia" in refused("MembershipError", *at(governed, "asia", "approve", "--yes", file))
    expelled = refused("MembershipError", *at(governed, "oceania", "approve", "--yes", file))
    assert "oceania is expelled by it: its signature does not count; other members sign it" in expelled


def test_a_file_that_is_no_proposal(governed: GovernedFederation, file: Path) -> None:
    file.write_text("{}")
    for command in (("approve", "--yes"), ("enact",)):
        message = refused("MembershipError", *at(governed, "asia", *command, file))
        assert str(file) in message
        assert "no proposal of version 1" in message


def test_the_founder_is_told_that_the_members_sign(governed: GovernedFederation, tmp_path: Path, file: Path) -> None:
    run_json(*at(governed, "africa", "propose", "--hold", "--out", file))
    words = ("federation", "approve", "--ca", governed.ca, file)
    who = "by federation.toml 3 of the 4 members sign; the founder's signature counts only if an amendment has changed"
    approved = run(*words, answer="1\n")
    assert who in approved.stderr
    shown = " ".join(approved.stdout.split())
    assert "signed by africa: 1 of 3" in shown
    assert who in shown
    assert "next send it to who signs next" in shown
    assert "enact it" not in shown.partition("next ")[2]
    document = run_json(*words, "--yes")
    assert (document["signed_by"], document["needed"]) == (["africa"], 3)
    here = ("--home", governed.home, *words, "--yes")
    assert "the members of trial sign its amendments, not the founder" in refused("MembershipError", *here)
    for name in ("asia", "europe"):
        run_json(*at(governed, name, "approve", "--yes", file))
    shown = " ".join(run(*words, "--yes").stdout.split())
    assert "signed by africa, asia, europe: 3 of 3" in shown
    assert "the founder cannot tell here whether it is complete" in shown
    assert run_json(*at(governed, "oceania", "enact", file))["number"] == 1


@pytest.fixture
def founded(tmp_path: Path) -> GovernedFederation:
    return GovernedFederation.create(tmp_path, "asia", "europe", "oceania")


def test_the_founder_does_not_sign_where_an_amendment_lets_the_members_sign(
    founded: GovernedFederation, tmp_path: Path, file: Path
) -> None:
    keys = {
        name: certificates.read_key(founded.folder(name).pki / "site.key") for name in ("asia", "europe", "oceania")
    }
    words = [f"--rekey={name}={certificates.fingerprint(key.public_key())}" for name, key in keys.items()]
    run_json(*at(founded, "asia", "amend", "--yes", "--ca", founded.ca, *words, "--governance", "2"))
    run_json(*at(founded, "asia", "propose", "--hold", "--out", file))
    for home in (founded.home, tmp_path / "apart"):
        approve = ("--home", home, "federation", "approve", "--yes", "--ca", founded.ca, file)
        problem = refused("MembershipError", *approve)
        assert "not the founder; send" in problem
    assert list(MembershipFolder(founded.ca).approvals()) == [1]


def test_the_founder_does_not_sign_what_a_site_of_this_machine_knows_to_be_late(
    founded: GovernedFederation, tmp_path: Path, file: Path
) -> None:
    run_json(*at(founded, "asia", "propose", "--rounds", "200", "--out", file))
    approve = ("--home", founded.home, "federation", "approve", "--yes", "--ca", founded.ca, file)
    apart = ("--home", tmp_path / "apart", *approve[2:])
    assert "the signature does not count if an amendment has changed that" in run_json(*apart)["notes"][0]
    assert run_json(*approve)["notes"] == ["`federation enact` compares it with the chain of a site"]
    certificate = founded.folder("asia").pki / "cert.pem"
    certificate.rename(tmp_path / "cert.pem")  # a site that is not enrolled yet judges nothing
    assert run_json(*approve)["notes"] == run_json(*apart)["notes"]
    (tmp_path / "cert.pem").rename(certificate)
    append_rows(founded.folder("asia"), ("opened", 7, {"sources": [], "jumped": False}))
    assert "round 3 is past: this site has opened round 7" in refused("MembershipError", *approve, "--site", "asia")
    run_json(*at(founded, "europe", "enact", file))
    assert "is not next in the chain" in refused("MembershipError", *approve)


def test_an_expelled_site_is_sent_to_a_member_s(founded: GovernedFederation, file: Path) -> None:
    run_json(*at(founded, "europe", "amend", "--yes", "--ca", founded.ca, "--expel", "asia"))
    MembershipFolder(founded.folder("asia").membership).save_chain(founded.chain("europe"))
    run_json(*at(founded, "europe", "propose", "--hold", "--out", file))
    for words in (("amend", "--rounds", "200", "--ca", founded.ca), ("approve", "--yes", file), ("enact", file)):
        problem = refused("MembershipError", *at(founded, "asia", *words, "--instead"))
        assert "asia was expelled from trial: nobody follows an amendment from here; work at the site of a" in problem


@pytest.mark.parametrize("number", [1, 2])
def test_the_founder_does_not_sign_settings_that_no_site_could_apply(tmp_path: Path, file: Path, number: int) -> None:
    founded = GovernedFederation.create(tmp_path, "asia", "europe")
    run_json(*at(founded, "asia", "propose", "--rounds", "200", "--out", file))
    document = json.loads(file.read_text())
    body = json.loads(document["amendment"]["body"])
    body |= {"number": number, "set": {"quorum": "all"}}
    document["amendment"]["body"] = json.dumps(body, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps(document))
    problem = refused("MembershipError", "federation", "approve", "--yes", "--ca", founded.ca, file)
    assert f"amendment {number}: quorum: " in problem
    assert MembershipFolder(founded.ca).approvals() == {}


def test_the_founder_signs_where_no_site_lives(tmp_path: Path, file: Path) -> None:
    """The CA's key stays on a machine of its own: the proposal goes there and back."""
    founded = GovernedFederation.create(tmp_path, "asia", "europe", "oceania")
    proposed = run_json(*at(founded, "asia", "propose", "--expel", "oceania", "--out", file))
    assert (proposed["signed_by"], proposed["needed"], proposed["keys_for"]) == ([], 1, ["asia"])
    signed = refused("MembershipError", *at(founded, "europe", "approve", "--yes", file))
    assert "the founder alone signs the amendments" in signed
    other = GovernedFederation.create(tmp_path / "other", "asia")
    apart = ("--home", tmp_path / "apart", "federation", "approve", file, "--ca")
    assert "is of another federation" in refused("MembershipError", *apart, other.ca)
    assert "was not signed" in refused("UsageError", *apart, founded.ca, answer="yes\n")
    approved = run(*apart, founded.ca, answer="1\n")
    assert MembershipFolder(founded.ca).approvals() == {1: proposed["digest"]}
    other_file = tmp_path / "hold.json"
    run_json(*at(founded, "europe", "propose", "--hold", "--out", other_file))
    again = (*apart[:4], other_file, "--yes", "--ca", founded.ca)
    assert "the founder has approved another amendment 1" in refused("MembershipError", *again)
    assert run_json(*again, "--instead")["signed_by"] == ["the founder"]
    assert "expels oceania: no site serves it any more" in approved.stderr
    assert "the founder: 1 of 1" in approved.stdout
    assert run_json(*at(founded, "asia", "enact", file))["signed_by"] == ["the founder"]
    assert founded.chain("asia").head.members == ("asia", "europe")

"""A founder amends a federation whose sites live on this machine, without daemons."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run_json
from fakes.governed import GovernedFederation
from fakes.operators_daemon import OperatorsDaemon
from fakes.sites import append_rows
from peer.cli.amendments import make_proposal
from peer.cli.governance import SiteChain
from peer.core.messages import ChainHead
from peer.core.roster import Sha256, SiteName
from peer.daemon import startup
from peer.daemon.dispatch import now
from peer.errors import MembershipError
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates
from peer.site.membership.amendment import Requirements
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.signatures import sign_notice


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> GovernedFederation:
    return GovernedFederation.create(tmp_path_factory.mktemp("template"), "asia", "europe", "oceania")


def at(federation: GovernedFederation, command: str, *words: object, site: str = "asia") -> tuple[object, ...]:
    consent = () if command == "propose" else ("--yes",)
    return ("--home", federation.home, "federation", command, *consent, "--ca", federation.ca, "--site", site, *words)


def request(tmp_path: Path, name: str) -> tuple[Path, str]:
    """A newcomer's signing request, and its key."""
    key = certificates.new_key()
    (tmp_path / f"{name}.csr").write_bytes(certificates.signing_request(key, SiteName(name)))
    return tmp_path / f"{name}.csr", certificates.key_digest(key.public_key())


def folder(federation: GovernedFederation, name: str) -> MembershipFolder:
    return MembershipFolder(federation.folder(name).membership)


def test_a_founder_adds_a_hospital(founded: GovernedFederation, tmp_path: Path) -> None:
    csr, key = request(tmp_path, "oslo")
    enacted = run_json(*at(founded, "amend", "--add", "oslo=oslo.example.org:7443", "--request", csr))
    chain = founded.chain("asia")
    assert (enacted["number"], enacted["digest"]) == (1, chain.head.digest)
    assert enacted["members"] == ["asia", "europe", "oceania", "oslo"]
    assert enacted["signed_by"] == ["the founder"]
    assert (chain.head.keys["oslo"], chain.head.addresses["oslo"]) == (key, "oslo.example.org:7443")
    assert chain.head.from_round == 3  # round 0 is reached, and a site may lead by two rounds
    unheard, told, unknown = enacted["notes"]
    assert "amendments that the other sites have, and this one lacks, are not known" in unheard
    assert told == "no daemon runs here: its next start tells the other sites"
    assert "one that is past round 3 follows from its next on" in unknown
    assert founded.chain("europe").head.number == 0


@pytest.mark.parametrize("command", ["amend", "propose"])
def test_a_newcomer_without_an_address_is_noted(founded: GovernedFederation, tmp_path: Path, command: str) -> None:
    words = ("--yes", "--ca", founded.ca) if command == "amend" else ("--out", tmp_path / "oslo.json")
    words += ("--site", "asia", "--add", "oslo", "--request", request(tmp_path, "oslo")[0])
    notes = run_json("--home", founded.home, "federation", command, *words)["notes"]
    assert [note for note in notes if "no address of oslo, as --add oslo=HOST:PORT would give, and no later" in note]


def test_a_key_is_shown_and_pinned_once_the_number_is_typed(founded: GovernedFederation, tmp_path: Path) -> None:
    csr, key = request(tmp_path, "oslo")
    words = ("--home", founded.home, "federation", "amend", "--ca", founded.ca, "--site", "asia", "--add", "oslo")
    problem = refused("UsageError", *words, "--request", csr, answer="yes\n")
    assert f"adds oslo, with the key {bytes.fromhex(key).hex(':')}\n" in problem
    assert "Compare each key with what the site's people read out to you.\n" in problem
    assert "amendment 1 was not signed; type the amendment's number, or give --yes" in problem
    assert founded.chain("asia").head.number == 0
    assert MembershipFolder(founded.ca).approvals() == {}
    run_json(*words, "--request", csr, answer="1\n")
    assert founded.chain("asia").head.keys["oslo"] == key


def test_settings_are_changed_by_key_and_by_file(founded: GovernedFederation, tmp_path: Path) -> None:
    (tmp_path / "changes.toml").write_text("[pace]\nwait_max_s = 600\nsilence_s = 60.0\n[fallback]\nkind = 'self'\n")
    words = ("--settings", tmp_path / "changes.toml", "--set", "pace.silence_s=90", "--rounds", "200")
    enacted = run_json(*at(founded, "amend", *words, "--set", "fallback.kind=stale"))
    assert dict(founded.chain("asia").head.settings) == {
        "pace": {"wait_max_s": 600, "silence_s": 90},
        "fallback": {"kind": "stale"},
        "rounds": 200,
    }
    assert "sets rounds to 200 (so far 100)" in enacted["changes"]


def test_a_notice_is_taken_up(founded: GovernedFederation) -> None:
    assert "no notice of a member" in refused("MembershipError", *at(founded, "amend", "--leave"))
    federation, _, own = startup.load(founded.folder("europe"))
    notice = sign_notice(own, federation=federation.digest, issued=1)
    folder(founded, "asia").save_notices([notice])
    enacted = run_json(*at(founded, "amend", "--leave"))
    assert enacted["members"] == ["asia", "oceania"]
    assert founded.chain("asia").head.left == {"europe"}


def test_a_hold_is_ended_for_every_round(founded: GovernedFederation) -> None:
    assert run_json(*at(founded, "hold"))["from_round"] == 3
    assert founded.chain("asia").head.hold
    assert "is held already" in refused("MembershipError", *at(founded, "hold"))
    resumed = run_json(*at(founded, "resume"))
    assert (resumed["from_round"], resumed["changes"]) == (3, ["ends the hold"])
    assert "is not held" in refused("MembershipError", *at(founded, "resume"))


def test_an_amendment_that_is_still_to_come_is_named_since_none_begins_sooner(founded: GovernedFederation) -> None:
    run_json(*at(founded, "amend", "--rounds", "200", "--from-round", "50"))
    held = run_json(*at(founded, "hold"))
    assert held["from_round"] == 50
    assert "amendment 1 begins with round 50, and none after it begins sooner" in held["notes"]


def test_keys_are_pinned_before_the_members_govern(founded: GovernedFederation, tmp_path: Path) -> None:
    assert "members sign with pinned keys" in refused("MembershipError", *at(founded, "amend", "--governance", "2"))
    csr, pinned = request(tmp_path, "oceania")
    hexes = {name: certificates.read_key(founded.folder(name).pki / "site.key") for name in ("asia", "europe")}
    words = [f"--rekey={name}={certificates.fingerprint(key.public_key())}" for name, key in hexes.items()]
    enacted = run_json(*at(founded, "amend", *words, "--rekey", "oceania", "--request", csr, "--governance", "2"))
    assert "lets 2 of the 3 members sign amendments from the next one on" in enacted["changes"]
    assert founded.chain("asia").head.keys["oceania"] == pinned
    assert "not the founder" in refused("MembershipError", *at(founded, "hold"))


def test_a_program_and_another_ca_are_required(founded: GovernedFederation, tmp_path: Path) -> None:
    _, authority = certificates.new_authority("trial", now=now())
    (tmp_path / "new.pem").write_bytes(certificates.certificate_pem(authority))
    words = ("--requires", "amendments", "--protocol", "1", "--authority", tmp_path / "new.pem")
    enacted = run_json(*at(founded, "amend", *words))
    assert enacted["changes"][0] == "requires protocol 1 and amendments of every site's program"
    assert len(founded.chain("asia").head.authorities) == 2
    assert "is not the key of the CA" in refused("CertificateError", *at(founded, "hold"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "changes nothing"),
        (("--expel", "oslo"), "expel: oslo is no member"),
        (("--expel", "asia"), "asia would be expelled by its own amendment; name the site of another member with"),
        (("--add", "europe", "--request", "europe.csr"), "the name europe is used, or was; give the new site another"),
        (
            ("--add", "oslo=127.0.0.1:2", "--request", "oslo.csr"),
            "the address 127.0.0.1:2 of oslo is that of europe; ask oslo for its own",
        ),
        (("--rounds", "200", "--from-round", "101"), "is from round 101, after the last one, 100"),
        (("--rounds", "200", "--from-round", "7"), "round 7 is past: a member is in round 7; let the amendment begin"),
        (("--set", "pace.wait_s=3"), "pace.wait_s: unknown key (did you mean"),
        (("--requires", "amendmnets"), "does not know amendmnets, and would hold itself; it knows amendments, "),
        (("--protocol", "7"), "this program does not know protocol 7, and would hold itself"),
        (("--set", "pace.wait_max_s=nan"), "set.pace.wait_max_s = nan: only finite numbers have a canonical form"),
        (("--set", "pace.wait_max_s=1e308"), "pace.wait_max_s: expected at most 1e+09, found 1e+308"),
        (("--set", "pace.beat_s=1e-9"), "pace.beat_s: expected at least 0.001, found 1e-09"),
        (("--set", "stages.train.count=9223372036854775808"), "stages.train.count"),
        (("--set", "stages.train.learning_rate=1e300"), "stages.train.learning_rate: expected at most 1000"),
        (("--set", "weighting=samples"), "set.weighting is not an amendment's to change"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_changes(
    founded: GovernedFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("europe", "oslo"):
        request(tmp_path, name)
    append_rows(founded.folder("asia"), ("opened", 7, {"sources": [], "jumped": False}))
    assert reason in refused("MembershipError", *at(founded, "amend", *words))
    assert founded.chain("asia").head.number == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--add", "oslo=oslo.example.org:7443"), "--add oslo: its key is missing; give the signing request of oslo"),
        (("--add", "Oslo"), "--add Oslo"),
        (("--add", "europe=nowhere", "--request", "europe.csr"), "give NAME=HOST:PORT"),
        (("--add", "oslo", "--request", "europe.csr"), "--add oslo: its key is missing: --request is of europe; give"),
        (("--request", "europe.csr"), "--request of europe; add --add or --rekey with the same name"),
        (("--request", "changes.toml"), "--request changes.toml"),
        (("--rekey", "europe"), "--rekey europe: its key is missing"),
        (("--rekey", "europe=12"), "give the 64 hex digits"),
        (("--set", "rounds"), "--set rounds: no KEY=VALUE"),
        (("--expel", "asia", "--expel", "europe"), "--expel asia, europe: an amendment expels one site"),
        (("--governance", "all"), "give `founder`, or how many members sign at least"),
    ],
)
def test_options_that_say_nothing_are_refused(
    founded: GovernedFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    request(tmp_path, "europe")
    (tmp_path / "changes.toml").touch()
    assert reason in refused("UsageError", *at(founded, "amend", *words))


def test_no_name_comes_back_and_the_last_member_stays(tmp_path: Path) -> None:
    two = GovernedFederation.create(tmp_path, "asia", "europe")
    run_json(*at(two, "amend", "--expel", "europe"))
    csr, _ = request(tmp_path, "europe")
    assert "the name europe is used" in refused(
        "MembershipError", *at(two, "amend", "--add", "europe", "--request", csr)
    )
    assert "without a member" in refused("MembershipError", *at(two, "amend", "--expel", "asia"))


def test_a_founder_who_signs_two_amendments_of_one_number_must_mean_it(founded: GovernedFederation) -> None:
    first = run_json(*at(founded, "hold"))
    assert MembershipFolder(founded.ca).approvals() == {1: first["digest"]}
    for command, words in (("amend", ("--rounds", "200")), ("hold", ("--from-round", "5"))):
        problem = refused("MembershipError", *at(founded, command, *words, site="europe"))
        assert f"the founder has approved another amendment 1, {first['digest'][:12]}…" in problem
    assert founded.chain("europe").head.number == 0
    second = run_json(*at(founded, "amend", "--rounds", "200", "--instead", site="europe"))
    assert MembershipFolder(founded.ca).approvals() == {1: second["digest"]}
    assert run_json(*at(founded, "resume"))["number"] == 2


@pytest.mark.parametrize("command", ["amend", "hold"])
def test_a_founder_does_not_amend_at_a_site_that_is_behind(
    founded: GovernedFederation, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    daemon = OperatorsDaemon(monkeypatch, founded.folder("asia"), europe=ChainHead(1, Sha256("ab" * 32)))
    words = ("--rounds", "200") if command == "amend" else ()
    problem = refused("MembershipError", *at(founded, command, *words))
    assert "europe has amendment 1, and this site's chain ends with 0; wait until this site's daemon has it" in problem
    assert MembershipFolder(founded.ca).approvals() == {}
    assert daemon.actions == []
    assert run_json(*at(founded, command, *words, "--instead"))["number"] == 1


def test_a_peer_that_lies_about_its_chain_does_not_put_its_expulsion_off(
    founded: GovernedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    OperatorsDaemon(monkeypatch, founded.folder("asia"), europe=ChainHead(9, Sha256("ab" * 32)))
    assert "repeat with --instead" in refused("MembershipError", *at(founded, "amend", "--expel", "oceania"))
    assert run_json(*at(founded, "amend", "--expel", "europe"))["members"] == ["asia", "oceania"]
    head = founded.chain("asia").head
    assert set(folder(founded, "asia").round_keys()) == {head.round_key_tag}, "it keeps the new round key"


def test_a_folder_that_is_not_the_federation_s_ca_signs_nothing(founded: GovernedFederation, tmp_path: Path) -> None:
    other = GovernedFederation.create(tmp_path / "other", "asia")
    hold = ("--home", founded.home, "federation", "hold", "--yes", "--site", "asia", "--ca")
    missing = refused("CertificateError", *hold, tmp_path / "nosuch")
    assert "nosuch/ca.key is missing; name the CA folder that `federation create` wrote with --ca" in missing
    assert "is not the key of the CA of trial" in refused("CertificateError", *hold, other.ca)


def test_another_process_holds_the_folder(founded: GovernedFederation) -> None:
    held: SiteFolder = founded.folder("asia")
    with held.locked():
        assert "is held by process" in refused("LockedError", *at(founded, "hold"))
    assert founded.chain("asia").head.number == 0
    assert run_json(*at(founded, "hold"))["number"] == 1


def test_no_amendment_while_a_member_runs_a_program_that_cannot_follow_it(founded: GovernedFederation) -> None:
    site = SiteChain.open(founded.folder("asia"))
    old = {"round": 5, "features": ["compares-manifests"], "protocol": 1, "software": "mhfl-peer 0.2.0"}
    heard = replace(site, status={"round": 4, "peers": {"europe": old, "oceania": {"round": None, "features": None}}})
    for changes in ({"hold": True}, {"requires": Requirements(1, ("amendments",))}):
        with pytest.raises(MembershipError, match=r"europe runs mhfl-peer 0\.2\.0, which does not know amendments"):
            make_proposal(heard, {}, changes, None)
    expelled = make_proposal(heard, {}, {"expel": SiteName("europe")}, None).amendment
    assert expelled.from_round == 8  # europe is heard in round 5, and may lead by two


@pytest.mark.e2e
def test_running_sites_hold_before_a_round_and_go_on_when_the_hold_ends(program: Any, founders_ca: Path) -> None:
    """The founder holds while no daemon runs, and ends the hold at a daemon, from which the other site hears."""
    home = program.loopback.home
    words = ("--ca", founders_ca, "--site", "asia")
    assert run_json("--home", home, "federation", "hold", "--yes", *words)["from_round"] == 3
    shutil.copytree(program.loopback.folder("asia").membership, program.loopback.folder("europe").membership)
    processes = {name: program.start(name) for name in ("asia", "europe")}
    for name in ("asia", "europe"):
        assert program.status(name, "held")["committed"] == 2
    shown = run_json("--home", home, "federation", "show", "--site", "europe")
    assert (shown["head"]["number"], shown["hold"]) == (1, True)
    assert "is held already" in refused("MembershipError", "--home", home, "federation", "hold", "--yes", *words)
    resumed = run_json("--home", home, "federation", "resume", "--yes", *words)
    assert (resumed["from_round"], resumed["notes"]) == (3, [])
    for name, process in processes.items():
        assert process.wait(60) == 0
        assert run_json("--home", home, "status", "--site", name)["committed"] == 3

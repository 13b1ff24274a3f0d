"""Reachability in both directions; each failure has a remedy."""

import asyncio
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import site_text
from fakes.founder_amendments import extend
from peer.core.roster import SiteName
from peer.daemon.dispatch import now
from peer.lab.demo.local_federation import LocalFederation, free_ports
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle
from peer.site.membership import amendment
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.view.preflight.check import check
from peer.view.preflight.finding import Finding
from peer.view.preflight.peers import TRIED_MAX, ReachabilityCheck

pytestmark = pytest.mark.e2e

RunCheck = Callable[..., dict[str, Finding]]
Edit = Callable[[Path, str, str], None]
LIMIT_S = 15.0
PATIENT_S = 60.0
EUROPE = SiteName("europe")


class Newcomer:
    """Oslo, which an amendment adds to asia and europe; nothing listens at the address in it."""

    def __init__(self, enrolled: LocalFederation, ca: Path, write_data: Callable[..., None]) -> None:
        self._enrolled, authority = enrolled, enrolment.Authority.load(ca, now=now())
        self.folder = folder = enrolled.folder("oslo")
        listen, other = free_ports(2)
        self.address = f"127.0.0.1:{other}"
        request = enrolment.request(folder, authority.federation, authority.federation_toml, now=now(), newcomer=True)
        key = certificates.key_digest(certificates.read_key(folder.pki / certificates.KEY_FILE).public_key())
        added = amendment.Newcomer(folder.site, key, self.address)
        self.chain = extend(Chain.of(authority.federation), authority, add=(added,))
        head = self.chain.head
        admitted = authority.admit(
            request.pem, fingerprint=request.fingerprint, now=now(), members=head.keys, added=head.head
        )
        keep = MembershipFolder(folder.membership).save_joined
        enrolment.join(folder, Bundle.decode(admitted.bundle), now=now(), pinned=key, keep=keep)
        folder.site_toml.write_text(site_text(listen=f"0.0.0.0:{listen}"))
        write_data(folder)

    def enact(self, *names: str) -> None:
        """Give these sites the amendment."""
        for name in names:
            MembershipFolder(self._enrolled.folder(name).membership).save_chain(self.chain)

    def check(self) -> dict[str, Finding]:
        return {finding.subject: finding for finding in check(self.folder, train=False)}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the check wait for peers that will call, or be found, however busy this machine is."""
    monkeypatch.setattr("peer.view.preflight.peers.SLACK_S", PATIENT_S)
    monkeypatch.setattr("peer.view.preflight.peers.DISCOVERY_S", PATIENT_S)
    monkeypatch.setattr("peer.view.preflight.peers.CALLED_BEATS_MAX", 300)


def test_a_peer_that_is_down_is_worth_a_warning(run_check: RunCheck, enrolled: LocalFederation) -> None:
    findings = run_check()
    assert findings["europe"].verdict == "warning"
    assert findings["europe"].message.startswith(f"nothing answers at {enrolled.federation.addresses[EUROPE]}: ")
    assert "from europe" not in findings, "whether it would reach this site nobody can know"
    assert findings["address"].verdict == "ok"


@pytest.mark.usefixtures("patient")
def test_a_peer_that_numbers_or_names_the_classes_otherwise_is_named(
    run_check: RunCheck, program: Any, enrolled: LocalFederation, folder: SiteFolder, write_data: Callable[..., None]
) -> None:
    write_data(enrolled.folder("europe"), labels={"0": "benign", "1": "malignant"})
    program.start_and_wait("europe")
    differ = "the classes' numbers differ: class 0 at europe is class 1 at the other site; class 1 here is 'benign'"
    for labels, verdict, words in (
        (["malignant", "benign"], "failure", differ),
        (["gutartig", "malignant"], "warning", "its datalist has another name for class 0 'gutartig'"),
        (["Benign", "malignant"], "ok", "same federation"),
    ):
        write_data(folder, labels=labels)
        finding = run_check()["europe"]
        assert (finding.verdict, words in finding.message) == (verdict, True), finding


@pytest.mark.usefixtures("patient")
def test_a_peer_that_runs_is_asked_calls_back_and_takes_nobody_for_present(
    run_check: RunCheck, program: Any, enrolled: LocalFederation
) -> None:
    program.start_and_wait("europe")
    findings = run_check()
    assert findings["europe"].verdict == "ok"
    where = re.escape(enrolled.federation.addresses[EUROPE])
    answer = rf"answers at {where} as mhfl-peer \S+, same federation, clock [+-]\d\.\d s"
    assert re.fullmatch(answer, findings["europe"].message)
    assert (findings["from europe"].verdict, findings["from europe"].message) == ("ok", "europe reaches this site")
    status = program.status("europe", "gathering")
    assert status["peers"]["asia"]["state"] == "unknown"
    assert status["refusals"] == []


def test_a_peer_that_does_not_reach_this_site_is_named_with_the_address_that_it_has(
    run_check: RunCheck, program: Any, enrolled: LocalFederation, folder: SiteFolder, edit: Edit
) -> None:
    program.start_and_wait("europe")
    (other,) = free_ports(1)
    edit(folder.site_toml, r'listen = ".*"', f'listen = "127.0.0.1:{other}"')
    founded = enrolled.federation.addresses[folder.site]
    findings = run_check()
    assert findings["europe"].verdict == "ok"
    assert findings["from europe"].verdict == "warning"
    reason = f"europe runs, and does not reach this site at {founded}, as federation.toml says"
    assert findings["from europe"].message == reason
    assert f"127.0.0.1:{other}" in findings["from europe"].remedy
    assert findings["address"].verdict == "warning"
    assert findings["address"].remedy.startswith("make the ports equal")


@pytest.mark.usefixtures("patient")
def test_a_daemon_that_runs_is_asked_who_called_it(run_check: RunCheck, program: Any) -> None:
    for name in ("asia", "europe"):
        program.start(name, "mute")  # or they would have done their rounds, and left
    program.until("asia", lambda status: status["peers"]["europe"]["called_s"] is not None)
    findings = run_check()
    assert {findings[subject].verdict for subject in ("europe", "from europe", "address")} == {"ok"}


def test_a_peer_of_another_federation_is_named_with_what_differs(
    run_check: RunCheck, program: Any, folder: SiteFolder, edit: Edit
) -> None:
    program.start_and_wait("europe")
    edit(folder.federation_toml, "rounds = 3", "rounds = 4")
    finding = run_check()["europe"]
    assert finding.verdict == "failure"
    assert "federation digest differs: europe has" in finding.message
    assert program.status("europe", "gathering")["refusals"] == []


@pytest.fixture
def oslo(enrolled: LocalFederation, founders_ca: Path, write_data: Callable[..., None]) -> Newcomer:
    return Newcomer(enrolled, founders_ca, write_data)


def test_a_newcomer_without_its_amendment_is_told_to_wait_where_members_do_not_have_it_either(
    oslo: Newcomer, program: Any
) -> None:
    program.start_and_wait("europe")
    findings = oslo.check()
    europe, missing, address = (findings[each] for each in ("europe", "amendment", "address"))
    assert (europe.verdict, missing.verdict, address.verdict) == ("warning", "warning", "ok")
    assert "does not have the amendment that adds this site yet, and refuses it: 'oslo' is not" in europe.message
    assert missing.message == "the amendment that adds this site is not here yet, nor at europe"
    assert "wait until the amendment arrives, or ask the founder" in europe.remedy
    assert missing.remedy == europe.remedy
    assert address.message.startswith("the amendment that adds this site, and has its address, is not here yet; ")


def test_a_newcomer_before_its_first_start_knows_that_members_have_its_amendment(oslo: Newcomer, program: Any) -> None:
    oslo.enact("asia", "europe")
    program.start_and_wait("europe")
    findings = oslo.check()
    assert findings["europe"].verdict == "ok"
    assert "the daemon gets it from europe" in findings["amendment"].message
    assert "is not here yet; it listens on" in findings["address"].message


def test_a_newcomer_whose_amendment_is_not_here_must_not_listen_on_loopback_alone(oslo: Newcomer, edit: Edit) -> None:
    edit(oslo.folder.site_toml, r'listen = ".*"', 'listen = "127.0.0.1:7450"')
    finding = oslo.check()["address"]
    assert (finding.verdict, finding.remedy[:30]) == ("warning", 'set listen = "0.0.0.0:7450" in')
    assert oslo.check()["amendment"].verdict == "ok", "nobody was reached who could have it"


def test_a_newcomer_that_has_its_amendment_is_named_with_the_address_in_it(oslo: Newcomer, program: Any) -> None:
    oslo.enact("asia", "europe", "oslo")
    program.start_and_wait("europe")
    findings = oslo.check()
    source = f"the amendment that adds this site sends the others to {oslo.address}"
    assert findings["address"].message.startswith(source)
    assert findings["from europe"].message == (
        f"europe runs, and does not reach this site at {oslo.address}, as the amendment that adds this site says"
    )
    assert "amendment" not in findings


def test_a_port_that_is_no_peer_is_a_failure(run_check: RunCheck, taken, enrolled: LocalFederation) -> None:
    taken(enrolled.federation.addresses[EUROPE])
    finding = run_check()["europe"]
    assert finding.verdict == "failure"
    assert finding.message.startswith("not TLS: ")


def test_a_second_address_is_tried_where_the_first_is_dead(run_check: RunCheck, program, folder: SiteFolder) -> None:
    program.start_and_wait("europe")
    (dead,) = free_ports(1)
    text = f'[addresses]\neurope = ["127.0.0.1:{dead}", "relay gate localhost:{dead}"]\n'
    folder.site_toml.write_text(folder.site_toml.read_text() + text)
    finding = run_check()["europe"]
    assert finding.verdict == "ok"
    assert f"; 127.0.0.1:{dead} (direct) does not work: nothing answers" in finding.message
    assert f"; localhost:{dead} (relay gate) does not work: nothing answers" in finding.message


ADDRESS_OF = 'name = "{}"\naddress = "[^"]*"'


@pytest.mark.parametrize(
    ("file", "pattern", "new", "subject", "said"),
    [
        ("federation.toml", ADDRESS_OF.format("europe"), 'name = "europe"', "europe", ["[addresses]", "[discovery]"]),
        ("site.toml", 'listen = ".*"', 'listen = "127.0.0.1:0"', "address", ["; set a port in `listen`"]),
        ("federation.toml", "(?<=asia\"\naddress = \").*(?=\")", "asia.example:7443", "address",
         ['; set listen = "0.0.0.0:', "no other machine reaches 127.0.0.1"]),
        ("federation.toml", ADDRESS_OF.format("asia"), 'name = "asia"', "address",
         ["gives this site no address", "[addresses]"]),
    ],
)  # fmt: skip
def test_an_address_that_leads_to_nobody_is_worth_a_warning(
    run_check: RunCheck,
    folder: SiteFolder,
    edit: Edit,
    file: str,
    pattern: str,
    new: str,
    subject: str,
    said: list[str],
) -> None:
    edit(folder.path / file, pattern, new)
    finding = run_check()[subject]
    assert finding.verdict == "warning"
    assert [words for words in said if words not in f"{finding.message}; {finding.remedy}"] == []


def test_a_site_that_the_founder_sends_the_others_to_a_relay_for_must_park_there(
    run_check: RunCheck, folder: SiteFolder, edit: Edit
) -> None:
    edit(folder.federation_toml, r'name = "asia"\naddress = "[^"]*"', 'name = "asia"\naddress = "relay gate g.test:9"')
    finding = run_check()["address"]
    assert (finding.verdict, finding.remedy) == ("warning", 'add "gate g.test:9" to [connect] relays in site.toml')
    assert "sends the others to relay gate g.test:9" in finding.message
    edit(folder.site_toml, r"\Z", '[connect]\nrelays = ["gate 127.0.0.1:9"]\n')
    edit(folder.federation_toml, "g.test:9", "127.0.0.1:9")
    assert run_check()["address"].verdict == "ok"


def test_a_site_behind_a_relay_is_not_told_to_open_a_port(
    run_check: RunCheck, program: Any, folder: SiteFolder, edit: Edit
) -> None:
    program.start_and_wait("europe")
    edit(folder.site_toml, r"\Z", '[connect]\nrelays = ["gate 127.0.0.1:9"]\n')
    edit(folder.site_toml, r'listen = ".*"', 'listen = "127.0.0.1:0"')
    findings = run_check()
    assert (findings["from europe"].verdict, findings["address"].verdict) == ("ok", "ok")
    assert "it can reach this site by a relay once the daemon runs" in findings["from europe"].message
    assert '[addresses] of the others must have "relay gate 127.0.0.1:9"' in findings["address"].message


@pytest.mark.usefixtures("multicast", "patient")
def test_a_peer_is_found_by_discovery_and_finds_this_site_so(
    run_check: RunCheck, program: Any, enrolled: LocalFederation, edit: Edit
) -> None:
    for name in ("asia", "europe"):
        own = enrolled.folder(name)
        edit(own.site_toml, r'listen = ".*"', 'listen = "127.0.0.1:0"')
        edit(own.site_toml, r"\Z", "[discovery]\nzeroconf = true\n")
        edit(own.federation_toml, r'address = ".*"\n', "")
    program.start_and_wait("europe")
    findings = run_check()
    assert {findings[subject].verdict for subject in ("discovery", "europe", "from europe", "address")} == {"ok"}
    assert findings["discovery"].message.endswith("found: europe")


async def test_who_announces_ever_new_addresses_does_not_hold_up_the_look(folder: SiteFolder, edit: Edit) -> None:
    edit(folder.federation_toml, r'name = "europe"\naddress = "[^"]*"', 'name = "europe"')
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    reachability = ReachabilityCheck(folder, federation, site, folder.site, None)

    async def lie() -> None:
        for number in itertools.count(1):
            reachability._discover(EUROPE, f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:1")
            await asyncio.sleep(0)  # one more in every turn of the loop, so that each dial that fails finds another

    liar = asyncio.create_task(lie())
    try:
        async with asyncio.timeout(LIMIT_S):
            findings = await reachability.run(listening=False)
    finally:
        liar.cancel()
    assert (findings[0].subject, findings[0].verdict) == ("europe", "warning")
    assert f"at {TRIED_MAX - 1} other addresses neither" in findings[0].message

"""Which address is dialled next: a working one stays, a failed one makes room for others."""

import logging
from pathlib import Path

import pytest

from fakes.drafts import draft
from peer.core.roster import SiteName
from peer.daemon.addresses import DISCOVERED_MAX, AddressBook, Candidates
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig

EUROPE = SiteName("europe")
ADDRESSES = {"asia": "asia.example:1", "europe": "europe.example:1"}
ROSTER = [{"name": "africa"}, *({"name": name, "address": address} for name, address in ADDRESSES.items())]
FEDERATION = draft("trial", site=ROSTER)
SITE = toml.text({"addresses": {"europe": "10.0.0.1:1"}, "data": {"input_size": [8]}})


def dialled(candidates: Candidates, count: int) -> list[str | None]:
    """The addresses that are dialled next when none of them answers."""
    dialled_addresses = []
    for _ in range(count):
        dialled_addresses.append(address := candidates.current)
        if address is not None:
            candidates.fail(address)
    return dialled_addresses


@pytest.fixture
def candidates() -> Candidates:
    return Candidates(operators=["written:1"], founders="founded:1")


def test_a_relay_that_the_founder_or_an_amendment_names_is_dialled_and_shown() -> None:
    """Two sites may have the same one: the caller's first message says which of them it wants."""
    sites = [{"name": "africa"}, *({"name": name, "address": "relay gate h:443"} for name in ("asia", "europe"))]
    federation = FederationConfig.parse(draft("trial", site=sites), "federation.toml")
    site = SiteConfig.parse(toml.text({"data": {"input_size": [8]}}), Path("site.toml"))
    addresses = AddressBook(own=SiteName("africa"), federation=federation, site=site)
    addresses.follow_roster({SiteName("mars"): "relay door d:443", SiteName("venus"): None})
    assert [addresses.address(SiteName(name)) for name in ("asia", "europe", "mars")] == ["h:443", "h:443", "d:443"]
    assert (addresses.relay("h:443"), addresses.relay("d:443")) == ("gate", "door")
    assert addresses.address(SiteName("venus")) is None


def test_the_operator_s_word_comes_first_then_announcements_then_the_founder_s(candidates: Candidates) -> None:
    assert candidates.current == "written:1"
    candidates.discover("old:1")
    candidates.discover("new:1")
    assert dialled(candidates, 5) == ["written:1", "new:1", "old:1", "founded:1", "written:1"]


def test_what_works_stays_until_it_fails_twice_and_begins_the_turns_afterwards(candidates: Candidates) -> None:
    candidates.fail("written:1")
    assert candidates.succeed("founded:1")
    assert not candidates.succeed("founded:1"), "that is no news"
    candidates.fail("founded:1")
    assert candidates.current == "founded:1", "one lost beat"
    candidates.succeed("founded:1")
    candidates.fail("founded:1")
    candidates.fail("founded:1")
    assert dialled(candidates, 3) == ["written:1", "founded:1", "written:1"]


def test_the_only_address_is_dialled_again_and_again() -> None:
    candidates = Candidates(founders="founded:1")
    candidates.succeed("founded:1")
    assert dialled(candidates, 4) == ["founded:1"] * 4


def test_an_address_answers_from_its_first_answer_until_it_fails_twice() -> None:
    candidates = Candidates(operators=["written:1"], founders=None)
    answers = [candidates.answers]
    for note in (candidates.succeed, candidates.fail, candidates.fail):
        note("written:1")
        answers.append(candidates.answers)
    assert answers == [False, True, True, False]


def test_an_announcement_moves_nothing_that_works_and_is_next_when_it_fails() -> None:
    candidates = Candidates(founders="founded:1")
    candidates.succeed("founded:1")
    assert not candidates.discover("new:1")
    assert dialled(candidates, 3) == ["founded:1", "founded:1", "new:1"]


def test_an_announcement_is_dialled_next_but_not_in_the_middle_of_a_dial(candidates: Candidates) -> None:
    assert candidates.current == "written:1"
    assert candidates.discover("new:1")
    assert dialled(candidates, 3) == ["written:1", "new:1", "founded:1"]
    assert not candidates.discover("new:1"), "it has its turn already"


def test_a_flood_of_lies_pushes_out_neither_what_worked_nor_what_was_written(candidates: Candidates) -> None:
    candidates.discover("true:1")
    candidates.fail("written:1")
    candidates.succeed("true:1")
    for number in range(1000):
        candidates.discover(f"lie:{number}")
    candidates.fail("true:1")
    candidates.fail("true:1")
    tried = []
    for number in range(3 * DISCOVERED_MAX):
        candidates.discover(f"more:{number}")
        tried += dialled(candidates, 1)
    assert {"true:1", "written:1", "founded:1"} <= set(tried)


def test_a_new_word_of_the_operator_is_tried_at_once_and_what_worked_after_it(candidates: Candidates) -> None:
    candidates.succeed("written:1")
    candidates.set_operators(["moved:1"])
    assert not candidates.succeed("written:1"), "the answer of a dial from before"
    assert dialled(candidates, 3) == ["moved:1", "written:1", "founded:1"]
    candidates.set_operators([])
    assert set(dialled(candidates, 2)) == {"written:1", "founded:1"}


# --- the book of all peers --------------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return path


@pytest.fixture
def addresses(file: Path) -> AddressBook:
    federation = FederationConfig.parse(FEDERATION, "federation.toml")
    return AddressBook(own=SiteName("asia"), federation=federation, site=SiteConfig.load(file))


def test_announcements_count_for_peers_alone(addresses: AddressBook) -> None:
    assert addresses.address(SiteName("africa")) is None
    assert addresses.discover(SiteName("africa"), "10.0.0.2:1")
    assert addresses.address(SiteName("africa")) == "10.0.0.2:1"
    assert not addresses.discover(SiteName("mars"), "10.0.0.3:1")
    assert not addresses.discover(SiteName("asia"), "10.0.0.3:1"), "this site itself"


def test_addresses_that_are_edited_are_taken_over_while_the_daemon_runs(
    addresses: AddressBook, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    addresses.succeed(EUROPE, "10.0.0.1:1")
    addresses.reread()
    assert caplog.messages == ["peer found"], "the file is as it was"
    file.write_text(SITE.replace("10.0.0.1:1", "10.0.0.99:1").replace("[8]", "[9]"))
    addresses.reread()
    assert addresses.address(EUROPE) == "10.0.0.99:1"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("[addresses", "is not TOML"),
        (SITE.replace("10.0.0.1:1", "10.0.0.1"), "addresses.europe"),
        (SITE.replace("europe", "eurpe"), "did you mean 'europe'"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_broken_is_named_once_and_changes_nothing(
    addresses: AddressBook, file: Path, caplog: pytest.LogCaptureFixture, broken: str | None, reason: str
) -> None:
    file.write_text(broken) if broken is not None else file.unlink()
    for _ in range(3):
        addresses.reread()
    (record,) = caplog.records
    assert reason in vars(record)["reason"]
    assert addresses.address(EUROPE) == "10.0.0.1:1"
    file.write_text(SITE.replace("10.0.0.1:1", "10.0.0.99:1"))
    addresses.reread()
    assert addresses.address(EUROPE) == "10.0.0.99:1"


@pytest.mark.parametrize("address", ["relay gate", "oslo", "unix:/tmp/x"])
def test_an_amendments_address_that_cannot_be_dialled_counts_as_none(addresses: AddressBook, address: str) -> None:
    addresses.follow_roster({SiteName("mars"): address})
    assert addresses.known(SiteName("mars")) == ()

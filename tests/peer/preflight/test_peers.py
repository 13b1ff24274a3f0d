"""Both directions: whom this site reaches, and who reaches it; each dead end is named with what to do."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.config.schema import FederationConfig, SiteConfig
from peer.config.site_folder import SiteFolder
from peer.core.roster import SiteName
from peer.demo.local_federation import LocalFederation, free_ports
from peer.preflight.finding import Finding
from peer.preflight.peers import TRIED_MAX, Reach

Look = Callable[..., dict[str, Finding]]
Edit = Callable[[Path, str, str], None]
LIMIT_S = 15.0
EUROPE = SiteName("europe")


def test_a_peer_that_is_down_is_worth_a_warning(look: Look, enrolled: LocalFederation) -> None:
    found = look()
    assert found["europe"].verdict == "warning"
    assert found["europe"].message.startswith(f"nothing answers at {enrolled.federation.addresses[EUROPE]}: ")
    assert "from europe" not in found, "whether it would reach this site nobody can know"
    assert found["address"].verdict == "ok"


def test_a_peer_that_runs_is_asked_calls_back_and_takes_nobody_for_present(
    look: Look, program: Any, enrolled: LocalFederation
) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    found = look()
    assert found["europe"].verdict == "ok"
    where = re.escape(enrolled.federation.addresses[EUROPE])
    assert re.fullmatch(
        rf"answers at {where} as mhfl-peer \S+, same federation, clock [+-]0\.\d s", found["europe"].message
    )
    assert (found["from europe"].verdict, found["from europe"].message) == ("ok", "europe reaches this site")
    status = program.status("europe", "gathering")
    assert status["peers"]["asia"]["state"] == "unknown"
    assert status["refusals"] == []


def test_a_peer_that_does_not_reach_this_site_is_named_with_the_address_that_it_has(
    look: Look, program: Any, enrolled: LocalFederation, folder: SiteFolder, edit: Edit
) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    (other,) = free_ports(1)
    edit(folder.site_toml, r'listen = ".*"', f'listen = "127.0.0.1:{other}"')
    founded = enrolled.federation.addresses[folder.site]
    found = look()
    assert found["europe"].verdict == "ok"
    assert found["from europe"].verdict == "warning"
    assert (
        found["from europe"].message
        == f"europe runs, and does not reach this site at {founded}, as federation.toml says"
    )
    assert f"127.0.0.1:{other}" in found["from europe"].remedy
    assert found["address"].verdict == "warning"
    assert found["address"].remedy.startswith("make the ports equal")


def test_a_daemon_that_runs_is_asked_who_called_it(look: Look, program: Any) -> None:
    for name in ("asia", "europe"):
        program.start(name, "mute")  # or they would have done their rounds, and left
    program.until("asia", lambda status: status["peers"]["europe"]["called_s"] is not None)
    found = look()
    assert (found["europe"].verdict, found["from europe"].verdict, found["address"].verdict) == ("ok", "ok", "ok")


def test_a_peer_of_another_federation_is_named_with_what_differs(
    look: Look, program: Any, folder: SiteFolder, edit: Edit
) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    edit(folder.federation_toml, "rounds = 3", "rounds = 4")
    found = look()["europe"]
    assert found.verdict == "failure"
    assert "federation digest differs: europe has" in found.message
    assert program.status("europe", "gathering")["refusals"] == []


def test_a_port_that_is_no_peer_is_a_failure(
    look: Look, taken: Callable[[str], None], enrolled: LocalFederation
) -> None:
    taken(enrolled.federation.addresses[EUROPE])
    found = look()["europe"]
    assert found.verdict == "failure"
    assert found.message.startswith("not TLS: ")


def test_a_second_address_is_tried_where_the_first_is_dead(look: Look, program: Any, folder: SiteFolder) -> None:
    program.start("europe")
    program.status("europe", "gathering")
    (dead,) = free_ports(1)
    folder.site_toml.write_text(folder.site_toml.read_text() + f'[addresses]\neurope = "127.0.0.1:{dead}"\n')
    assert look()["europe"].verdict == "ok"


def test_a_peer_without_an_address_is_worth_a_warning(look: Look, folder: SiteFolder, edit: Edit) -> None:
    edit(folder.federation_toml, r'name = "europe"\naddress = "[^"]*"', 'name = "europe"')
    found = look()["europe"]
    assert found.verdict == "warning"
    assert "[addresses]" in found.remedy
    assert "[discovery]" in found.remedy


def test_a_port_that_nobody_is_told_is_worth_a_warning(look: Look, folder: SiteFolder, edit: Edit) -> None:
    edit(folder.site_toml, r'listen = ".*"', 'listen = "127.0.0.1:0"')
    found = look()["address"]
    assert found.verdict == "warning"
    assert found.remedy.startswith("set a port in `listen`")


def test_a_site_that_nobody_can_dial_is_told_so(look: Look, folder: SiteFolder, edit: Edit) -> None:
    edit(folder.federation_toml, r'name = "asia"\naddress = "[^"]*"', 'name = "asia"\naddress = "asia.example:7443"')
    found = look()["address"]
    assert found.verdict == "warning"
    assert "no other machine reaches 127.0.0.1" in found.remedy
    assert found.remedy.startswith('set listen = "0.0.0.0:')
    edit(folder.federation_toml, r'name = "asia"\naddress = "[^"]*"', 'name = "asia"')
    found = look()["address"]
    assert "gives this site no address" in found.message
    assert "[addresses]" in found.remedy


@pytest.mark.usefixtures("multicast")
def test_a_peer_is_found_by_discovery_and_finds_this_site_so(
    look: Look, program: Any, enrolled: LocalFederation, edit: Edit
) -> None:
    for name in ("asia", "europe"):
        own = enrolled.folder(name)
        edit(own.site_toml, r'listen = ".*"', 'listen = "127.0.0.1:0"')
        edit(own.site_toml, r"\Z", "[discovery]\nzeroconf = true\n")
        edit(own.federation_toml, r'address = ".*"\n', "")
    program.start("europe")
    program.status("europe", "gathering")
    found = look()
    assert {found[subject].verdict for subject in ("discovery", "europe", "from europe", "address")} == {"ok"}
    assert found["discovery"].message.endswith("found: europe")


async def test_who_announces_ever_new_addresses_does_not_hold_up_the_look(folder: SiteFolder, edit: Edit) -> None:
    edit(folder.federation_toml, r'name = "europe"\naddress = "[^"]*"', 'name = "europe"')
    reach = Reach(
        folder, FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml), folder.site, None
    )

    async def lie() -> None:
        for number in itertools.count(1):
            reach._discover(EUROPE, f"127.0.0.1:{number % 1000 + 1}")
            await asyncio.sleep(0)

    liar = asyncio.create_task(lie())
    try:
        async with asyncio.timeout(LIMIT_S):
            found = await reach.look(listening=False)
    finally:
        liar.cancel()
    assert (found[0].subject, found[0].verdict) == ("europe", "warning")
    assert f"at {TRIED_MAX - 1} other addresses neither" in found[0].message

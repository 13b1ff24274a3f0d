"""A site that nobody can dial takes part through a real relay, which is killed on the way."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes.cli import run_json
from fakes.relay_process import RelayProcess, make_relay
from peer.lab.demo.local_federation import LocalFederation, free_ports
from peer.site.config.site_folder import write_atomically

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROUNDS = 12
"""So many are not over before the relay is killed."""


@pytest.fixture
def relayed(found: Callable[..., LocalFederation]) -> Iterator[tuple[LocalFederation, RelayProcess]]:
    """A federation in which asia listens where nobody looks, and parks at the relay."""
    loopback = found(rounds=ROUNDS, steps=3)
    (port,) = free_ports(1)
    made = loopback.home.parent
    folder = make_relay(made / "ca", made / "gate", listen=f"127.0.0.1:{port}")
    for name in loopback.federation.roster:
        path = loopback.folder(name).site_toml
        text = path.read_text()
        if name == "asia":
            text = re.sub(r'listen = "[^"]*"', 'listen = "127.0.0.1:0"', text)
            text += f'\n[connect]\nrelays = ["gate 127.0.0.1:{port}"]\n'
        else:
            text += f'\n[addresses]\nasia = ["127.0.0.1:1", "relay gate 127.0.0.1:{port}"]\n'
        write_atomically(path, text.encode())
    relay = RelayProcess(folder)
    yield loopback, relay
    assert relay.stop() == 0, relay.console


def test_every_round_is_whole_although_the_relay_is_killed(
    relayed: tuple[LocalFederation, RelayProcess], tools: Any
) -> None:
    loopback, relay = relayed
    with loopback:
        tools.start(loopback, loopback.federation.roster)
        tools.wait_until(lambda: loopback.show("asia", "status")["committed"] >= 1)
        (held,) = loopback.show("asia", "status")["relays"]
        assert (held["name"], held["problem"]) == ("gate", "")
        checked = run_json("relay", "check", "--folder", relay.folder.path)
        assert checked["answers"] == [relay.folder.load()[0].listen]
        tools.wait_until(lambda: loopback.show("europe", "status")["peers"]["asia"]["route"] == "relay gate")
        relay.kill()
        relay.start_again()
        tools.finish_well(loopback)
    assert [row["round"] for row in tools.records(loopback, "asia")] == list(range(1, ROUNDS + 1))

    def carried() -> Any:
        traffic = relay.folder.status()["sites"]["asia"]
        return traffic["carried_connections"] + traffic["carrying"] > 0

    tools.wait_until(carried)  # the relay writes its status every 2 s
    first = [tools.records(loopback, name)[0] for name in ("africa", "europe")]
    assert not any("asia" in row["missing"] for row in first)
    assert relay.console.count("relaying") == 2

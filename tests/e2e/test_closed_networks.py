"""Four sites in networks of their own, two of which can only dial out: africa to port 443, and asia to
its hospital's squid. A relay joins the others to them.

The daemons, the relay, squid and the firewalls are real; the training is not.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import capture, namespaces, squid
from fakes.cli import ROOT
from fakes.drafts import DERANGEMENT, draft
from fakes.relay_process import RelayProcess, make_relay
from fakes.squid import PROXY_PORT, Squid
from fakes.still import StillProcess
from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config import toml
from peer.site.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SITES = ("africa", "america", "asia", "europe")
CLOSED = ("africa", "asia")
MEGABYTES = 8
SLOW, GATE_MEGABITS, SLOW_MEGABITS = "america", 40, 10
LIMIT_S = 90.0
PACE = {"beat_s": 0.5, "silence_s": 60}


class ClosedNetwork:
    """The sites, their firewalls, and the relay's folder; processes that are begun end with ``stack``."""

    def __init__(self, folder: Path, hosts: namespaces.Hosts, stack: contextlib.ExitStack) -> None:
        self.folder, self.hosts, self._stack = folder, hosts, stack
        self.gate = f"{hosts.address['gate']}:443"
        self.proxy = f"{hosts.address['proxy']}:{PROXY_PORT}"
        addresses = {
            name: f"relay gate {self.gate}" if name in CLOSED else f"{hosts.address[name]}:443" for name in SITES
        }
        texts = {name: self._site_toml(name) for name in SITES}
        self.sites = LocalFederation.create(
            folder, draft("closed", rounds=9, schedule=DERANGEMENT, pace=PACE), texts, addresses=addresses
        )
        self.relay_folder = make_relay(folder / "ca", folder / "gate", listen="0.0.0.0:443")
        hosts.let_only_out("africa", port=443)
        hosts.let_only_out("asia", port=PROXY_PORT, to="proxy")

    def _site_toml(self, name: str) -> str:
        tables: dict[str, Any] = {"data": {"input_size": [8]}}
        if name in CLOSED:
            tables = {"listen": "127.0.0.1:7443", **tables, "connect": {"relays": [f"gate {self.gate}"]}}
        if name == "asia":
            tables["connect"]["proxy"] = f"http://{self.proxy}"
        return toml.text(tables)

    def squid(self, **options: Any) -> Squid:
        return self._stack.enter_context(Squid(self.hosts.inside("proxy"), self.hosts.address["proxy"], **options))

    def relay(self) -> RelayProcess:
        relay = RelayProcess(self.relay_folder, self.hosts.inside("gate"))
        self._stack.callback(relay.kill)
        return relay

    def start(self, name: str, megabytes: int = 1) -> StillProcess:
        site = StillProcess(self.sites, name, megabytes, self.hosts.inside(name))
        self._stack.callback(site.end)
        return site

    def status(self, name: str) -> Any:
        return self.sites.show(name, "status")

    def check(self, name: str) -> dict[str, dict[str, str]]:
        """The findings of `mhfl-peer check` on a site's host."""
        words = ["--home", self.sites.home, "check", "--site", name, "--fast", "--json"]
        command = self.hosts.inside(name, sys.executable, "-m", "peer.cli", *words)
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        return {finding["subject"]: finding for finding in json.loads(finished.stdout)["findings"]}

    @contextlib.contextmanager
    def captured(self) -> Iterator[Path]:
        """A capture of all that passes the relay's host."""
        path = self.folder / "frames"
        command = self.hosts.inside("gate", sys.executable, capture.__file__, "eth0", path)
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"capturing\n"
            yield path
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()

    def transfers(self, name: str) -> list[dict[str, Any]]:
        """The site's ledger."""
        ledger = Ledger(self.sites.folder(name).egress_db, read_only=True)
        try:
            return ledger.transfers()
        finally:
            ledger.close()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[ClosedNetwork]:
    if reason := namespaces.missing() or squid.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield ClosedNetwork(tmp_path, stack.enter_context(namespaces.hosts(*SITES, "gate", "proxy")), stack)


def receiving(closed: ClosedNetwork, receivers: tuple[str, ...], senders: tuple[str, ...]) -> dict[str, Any] | None:
    """A transfer under way, if there is one of these."""
    for name in receivers:
        for transfer in closed.status(name)["transfers"]:
            under_way = transfer["direction"] == "in" and 0 < transfer["received"] < transfer["bytes"]
            if under_way and transfer["peer"] in senders:
                return {**transfer, "receiver": name}
    return None


def test_rounds_are_whole_with_two_sites_that_nobody_can_dial(closed: ClosedNetwork, tools: Any) -> None:
    closed.hosts.slow_down("gate", GATE_MEGABITS)
    closed.hosts.slow_down(SLOW, SLOW_MEGABITS)
    proxy, relay = closed.squid(), closed.relay()
    sites = {name: closed.start(name, MEGABYTES) for name in SITES}

    def next_round(number: int) -> None:
        """Every site has the artifact of another one for the round."""
        for name in SITES:
            line = sites[name].hear(f"ordered {number}", limit_s=LIMIT_S)
            assert len(line.split()) == 3, f"{name} goes on alone: {line}"
            sites[name].hear("ready", limit_s=LIMIT_S)

    for site in sites.values():
        site.hear("ready", limit_s=LIMIT_S)
    check_routes(closed)
    artifacts = [path for name in CLOSED for path in closed.sites.folder(name).path.rglob("*.safetensors")]
    secrets = [sample for path in artifacts for sample in _samples(path)]
    assert secrets
    with closed.captured() as frames:
        # A relay that dies while it carries an artifact.
        for site in sites.values():
            site.release()
        tools.wait_until(lambda: receiving(closed, SITES, CLOSED), limit_s=LIMIT_S, what="nothing passed the relay")
        relay.kill()
        relay.start_again()
        next_round(2)
    broken = [row for name in CLOSED for row in closed.transfers(name) if row["outcome"] == "broken"]
    assert broken, "the relay was killed when nothing was under way"

    for site in sites.values():
        site.release()
    check_heartbeats(closed, tools)
    next_round(3)

    for name in SITES:
        rows = tools.records(closed.sites, name)
        assert [row["round"] for row in rows] == [1, 2]
        assert [row["missing"] for row in rows] == [{}, {}]
        assert closed.status(name)["refusals"] == []
    _assert_only_tls(closed, capture.Capture.read(frames), secrets)
    assert relay.stop() == 0
    for site in sites.values():
        site.end()
    wanted = {f"CONNECT {closed.hosts.address[name]}:443" for name in ("america", "europe", "gate")}

    def asked() -> set[str]:
        """What the proxy was asked for; squid writes it down when a connection has ended."""
        asked = {" ".join(line.split()[5:7]) for line in proxy.read("access.log").splitlines()}
        return {each for each in asked if not each.startswith("- error:")}  # a caller that ended before it had asked

    tools.wait_until(lambda: asked() >= wanted, limit_s=LIMIT_S, what=asked)
    assert asked() == wanted


def check_routes(closed: ClosedNetwork) -> None:
    """Nobody dials a closed site; each uses its relay or its proxy."""
    for name in CLOSED:
        assert not closed.hosts.reaches("europe", name, 7443)
    assert not closed.hosts.reaches("asia", "gate", 443)
    assert not closed.hosts.reaches("africa", "proxy", PROXY_PORT)
    routes = {
        (name, other): closed.status(name)["peers"][other]["route"]
        for name in ("america", "asia")
        for other in SITES
        if other != name
    }
    through = f"proxy {closed.proxy}"
    assert routes == {
        ("america", "africa"): "relay gate", ("america", "asia"): "relay gate", ("america", "europe"): "direct",
        ("asia", "africa"): f"{through}, relay gate", ("asia", "america"): through, ("asia", "europe"): through,
    }  # fmt: skip


def check_heartbeats(closed: ClosedNetwork, tools: Any) -> None:
    """Heartbeats of the slow site pass beside an artifact on its line."""
    samples: list[dict[str, Any]] = []

    def sample() -> bool:
        status = closed.status(SLOW)
        moving = [each for each in status["transfers"] if each["direction"] == "in" and each.get("received", 0) > 0]
        if moving:
            samples.append(status["peers"][moving[0]["peer"]])
        return bool(samples) and not moving

    tools.wait_until(sample, limit_s=LIMIT_S, what="the slow site received nothing")
    assert {peer["state"] for peer in samples} == {"heard"}
    answered = [peer for peer in samples if not peer["problem"]]
    assert len(answered) > len(samples) / 2, samples[-1]["problem"]
    assert samples[-1]["spoken"]["messages"] >= samples[0]["spoken"]["messages"] + 3


def _samples(path: Path) -> list[bytes]:
    """Pieces of an artifact, whose first megabyte occurs again and again."""
    content = path.read_bytes()
    return [content[offset : offset + 24] for offset in range(200, 1 << 20, 1 << 16)]


def _assert_only_tls(closed: ClosedNetwork, seen: capture.Capture, secrets: list[bytes]) -> None:
    """What passed the relay's host is TLS to its one port, and none of it can be read there."""
    carried = 0
    for stream, content in seen.streams.items():
        assert 443 in (stream[1], stream[3])
        carried += sum(len(text) for kind, text in capture.records(content) if kind == 23)
    assert carried > MEGABYTES << 20
    assert seen.others == 0
    assert seen.holds(b"africa"), "the name that a caller asks for is in its first message"
    federation = closed.sites.federation
    for secret in (b"mhfl.v1", b'"dtype"', bytes.fromhex(federation.digest), federation.digest.encode(), *secrets):
        assert not seen.holds(secret)


def test_a_proxy_that_wants_a_password_is_named_until_it_has_it(closed: ClosedNetwork, tools: Any) -> None:
    closed.squid(login="asia:s3cret")
    closed.relay()
    closed.start("america")
    asia = closed.start("asia")
    wanted = f"the proxy {closed.proxy} wants a user and a password; write user:password into a file"
    assert _named(closed, tools, "asia", wanted) == {"relay gate": "warning", "america": "failure"}
    asia.end()

    path = closed.sites.folder("asia").site_toml
    secret = path.with_name("proxy-password")
    secret.touch(mode=0o600)
    secret.write_text("asia:wrong\n")
    path.write_text(path.read_text().replace("[connect]", '[connect]\npassword_file = "proxy-password"'))
    asia = closed.start("asia")
    wanted = f"the proxy {closed.proxy} wants another user and password; correct the file of [connect] password_file"
    assert _named(closed, tools, "asia", wanted) == {"relay gate": "warning", "america": "failure"}
    asia.end()

    secret.write_text("asia:s3cret\n")
    asia = closed.start("asia")
    tools.wait_until(lambda: closed.status("asia")["peers"]["america"]["state"] == "heard", limit_s=LIMIT_S)
    tools.wait_until(lambda: closed.status("asia")["relays"][0]["parked"] > 0, limit_s=LIMIT_S)
    tools.wait_until(lambda: closed.status("america")["peers"]["asia"]["problem"] == "", limit_s=LIMIT_S)
    findings = closed.check("asia")
    assert (findings["relay gate"]["verdict"], findings["america"]["verdict"]) == ("ok", "ok")
    assert f"(proxy {closed.proxy})" in findings["america"]["message"]


def test_a_proxy_that_opens_the_tls_is_named_and_gets_nothing(closed: ClosedNetwork, tools: Any) -> None:
    if reason := squid.cannot_open_tls():
        pytest.skip(reason)
    closed.squid(opens_tls=True)
    closed.relay()
    closed.start("america")
    closed.start("asia")
    exempt = f"have the operator of the proxy {closed.proxy} exempt"
    assert _named(closed, tools, "asia", exempt) == {"relay gate": "warning", "america": "failure"}
    assert re.search(
        r"not from this federation's CA, but from .*inspection", closed.check("asia")["america"]["message"]
    )
    assert closed.status("america")["peers"]["asia"]["called_s"] is None


def test_a_relay_that_is_down_or_refuses_is_named(closed: ClosedNetwork, tools: Any) -> None:
    closed.squid()
    down = closed.check("africa")["relay gate"]
    assert (down["verdict"], down["remedy"]) == ("warning", "compare name and address, or wait")
    assert down["message"].startswith(f"nothing can be parked at {closed.gate}: ")
    text = closed.relay_folder.relay_toml.read_text()
    closed.relay_folder.relay_toml.write_text(f'{text}sites = ["asia"]\n')
    closed.relay()
    closed.start("africa")
    closed.start("america")
    refused = "refuses this site: africa is not among the sites of gate; settle it with the relay's operator"
    tools.wait_until(lambda: closed.status("africa")["relays"][0]["problem"] == refused, limit_s=LIMIT_S)
    assert closed.check("africa")["relay gate"]["verdict"] == "failure"
    unknown = f"the relay at {closed.gate} does not know africa; correct the address of africa, or have"
    tools.wait_until(
        lambda: closed.status("america")["peers"]["africa"]["problem"].startswith(unknown), limit_s=LIMIT_S
    )
    assert closed.check("america")["africa"]["verdict"] == "failure"
    absent = f"the relay at {closed.gate} has no connection of asia parked; start asia"
    tools.wait_until(lambda: closed.status("america")["peers"]["asia"]["problem"].startswith(absent), limit_s=LIMIT_S)
    assert closed.check("america")["asia"]["verdict"] == "warning"
    for name in ("africa", "america"):
        assert closed.status(name)["refusals"] == []


def _named(closed: ClosedNetwork, tools: Any, name: str, text: str) -> dict[str, str]:
    """The verdicts of `check`, after the daemon has said the same of the peer and of the relay, and changed nothing."""

    def problems() -> list[str]:
        status = closed.status(name)
        return [status["peers"]["america"]["problem"], *(relay["problem"] for relay in status["relays"])]

    tools.wait_until(lambda: all(text in problem for problem in problems()), limit_s=LIMIT_S, what=problems)
    status = closed.status(name)
    assert status["refusals"] == []
    assert status["committed"] == 0
    kinds = {kind for kind, _, _ in tools.rows(closed.sites, SiteName(name))}
    assert not kinds & {"refused", "isolated", "committed"}
    findings = closed.check(name)
    for subject in ("relay gate", "america"):
        assert text in f"{findings[subject]['message']}; {findings[subject]['remedy']}"
    return {subject: findings[subject]["verdict"] for subject in ("relay gate", "america")}

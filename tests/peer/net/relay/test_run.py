"""A relay that runs follows its files; files that become bad change nothing until they are mended."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fakes.cli import run_json
from fakes.governed import GovernedFederation
from fakes.relay_process import make_relay
from peer.core.roster import SiteName
from peer.net.relay import run
from peer.site.identity import certificates

LIMIT_S = 20.0
UNUSABLE = "files cannot be used; the former ones still count"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> GovernedFederation:
    return GovernedFederation.create(tmp_path_factory.mktemp("template"), "asia", "europe")


class Relay:
    """A relay of a federation that the founder amends; it runs in this process."""

    def __init__(self, federation: GovernedFederation, folder: Path) -> None:
        self.federation = federation
        self.folder = make_relay(federation.ca, folder, listen="127.0.0.1:0")
        self.chain_json = self.folder.path / "membership" / "chain.json"

    def chain(self, *changes: object) -> bytes:
        """The chain after another amendment of the founder."""
        file, words = self.folder.path.parent / "chain.json", ("--home", self.federation.home, "federation")
        run_json(*words, "amend", "--yes", "--ca", self.federation.ca, "--site", "asia", *changes)
        run_json(*words, "show", "--site", "asia", "--chain", file)
        return file.read_bytes()

    def chain_with(self, name: str) -> bytes:
        """The chain after an amendment that adds a site."""
        request = self.folder.path.parent / f"{name}.csr"
        request.write_bytes(certificates.signing_request(certificates.new_key(), SiteName(name)))
        return self.chain("--add", name, "--request", request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        serving = asyncio.create_task(run._serve(self.folder))
        try:
            await self.until(lambda: bool(self.folder.status()), serving)
            yield
            assert not serving.done(), serving.exception()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], serving: asyncio.Task[None] | None = None) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(LIMIT_S):
            while not holds() and (serving is None or not serving.done()):  # noqa: ASYNC110 - files tell no event
                await asyncio.sleep(0.01)

    async def until_serves(self, *sites: str) -> None:
        await self.until(lambda: sorted(self.folder.status().get("sites", ())) == sorted(sites))


@pytest.fixture
def relay(template: GovernedFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relay:
    monkeypatch.setattr(run, "STATUS_S", 0.02)
    return Relay(template.copy(tmp_path), tmp_path / "gate")


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.reason for record in caplog.records if record.message == UNUSABLE]


def spoil(path: Path, way: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if way == "half":
        path.write_bytes(content[: len(content) // 2])
    elif way == "folder":
        path.mkdir()
    elif way == "binary":
        path.write_bytes(b"\xff\x00")


@pytest.mark.parametrize("name", ["relay.toml", "federation.toml", "cert.pem", "site.key", "membership/chain.json"])
async def test_a_file_that_becomes_bad_changes_nothing_until_it_is_mended(
    relay: Relay, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO)
    relay.folder.amend(relay.chain("--rounds", "150"))
    with relay.folder.relay_toml.open("a") as file:
        file.write('sites = ["asia", "europe"]\n')
    path = relay.folder.path / name
    kept, mode = path.read_bytes(), path.stat().st_mode & 0o777
    async with relay.running():
        await relay.until_serves("asia", "europe")
        for way in ("half", "binary", "folder", "missing"):
            caplog.clear()
            spoil(path, way)
            await relay.until(lambda: bool(problems(caplog)))
            written = relay.folder.status()["at"]
            await relay.until(lambda written=written: relay.folder.status()["at"] > written + 5 * run.STATUS_S)
            assert len(set(problems(caplog))) == len(problems(caplog)) <= 2, "half of spoiling may be seen, too"
            assert sorted(relay.folder.status()["sites"]) == ["asia", "europe"]
            if way == "folder":
                path.rmdir()
            path.write_bytes(kept)
            path.chmod(mode)
            await relay.until(lambda: "files can be used again" in caplog.messages)
        relay.folder.relay_toml.write_text('name = "gate"\nlisten = "127.0.0.1:0"\nsites = ["europe"]\n')
        await relay.until_serves("europe")


async def test_a_relay_that_runs_follows_the_chain_and_goes_not_back(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    relay.folder.amend(relay.chain("--expel", "europe"))
    async with relay.running():
        await relay.until_serves("asia")
        expelled = relay.chain_json.read_bytes()
        relay.chain_json.write_text(json.dumps({**json.loads(expelled), "amendments": []}))
        await relay.until(lambda: bool(problems(caplog)))
        assert "has no amendment 1" in problems(caplog)[0]
        await relay.until_serves("asia")
        relay.folder.federation_toml.write_text(
            relay.folder.federation_toml.read_text().replace('name = "trial"', 'name = "another"')
        )
        relay.chain_json.write_bytes(expelled)
        await relay.until(lambda: len(problems(caplog)) == 2)


async def test_a_newcomer_that_relay_toml_names_beforehand_is_served_once_the_chain_has_it(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    with relay.folder.relay_toml.open("a") as file:
        file.write('sites = ["europe", "oslo"]\n')
    async with relay.running():
        await relay.until_serves("europe")
        assert relay.folder.status()["unknown"] == ["oslo"]
        assert [record.sites for record in caplog.records] == [["oslo"]]
        relay.folder.amend(relay.chain_with("oslo"))
        await relay.until_serves("europe", "oslo")
        assert relay.folder.status()["unknown"] == []
        assert len(caplog.records) == 1


async def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(relay: Relay) -> None:
    files = run.FollowedFiles(relay.folder)
    context = files.setting.context
    assert not files.reread()
    relay.folder.certificate.write_bytes(b"no certificate")
    assert not files.reread()
    assert files.setting.context is context
    make_relay(relay.federation.ca, relay.folder.path, listen="127.0.0.1:0")
    assert files.reread()
    assert files.setting.context is not context

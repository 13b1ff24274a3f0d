"""Which proxy is dialled for whom, what it sees, and what the check says of one that does not help."""

import asyncio
import contextlib
import os
import re
import socket
import threading

import pytest

from fakes.http_proxy import HttpProxy
from peer.core.messages import Heartbeat
from peer.daemon.proxies import choice
from peer.errors import ConfigError
from peer.net.transport.client import Unreachable
from peer.net.transport.handshake import Fault, diagnose
from peer.net.transport.proxy import Proxy
from peer.site.config.schema import SiteConfig
from peer.site.identity import certificates

PULSE = Heartbeat(1, 3, "train", 0.5, 3, 2)
LOGIN = "dr. who:p@ss:w/rd%"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Writes site.toml with this table ``[connect]``; no proxy is in the environment."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)

    def write(connect, login=LOGIN, mode=0o600):
        path = tmp_path / "site.toml"
        path.write_text(f"[data]\ninput_size = [8]\n[connect]\n{connect}\n")
        (tmp_path / "login").write_text(login)
        (tmp_path / "login").chmod(mode)
        return SiteConfig.load(path)

    return write


async def test_calls_pass_through_the_proxy_with_its_password(network, europe, site):
    async with HttpProxy(LOGIN).serving() as proxy:
        config = site(f'proxy = "http://127.0.0.1:{proxy.port}"\npassword_file = "login"')
        assert await network.dial("africa", proxy_for=choice(config)).beat(europe.name, PULSE) == PULSE
        assert proxy.targets == [f"127.0.0.1:{europe.port}"]
        proxy.login = "another"
        with pytest.raises(Unreachable):
            await network.dial("asia", proxy_for=choice(config)).beat(europe.name, PULSE)


async def test_a_single_peer_has_its_own_way(network, europe, site):
    async with HttpProxy().serving() as proxy:
        config = site(f'proxy = "http://127.0.0.1:{proxy.port}"\npeers.europe = "none"')
        await network.dial("africa", proxy_for=choice(config)).beat(europe.name, PULSE)
        assert proxy.targets == []


async def test_a_proxy_of_the_environment_is_not_obeyed_unasked(network, europe, site, monkeypatch):
    async with HttpProxy().serving() as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        await network.dial("africa", proxy_for=choice(site(""))).beat(europe.name, PULSE)
        assert proxy.targets == []
        assert not {"https_proxy", "ALL_PROXY"} & os.environ.keys()


async def test_the_environment_s_proxy_and_its_exceptions_hold_where_asked_for(network, europe, site, monkeypatch):
    async with HttpProxy("me:it").serving() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:it@127.0.0.1:{proxy.port}/")
        monkeypatch.setenv("no_proxy", "asia.example, .internal")
        choose = choice(site('proxy = "environment"'))
        await network.dial("africa", proxy_for=choose).beat(europe.name, PULSE)
        assert proxy.targets == [f"127.0.0.1:{europe.port}"]
        assert choose("asia", "asia.example:443") is None
        assert choose("asia", "gate.internal:443") is None
        assert choose("asia", "asia.example.org:443") == Proxy("127.0.0.1", proxy.port, "me:it")


async def test_a_named_proxy_holds_against_the_environment_s_exceptions(network, europe, site, monkeypatch):
    async with HttpProxy().serving() as proxy:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        config = site(f'proxy = "http://127.0.0.1:{proxy.port}"')
        await network.dial("africa", proxy_for=choice(config)).beat(europe.name, PULSE)
        assert proxy.targets == [f"127.0.0.1:{europe.port}"]


@pytest.mark.parametrize(
    ("connect", "reason"),
    [
        ('proxy = "squid:3128"', r"connect\.proxy.*not http://host:port"),
        ('proxy = "https://squid:3128"', r"connect\.proxy.*not http://host:port"),
        ('proxy = "http://me:it@squid:3128"', r"connect\.proxy.*password_file"),
        ('peers.europe = "squid"', r"connect\.peers\.europe.*not http://host:port"),
    ],
)
def test_a_proxy_that_is_none_is_named(site, connect, reason):
    with pytest.raises(ConfigError, match=reason):
        site(connect)


@pytest.mark.parametrize(
    ("login", "mode", "reason"),
    [(LOGIN, 0o644, "chmod 600"), ("me", 0o600, "user:password"), ("me:it\nyou:it", 0o600, "user:password")],
)
def test_a_password_s_file_is_private_and_whole(site, login, mode, reason):
    config = site('proxy = "http://squid:3128"\npassword_file = "login"', login, mode)
    with pytest.raises(ConfigError, match=rf"password_file.*{reason}"):
        choice(config)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://me:secret@squid:port", "of the environment is no address"),
        ("http://me:secret@[squid:3128", "of the environment is no address"),
        ("me:secret@squid:99999", "of the environment is no address"),
        ("socks5://127.0.0.1:1080", r"socks5://127\.0\.0\.1 of the environment is no HTTP proxy"),
    ],
)
def test_a_proxy_of_the_environment_that_cannot_be_used_is_named_without_its_password(site, monkeypatch, url, reason):
    monkeypatch.setenv("https_proxy", url)
    with pytest.raises(ConfigError, match=reason) as raised:
        choice(site('proxy = "environment"'))
    assert "secret" not in str(raised.value)


def test_a_proxy_that_answers_a_byte_now_and_then_holds_nobody():
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 ")
            while not stopped.wait(0.05):
                connection.sendall(b"x")

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        with pytest.raises(TimeoutError):
            Proxy("127.0.0.1", listener.getsockname()[1]).connect("europe", 443, timeout_s=0.5)
    finally:
        stopped.set()
        answering.join()
        listener.close()


async def test_a_proxy_that_hesitates_within_the_limit_is_heard_out(network, europe):
    async with HttpProxy(hesitates_s=0.05).serving() as proxy:
        way = Proxy("127.0.0.1", proxy.port)
        with await asyncio.to_thread(way.connect, "127.0.0.1", europe.port, timeout_s=30.0):
            assert proxy.targets == [f"127.0.0.1:{europe.port}"]


async def diagnosed(authority, port, proxy):
    return await asyncio.to_thread(
        diagnose, "127.0.0.1", port, pki=authority.admit("africa"), site="europe", timeout_s=5.0, proxy=proxy
    )


async def test_a_peer_behind_a_proxy_is_well(network, europe):
    async with HttpProxy(LOGIN).serving() as proxy:
        diagnosis = await diagnosed(network.authority, europe.port, Proxy("127.0.0.1", proxy.port, LOGIN))
    assert diagnosis.fault is Fault.NONE


@pytest.mark.parametrize(
    ("served", "login", "reason", "remedy"),
    [
        (HttpProxy("me:it"), "", "wants a user and a password", "name it as [connect] password_file"),
        (HttpProxy("me:it"), "me:him", "wants another user and password", "correct the file of [connect] password"),
        (HttpProxy(answer=b"HTTP/1.1 403 No\r\n\r\n"), "", r"refuses 127\.0\.0\.1:9: 403 No", "allow CONNECT to 127"),
        (HttpProxy(answer=b"220 mail.example ESMTP\r\n\r\n"), "", "answers no HTTP", "correct [connect] proxy"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_says_why(authority, served, login, reason, remedy):
    async with served.serving() as proxy:
        diagnosis = await diagnosed(authority, 9, Proxy("127.0.0.1", proxy.port, login))
    assert diagnosis.fault is Fault.PROXY
    assert "him" not in diagnosis.detail
    assert re.search(reason, diagnosis.detail), diagnosis.detail
    assert remedy in diagnosis.remedy


async def test_a_peer_that_is_down_behind_a_proxy_is_not_the_proxy_s_fault(authority):
    async with HttpProxy(answer=b"HTTP/1.1 503 Service Unavailable\r\n\r\n").serving() as proxy:
        diagnosis = await diagnosed(authority, 9, Proxy("127.0.0.1", proxy.port))
    assert diagnosis.fault is Fault.UNREACHABLE
    assert diagnosis.detail == f"the proxy 127.0.0.1:{proxy.port} does not reach 127.0.0.1:9: 503 Service Unavailable"
    assert diagnosis.remedy.startswith("start that site, or the relay there; or correct its address")


async def test_a_proxy_that_is_down_is_named(authority):
    async with HttpProxy().serving() as proxy:
        pass
    diagnosis = await diagnosed(authority, 9, Proxy("127.0.0.1", proxy.port))
    assert diagnosis.fault is Fault.UNREACHABLE
    assert f"nothing answers at the proxy 127.0.0.1:{proxy.port}" in diagnosis.detail
    assert diagnosis.remedy.startswith("correct [connect] proxy")


async def test_a_proxy_that_opens_the_tls_is_named_by_its_issuer(network, europe, foreign_authority):
    squid = await network.serve("asia", pki=foreign_authority.admit("europe"))
    async with HttpProxy(instead=squid.port).serving() as proxy:
        diagnosis = await diagnosed(network.authority, europe.port, Proxy("127.0.0.1", proxy.port))
    assert diagnosis.fault is Fault.FOREIGN_CA
    issuer = certificates.new_authority("test", now=foreign_authority.certificate.not_valid_before_utc)[1].subject
    assert f"but from {issuer.rfc4514_string()}" in diagnosis.detail
    assert "must let this connection through unopened" in diagnosis.detail
    assert (
        diagnosis.remedy == f"have the operator of the proxy 127.0.0.1:{proxy.port} exempt this address from inspection"
    )

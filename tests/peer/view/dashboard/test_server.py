"""The dashboard's server: who has the link reads one page, and nobody else reads anything."""

import http.client
import threading
from collections.abc import Iterator

import pytest

from peer.errors import PortInUse
from peer.lab.demo.local_federation import LocalFederation
from peer.view.dashboard.server import DashboardServer

LIMIT_S = 30.0


@pytest.fixture
def server(enrolled: LocalFederation) -> Iterator[DashboardServer]:
    server = DashboardServer([enrolled.folder("asia"), enrolled.folder("europe")])
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.stop()
    thread.join(LIMIT_S)


def ask(
    server: DashboardServer, path: str | None = None, *, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    own_path = f"/{server.link.split('/')[3]}/"
    connection.putrequest(method, own_path if path is None else path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_link_leads_to_the_page_which_nothing_may_keep_or_frame(server: DashboardServer) -> None:
    answer, page = ask(server)
    assert answer.status == 200
    assert "trial" in page
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("; frame-ancestors 'none'")
    assert "unsafe" not in policy
    assert "Set-Cookie" not in answer.headers
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert server._server.server_address[0] == "127.0.0.1"
    assert ask(server, host=f"localhost:{server.port}")[0].status == 200
    head, body = ask(server, method="HEAD")
    assert (head.status, body) == (200, "")


@pytest.mark.parametrize("path", ["/", "/x/", "/favicon.ico", "//", "/%00/", "*"])
def test_without_the_token_there_is_no_page(server: DashboardServer, path: str) -> None:
    answer, body = ask(server, path)
    assert (answer.status, "trial" in body) == (403, False)


def test_the_token_is_new_at_each_start_and_long(enrolled: LocalFederation) -> None:
    links = set()
    for _ in range(3):
        server = DashboardServer([enrolled.folder("asia")])
        links.add(server.link.split("/")[3])
        server._server.server_close()
    assert len(links) == 3
    assert all(len(token) >= 32 for token in links)


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:{port},evil"])
def test_a_name_that_was_bound_to_loopback_leads_nowhere(server: DashboardServer, host: str) -> None:
    answer, body = ask(server, host=host.format(port=server.port))
    assert (answer.status, "trial" in body) == (403, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_page_can_only_be_read(server: DashboardServer, method: str) -> None:
    assert ask(server, method=method)[0].status == 405


def test_a_port_in_use_is_named(server: DashboardServer, enrolled: LocalFederation) -> None:
    with pytest.raises(PortInUse, match=rf"--port {server.port}"):
        DashboardServer([enrolled.folder("asia")], port=server.port)


def test_files_that_cannot_be_read_are_a_page_that_says_so(server: DashboardServer, enrolled: LocalFederation) -> None:
    for name in ("asia", "europe"):
        enrolled.folder(name).federation_toml.write_text("nonsense")
    answer, body = ask(server)
    assert answer.status == 503
    assert "federation.toml" in body
    assert "<main>" in body

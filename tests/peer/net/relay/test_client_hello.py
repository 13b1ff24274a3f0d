"""What a relay reads of a caller's first message."""

import contextlib
import ssl

import hypothesis
import pytest
from hypothesis import strategies as st

from peer.net.relay.client_hello import ClientHello, parse_client_hello, record_bytes


def client_hello(name: str | None, *protocols: str) -> bytes:
    """The first message that OpenSSL sends for this name."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def test_name_and_protocols_are_those_of_the_caller():
    assert parse_client_hello(client_hello("europe", "h2")) == ClientHello("europe", ("h2",))
    assert parse_client_hello(client_hello("gate", "mhfl-park/1", "h2")).protocols == ("mhfl-park/1", "h2")
    assert parse_client_hello(client_hello("europe")).protocols == ()


def test_a_caller_that_names_nobody_is_refused():
    with pytest.raises(ValueError, match="no server name"):
        parse_client_hello(client_hello(None, "h2"))


def test_names_of_other_bytes_are_no_reasons_of_their_own():
    message = client_hello("europe", "h2").replace(b"europe", b"eur\xffpe").replace(b"\x02h2", b"\x02\xfe2")
    assert parse_client_hello(message) == ClientHello("eur\ufffdpe", ("\ufffd2",))


def test_the_record_s_length_is_known_from_its_header():
    message = client_hello("europe", "h2")
    assert record_bytes(message[:5]) == len(message)
    for header in (b"GET /", b"\x17\x03\x03\x00\x10", b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x40\x01"):
        with pytest.raises(ValueError, match="no TLS handshake"):
            record_bytes(header)


@hypothesis.given(st.data())
def test_what_is_cut_short_or_changed_ends_in_a_value_error_alone(data: st.DataObject):
    message = bytearray(client_hello("europe", "h2"))
    for _ in range(data.draw(st.integers(1, 8))):
        message[data.draw(st.integers(5, len(message) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(message[: data.draw(st.integers(5, len(message)))])
    with contextlib.suppress(ValueError):
        assert parse_client_hello(content).server_name

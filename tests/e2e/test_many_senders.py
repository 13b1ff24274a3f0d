"""A daemon that receives from 31 peers at once, each of which sends the largest chunks, stays small."""

from pathlib import Path

import pytest

from fakes.many_senders import PEERS, receive

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(400)]

MEMORY_MB_MAX = 120.0


def test_the_memory_of_a_daemon_does_not_grow_with_the_peers_that_send_at_once(tmp_path: Path) -> None:
    figures = receive(tmp_path, 20)
    assert figures["sources"] == PEERS
    assert figures["peak_mb"] < MEMORY_MB_MAX

"""A daemon that receives from 31 peers at once, each of which sends the largest chunks, gets them all.

``make bench`` compares its peak memory with the promise.
"""

from pathlib import Path

import pytest

from fakes.many_senders import PEERS, receive

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_a_daemon_receives_from_many_peers_that_send_at_once(tmp_path: Path) -> None:
    assert receive(tmp_path, 20)["sources"] == PEERS

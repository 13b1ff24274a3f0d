"""The members that answer show their keys, and the others are named with a reason."""

from typing import Any

from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LocalFederation
from peer.site.identity.certificates import KEY_FILE, key_digest, read_key
from peer.site.membership.chain import Chain
from peer.view.preflight.member_keys import member_keys

ASIA, EUROPE = SiteName("asia"), SiteName("europe")
NOTHING_KNOWN: dict[str, Any] = {"peers": {}}


def test_a_member_that_runs_shows_its_key(program: Any, enrolled: LocalFederation) -> None:
    head = Chain.of(enrolled.federation).head
    keys, reasons = member_keys(enrolled.folder("asia"), enrolled.federation, head, NOTHING_KNOWN)
    assert (keys, list(reasons)) == ({}, [EUROPE])
    assert enrolled.federation.addresses[EUROPE] in reasons[EUROPE]
    program.start_and_wait("europe")
    keys, reasons = member_keys(enrolled.folder("asia"), enrolled.federation, head, NOTHING_KNOWN)
    own = read_key(enrolled.folder("europe").pki / KEY_FILE).public_key()
    assert ({name: key_digest(key) for name, key in keys.items()}, reasons) == ({EUROPE: key_digest(own)}, {})

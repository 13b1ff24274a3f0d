"""The form of an amendment's body."""

import json
from typing import Any

import pytest

from peer.core.limits import AMENDMENT_BYTES_MAX, ISSUED_MAX
from peer.core.roster import SiteName, canonical_json
from peer.site.membership.amendment import AmendmentRefused, Governance, Requirements, body_digest, decode
from tests.fakes.chains import AmendedFederation, newcomer, pin

FEDERATION = AmendedFederation("asia", "europe")
PLAIN = FEDERATION.after(FEDERATION.chain(), settings={"rounds": 200})


def changed(**keys: Any) -> bytes:
    return canonical_json(json.loads(PLAIN.encode()) | keys)


def test_a_body_with_every_change_reads_back() -> None:
    amendment = FEDERATION.after(
        FEDERATION.chain(),
        add=(newcomer("africa"),),
        leave=(FEDERATION.notice("asia"),),
        expel=SiteName("europe"),
        rekey={SiteName("asia"): pin("asia", 2)},
        settings={"rounds": 200, "pace": {"silence_s": 30.0}},
        hold=False,
        requires=Requirements(1, ("amendments",)),
        authority="-----BEGIN CERTIFICATE-----\n",
        governance=Governance(2),
        unknown={"colour": [1, {"a": 2.5}]},
    )
    body = amendment.encode()
    assert decode(body) == amendment
    assert decode(body).encode() == body
    assert len(amendment.changes) == 10


def test_a_body_leaves_nothing_out() -> None:
    """The canonical form of federation.toml omits addresses; that of an amendment must not."""
    one = FEDERATION.after(FEDERATION.chain(), add=(newcomer("africa"),))
    assert b"africa.example.org:7443" in one.encode()


def test_a_digest_is_that_of_the_bytes() -> None:
    assert body_digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b" " * (AMENDMENT_BYTES_MAX + 1), "262145 bytes, over the limit of 262144"),
        (b"\xff", "no JSON text"),
        (b"[" * 100_000, "no JSON text"),
        (b"[1]", "canonical"),
        (PLAIN.encode() + b" ", "canonical"),
        (PLAIN.encode().replace(b'"issued"', b'"issued":1,"issued"'), "canonical"),
        (changed(issued=1.5), "issued is not a whole number"),
        (changed(issued=True), "issued is not a whole number"),
        (changed(issued=ISSUED_MAX + 1), "issued is not a whole number from 0 to 253402214399"),
        (changed(number=0), "number is not a whole number from 1"),
        (changed(from_round=0), "from_round is not a whole number from 1"),
        (changed(previous="ab"), "'ab' is not a SHA-256 digest"),
        (changed(add=[]), "add is not a list with entries"),
        (changed(add=[{"name": "Africa", "key": "ab" * 32}]), "site name 'Africa'"),
        (changed(add=[{"name": "africa"}]), "each entry of add has the keys"),
        (changed(add=[{"name": "africa", "key": "ab" * 32, "address": "a\nb"}]), "cannot be printed"),
        *(
            (changed(add=[{"name": "africa", "key": "ab" * 32, "address": address}]), "is not|no valid host|port 0")
            for address in ("relay gate", "relay  h:1", "relay gate oslo", "oslo", "oslo:0", "[::", "unix:/tmp/x")
        ),
        (changed(leave=[{"body": "!"}]), "a notice has the keys"),
        (changed(leave=[{"body": "!", "signature": "", "certificate_der": ""}]), "base64|not a text"),
        (changed(set={}), "set is not a table with entries"),
        (changed(set={"rounds": 0}), "rounds is not a whole number"),
        (changed(set={"task": {"classes": 3}}), "set.task is not an amendment's to change"),
        (changed(set={"method": {"name": "fedavg"}}), "set.method.name is not an amendment's to change"),
        (changed(set={"fallback": "a\x1b[2J"}), r"set has a text with a control character: 'a\\x1b\[2J'"),
        (changed(set={"stages": {"train": [{"\x9b1A": 1}]}}), "set has a text with a control character"),
        (changed(set={"method": {"\u202e": 1}}), "set has a text with a control character"),
        (changed(**{"a\nb": 1}), r"the body has a text with a control character: 'a\\nb'"),
        (changed(hold=1), "hold is neither true nor false"),
        (changed(governance="king"), "governance is"),
        (changed(governance={"members": 0}), "members is not a whole number"),
        (changed(requires={"protocol": 1}), "requires has the keys"),
        (canonical_json({"number": 1}), "it has no 'federation'"),
    ],
)
def test_what_is_no_body_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(AmendmentRefused, match=reason):
        decode(body)


def test_what_no_site_would_accept_is_not_written() -> None:
    with pytest.raises(AmendmentRefused, match="weighting"):
        FEDERATION.after(FEDERATION.chain(), settings={"weighting": "samples"}).encode()


def test_unknown_keys_are_kept_and_named() -> None:
    amendment = decode(changed(colour="blue\n"))  # of what a later version means by it, nothing is shown
    assert amendment.unknown == {"colour": "blue\n"}
    assert amendment.changes == {"set", "colour"}

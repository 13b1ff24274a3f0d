"""Every change of an amendment has its sentence."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.membership.amendment import Governance, Requirements
from peer.site.membership.wording import changes_in_words
from tests.fakes.chains import NOW, AmendedFederation, newcomer, pin

FEDERATION = AmendedFederation("africa", "asia", "europe", members=2)
OTHER_CA = certificates.certificate_pem(certificates.new_authority("trial", now=NOW)[1]).decode()
SETTINGS = {"rounds": 100, "pace": {"silence_s": 30.0}, "quorum": None}


def words(**changes: Any) -> list[str]:
    chain = FEDERATION.chain()
    return changes_in_words(FEDERATION.after(chain, **changes), chain.head, SETTINGS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"add": (newcomer("oceania"),)},
            f"adds oceania at oceania.example.org:7443, with the key {bytes.fromhex(pin('oceania')).hex(':')}",
        ),
        ({"leave": (FEDERATION.notice("asia"),)}, "lets asia leave, as its notice of 1970-01-01 asks"),
        (
            {"expel": SiteName("asia"), "key": 1},
            "expels asia: no site serves it any more, and the others get a new round key",
        ),
        (
            {"rekey": {SiteName("asia"): pin("asia", 2)}},
            f"pins the key {bytes.fromhex(pin('asia', 2)).hex(':')} for asia",
        ),
        ({"settings": {"rounds": 200}}, "sets rounds to 200 (so far 100)"),
        ({"settings": {"pace": {"silence_s": 60.0}}}, "sets pace.silence_s to 60.0 (so far 30.0)"),
        ({"settings": {"quorum": 2}}, "sets quorum to 2"),
        (
            {"hold": True},
            "holds: no site opens round 10 or a later one until an amendment ends the hold",
        ),
        ({"hold": False}, "ends no hold: the federation does not hold"),
        (
            {"requires": Requirements(2, ("amendments",))},
            "requires protocol 2 and amendments of every site's program",
        ),
        ({"governance": Governance()}, "lets the founder sign amendments from the next one on"),
        (
            {"governance": Governance(3), "add": (newcomer("oceania"),)},
            "lets 3 of the 4 members sign amendments from the next one on",
        ),
        (
            {"unknown": {"colour": "blue"}},
            "changes 'colour', which this version does not know: the site would hold until mhfl-peer is updated",
        ),
    ],
)
def test_a_change_in_words(changes: dict[str, Any], sentence: str) -> None:
    assert words(**changes)[-1] == sentence


ESCAPES = "\x1b[2K\r\x7f\x9b1A\u202e\u2066"


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"method": {ESCAPES: 1}}},
        {"settings": {"method": {"lr": ESCAPES}}},
        {"settings": {"method": {"lr": [ESCAPES, {ESCAPES: ESCAPES}]}}},
        {"unknown": {ESCAPES: 1}},
        {"requires": Requirements(0, (ESCAPES,))},
        {"add": (replace(newcomer("oceania"), address=ESCAPES),)},
        {"leave": (replace(FEDERATION.notice("asia"), body=json.dumps({"site": ESCAPES, "issued": 1}).encode()),)},
    ],
)
def test_what_the_author_chose_is_escaped(changes: dict[str, Any]) -> None:
    (sentence,) = words(**changes)
    assert sentence.isascii()
    assert sentence.isprintable()
    assert "2K" in sentence


def test_words_of_the_author_do_not_read_like_another_change() -> None:
    assert words(settings={"method": {"lr to 1, sets rho": 2}}) == ['sets method."lr to 1, sets rho" to 2']
    (added,) = words(add=(replace(newcomer("oceania"), address="oslo:1, with the key 00"),))
    assert added.startswith('adds oceania at "oslo:1, with the key 00", with the key ')
    (relayed,) = words(add=(replace(newcomer("oceania"), address="relay gate.example.org:7443"),))
    assert relayed.startswith("adds oceania at relay gate.example.org:7443, with the key ")


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b"{}", b'{"site": "asia", "issued": 9007199254740991}'])
def test_a_notice_that_nobody_has_verified_has_words(body: bytes) -> None:
    (sentence,) = words(leave=(replace(FEDERATION.notice("asia"), body=body),))
    assert sentence == "lets a site leave, as its notice of an unknown day asks"


def test_the_end_of_a_hold_and_another_ca_in_words() -> None:
    (sentence,) = words(authority=OTHER_CA)
    assert re.fullmatch("makes the CA with the key [0-9a-f:]{95} the founder's", sentence)
    held = FEDERATION.extend(FEDERATION.chain(), ("africa", "asia"), hold=True)
    assert changes_in_words(FEDERATION.after(held, hold=False), held.head, SETTINGS) == ["ends the hold"]


def test_words_without_the_chain_say_nothing_of_what_holds_so_far() -> None:
    changes = {"governance": Governance(3), "hold": False, "settings": {"rounds": 200}}
    assert changes_in_words(FEDERATION.after(FEDERATION.chain(), **changes), None, {}) == [
        "sets rounds to 200",
        "ends the hold",
        "lets a majority of the members, and at least 3, sign amendments from the next one on",
    ]

"""The chain: which amendment is next, and what holds after it."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.core import schedule
from peer.core.roster import RoundKey, SiteName
from peer.site.config.schema import FederationConfig
from peer.site.identity import certificates
from peer.site.membership.amendment import AmendmentRefused, Governance, Requirements
from peer.site.membership.chain import Chain, merged
from tests.fakes.chains import NOW, AmendedFederation, from_hex, newcomer, pin
from tests.fakes.drafts import draft

FEDERATION = AmendedFederation("africa", "asia", "europe")
AFRICA, ASIA, EUROPE = map(SiteName, ("africa", "asia", "europe"))


def test_the_genesis_is_the_roster_of_federation_toml() -> None:
    head = FEDERATION.chain().head
    assert head.members == ("africa", "asia", "europe")
    assert (head.number, head.digest, head.from_round, head.rounds) == (0, FEDERATION.config.digest, 1, 100)
    assert (head.head, head.governance) == (None, Governance())


def test_a_site_is_added_and_one_is_expelled() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), from_round=10, add=(newcomer("america"),))
    chain = FEDERATION.extend(chain, from_round=20, key=1, expel=ASIA)
    assert chain.after(1).members == ("africa", "america", "asia", "europe")
    assert chain.after(1).newcomers == {"america"}
    assert chain.head.members == ("africa", "america", "europe")
    assert chain.head.expelled == {"asia"}
    assert not chain.head.newcomers
    assert chain.head.addresses == {"america": "america.example.org:7443"}
    assert [chain.at(round).number for round in (1, 9, 10, 19, 20, 99)] == [0, 0, 1, 1, 2, 2]


def test_of_two_amendments_from_one_round_the_later_holds() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), from_round=10, settings={"rounds": 200})
    chain = FEDERATION.extend(chain, from_round=10, settings={"rounds": 300})
    assert chain.at(10).number == 2


def test_settings_accumulate() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), settings={"pace": {"silence_s": 30.0}, "rounds": 200})
    chain = FEDERATION.extend(chain, settings={"pace": {"wait_max_s": 60.0}}, hold=True)
    chain = FEDERATION.extend(chain, requires=Requirements(1, ("amendments",)))
    assert chain.head.settings == {"pace": {"silence_s": 30.0, "wait_max_s": 60.0}, "rounds": 200}
    assert chain.head.hold
    assert chain.head.requires == Requirements(1, ("amendments",))
    assert not FEDERATION.extend(chain, hold=False).head.hold


def test_a_merge_leaves_its_documents_alone() -> None:
    one = {"pace": {"silence_s": 1.0}, "rounds": 1}
    assert merged(one, {"pace": {"wait_max_s": 2.0}}) == {"pace": {"silence_s": 1.0, "wait_max_s": 2.0}, "rounds": 1}
    assert one == {"pace": {"silence_s": 1.0}, "rounds": 1}


def test_unknown_keys_stay_unknown() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), unknown={"colour": "blue"})
    assert FEDERATION.extend(chain, hold=True).head.unknown == {"colour"}


def test_a_new_ca_signs_the_next_amendment_and_the_old_one_no_more() -> None:
    _, certificate = certificates.new_authority("next", now=NOW)
    pem = certificates.certificate_pem(certificate).decode()
    chain = FEDERATION.extend(FEDERATION.chain(), authority=pem)
    assert chain.head.authorities[1:] == (pem,)
    with pytest.raises(AmendmentRefused, match="founder's CA key"):
        FEDERATION.extend(chain, hold=True)
    with pytest.raises(AmendmentRefused, match="has or had this CA"):
        FEDERATION.extend(FEDERATION.chain(), authority=FEDERATION.config.ca_certificate)
    with pytest.raises(AmendmentRefused, match="no self-signed CA certificate"):
        FEDERATION.extend(FEDERATION.chain(), authority="-----BEGIN CERTIFICATE-----\n")


def test_members_take_over_from_the_founder() -> None:
    pins = {name: pin(name) for name in (AFRICA, ASIA, EUROPE)}
    chain = FEDERATION.chain()
    with pytest.raises(AmendmentRefused, match="none is pinned of africa, asia;"):
        FEDERATION.extend(chain, rekey={EUROPE: pins[EUROPE]}, governance=Governance(2))
    chain = FEDERATION.extend(chain, rekey=pins, governance=Governance(2))
    with pytest.raises(AmendmentRefused, match="has 0 of the 2"):
        FEDERATION.extend(chain, hold=True)
    assert FEDERATION.extend(chain, ("asia", "europe"), hold=True).head.number == 2
    assert FEDERATION.extend(chain, ("asia", "europe"), governance=Governance()).head.governance.members is None


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"number": 3}, "amendment 3 is not next in the chain, which ends with 1", "take it from a site"),
        ({"number": 1}, "amendment 1 is not next in the chain, which ends with 1", "take it from a site"),
        ({"previous": "ab" * 32}, "follows abababababab…, and this chain has", "take it from a site"),
        ({"federation": "ab" * 32}, "of the federation abababababab…", "name the file of this federation"),
        ({"from_round": 9}, "from round 9, and the one before it from round 10", "round 10 or later"),
        ({"from_round": 101}, "from round 101, after the last one, 100", "round 100 at the latest"),
        ({"settings": {}}, "changes nothing", "say what it shall change"),
        ({"add": (newcomer("asia"),)}, "the name asia is used", "another name"),
        ({"add": (newcomer("america"), newcomer("america", 2))}, "the name america is used", "another name"),
        ({"expel": SiteName("antarctica")}, "antarctica is no member", "the members are africa, asia, europe"),
        ({"rekey": {SiteName("antarctica"): pin("antarctica")}}, "antarctica is no member", "the members are"),
        ({"rekey": {ASIA: pin("europe"), EUROPE: pin("europe")}}, "key of europe is that of asia", "its own key"),
        ({"expel": ASIA, "rekey": {ASIA: pin("asia", 2)}}, "rekey: asia is no member", "the members are"),
        ({"leave": (FEDERATION.notice("asia"),) * 2}, "two notices are of one site", "once"),
        ({"leave": (FEDERATION.notice("asia"),), "expel": ASIA}, "asia is no member, or leaves", "the members are"),
        ({"settings": {"rounds": 8}}, "8 is before round 9", "with round 9 or later"),
        ({"key": 1}, "changes the round key and neither expels nor adds", "only these two"),
        ({"expel": ASIA}, "expels asia and keeps the round key", "draws a new key"),
    ],
)
def test_an_amendment_that_does_not_fit_is_refused(changes: dict[str, Any], reason: str, remedy: str) -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), settings={"pace": {"silence_s": 30.0}})
    arguments = {"from_round": 10, "settings": {"rounds": 100}} | changes
    place = {key: arguments.pop(key) for key in ("number", "previous", "federation") if key in arguments}
    amendment = replace(FEDERATION.after(chain, **arguments), **place)  # type: ignore[arg-type]
    with pytest.raises(AmendmentRefused, match=reason) as refused:
        chain.extended(FEDERATION.sign(amendment))
    assert remedy in refused.value.remedy


def test_the_last_member_cannot_go() -> None:
    alone = AmendedFederation("asia")
    chain = alone.chain()
    for changes in ({"expel": ASIA, "key": 1}, {"leave": (alone.notice("asia"),)}):
        with pytest.raises(AmendmentRefused, match="without a member"):
            alone.extend(chain, **changes)
    assert alone.extend(chain, leave=(alone.notice("asia"),), add=(newcomer("europe"),)).head.members == ("europe",)


def test_a_name_is_used_for_ever() -> None:
    chain = FEDERATION.extend(FEDERATION.chain(), key=1, expel=ASIA)
    with pytest.raises(AmendmentRefused, match="the name asia is used, or was"):
        FEDERATION.extend(chain, key=1, add=(newcomer("asia", 2),))


def test_a_key_is_one_sites() -> None:
    pinned = AmendedFederation("africa", "asia", "europe", members=2)
    site = newcomer("america")
    stolen = type(site)(site.name, pin("asia"))
    with pytest.raises(AmendmentRefused, match="the key of america is that of asia"):
        pinned.extend(pinned.chain(), ("africa", "asia"), add=(stolen,))


def test_a_draft_has_no_chain() -> None:
    config = FederationConfig.parse(draft("trial", site=[{"name": "asia"}]), "draft.toml")
    with pytest.raises(AmendmentRefused, match="is a draft"):
        Chain.of(config)


ROOT = Path(__file__).parents[4]
VECTORS = json.loads((ROOT / "proto" / "vectors" / "chain.json").read_text())


@pytest.mark.parametrize("known", VECTORS["chains"], ids=["founder", "members", "notices"])
def test_the_known_chains_are_accepted_and_what_does_not_follow_is_refused(known: dict[str, Any]) -> None:
    config = FederationConfig.parse(known["genesis"]["toml"], "federation.toml")
    assert config.digest == known["genesis"]["federation"]
    chain = Chain.of(config)
    for amendment, after in zip(known["accepted"], known["after"], strict=True):
        chain = chain.extended(from_hex(amendment))
        head = chain.head
        assert {
            "number": head.number,
            "digest": head.digest,
            "from_round": head.from_round,
            "rounds": head.rounds,
            "members": dict(head.keys),
            "governance": head.governance.document(),
            "hold": head.hold,
            "expelled": sorted(head.expelled),
            "left": sorted(head.left),
            "unknown": sorted(head.unknown),
        } == after
    for refused in known["refused"]:
        with pytest.raises(AmendmentRefused):
            chain.until(refused["after"]).extended(from_hex(refused["amendment"]))


def test_the_known_orders_follow_from_epochs() -> None:
    known = VECTORS["chains"][0]
    chain = Chain.of(
        FederationConfig.parse(known["genesis"]["toml"], "federation.toml"), map(from_hex, known["accepted"])
    )
    for each in VECTORS["orders"]:
        membership = chain.at(each["round"])
        assert (membership.number, list(membership.members)) == (each["number"], each["members"])
        order = schedule.order(
            round_key=RoundKey(bytes.fromhex(each["round_key"])),
            federation_digest=membership.federation,
            round=each["round"],
            sites=len(membership.members),
        )
        assert list(order) == each["order"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_program_that_was_written_from_the_page_alone_meets_the_known_answers() -> None:
    words = ["node", str(ROOT / "tests" / "node" / "chain.js"), str(ROOT / "proto")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "chains": sum(len(known["accepted"]) + len(known["refused"]) for known in VECTORS["chains"]),
        **{name: len(VECTORS[name]) for name in ("quorums", "forks", "orders")},
        "keys": 1 + len(VECTORS["sealed_keys"]["refused"]),
    }

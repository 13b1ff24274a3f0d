"""The data protection officer's page says what policy and ledger say."""

import contextlib
import dataclasses
import datetime
import html
import re
import sqlite3
from pathlib import Path
from typing import Any

from fakes.sites import TRANSFER
from peer.audit import evidence_files, verification
from peer.core.kinds import KINDS
from peer.core.leak import Leak, leak_facts
from peer.core.privacy import Spending, mu_of, spending_facts
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.aggregate_table import AggregateConfig
from peer.site.config.privacy_table import NoiseConfig
from peer.site.config.schema import FederationConfig, SiteConfig, StageConfig
from peer.site.records.ledger import OPENING, Ledger
from peer.view.dashboard.egress_page import (
    KIND_WORDS,
    MEMBERSHIP,
    find_receivers,
    guarantee,
    policy,
    read_report,
    write_assessment,
    write_report,
)

GUARANTEES = Path(__file__).parents[4] / "deploy" / "guarantees.md"


def written(enrolled: LocalFederation, *witnesses: Path) -> str:
    report = read_report(enrolled.folder("asia"), witnesses, time_s=1_795_000_000.0)
    return write_report(report, version="1.2.3")


def rules(enrolled: LocalFederation, egress: str = "") -> dict[str, str]:
    folder = enrolled.folder("asia")
    folder.site_toml.write_text(folder.site_toml.read_text() + egress)
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    return dict(policy(federation, site, list(find_receivers(folder, federation, site.egress))))


def test_each_kind_of_artifact_has_words() -> None:
    assert KIND_WORDS.keys() >= {*KINDS, "metrics", OPENING}


def test_the_figures_of_membership_are_those_of_the_guarantees(enrolled: LocalFederation) -> None:
    largest: dict[str, float] = {}
    table = r"^\| (\w+) \|(?:[^|]*\|){4} ([01]\.\d\d) \|"
    for kind, auc in re.findall(table, GUARANTEES.read_text("utf-8"), re.MULTILINE):
        largest[kind] = max(float(auc), largest.get(kind, 0.0))
    assert largest.items() >= MEMBERSHIP.items()
    assert MEMBERSHIP.keys() == {*KINDS}
    assert "with an AUC of up to 0.74 by a model. 0.5 is chance" in " ".join(written(enrolled).split())


def test_the_policy_is_said_in_words(enrolled: LocalFederation) -> None:
    said = rules(enrolled)
    assert said["a model"].startswith("the weights and buffers of the site's network")
    assert (said["receivers"], said["amount"]) == ("europe", "no bound")
    assert said["evaluation"].startswith("no model leaves for it")
    assert said["number of training samples"] == "the other sites do not learn it"


def test_secure_sums_are_said_in_words(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    assert "secure sums" not in dict(policy(federation, site, ["europe"]))
    secure = federation.model_copy(update={"aggregate": AggregateConfig(secure=True)})
    said = dict(policy(secure, site, ["europe"]))["secure sums"]
    assert said.startswith("masks hide each model; the receivers learn the sum of 3 sites or more")
    assert "Nobody saw this site's updates: only sums of at least 3 sites" in guarantee(secure, [])[-1]


def test_the_draft_of_an_assessment_has_the_figures_of_the_page_and_blanks(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        leak = Leak("loss", 0.7, 100, 100, 30, 0.72, 0.75, artifacts=3, bound=0.65)
        ledger.settle(ledger.intend(**TRANSFER, bytes=8, leak=leak_facts(leak)), bytes=8, outcome="complete")
    draft = write_assessment(read_report(folder, [], time_s=1_795_000_000.0), version="1.2.3")
    lines = draft.splitlines()
    assert lines[0] == "# Impact assessment: trial at asia"
    assert "| receivers | europe |" in lines
    (measured,) = [line for line in lines if line.startswith("| model |") and "0.70" in line]
    assert "0.62 to 0.78 | 100 + 100 | 0.72 | 0.75, of 3 artifacts" in measured
    assert draft.count("____") > 10
    assert "&" not in draft


def test_a_stricter_policy_is_said_as_such(enrolled: LocalFederation) -> None:
    said = rules(
        enrolled, "[egress]\nkinds = []\nreceivers = []\nbytes_per_round_max = 2048\ntraining_set_size = true\n"
    )
    assert "a model" not in said
    assert (said["receivers"], said["amount"]) == ("none", "at most 2.0 KiB a round, for all receivers")
    assert said["number of training samples"] == "the other sites may learn it"


def test_transfers_are_summed_by_receiver_and_by_month(enrolled: LocalFederation) -> None:
    assert "Nothing has left this site." in written(enrolled)
    with contextlib.closing(Ledger(enrolled.folder("asia").egress_db)) as ledger:
        for month in (9, 9, 10):
            time_s = datetime.datetime(2026, month, 15).timestamp()
            ledger.settle(ledger.intend(**TRANSFER, bytes=1024, time=time_s), bytes=1024, outcome="complete")
    page = written(enrolled)
    assert "3 transfers with 3.0 KiB left this site for one site" in page
    assert page.count('<td data-label="month">2026-09</td>') == 1
    assert "2.0 KiB" in page
    assert "The ledger of these transfers is whole" in page


def test_the_newest_measured_leak_of_each_kind_is_on_the_page(enrolled: LocalFederation) -> None:
    assert "Nothing that left was measured here" in written(enrolled)
    with contextlib.closing(Ledger(enrolled.folder("asia").egress_db)) as ledger:
        for auc in (0.7, 0.54):
            leak = Leak("loss", auc, 150, 100, 30, 0.55, 0.56, 12, class_mix=0.87, bound=0.65)
            ledger.settle(ledger.intend(**TRANSFER, bytes=8, leak=leak_facts(leak)), bytes=8, outcome="complete")
    page = written(enrolled)
    for cell in ("0.54", "0.47 to 0.61", "150 + 100", "0.56, of 12 artifacts", "20% (14% to 27%)", "0.87"):
        assert f">{cell}</td>" in page
    assert "within the bound of 0.65" in page
    assert "0.70" not in page
    assert rules(enrolled, "[egress]\nleak_auc_max = 0.65\n")["measured leak"].endswith("cannot tell, it leaves")


def private(enrolled: LocalFederation) -> FederationConfig:
    """A federation of the method fedavg with noise."""
    federation = FederationConfig.load(enrolled.folder("asia").federation_toml)
    noise = NoiseConfig(mechanism="noise", epsilon=3.0, people=150)
    method = federation.method.model_copy(update={"name": "fedavg"})
    stages = {"train": StageConfig(unit="epoch", count=4, learning_rate=0.1)}
    return federation.model_copy(update={"privacy": noise, "method": method, "stages": stages, "rounds": 10})


def test_the_guarantee_of_noise_is_said_in_words(enrolled: LocalFederation) -> None:
    folder, federation = enrolled.folder("asia"), private(enrolled)
    none = "Person-level privacy: none, since what leaves has no noise"
    assert none in html.unescape(written(enrolled))
    assert "nothing is spent, since nothing that was trained has left" in guarantee(federation, [])[0]
    assert "noise" not in rules(enrolled)
    said = dict(policy(federation, SiteConfig.load(folder.site_toml), ["europe"]))["noise"]
    assert said.endswith("noise of 7.74 times the clip; nothing more leaves once ε 3 (δ 1e-4) is spent")
    spent, leak = spending_facts(Spending(mu_of(1.7, 1e-4), 1e-4, 3.0)), Leak("loss", 0.95, 150, 100, 99, 0.95, 0.95)
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        for measured in ({}, {"leak": leak_facts(leak)}):
            ledger.settle(ledger.intend(**TRANSFER, bytes=8, spent=spent, **measured), bytes=8, outcome="complete")
    report = dataclasses.replace(read_report(folder, [], time_s=1_795_000_000.0), federation=federation)
    page = " ".join(html.unescape(write_report(report, version="1.2.3")).split())
    draft = write_assessment(report, version="1.2.3")
    for text in (page, draft):
        assert "ε 1.70 of 3.00 (δ 1e-4) against everybody outside this site" in text
        assert "right in at most 60 of 100 cases (AUC 0.64)." in text
        assert "an attack here reached AUC 0.95, which contradicts the guarantee" in text
        assert none not in text
        assert "nothing here adds noise" not in text
        assert "no noise is added" not in text


def test_an_opening_is_said_in_words_where_one_left(enrolled: LocalFederation) -> None:
    words = "opening: seeds that remove this site's masks from a sum"
    with contextlib.closing(Ledger(enrolled.folder("asia").egress_db)) as ledger:
        ledger.settle(ledger.intend(**TRANSFER, bytes=1024, masked=True), bytes=1024, outcome="complete")
        assert words not in written(enrolled)
        opening = ledger.intend(**{**TRANSFER, "kind": OPENING}, bytes=32)
        ledger.settle(opening, bytes=32, outcome="complete")
    page = html.unescape(written(enrolled))
    assert words in page
    assert '<td data-label="what">opening</td>' in page


def test_a_broken_ledger_is_the_first_thing_that_the_page_says(enrolled: LocalFederation) -> None:
    file = enrolled.folder("asia").egress_db
    with contextlib.closing(Ledger(file)) as ledger:
        for _ in range(3):
            ledger.settle(ledger.intend(**TRANSFER, bytes=1), bytes=1, outcome="complete")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE ledger SET body = replace(body, '\"bytes\":1', '\"bytes\":2') WHERE seq = 3")
    page = written(enrolled)
    assert "The ledger is not whole: row 3 was changed" in page
    assert page.index("not whole") < page.index("What may leave")


def test_a_witness_is_named_with_what_it_has_seen(books: Any, enrolled: LocalFederation, tmp_path: Path) -> None:
    for round in (1, 2):
        books.send("asia", "europe", round=round)
    witness = tmp_path / "from-europe.json"
    witness.write_bytes(evidence_files.encode(verification.make_witness(enrolled.folder("europe"), "asia")))
    page = written(enrolled, witness)
    assert "europe confirmed its first 2 rows" in page
    assert "europe has seen the first 2 rows, up to round 2" in page

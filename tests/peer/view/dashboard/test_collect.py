"""The snapshot of a site: from its folder while its daemon is down, and from both while it runs."""

import contextlib
import datetime
from dataclasses import replace
from typing import Any

import pytest

from fakes.sites import INITIAL, TRANSFER, append_rows, committed
from fakes.snapshots import link
from peer.core.artifacts import Artifact, Source
from peer.core.roster import Sha256, SiteName
from peer.core.rows import ArrivedRow, ChosenRow, OpenedRow
from peer.errors import ConfigError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import History
from peer.site.records.ledger import Ledger
from peer.view.dashboard.collect import FederationReader, SiteReader, peer_certificate_days, sent_totals

KEYS = {"round", "sender", "receiver", "kind", "state", "bytes", "share", "reason"}


def rows_of(*rows: Any) -> list[tuple[str, int, dict[str, Any]]]:
    return [(row.kind, row.round, row.body()) for row in rows]


def source(origin: str) -> Source:
    artifact = Artifact("model", SiteName(origin), Sha256("cd" * 32), 4096, 1, {"name": "resnet10"})
    return Source(SiteName(origin), 1, artifact)


def send(folder: SiteFolder, *, outcome: str = "complete", sent: int = 2048, **changes: Any) -> None:
    """Write a transfer of 2 KiB into the site's ledger."""
    with contextlib.closing(Ledger(folder.egress_db)) as ledger:
        ledger.settle(ledger.intend(**{**TRANSFER, **changes}, bytes=2048), bytes=sent, outcome=outcome)


def test_a_site_that_never_ran_has_a_snapshot(enrolled: LocalFederation) -> None:
    snapshot = SiteReader(enrolled.folder("asia")).read()
    assert (snapshot["status"]["daemon"], snapshot["status"]["phase"]) == ("down", "new")
    assert snapshot["plan"][0]["receives_from"] == {"asia": ["europe"], "europe": ["asia"]}
    assert (snapshot["artifact"], snapshot["sent"], snapshot["stories"]) == ("model", [], [])
    assert snapshot["folder_bytes"] > 0
    (enrolled.folder("asia").pki / "round.key").unlink()
    assert SiteReader(enrolled.folder("asia")).read()["plan"] == [], "it has not joined yet"


def test_routes_follow_the_journal_and_the_ledger(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    append_rows(folder, *rows_of(OpenedRow(1, sources=()), ArrivedRow(1, source=source("europe"), origin_generation=1)))
    send(folder)
    (document,) = (snapshot.overview for snapshot in FederationReader([folder]).read())
    states = {(route["sender"], route["receiver"]): (route["state"], route["bytes"]) for route in document["routes"]}
    assert states == {("europe", "asia"): ("arrived", 4096), ("asia", "europe"): ("arrived", 2048)}
    assert all(route.keys() == KEYS for route in document["routes"])


@pytest.mark.parametrize("used_by", ["opened", "chosen"])
def test_an_artifact_that_came_in_the_round_before_has_arrived(enrolled: LocalFederation, used_by: str) -> None:
    folder, early = enrolled.folder("asia"), replace(source("europe"), round=2)
    sources = (early, replace(source("asia"), round=2))
    chosen = ChosenRow(2, position=0, sources=sources, missing={}, waited_s=0.0, below_quorum=False)
    append_rows(folder, *rows_of(ArrivedRow(2, source=early, origin_generation=1)), committed(1, INITIAL))
    uses = OpenedRow(2, sources=sources if used_by == "opened" else ())
    append_rows(folder, *rows_of(*((uses, chosen) if used_by == "chosen" else (uses,))))
    links = SiteReader(folder).read()["links"]
    assert [link for link in links if link["round"] == 2] == [
        link("europe", "asia", round=2, state="arrived", bytes=4096)
    ]


def test_a_peer_that_a_round_went_on_without_is_missing_with_the_reason(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    chosen = ChosenRow(
        1, position=0, sources=(), missing={"europe": "slow"}, waited_s=1.0, below_quorum=False, in_vain_s=None
    )
    append_rows(folder, *rows_of(OpenedRow(1, sources=()), chosen))
    links = SiteReader(folder).read()["links"]
    reason = "did not deliver before the deadline"
    assert links == [link("europe", "asia", round=1, state="missing", reason=reason)]


def test_the_room_is_that_of_site_toml_and_of_the_newest_evaluated_round(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    reader = SiteReader(folder, records=False)
    append_rows(folder, ("evaluated", 2, {"metrics": {"auc": 0.7}}), ("evaluated", 4, {"metrics": {"auc": 0.85}}))
    assert reader.read()["room"] is None
    with folder.site_toml.open("a") as file:
        file.write('\n[reference]\nmetric = "auc"\nalone = 0.8\npooled = 0.9\n')
    room = reader.read()["room"]
    assert room is not None
    assert (room["round"], room["value"], room["share"]) == (4, 0.85, pytest.approx(0.5))
    folder.site_toml.write_text("no TOML")
    assert reader.read()["room"] is None


def test_stories_are_told_newest_first(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    append_rows(folder, *rows_of(OpenedRow(1, sources=())))
    (told,) = SiteReader(folder).read()["stories"]
    assert (told["round"], told["state"], told["sentences"][0][1]) == (1, "open", "asia began round 1.")


def test_peers_certificates_are_those_that_signed_what_arrived(books: Any, enrolled: LocalFederation) -> None:
    books.send("europe", "asia", round=1)
    assert SiteReader(enrolled.folder("asia")).read()["certificates"] == {"europe": 364}


@pytest.mark.parametrize("encoded", [None, "", "no base64", "AAAA"])
def test_a_row_without_a_certificate_is_left_out(encoded: str | None) -> None:
    row = {"body": {"peer": "europe", "certificate_der": encoded}}
    assert peer_certificate_days([row], datetime.datetime.now(datetime.UTC)) == {}


def test_totals_count_each_receiver_kind_and_purpose(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    send(folder)
    send(folder, outcome="broken", sent=40)
    send(folder, purpose="evaluate")
    totals = sent_totals(History(folder, sent=True).read_all().sent)
    assert [(total["purpose"], total["transfers"], total["complete"], total["bytes"]) for total in totals] == [
        ("evaluate", 1, 1, 2048),
        ("train", 2, 1, 2088),
    ]


def test_records_are_read_again_once_they_change(enrolled: LocalFederation) -> None:
    folder = enrolled.folder("asia")
    reader = SiteReader(folder)
    assert reader.read()["sent"] == []
    send(folder)
    assert [total["bytes"] for total in reader.read()["sent"]] == [2048]


def test_one_site_that_cannot_be_read_does_not_hide_the_others(enrolled: LocalFederation) -> None:
    enrolled.folder("europe").federation_toml.write_text("nonsense")
    folders = [enrolled.folder("asia"), enrolled.folder("europe")]
    (snapshot,) = FederationReader(folders).read()
    states = {row["site"]: row["state"] for row in snapshot.overview["sites"]}
    assert states == {"asia": "new", "europe": "unreadable"}
    enrolled.folder("asia").federation_toml.write_text("nonsense")
    with pytest.raises(ConfigError):
        FederationReader(folders).read()


@pytest.mark.e2e
def test_a_running_site_says_what_it_waits_for(program: Any) -> None:
    program.start_and_wait("asia")
    (snapshot,) = FederationReader([program.loopback.folder("asia"), program.loopback.folder("europe")]).read()
    asia, europe = snapshot.overview["sites"]
    assert (asia["state"], asia["phase"], [wait["site"] for wait in asia["waiting_for"]]) == (
        "running", "gathering", ["europe"],
    )  # fmt: skip
    assert europe["state"] == "new"

"""The scalars of a site's rounds: tags, times, and the bytes of each round."""

import contextlib
from typing import Any

import pytest

from fakes.sites import TRANSFER, append_rows, round_body
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.view.tracking.scalars import GenerationScalars, read_runs, stamp

COMMITTED = round_body(contributors=["asia", "europe"])
RECEIVED = {"peer": "europe", "purpose": "train", "kind": "model", "sha256": "ab" * 32, "outcome": "complete"}
SETTINGS = {"federation": "", "model.name": "resnet10", "data.datalist": "secret/datalist.json"}


class WrittenHistory:
    """A site's journal and ledger, with rows that a test writes in the daemon's place."""

    def __init__(self, folder: SiteFolder, digest: str) -> None:
        self.folder, self.digest = folder, digest

    def write(self, *rows: tuple[str, int, dict[str, Any]], generation: int = 1) -> None:
        if generation not in self.folder.generations():
            rows = (("configured", 0, {**SETTINGS, "federation": self.digest}), ("began", 0, {}), *rows)
        append_rows(self.folder, *rows, generation=generation)

    def send(self, size: int, *, sent: int | None = None, outcome: str = "complete", **changes: Any) -> None:
        with contextlib.closing(Ledger(self.folder.egress_db)) as ledger:
            intent = ledger.intend(**{**TRANSFER, "bytes": size, **changes})
            ledger.settle(intent, bytes=size if sent is None else sent, outcome=outcome)

    def run(self, generation: int = 1) -> GenerationScalars:
        return next(run for run in read_runs(self.folder) if run.generation == generation)

    def values(self, generation: int = 1) -> dict[tuple[str, int], float]:
        return {(scalar.tag, scalar.step): scalar.value for scalar in self.run(generation).scalars}

    def time_of(self, kind: str, round: int) -> float:
        with contextlib.closing(Journal(self.folder.generation(1) / "journal.db", read_only=True)) as journal:
            times = (row["time"] for row in journal.records((kind,)) if row["round"] == round)
            return float(next(times))


def committed(round: int, **metrics: float) -> tuple[str, int, dict[str, Any]]:
    return ("committed", round, {**COMMITTED, "metrics": metrics})


@pytest.fixture
def history(enrolled: LocalFederation) -> WrittenHistory:
    return WrittenHistory(enrolled.folder("asia"), enrolled.federation.digest)


def test_a_site_that_never_ran_has_no_run(history: WrittenHistory) -> None:
    assert read_runs(history.folder) == []
    history.folder.create_generation()
    assert read_runs(history.folder) == []


def test_a_round_gives_losses_metrics_duration_contributors(history: WrittenHistory) -> None:
    missing = ("committed", 2, {**COMMITTED, "contributors": ["asia"], "missing": {"europe": "silent"}})
    history.write(
        ("evaluated", 1, {"metrics": {"auc": 0.5}}),
        committed(1, train_total=0.25, train_total_last=float("inf"), auc=0.5, validation_auc=0.75),
        missing,
        ("evaluated", 2, {"metrics": {"auc": 0.625}}),
    )
    traffic = {(f"traffic/{way}_bytes", round): 0.0 for way in ("received", "sent") for round in (1, 2)}
    assert history.values() == traffic | {
        ("train/total", 1): 0.25, ("test/auc", 1): 0.5, ("validation/auc", 1): 0.75, ("round/duration_s", 1): 2.5,
        ("round/contributors", 1): 2.0, ("round/missing", 1): 0.0, ("round/duration_s", 2): 2.5,
        ("round/contributors", 2): 1.0, ("round/missing", 2): 1.0, ("test/auc", 2): 0.625,
    }  # fmt: skip
    times = {(scalar.tag, scalar.step): scalar.time_s for scalar in history.run().scalars}
    assert times[("train/total", 1)] == history.time_of("committed", 1)
    assert times[("test/auc", 1)] == history.time_of("evaluated", 1)
    assert times[("test/auc", 2)] == history.time_of("evaluated", 2)
    assert history.run().rounds == 2


def test_bytes_belong_to_the_round_in_which_their_transfer_ended(history: WrittenHistory) -> None:
    history.send(100)
    history.write(("received", 1, {**RECEIVED, "bytes": 7}), committed(1))
    history.send(100, sent=40, outcome="broken")
    history.send(100, sent=0, outcome="unknown")
    history.send(1000, purpose="export")
    history.write(("received", 2, {**RECEIVED, "bytes": 8}), ("received", 2, {**RECEIVED, "bytes": 9}), committed(2))
    history.send(5000)
    traffic = {key: value for key, value in history.values().items() if key[0].startswith("traffic/")}
    assert traffic == {
        ("traffic/received_bytes", 1): 7.0,
        ("traffic/sent_bytes", 1): 100.0,
        ("traffic/received_bytes", 2): 17.0,
        ("traffic/sent_bytes", 2): 140.0,
    }


def test_what_other_sites_tell_of_the_model_stands_under_their_names(history: WrittenHistory) -> None:
    report = {"generation": 1, "round": 1, "sha256": "ab" * 32, "samples": 20, "metrics": {"auc": 0.7}}
    history.write(("evaluated", 1, {"metrics": {"auc": 0.5, "samples": 30.0}}), committed(1))
    assert not [tag for tag, _ in history.values() if tag.startswith(("evaluation/", "global_test/"))]
    history.write(("report", 1, {"site": "europe", "report": {**report, "unmeasured": ""}}))
    values = history.values()
    assert values[("evaluation/europe/auc", 1)] == 0.7
    assert values[("global_test/auc", 1)] == pytest.approx(0.6)


def test_a_generation_is_a_run_and_is_over_when_the_site_left_after_its_last_round(history: WrittenHistory) -> None:
    history.write(committed(1), ("left", 1, {}))
    history.write(committed(1), ("finished", 1, {}), generation=2)
    first, second = read_runs(history.folder)
    assert (first.name, first.ended_s, second.name, second.ended_s) == ("gen-0001", None, "gen-0002", None)
    before = stamp(history.folder)
    history.write(("left", 1, {}), generation=2)
    assert history.run(2).ended_s is not None
    assert stamp(history.folder) != before == before


def test_the_facts_are_those_of_the_generation_and_hold_no_path(history: WrittenHistory) -> None:
    history.write(committed(1))
    facts = history.run().facts
    assert facts["model.name"] == "resnet10"
    assert (facts["method"], facts["method.gamma"], facts["rounds"]) == ("fedskd", "1.0", "3")
    assert not [value for value in facts.values() if "secret" in value]


def test_bytes_sent_after_a_backup_was_restored_are_in_the_same_run(history: WrittenHistory) -> None:
    """The generation gets the next number, in its former folder."""
    history.write(committed(1), ("regenerated", 1, {"generation": 2, "reported_by": "europe", "their_round": 1}))
    history.send(64, generation=2)
    history.write(committed(2))
    assert history.values()[("traffic/sent_bytes", 2)] == 64.0

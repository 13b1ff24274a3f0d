"""The members that commands show of a site whose daemon does not run, after amendments; and of former rounds."""

from pathlib import Path
from typing import Any

import pytest

from fakes.cli import run_json
from fakes.governed import GovernedFederation
from fakes.sites import append_rows
from peer.core.artifacts import EvaluationResult
from peer.core.roster import Sha256, SiteName
from peer.core.rows import ReportRow
from peer.site.config.schema import SiteConfig
from peer.site.identity import certificates
from peer.site.records import folder_documents
from peer.site.records.members import Members, members_of
from peer.view.dashboard.collect import FederationReader, SiteReader
from peer.view.dashboard.egress_page import find_receivers
from peer.view.tracking.scalars import read_runs

FROM_ROUND = 5


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> GovernedFederation:
    """Oslo is a member from round 5 on, with 80 rounds in all."""
    federation = GovernedFederation.create(tmp_path_factory.mktemp("template"), "asia", "europe")
    csr = federation.ca / "oslo.csr"
    csr.write_bytes(certificates.signing_request(certificates.new_key(), SiteName("oslo")))
    words = ("--add", "oslo", "--request", csr, "--rounds", 80, "--from-round", FROM_ROUND)
    federation.amend("asia", *words)
    return federation


@pytest.fixture
def amended(template: GovernedFederation, tmp_path: Path) -> GovernedFederation:
    return template.copy(tmp_path)


def evaluate(federation: GovernedFederation, *rounds: int) -> None:
    evaluated = {"state": "state", "metrics": {"accuracy": 0.5}, "samples": {}}
    began = ("began", 0, {"version": "1", "without": []})
    append_rows(federation.folder("asia"), began, *(("evaluated", round, evaluated) for round in rounds))


def test_without_amendments_the_members_are_those_of_federation_toml(amended: GovernedFederation) -> None:
    folder = amended.folder("europe")
    assert Members.read(folder) is None
    assert members_of(folder, ("asia", "europe"))(FROM_ROUND) == ("asia", "europe")
    assert folder_documents.status_when_down(folder)["peers"].keys() == {"asia"}


def test_the_status_of_a_stopped_site_has_the_members_and_rounds_of_its_chain(amended: GovernedFederation) -> None:
    folder = amended.folder("asia")
    status = folder_documents.status_when_down(folder)
    assert (status["rounds"], [*status["peers"]]) == (80, ["europe", "oslo"])
    (federation,) = FederationReader([folder]).read()
    assert [row["site"] for row in federation.overview["sites"]] == ["asia", "europe", "oslo"]
    run_json("--home", amended.home, "leave", "--site", "asia", "--yes")
    members = Members.read(folder)
    assert members is not None
    assert members.present() == ["europe", "oslo"]


def test_the_evaluation_of_a_round_is_by_the_members_of_that_round(amended: GovernedFederation) -> None:
    evaluate(amended, FROM_ROUND - 1, FROM_ROUND)
    records: list[Any] = folder_documents.document(amended.folder("asia"), "evaluation", {})
    assert [[*record["cells"]] for record in records] == [["asia", "europe"], ["asia", "europe", "oslo"]]
    report = EvaluationResult(1, FROM_ROUND, Sha256("ab" * 32), samples=30, metrics={"accuracy": 0.25})
    row = ReportRow(FROM_ROUND, site=SiteName("oslo"), report=report)
    append_rows(amended.folder("asia"), (row.kind, row.round, row.body()))
    (run,) = read_runs(amended.folder("asia"))
    assert [scalar.value for scalar in run.scalars if scalar.tag == "evaluation/oslo/accuracy"] == [0.25]


def test_the_plan_of_a_round_is_by_its_epoch(amended: GovernedFederation) -> None:
    append_rows(amended.folder("asia"), ("opened", FROM_ROUND, {"sources": []}))
    former, current = SiteReader(amended.folder("asia")).read()["plan"]
    assert (former["round"], former["members"]) == (FROM_ROUND - 1, ["asia", "europe"])
    assert (current["round"], current["members"]) == (FROM_ROUND, ["asia", "europe", "oslo"])
    (amended.folder("asia").pki / "round.key").unlink()
    assert SiteReader(amended.folder("asia")).read()["plan"] == []


@pytest.mark.parametrize(
    ("policy", "receivers"),
    [("", ["europe"]), ('newcomers = "accept"', ["europe", "oslo"]), ('receivers = ["oslo"]', ["oslo"])],
)
def test_the_page_for_the_data_protection_officer_names_a_newcomer_once_it_may_receive(
    amended: GovernedFederation, policy: str, receivers: list[str]
) -> None:
    folder = amended.folder("asia")
    folder.site_toml.write_text(f"{folder.site_toml.read_text()}\n[egress]\n{policy}\n")
    egress = SiteConfig.load(folder.site_toml).egress
    assert list(find_receivers(folder, amended.federation, egress)) == receivers
    run_json("--home", amended.home, "federation", "accept", "oslo", "--site", "asia")
    assert "oslo" in find_receivers(folder, amended.federation, egress)

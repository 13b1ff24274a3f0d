"""Operators add, accept, expel and leave with the commands, while the daemons run; the workers train nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.amended_daemons import SITE, AmendedDaemons
from fakes.drafts import draft
from peer.core.roster import SiteName
from peer.lab.demo.local_federation import free_ports
from peer.site.config import toml
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.certificates import KEY_FILE, key_digest, read_key

pytestmark = pytest.mark.nightly
FOUNDERS = ("africa", "asia", "europe", "oceania")
ROUNDS = 60
PACE = {"beat_s": 0.5, "silence_s": 6, "linger_s": 20, "lead_rounds_max": 4}


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[AmendedDaemons]:
    text = draft("trial", rounds=ROUNDS, method="fedavg", shared_model={"name": "resnet10"}, pace=PACE)
    with AmendedDaemons.create(tmp_path, text, dict.fromkeys(FOUNDERS, SITE)) as daemons:
        assert isinstance(daemons, AmendedDaemons)
        for name in FOUNDERS:
            daemons.start(name)
        for name in FOUNDERS:
            daemons.until(name, lambda status: status["committed"] >= 2)
        yield daemons


def test_a_founder_adds_a_hospital_and_another_leaves(federation: AmendedDaemons, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    csr, bundle = tmp_path / "oslo.csr", tmp_path / "oslo.bundle"
    place = ("--federation", federation.ca / "federation.toml", "--site", "oslo", "--out", csr)
    fingerprint = federation.call("site", "init", *place, "--newcomer")["fingerprint"]
    add = ("--add", f"oslo=127.0.0.1:{port}", "--request", csr)
    added = federation.govern("europe", "amend", "--ca", federation.ca, *add)
    admit = ("--ca", federation.ca, csr, "--out", bundle, "--fingerprint", fingerprint)
    federation.govern("europe", "admit", *admit)
    federation.call("site", "join", bundle)
    oslo = SiteFolder(federation.home, "trial", SiteName("oslo"))
    oslo.site_toml.write_text(toml.text({"listen": f"127.0.0.1:{port}"}) + SITE)
    federation.follow(1, *FOUNDERS)
    for name in FOUNDERS:
        assert federation.govern(name, "accept", "oslo")["accepted"] == ["oslo"]
    federation.start("oslo")

    def lived(status: dict[str, Any]) -> Any:  # a newcomer that comes late has committed rounds that it did not live
        return status["committed"] > added["from_round"] and federation.call("rounds", "--site", "oslo")

    federation.until("oslo", lived)
    used = federation.call("rounds", "--site", "oslo")[-1]["sources"]
    assert {source["site"] for source in used} <= {*FOUNDERS}

    federation.kill("africa")
    assert federation.call("leave", "--site", "asia", "--yes")["unreached"] == ["africa"]
    federation.end("asia")
    federation.start("africa")
    for name in ("africa", "europe"):  # africa hears of it from others
        federation.until(name, lambda shown: bool(shown["notices"]), "membership")
    assert "asia" not in federation.govern("europe", "amend", "--ca", federation.ca, "--leave")["members"]
    remaining = [name for name in (*FOUNDERS, "oslo") if name != "asia"]
    federation.follow(2, *remaining)
    federation.end(*remaining)
    last = federation.call("rounds", "--site", "oslo")[-1]
    assert set(last["contributors"]) == {*remaining}


def test_members_take_over_and_expel_one(federation: AmendedDaemons, tmp_path: Path) -> None:
    """The federation holds meanwhile, so that no round that an amendment begins with is past before it is enacted."""
    held = federation.govern("europe", "hold", "--ca", federation.ca)
    for name in FOUNDERS:
        federation.until(name, lambda status: status["phase"] == "held")
    keys = {name: key_digest(read_key(federation.folder(name).pki / KEY_FILE).public_key()) for name in FOUNDERS}
    pins = [f"--rekey={name}={key}" for name, key in keys.items()]
    federation.govern("europe", "amend", "--ca", federation.ca, "--governance", "2", *pins)
    federation.follow(2, *FOUNDERS)
    file, resume = tmp_path / "expel-asia.json", tmp_path / "resume.json"
    proposed = federation.govern("europe", "propose", "--expel", "asia", "--out", file)
    assert proposed["keys_for"] == ["africa", "europe", "oceania"]
    for name in ("africa", "oceania"):
        federation.govern(name, "approve", "--yes", file)
    enacted = federation.govern("oceania", "enact", file)
    assert enacted["signed_by"] == ["africa", "europe", "oceania"]
    remaining = ("africa", "europe", "oceania")
    federation.follow(3, *remaining)
    assert {federation.show(name, "status")["round"] for name in remaining} == {held["from_round"] - 1}
    federation.govern("africa", "propose", "--resume", "--out", resume)
    federation.govern("oceania", "approve", "--yes", resume)
    federation.govern("oceania", "enact", resume)
    federation.end(*remaining)
    for name in remaining:
        assert set(federation.call("rounds", "--site", name)[-1]["contributors"]) == {*remaining}

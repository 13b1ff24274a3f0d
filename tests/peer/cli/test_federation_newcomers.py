"""A hospital that an amendment adds enrols: site init --newcomer, amend --add, admit, join; no daemon runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run_json
from fakes.drafts import task
from fakes.governed import GovernedFederation
from peer.core.messages import ChainHead
from peer.daemon import startup
from peer.errors import ConfigError
from peer.site.config.schema import SiteConfig
from peer.site.membership.folder import MembershipFolder


def init(federation: GovernedFederation, name: str = "oslo", *words: str, out: str = "oslo.csr") -> dict[str, str]:
    """The newcomer has a machine of its own: another home."""
    place = ("--federation", federation.ca / "federation.toml", "--site", name, "--out", federation.ca.parent / out)
    initialised: dict[str, str] = run_json("--home", federation.ca.parent / "oslo", "site", "init", *place, *words)
    return initialised


def admit(federation: GovernedFederation, fingerprint: str, request: str = "oslo.csr") -> tuple[object, ...]:
    tmp = federation.ca.parent
    words = ("--ca", federation.ca, tmp / request, "--out", tmp / f"{request}.bundle", "--fingerprint", fingerprint)
    return ("--home", federation.home, "federation", "admit", *words)


def test_a_newcomer_joins_with_the_amendment_that_added_it(founded: GovernedFederation, tmp_path: Path) -> None:
    fingerprint = init(founded, "oslo", "--newcomer")["fingerprint"]
    assert "once `federation amend --add` has added it" in refused("BundleError", *admit(founded, fingerprint))
    sent = ("--home", founded.home, "egress", "--site", "asia", "--peer", "oslo")
    assert "oslo: not a site of this federation" in refused("UsageError", *sent)
    founded.amend("asia", "--rounds", "120")
    added = founded.amend("asia", "--add", "oslo=127.0.0.1:3", "--request", tmp_path / "oslo.csr")
    assert run_json(*sent) == []
    founded.amend("asia", "--rounds", "150")
    admitted = run_json(*admit(founded, fingerprint))
    assert admitted["site"] == "oslo"
    bundle = json.loads((tmp_path / "oslo.csr.bundle").read_text())
    assert (bundle["amendment_number"], bundle["amendment_digest"]) == (2, added["digest"])
    joined = run_json("--home", tmp_path / "oslo", "site", "join", tmp_path / "oslo.csr.bundle")
    assert joined["fingerprint"] == fingerprint
    oslo = GovernedFederation(founded.ca, tmp_path / "oslo", founded.federation).folder("oslo")
    assert MembershipFolder(oslo.membership).joined() == ChainHead(2, added["digest"])
    assert not (oslo.pki / "round.key").exists()
    assert startup.load(oslo)[2].round_key is None
    MembershipFolder(oslo.membership).save_chain(founded.chain("asia"))  # as its daemon gets it from a peer
    assert run_json("--home", tmp_path / "oslo", "leave", "--yes")["site"] == "oslo"


@pytest.mark.parametrize(
    ("words", "listen"), [((), "0.0.0.0:7443"), (("--listen", "127.0.0.1:7450"), "127.0.0.1:7450")]
)
def test_a_newcomer_listens_where_others_reach_it_unless_it_is_told_otherwise(
    founded: GovernedFederation, tmp_path: Path, words: tuple[str, ...], listen: str
) -> None:
    initialised = init(founded, "oslo", "--newcomer", *words)
    assert SiteConfig.load(Path(initialised["site_toml"])).listen == listen
    assert SiteConfig.load(Path(initialised["site_toml"])).metrics.listen == f"127.0.0.1:{9464 + int(listen[-2:]) - 43}"


def test_a_listen_that_is_no_address_is_refused_before_anything_is_made(
    founded: GovernedFederation, tmp_path: Path
) -> None:
    words = ("--federation", founded.ca / "federation.toml", "--site", "oslo", "--newcomer", "--listen", "oslo")
    assert "--listen: " in refused("UsageError", "--home", tmp_path / "oslo", "site", "init", *words)
    assert not (tmp_path / "oslo").exists()


LC_FED = {
    "method": {"name": "lc_fed"},
    "task": task(2, kind="segmentation"),
    "shared_model": {"name": "unet", "width": 4},
}
KT_PFL = {"method": {"name": "kt_pfl", "public_sha256": "ab" * 32}}


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("keys", [LC_FED, KT_PFL])
def test_a_method_with_a_place_for_each_site_names_the_newcomer_before_anything_is_signed(
    tmp_path: Path, keys: Mapping[str, Any], members: int | None
) -> None:
    founded = GovernedFederation.create(tmp_path, "asia", "europe", members=members, **keys)
    init(founded, "oslo", "--newcomer")
    signs = (
        ("amend", "--yes", "--ca", founded.ca) if members is None else ("propose", "--out", tmp_path / "proposal.json")
    )
    add = ("--home", founded.home, "federation", *signs, "--site", "asia", "--add", "oslo")
    reason = refused("MembershipError", *add, "--request", tmp_path / "oslo.csr")
    assert f"add: {keys['method']['name']} has no place for oslo" in reason
    assert "found another federation with all sites in federation.toml, or with a `[method] name`" in reason
    assert not (tmp_path / "proposal.json").exists()
    for folder in (founded.ca, founded.folder("asia").membership):
        assert MembershipFolder(folder).approvals() == {}


def test_a_newcomers_key_is_the_one_that_the_amendment_pins(founded: GovernedFederation, tmp_path: Path) -> None:
    init(founded, "oslo", "--newcomer")
    founded.amend("asia", "--add", "oslo", "--request", tmp_path / "oslo.csr")
    run_json("--home", tmp_path / "oslo", "site", "init", "--federation", founded.ca / "federation.toml",
             "--site", "oslo", "--newcomer", "--out", tmp_path / "again.csr")  # fmt: skip
    (tmp_path / "oslo" / "trial" / "oslo" / "pki" / "site.key").unlink()
    other = init(founded, "oslo", "--newcomer", out="other.csr")["fingerprint"]
    assert "the federation pins another key for oslo" in refused("BundleError", *admit(founded, other, "other.csr"))


def test_a_member_whose_key_an_amendment_changes_is_admitted_with_it(
    founded: GovernedFederation, tmp_path: Path
) -> None:
    home = ("--home", founded.home)
    place = ("--federation", founded.ca / "federation.toml", "--site", "europe", "--out", tmp_path / "new.csr")
    fingerprint = run_json(*home, "site", "init", *place, "--renew")["fingerprint"]
    amend = (*home, "federation", "amend", "--yes", "--ca", founded.ca, "--site", "europe")
    run_json(*amend, "--rekey", "europe", "--request", tmp_path / "new.csr")
    assert run_json(*admit(founded, fingerprint, "new.csr"), "--replace")["site"] == "europe"
    assert run_json(*home, "site", "join", tmp_path / "new.csr.bundle")["fingerprint"] == fingerprint
    assert run_json(*home, "federation", "show", "--site", "europe")["head"]["number"] == 1
    startup.load(founded.folder("europe"))


def test_a_newcomer_is_not_in_the_roster_and_everyone_else_is(founded: GovernedFederation, tmp_path: Path) -> None:
    words = ("--federation", founded.ca / "federation.toml", "--out", tmp_path / "x.csr")
    message = refused("ConfigError", "--home", tmp_path / "x", "site", "init", *words, "--site", "oslo")
    assert "add --newcomer where an amendment will add it" in message
    taken = refused("ConfigError", "--home", tmp_path / "x", "site", "init", *words, "--site", "asia", "--newcomer")
    assert "leave --newcomer out" in taken
    init(founded, "oslo", "--newcomer")
    with pytest.raises(ConfigError, match="does not name this site, 'oslo'"):
        startup.load(GovernedFederation(founded.ca, tmp_path / "oslo", founded.federation).folder("oslo"))


def test_the_chain_of_another_federation_admits_nobody(founded: GovernedFederation, tmp_path: Path) -> None:
    other = GovernedFederation.create(tmp_path / "other", "asia")
    fingerprint = init(founded, "oslo", "--newcomer")["fingerprint"]
    words = (*admit(founded, fingerprint), "--site", "asia")
    wrong = ("--home", other.home, *words[2:])
    assert "is of another federation" in refused("FederationMismatch", *wrong)

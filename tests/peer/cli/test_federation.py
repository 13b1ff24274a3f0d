"""``federation create``, ``show`` and ``admit`` as a founder calls them."""

import json
import tomllib
from pathlib import Path

import pytest

from fakes.cli import ROOT, refused, run_json
from fakes.cli import run as call
from fakes.governed import GovernedFederation
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.schema import FederationConfig

EXAMPLE = ROOT / "deploy" / "examples" / "federation.toml"
NAMELESS = (
    "[task] has no class_names: a site that numbers the classes otherwise is noticed only where datalists name them, "
    "and predictions say only their numbers"
)


@pytest.fixture
def request_of_europe(tmp_path: Path, ca: Path) -> dict[str, str]:
    return init(tmp_path, ca / "federation.toml")


def init(tmp_path: Path, file: Path, name: str = "europe", *options: str, out: str = "europe.csr") -> dict[str, str]:
    words = ("--federation", file, "--site", name, "--out", tmp_path / out, *options)
    initialised: dict[str, str] = run_json("--home", tmp_path / "home", "site", "init", *words)
    return initialised


def test_create_says_what_it_made(tmp_path: Path) -> None:
    created = run_json("federation", "create", EXAMPLE, "--out", tmp_path / "ca", "--days", "100")
    final = FederationConfig.load(tmp_path / "ca" / "federation.toml")
    assert created == {
        "federation": "fedasd",
        "digest": final.digest,
        "folder": str(tmp_path / "ca"),
        "federation_toml": str(tmp_path / "ca" / "federation.toml"),
        "ca_fingerprint": created["ca_fingerprint"],
        "ca_days": 99,
        "sites": ["america", "asia", "europe", "oceania"],
        "notes": [NAMELESS],
    }
    assert len(created["ca_fingerprint"]) == 95
    text = (tmp_path / "ca" / "federation.toml").read_text()
    count = "count = 20 # 5 steps for each of the 4 sites, as in FedSKD, arXiv 2503.18981.\n"
    assert EXAMPLE.read_text() in text.replace(count, "")


def test_create_notes_a_federation_of_one_site(tmp_path: Path) -> None:
    first, *_ = EXAMPLE.read_text().split("\n[[site]]")
    (tmp_path / "draft.toml").write_text(f'{first}\n[[site]]\nname = "europe"\n')
    note, _ = run_json("federation", "create", tmp_path / "draft.toml", "--out", tmp_path / "ca")["notes"]
    assert note.startswith("the roster has one [[site]]: it will train alone")


def test_create_notes_a_global_test_that_would_measure_nothing(tmp_path: Path) -> None:
    draft = EXAMPLE.read_text().replace("#global_test = false", "global_test = true")
    draft = draft.replace("#class_names", "class_names")
    (tmp_path / "one.toml").write_text(draft)
    draft = draft.replace('name = "fedskd"', 'name = "dflmoe"').replace("[stages.train]", "")
    (tmp_path / "two.toml").write_text(draft)
    measured = run_json("federation", "create", tmp_path / "one.toml", "--out", tmp_path / "ca1")
    kept_home = run_json("federation", "create", tmp_path / "two.toml", "--out", tmp_path / "ca2")
    assert measured["notes"] == []
    (note,) = kept_home["notes"]
    assert note == f"global_test = true measures nothing: {PLANS['dflmoe'].evaluation_denied}"


def test_a_draft_without_keys_gives_the_sites_theirs_and_founds_no_federation_of_members(tmp_path: Path) -> None:
    keyless = toml.text({**tomllib.loads(EXAMPLE.read_text()), "governance": {"members": 3}})
    draft = tmp_path / "draft.toml"
    draft.write_text(keyless)
    names = sorted(entry["name"] for entry in tomllib.loads(keyless)["site"])
    keys = {name: init(tmp_path, draft, name, out=f"{name}.csr")["fingerprint"] for name in names}
    create = ("federation", "create", draft, "--out", tmp_path / "ca")
    reason = refused("ConfigError", *create)
    assert "governance: members sign with pinned keys: write `key` into the [[site]] of america, asia" in reason
    assert "site init --federation" in reason
    assert not (tmp_path / "ca").exists()
    document = tomllib.loads(keyless)
    for entry in document["site"]:
        entry["key"] = keys[entry["name"]]
    draft.write_text(toml.text(document))
    final = Path(run_json(*create)["federation_toml"])
    again = init(tmp_path, final, "asia", out="again.csr")
    assert (again["key"], again["fingerprint"]) == ("kept", keys["asia"])
    admit = ("federation", "admit", "--ca", tmp_path / "ca", tmp_path / "asia.csr", "--out", tmp_path / "asia.bundle")
    run_json(*admit, "--fingerprint", keys["asia"])
    assert run_json("--home", tmp_path / "home", "site", "join", tmp_path / "asia.bundle")["site"] == "asia"


def test_a_federation_of_members_whose_keys_were_taken_out_is_refused(tmp_path: Path) -> None:
    federation = GovernedFederation.create(tmp_path, "asia", "europe", members=2)
    text = federation.ca / "federation.toml"
    text.write_text("".join(line for line in text.read_text().splitlines(True) if not line.startswith("key = ")))
    assert "members sign with pinned keys" in refused("ConfigError", "federation", "show", text)


def test_create_tells_people_and_does_not_overwrite(tmp_path: Path) -> None:
    create = ("federation", "create", EXAMPLE, "--out", tmp_path / "ca")
    result = call(*create)
    assert result.exit_code == 0
    assert FederationConfig.load(tmp_path / "ca" / "federation.toml").digest in result.stdout
    assert "keep it offline" in result.stdout
    assert "is not an empty folder" in refused("StateError", *create)


def test_show_tells_everything_that_holds(ca: Path) -> None:
    shown = run_json("federation", "show", ca / "federation.toml")
    final = FederationConfig.load(ca / "federation.toml")
    assert (shown["federation"], shown["digest"]) == ("fedasd", final.digest)
    assert shown["roster_digest"] == final.roster.digest
    assert shown["ca"]["days"] == 3649
    assert (shown["method"], shown["pattern"], shown["artifact"]) == ("fedskd", "permutation", "model")
    assert shown["parameters"] == json.loads(json.dumps(PLANS["fedskd"].defaults()))
    assert shown["stages"]["train"]["count"] == 20
    assert shown["image_axes"] == "rows_columns"
    assert [site["name"] for site in shown["sites"]] == list(final.roster)
    america = {"index": 0, "name": "america", "address": "mhfl.america.example:7443", "description": "NYU, UCLA, UM"}
    assert shown["sites"][0] == america
    assert shown["beat_s"] == 3.0


def test_show_of_a_draft_has_no_ca() -> None:
    assert run_json("federation", "show", EXAMPLE)["ca"] is None
    result = call("federation", "show", EXAMPLE)
    assert "none: this is a draft" in result.stdout
    for word in ("fedskd: permutation of model", "gamma", "mhfl.asia.example:7443", "learning_rate"):
        assert word in result.stdout


def test_show_of_a_draft_has_the_count_that_create_writes(tmp_path: Path) -> None:
    draft = tmp_path / "draft.toml"
    draft.write_text(f'{EXAMPLE.read_text()}\n[[site]]\nname = "africa"\n')
    assert run_json("federation", "show", draft)["stages"]["train"]["count"] == 25
    run_json("federation", "create", draft, "--out", tmp_path / "ca")
    founded = run_json("federation", "show", tmp_path / "ca" / "federation.toml")
    assert founded["stages"]["train"]["count"] == 25


@pytest.fixture
def admission(tmp_path: Path, ca: Path) -> tuple[object, ...]:
    """The call that admits Europe."""
    return ("federation", "admit", "--ca", ca, tmp_path / "europe.csr", "--out", tmp_path / "europe.bundle")


def test_admit_with_a_fingerprint(tmp_path: Path, ca: Path, admission, request_of_europe: dict[str, str]) -> None:
    admitted = run_json(*admission, "--fingerprint", request_of_europe["fingerprint"])
    assert (admitted["site"], admitted["fingerprint"]) == ("europe", request_of_europe["fingerprint"])
    assert (admitted["renewal"], admitted["replaced"]) == (False, [])
    assert json.loads((ca / "admitted.json").read_text())["europe"][0]["fingerprint"] == admitted["fingerprint"]
    assert (tmp_path / "europe.bundle").exists()


def test_admit_after_typing_the_name(admission: tuple[object, ...], request_of_europe: dict[str, str]) -> None:
    result = call(*admission, answer="europe\n")
    assert result.exit_code == 0
    assert request_of_europe["fingerprint"] in result.stderr
    assert "Compare it" in result.stderr
    assert "admitted" in result.stdout


@pytest.mark.usefixtures("request_of_europe")
@pytest.mark.parametrize("answer", ["", "\n", "yes\n", "asia\n"])
def test_admit_without_confirmation_admits_nobody(tmp_path: Path, ca: Path, admission, answer: str) -> None:
    assert "europe.csr was not admitted" in refused("UsageError", *admission, answer=answer)
    assert (ca / "admitted.json").read_text() == "{}\n"
    assert not (tmp_path / "europe.bundle").exists()


def test_admit_refuses(tmp_path: Path, ca: Path, request_of_europe: dict[str, str]) -> None:
    csr, out = tmp_path / "europe.csr", tmp_path / "europe.bundle"
    words: tuple[str | Path, ...] = ("federation", "admit", "--ca", ca, "--out", out, "--fingerprint", "aa")
    assert "not the one given" in refused("BundleError", *words, csr)
    assert "no certificate signing request" in refused("BundleError", *words, ca / "ca.pem")
    assert "is refused: it is no cert" in refused("BundleError", *words[:-2], ca / "ca.pem")
    assert not out.exists()
    out.touch()
    right = ("--fingerprint", request_of_europe["fingerprint"])
    assert "europe.bundle exists" in refused("StateError", *words[:-2], *right, csr)
    assert (ca / "admitted.json").read_text() == "{}\n"
    nobody = ("federation", "admit", "--ca", tmp_path, "--out", tmp_path / "b", *right, csr)
    assert "federation.toml cannot be read" in refused("ConfigError", *nobody)


def test_replaced_certificates_are_named(tmp_path: Path, ca: Path, request_of_europe: dict[str, str]) -> None:
    base = ("federation", "admit", "--ca", ca)
    first = run_json(
        *base, tmp_path / "europe.csr", "--out", tmp_path / "1", "--fingerprint", request_of_europe["fingerprint"]
    )
    renewed = init(tmp_path, ca / "federation.toml", "europe", "--renew", out="new.csr")
    second = (*base, tmp_path / "new.csr", "--out", tmp_path / "2", "--fingerprint", renewed["fingerprint"])
    assert "repeat with --replace" in refused("BundleError", *second)
    result = call(*second, "--replace")
    assert result.exit_code == 0
    assert first["certificate_sha256"] in result.stdout
    assert "refuse_certificates" in result.stdout

"""``site init`` and ``site join`` as an operator calls them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peer.cli import main
from peer.cli.template import site_toml
from peer.config.schema import FederationConfig, SiteConfig, check_site
from peer.core.roster import SiteName
from peer.errors import EXIT_CODES

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "federation.toml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def document(*arguments: str | Path) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def error_of(name: str, result: Result) -> str:
    assert EXIT_CODES[result.exit_code].name == name, result.stderr
    assert result.stdout == ""
    return result.stderr.splitlines()[-1]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHFL_HOME", str(tmp_path / "home"))
    assert call("federation", "create", EXAMPLE, "--out", "ca").exit_code == 0


def admit(site: str = "europe", *options: str) -> dict[str, str]:
    """The site's ``init`` document after its bundle was written to ``<site>.bundle``."""
    initialised: dict[str, str] = document("site", "init", "--federation", "ca/federation.toml", "--site", site)
    words = ("--ca", "ca", f"{site}.csr", "--out", f"{site}.bundle", "--fingerprint", initialised["fingerprint"])
    document("federation", "admit", *words, *options)
    return initialised


def test_init_makes_a_home(tmp_path: Path) -> None:
    initialised = document("site", "init", "--federation", "ca/federation.toml", "--site", "europe")
    folder = tmp_path / "home" / "fedasd" / "europe"
    final = FederationConfig.load(folder / "federation.toml")
    assert initialised == {
        "federation": "fedasd",
        "digest": final.digest,
        "site": "europe",
        "folder": str(folder),
        "site_toml": str(folder / "site.toml"),
        "request": "europe.csr",
        "fingerprint": initialised["fingerprint"],
        "key": "new",
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert Path("europe.csr").read_bytes().startswith(b"-----BEGIN CERTIFICATE REQUEST-----")
    assert (folder / "site.toml").read_text() == site_toml(3, final.addresses[SiteName("europe")])
    check_site(final, SiteConfig.load(folder / "site.toml"), "europe")


def test_init_tells_people_the_fingerprint() -> None:
    result = call("site", "init", "--federation", "ca/federation.toml", "--site", "europe")
    again = document("site", "init", "--federation", "ca/federation.toml", "--site", "europe", "--out", "again.csr")
    assert result.exit_code == 0
    assert again["fingerprint"] in result.stdout
    assert "telephone" in result.stdout


def test_init_keeps_what_is_there(tmp_path: Path) -> None:
    words = ("site", "init", "--federation", "ca/federation.toml", "--site", "europe")
    first = document(*words)
    site = tmp_path / "home/fedasd/europe/site.toml"
    site.write_text("# mine\n")
    assert "europe.csr exists; remove it, or name another file with --out" in error_of("StateError", call(*words))
    again = document(*words, "--out", "again.csr")
    assert (again["key"], again["fingerprint"]) == ("kept", first["fingerprint"])
    assert site.read_text() == "# mine\n"
    renewed = document(*words, "--out", "new.csr", "--renew")
    assert renewed["key"] == "renewed"
    assert renewed["fingerprint"] != first["fingerprint"]


def test_init_refuses(tmp_path: Path) -> None:
    words = ("site", "init", "--federation")
    assert "does not name 'africa'" in error_of("ConfigError", call(*words, "ca/federation.toml", "--site", "africa"))
    assert "site name '../x' must be" in error_of("UsageError", call(*words, "ca/federation.toml", "--site", "../x"))
    assert "it is a draft" in error_of("CertificateError", call(*words, EXAMPLE, "--site", "europe"))
    assert sorted(os.listdir(tmp_path)) == ["ca"]


def test_join() -> None:
    initialised = admit()
    joined = document("site", "join", "europe.bundle")
    assert joined == {
        "federation": "fedasd",
        "digest": initialised["digest"],
        "site": "europe",
        "folder": initialised["folder"],
        "fingerprint": initialised["fingerprint"],
        "certificate_sha256": joined["certificate_sha256"],
        "certificate_days": 364,
    }
    record = json.loads(Path("ca/admitted.json").read_text())["europe"][0]
    assert joined["certificate_sha256"] == record["certificate_sha256"]
    assert "mhfl-peer check --site europe" in call("site", "join", "europe.bundle").stdout


def test_bundle_finds_its_site_among_others() -> None:
    for site in ("asia", "europe"):
        admit(site)
    assert [document("site", "join", f"{site}.bundle")["site"] for site in ("europe", "asia")] == ["europe", "asia"]


def test_join_refuses(tmp_path: Path) -> None:
    admit()
    assert "missing cannot be read" in error_of("BundleError", call("site", "join", "missing"))
    assert "europe.csr is refused: it is no JSON" in error_of("BundleError", call("site", "join", "europe.csr"))
    elsewhere = call("site", "join", "europe.bundle", "--home", tmp_path / "elsewhere")
    assert f"has no folder under {tmp_path}/elsewhere; give --home" in error_of("BundleError", elsewhere)
    bundle = json.loads(Path("europe.bundle").read_text())
    for change, message in (
        ({"federation_toml": "name = 3"}, "europe.bundle is refused: its federation.toml: "),
        ({"federation_toml": "name"}, "europe.bundle is refused: its federation.toml is not TOML"),
        ({"certificate": ""}, "is not signed by the CA"),
    ):
        Path("europe.bundle").write_text(json.dumps({**bundle, **change}))
        assert message in error_of("BundleError", call("site", "join", "europe.bundle"))
    assert not (tmp_path / "home/fedasd/europe/pki/cert.pem").exists()

"""``site init`` and ``site join`` as an operator calls them."""

import json
import os
import stat
from pathlib import Path

import pytest

from fakes.cli import ROOT, refused, run_json
from fakes.cli import run as call
from peer.cli.template import site_toml
from peer.core.roster import SiteName
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

EXAMPLE = ROOT / "deploy" / "examples" / "federation.toml"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHFL_HOME", str(tmp_path / "home"))
    assert call("federation", "create", EXAMPLE, "--out", "ca").exit_code == 0


def admit(site: str = "europe", *options: str) -> dict[str, str]:
    """The site's ``init`` document after its bundle was written to ``<site>.bundle``."""
    initialised: dict[str, str] = run_json("site", "init", "--federation", "ca/federation.toml", "--site", site)
    words = ("--ca", "ca", f"{site}.csr", "--out", f"{site}.bundle", "--fingerprint", initialised["fingerprint"])
    run_json("federation", "admit", *words, *options)
    return initialised


def test_init_makes_a_home(tmp_path: Path) -> None:
    initialised = run_json("site", "init", "--federation", "ca/federation.toml", "--site", "europe")
    folder = tmp_path / "home" / "fedasd" / "europe"
    final = FederationConfig.load(folder / "federation.toml")
    assert initialised == {
        "federation": "fedasd", "digest": final.digest, "site": "europe", "folder": str(folder),
        "site_toml": str(folder / "site.toml"), "request": "europe.csr", "fingerprint": initialised["fingerprint"],
        "key": "new",
    }  # fmt: skip
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert Path("europe.csr").read_bytes().startswith(b"-----BEGIN CERTIFICATE REQUEST-----")
    assert (folder / "site.toml").read_text() == site_toml(3, final.addresses[SiteName("europe")], discovery=False)
    check_site(final, SiteConfig.load(folder / "site.toml"), "europe")


def test_init_keeps_what_is_there(tmp_path: Path) -> None:
    words = ("site", "init", "--federation", "ca/federation.toml", "--site", "europe")
    first = run_json(*words)
    site = tmp_path / "home/fedasd/europe/site.toml"
    site.write_text("# mine\n")
    assert "europe.csr exists; remove it, or name another file with --out" in refused("StateError", *words)
    again = run_json(*words, "--out", "again.csr")
    assert (again["key"], again["fingerprint"]) == ("kept", first["fingerprint"])
    assert site.read_text() == "# mine\n"
    shown = call(*words, "--out", "shown.csr").stdout
    assert first["fingerprint"] in shown
    assert "telephone" in shown
    renewed = run_json(*words, "--out", "new.csr", "--renew")
    assert renewed["key"] == "renewed"
    assert renewed["fingerprint"] != first["fingerprint"]
    assert "meanwhile" not in call(*words, "--out", "newer.csr", "--renew").stdout


def test_init_refuses(tmp_path: Path) -> None:
    words = ("site", "init", "--federation")
    assert "does not name 'africa'" in refused("ConfigError", *words, "ca/federation.toml", "--site", "africa")
    assert "site name '../x' must be" in refused("UsageError", *words, "ca/federation.toml", "--site", "../x")
    assert sorted(os.listdir(tmp_path)) == ["ca"]


def test_join() -> None:
    initialised = admit()
    joined = run_json("site", "join", "europe.bundle")
    assert joined == {
        "federation": "fedasd", "digest": initialised["digest"], "site": "europe", "folder": initialised["folder"],
        "fingerprint": initialised["fingerprint"], "certificate_sha256": joined["certificate_sha256"],
        "certificate_days": 364,
    }  # fmt: skip
    record = json.loads(Path("ca/admitted.json").read_text())["europe"][0]
    assert joined["certificate_sha256"] == record["certificate_sha256"]
    assert "`mhfl-peer check --site europe`" in call("site", "join", "europe.bundle").stdout
    Path("home/other/europe").mkdir(parents=True)
    Path("home/other/europe/federation.toml").touch()
    again = call("--home", "home", "site", "join", "europe.bundle").stdout
    assert "`mhfl-peer --home home check --site fedasd/europe`" in again


def test_bundle_finds_its_site_among_others() -> None:
    for site in ("asia", "europe"):
        admit(site)
    assert [run_json("site", "join", f"{site}.bundle")["site"] for site in ("europe", "asia")] == ["europe", "asia"]


def test_join_refuses(tmp_path: Path) -> None:
    admit()
    assert "europe.csr is refused: it is no JSON" in refused("BundleError", "site", "join", "europe.csr")
    reason = refused("BundleError", "site", "join", "europe.bundle", "--home", tmp_path / "elsewhere")
    assert f"has no folder under {tmp_path}/elsewhere; give --home" in reason
    bundle = json.loads(Path("europe.bundle").read_text())
    for change, message in (
        ({"federation_toml": "name = 3"}, "europe.bundle is refused: its federation.toml: "),
        ({"federation_toml": "name"}, "europe.bundle is refused: its federation.toml is not TOML"),
        ({"certificate": ""}, "is not signed by the CA"),
    ):
        Path("europe.bundle").write_text(json.dumps({**bundle, **change}))
        assert message in refused("BundleError", "site", "join", "europe.bundle")
    assert not (tmp_path / "home/fedasd/europe/pki/cert.pem").exists()

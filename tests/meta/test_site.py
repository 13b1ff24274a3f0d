"""The site of `make site` has every page, needs nothing from a network, and is not built with a broken link."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from fakes import chromium
from tests.meta.test_readme import DOCUMENTS

pytestmark = pytest.mark.e2e

STABLE = re.compile(r"^\| `([\w.]+)` \| (.*) \|$", re.MULTILINE)
"""A row of the table in plugins.md: a module, and its names."""
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
"""Element -> the attribute with what a browser loads for it."""


class Html(HTMLParser):
    """What a page loads, its links, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors.add(values.get("id", ""))
        if tag == "a":
            self.links.add(values.get("href", ""))
        if LOADED.get(tag) in values and values.get("rel") != "canonical":
            self.loaded.add(values[LOADED[tag]])


def mkdocs(root: Path, config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(out)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    out = tmp_path_factory.mktemp("site")
    built = mkdocs(root, root / "deploy/site/mkdocs.yml", out)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_in_the_navigation(site: Path) -> None:
    links = Html(site / "index.html").links
    pages = {name.replace("README.md", "index.md").removesuffix(".md") + ".html" for name in DOCUMENTS}
    assert pages | {"CHANGELOG.html"} <= links


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    elsewhere = {target for page in site.rglob("*.html") for target in Html(page).loaded if "//" in target}
    assert not elsewhere
    loaded = {
        target for path in site.rglob("*.css") for target in re.findall(r"(?:url\(|@import)[^)]*", path.read_text())
    }
    assert loaded
    assert not {target for target in loaded if "//" in target}
    assert {"search/lunr.js", "search/search_index.js", "search_in_page.js"} <= Html(site / "index.html").loaded


def test_the_reference_has_every_stable_name(root: Path, site: Path) -> None:
    anchors = set().union(*(Html(page).anchors for page in (site / "api").glob("*.html")))
    names = {
        name if "." in name else f"{module}.{name}"
        for module, cell in STABLE.findall((root / "deploy/plugins.md").read_text())
        for name in re.findall("`(.+?)`", cell)
        if not name.isupper() and name != "losses.__all__"
    }
    assert len(names) > 15
    assert names <= anchors
    assert {
        "losses.dice_ce_loss",
        "models.create_model",
        "peer.api.open_site",
        "peer.api.SiteHandle.predict",
    } <= anchors


@pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on this machine")
def test_the_search_finds_a_page_that_was_opened_from_a_folder(site: Path) -> None:
    address = f"{(site / 'search.html').as_uri()}?q=withdrawal"
    shown = chromium.run(f"--virtual-time-budget={chromium.VIRTUAL_MS}", "--dump-dom", address)
    assert "deploy/guarantees.html#withdrawal-and-retention" in shown.stdout, shown.stderr[-2000:]


def test_a_broken_link_and_a_page_without_a_place_end_the_build(root: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "broken.md").write_text("# Broken\n[a](nowhere.md) [b](broken.md#nothing)\n")
    own = {"docs_dir": "docs", "hooks": [str(root / "deploy/site/hooks.py")], "plugins": [], "nav": ["broken.md"]}
    config = tmp_path / "mkdocs.yml"
    config.write_text(yaml.safe_dump({"INHERIT": str(root / "deploy/site/mkdocs.yml"), **own}))
    built = mkdocs(root, config, tmp_path / "out")
    assert built.returncode != 0
    for problem in ("'nowhere.md'", "'broken.md#nothing'", "deploy/audit.md"):
        assert problem in built.stderr, built.stderr

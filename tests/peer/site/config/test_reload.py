"""A change of site.toml is read once; while the file is broken, the former values hold."""

import logging
import os
from pathlib import Path

import pytest

from peer.site.config.reload import RefusedCertificates, SiteTomlWatcher
from peer.site.config.schema import SiteConfig

TEXT = "[data]\ninput_size = [8]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    return path


def test_a_change_is_news_once(file: Path) -> None:
    watcher = SiteTomlWatcher(SiteConfig.load(file), "addresses")
    assert watcher.read_change() is None
    file.write_text('listen = "127.0.0.1:9"\n' + TEXT)
    changed = watcher.read_change()
    assert changed.listen == "127.0.0.1:9"
    assert watcher.read_change() is None


def test_a_broken_or_missing_file_is_named_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watcher = SiteTomlWatcher(SiteConfig.load(file), "addresses")
    file.write_text("nonsense")
    assert watcher.read_change() is None
    assert watcher.read_change() is None
    file.unlink()
    assert watcher.read_change() is None
    assert [record.getMessage() for record in caplog.records] == [
        "changed addresses not usable; the former ones stay"
    ] * 2


FIRST, SECOND = "ab" * 32, "cd" * 32


class Operator:
    """Writes the list of refused certificates into site.toml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edits = 0

    def refuse(self, *digests: str, more: str = "") -> None:
        self.path.write_text(f"refuse_certificates = {list(digests)}\n{more}[data]\ninput_size = [8]\n")
        self.edits += 1
        os.utime(self.path, ns=(self.edits, self.edits))  # two edits may have one time stamp of the file system


@pytest.fixture
def operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Operator:
    caplog.set_level(logging.INFO, logger="peer.site.config.reload")
    operator = Operator(tmp_path / "site.toml")
    operator.refuse(FIRST)
    return operator


def test_the_list_is_followed_both_ways(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    assert (FIRST in refused, SECOND in refused) == (True, False)
    assert caplog.records == []
    operator.refuse(FIRST, SECOND)
    assert (FIRST in refused, SECOND in refused) == (True, True)
    operator.refuse()
    assert (FIRST in refused, SECOND in refused) == (False, False)
    assert [record.getMessage() for record in caplog.records] == ["certificates refused from now on"] * 2


def test_a_file_that_is_broken_or_gone_frees_nobody_and_is_named_once(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    operator.refuse(more="unknown_key = 1\n")
    for _ in range(3):
        assert FIRST in refused
    assert len(caplog.records) == 1
    assert "unknown_key: unknown key" in caplog.records[0].__dict__["reason"]
    operator.path.unlink()
    assert FIRST in refused
    operator.refuse(SECOND)
    assert (FIRST in refused, SECOND in refused) == (False, True)


def test_another_edit_is_no_news(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    operator.refuse(FIRST, more='listen = "127.0.0.1:1"\n')
    assert FIRST in refused
    assert caplog.records == []

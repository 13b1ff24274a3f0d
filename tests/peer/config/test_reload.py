"""site.toml as it is now: told once when it changes, and the former one holds while it is broken."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from peer.config.reload import FollowedConfig, RefusedCertificates
from peer.config.schema import SiteConfig

TEXT = "[data]\ninput_size = [8]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    return path


def test_a_change_is_news_once(file: Path) -> None:
    followed = FollowedConfig(SiteConfig.load(file), "addresses")
    assert followed.news() is None
    file.write_text('listen = "127.0.0.1:9"\n' + TEXT)
    news = followed.news()
    assert news is not None
    assert news.listen == "127.0.0.1:9"
    assert followed.news() is None


def test_a_broken_or_missing_file_is_named_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    followed = FollowedConfig(SiteConfig.load(file), "addresses")
    file.write_text("nonsense")
    assert followed.news() is None
    assert followed.news() is None
    file.unlink()
    assert followed.news() is None
    assert [record.getMessage() for record in caplog.records] == [
        "changed addresses not usable; the former ones stay"
    ] * 2


ONE, TWO = "ab" * 32, "cd" * 32


class Operator:
    """Writes site.toml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edits = 0

    def list(self, *digests: str, more: str = "") -> None:
        self.path.write_text(f"refuse_certificates = {list(digests)}\n{more}[data]\ninput_size = [8]\n")
        self.edits += 1
        os.utime(self.path, ns=(self.edits, self.edits))  # two edits may fall into one tick of the file system


@pytest.fixture
def operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Operator:
    caplog.set_level(logging.INFO, logger="peer.config.reload")
    operator = Operator(tmp_path / "site.toml")
    operator.list(ONE)
    return operator


def test_the_list_is_followed_both_ways(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    assert (ONE in refused, TWO in refused) == (True, False)
    assert caplog.records == []
    operator.list(ONE, TWO)
    assert (ONE in refused, TWO in refused) == (True, True)
    operator.list()
    assert (ONE in refused, TWO in refused) == (False, False)
    assert [record.getMessage() for record in caplog.records] == ["certificates refused from now on"] * 2


def test_a_file_that_is_broken_or_gone_frees_nobody_and_is_named_once(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    operator.list(more="what = 1\n")
    for _ in range(3):
        assert ONE in refused
    assert len(caplog.records) == 1
    assert "what: unknown key" in caplog.records[0].__dict__["reason"]
    operator.path.unlink()
    assert ONE in refused
    operator.list(TWO)
    assert (ONE in refused, TWO in refused) == (False, True)


def test_another_edit_is_no_news(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedCertificates(SiteConfig.load(operator.path))
    operator.list(ONE, more='listen = "127.0.0.1:1"\n')
    assert ONE in refused
    assert caplog.records == []

"""site.toml as it is now: told once when it changes, and the former one holds while it is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.config import Site
from peer.followed import Followed

TEXT = "[data]\ninput_size = [8]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    return path


def test_a_change_is_news_once(file: Path) -> None:
    followed = Followed(Site.load(file), "addresses")
    assert followed.news() is None
    file.write_text('listen = "127.0.0.1:9"\n' + TEXT)
    news = followed.news()
    assert news is not None
    assert news.listen == "127.0.0.1:9"
    assert followed.news() is None


def test_a_broken_or_missing_file_is_named_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(Site.load(file), "addresses")
    file.write_text("nonsense")
    assert followed.news() is None
    assert followed.news() is None
    file.unlink()
    assert followed.news() is None
    assert [record.getMessage() for record in caplog.records] == [
        "changed addresses not usable; the former ones stay"
    ] * 2

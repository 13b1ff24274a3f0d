"""What site.toml refuses is refused from the moment that the file says so."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from peer.config import Site
from peer.refusal import RefusedCertificates

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
    caplog.set_level(logging.INFO, logger="peer.refusal")
    operator = Operator(tmp_path / "site.toml")
    operator.list(ONE)
    return operator


def test_the_list_is_followed_both_ways(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedCertificates(Site.load(operator.path))
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
    refused = RefusedCertificates(Site.load(operator.path))
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
    refused = RefusedCertificates(Site.load(operator.path))
    operator.list(ONE, more='listen = "127.0.0.1:1"\n')
    assert ONE in refused
    assert caplog.records == []

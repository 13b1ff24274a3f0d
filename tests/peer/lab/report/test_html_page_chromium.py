"""A report in a real browser: at 1400 and 400 pixels, in light and dark, with nothing that runs out but wide tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from fakes import chromium
from peer.lab.report.write import report

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def page(runs: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    report(runs(folder / "out"), folder / "report")
    return (folder / "report" / "index.html").read_text()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1400, "light", marks=pytest.mark.nightly)])
def test_the_report_is_legible(page: str, width: int, scheme: Literal["light", "dark"], tmp_path: Path) -> None:
    chromium.assert_legible(page, tmp_path, width=width, scheme=scheme)

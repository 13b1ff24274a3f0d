"""The demonstration's page in a real browser: at 1400 and 400 pixels, in light and dark, with nothing that runs out."""

from pathlib import Path
from typing import Literal

import pytest

from fakes import chromium
from fakes.demonstration import demonstration
from peer.lab.demo import picture

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on this machine"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "dark"),
        pytest.param(1400, "light", marks=pytest.mark.nightly),
        pytest.param(360, "light", marks=pytest.mark.nightly),
    ],
)
def test_the_page_is_legible(width: int, scheme: Literal["light", "dark"], tmp_path: Path) -> None:
    picture.write(demonstration(rounds=40, over_splits=True), tmp_path / "picture.html")
    chromium.assert_legible((tmp_path / "picture.html").read_text(), tmp_path, width=width, scheme=scheme)

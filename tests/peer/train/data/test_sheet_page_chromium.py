"""The contact sheet in a real browser: at 1400 and 400 pixels, in light and dark, with nothing that runs out."""

import base64
import io
from pathlib import Path
from typing import Literal

import pytest
from PIL import Image

from fakes import chromium
from fakes.contact_sheets import page, sample, table_page
from peer.core.columns import TableColumn

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on this machine"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1400, "light", marks=pytest.mark.nightly)])
def test_the_sheet_is_legible(width: int, scheme: Literal["light", "dark"], tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (96, 160), 90).save(file, "PNG")
    picture = base64.b64encode(file.getvalue()).decode()
    pictures = {"image": [picture] * 2, "augmented": [picture] * 2}
    shown = [sample(), sample(image="scans/" + "a-long-name" * 20, subject="p" * 60), sample(problem="holds a NaN")]
    intensity = {"low": -160.0, "high": 240.0, "percentiles": False}
    whole = page(*shown, pictures=[pictures, pictures, {}], intensity=intensity, orientation="RAS")
    chromium.assert_legible(whole, tmp_path, width=width, scheme=scheme)


@pytest.mark.timeout(300)
def test_the_distributions_of_a_table_are_legible(tmp_path: Path) -> None:
    columns = [
        TableColumn("age", "number", (-1000.0, 100000.0), unit="years"),
        TableColumn("a-long-name" * 8, "category", levels=("a long level " * 6, "x" * 60, "none")),
        TableColumn("smokes", "flag"),
    ]
    chromium.assert_legible(table_page(*columns), tmp_path, width=400, scheme="dark")

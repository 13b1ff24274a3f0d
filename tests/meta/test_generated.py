"""Pictures that are committed can be drawn anew; `make lint` compares what is generated with its sources."""

import re
from pathlib import Path


def test_every_picture_of_a_page_can_be_drawn_anew(root: Path) -> None:
    script = (root / "deploy" / "screenshots.py").read_text()
    assert [picture.name for picture in (root / "deploy").glob("*.png") if f'"{picture.stem}"' not in script] == []
    named = re.findall(r'"((?:peer|models)/[a-z_/]+\.(?:py|css))"', script)
    assert [path for path in named if not (root / path).is_file()] == []
    assert len(named) >= 5

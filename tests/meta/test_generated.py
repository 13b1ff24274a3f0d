"""Pictures that are committed can be drawn anew; `make lint` compares what is generated with its sources."""

import re
import runpy
from pathlib import Path

from peer.site.config.toml import StrictTable


class Inner(StrictTable):
    size: int = 3
    """How many there are."""
    path: str | None = None
    """Where they are; left out: nowhere."""


class Outer(StrictTable):
    name: str
    """The name."""
    inner: Inner = Inner()


EXAMPLE = """\
# The file.

# Former words.
name = "a"

[inner]
#path = "x"
"""
COMMENTED = """\
# The file.

# The name.
name = "a"

[inner]
# Where they are; left out: nowhere (an example).
#path = "x"
# How many there are.
#size = 3
"""


def test_an_example_gets_the_meanings_and_the_missing_keys_of_its_tables(root: Path) -> None:
    commented = runpy.run_path(str(root / "deploy" / "reference.py"))["commented"]
    assert commented(EXAMPLE, Outer) == COMMENTED
    assert commented(COMMENTED, Outer) == COMMENTED


def test_every_picture_of_a_page_can_be_drawn_anew(root: Path) -> None:
    script = (root / "deploy" / "screenshots.py").read_text()
    assert [picture.name for picture in (root / "deploy").glob("*.png") if f'"{picture.stem}"' not in script] == []
    named = re.findall(r'"((?:peer|models)/[a-z_/]+\.(?:py|css|html\.j2))"', script)
    assert [path for path in named if not (root / path).is_file()] == []
    assert len(named) >= 5

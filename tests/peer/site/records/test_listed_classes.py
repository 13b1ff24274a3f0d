"""Class names are read from the datalist, and only where the federation has none."""

import json
from pathlib import Path

import pytest

from fakes.drafts import site_text
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.records.listed_classes import read_class_names

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
NAMED = 'class_names = ["control", "patient"]'


@pytest.mark.parametrize(
    ("agreed", "content", "names"),
    [
        ("", json.dumps({"labels": {"0": "a", "1": "b"}}).encode("utf-16"), {0: "a", 1: "b"}),
        ("", b'{"labels": {"0": "a", "1": "b", "2": "raw", "255": "edge"}}', {0: "a", 1: "b"}),
        ("", b'{"labels": {"0": "a", "%s": "b"}}' % (b"1" * 5000), {0: "a"}),
        (NAMED, b'{"labels": {"0": "a", "1": "b"}}', {}),
        ("", b'{"labels": ', {}),
        ("", b"[]", {}),
        ("", None, {}),
    ],
)
def test_the_names_are_those_of_the_datalist(
    tmp_path: Path, agreed: str, content: bytes | None, names: dict[int, str]
) -> None:
    text = (EXAMPLES / "federation.toml").read_text().replace("\nclasses = 2", f"\nclasses = 2\n{agreed}")
    assert not agreed or agreed in text
    (tmp_path / "site.toml").write_text(site_text(8, 8, 8))
    if content is not None:
        (tmp_path / "datalist.json").write_bytes(content)
    federation = FederationConfig.parse(text, "federation.toml")
    assert read_class_names(federation, SiteConfig.load(tmp_path / "site.toml")) == names

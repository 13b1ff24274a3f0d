"""Keys of a TOML file change, and every other byte stays."""

import difflib
import tomllib

import pytest

from peer.cli.template import site_toml
from peer.errors import ConfigError
from peer.site.config.toml_edit import edit

TEXT = """\
# This site.
listen = "127.0.0.1:1"  # firewall

[model] # chosen in May
name="x" # why
features = [
  "a", # one
]

# How it learns.
[training]
device="cpu"
"""


def changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line.rstrip("\n") for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"model.name": "y"}, ['- name="x" # why', '+ name="y" # why']),
        ({"listen": "[::1]:2"}, ['- listen = "127.0.0.1:1"  # firewall', '+ listen = "[::1]:2"  # firewall']),
        ({"model.features": None}, ["- features = [", '-   "a", # one', "- ]"]),
        ({"model.head": "fc"}, ['+ head = "fc"']),
        ({"training.threads": 2}, ["+ threads = 2"]),
        ({"metrics.listen": "127.0.0.1:3"}, ["+ ", "+ [metrics]", '+ listen = "127.0.0.1:3"']),
        ({"model.name": "x", "model.features": ("a",), "model.head": None}, []),
    ],
)  # fmt: skip
def test_only_the_lines_of_the_keys_change(changes: dict[str, object], lines: list[str]) -> None:
    after = edit(TEXT, changes)
    assert changed_lines(TEXT, after) == lines
    assert edit(TEXT.replace("\n", "\r\n"), changes) == after.replace("\n", "\r\n")


def test_a_new_key_takes_the_line_that_shows_it() -> None:
    template = site_toml(3)
    after = edit(template, {"data.root": "/d", "model.parameters.width": 8, "metrics.public": True})
    assert changed_lines(template, after) == [
        '- #root = "/data/abide"', '+ root = "/d"', "- #width = 16", "+ width = 8", "- #public = false",
        "+ public = true",
    ]  # fmt: skip


def test_the_shown_key_of_another_table_stays() -> None:
    text = "[a]\nx = 1\n#[b]\n#head = 2\n"
    assert edit(text, {"a.head": 3}) == "[a]\nx = 1\nhead = 3\n#[b]\n#head = 2\n"


def test_tables_in_one_line_and_dotted_keys_take_new_keys() -> None:
    after = edit('model = {name = "a"}\ndata.input_size = [3]\n', {"model.head": "q", "data.root": "r"})
    assert tomllib.loads(after) == {"model": {"name": "a", "head": "q"}, "data": {"input_size": [3], "root": "r"}}


def test_a_value_where_a_table_belongs_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data is no table, and data\.root is in it"):
        edit("data = 3\n", {"data.root": "r"})

"""deploy/guarantees.md: every test that it names exists, and every promise names one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "guarantees.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
PROMISE = re.compile(r"^- \*\*(.*?)\*\*(.*?)(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)


def test_every_promise_names_its_test() -> None:
    kept = PAGE[: PAGE.index("## Not promised")]
    promises = PROMISE.findall(kept)
    assert promises
    assert [sentence for sentence, rest in promises if not TEST.search(rest)] == []


def test_every_test_that_is_named_exists() -> None:
    for path, function in TEST.findall(PAGE):
        text = (ROOT / path).read_text("utf-8")
        assert not function or re.search(rf"^\s*(?:async )?def {function}\(", text, re.MULTILINE), f"{path}::{function}"

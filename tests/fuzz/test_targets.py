"""Each parser of foreign bytes on its corpus, on what Hypothesis draws, and on well-formed inputs that it damages.

``make fuzz SECONDS=600`` looks further, guided by coverage.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.targets import TARGETS
from hypothesis import given
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
DAMAGES = st.lists(st.tuples(st.integers(0, 4096), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    for content in target.seeds:
        target(content)
    for path in sorted((CORPUS / name).glob("*")):
        target(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@given(content=st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(name: str, content: bytes) -> None:
    TARGETS[name](content)


@pytest.mark.e2e
@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data(), damages=DAMAGES)
def test_damaged_inputs_are_read_or_refused(
    name: str, data: st.DataObject, damages: list[tuple[int, bytes, int]]
) -> None:
    content = data.draw(st.sampled_from(TARGETS[name].seeds))
    for position, inserted, removed in damages:
        at = position % (len(content) + 1)
        content = content[:at] + inserted + content[at + removed :]
    TARGETS[name](content)

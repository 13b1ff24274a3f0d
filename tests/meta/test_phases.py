"""The drawing of the phases in peer/README.md is the graph that the state machine checks."""

from pathlib import Path

from peer.core.phases import drawing


def test_the_drawing_of_the_phases_is_fresh(root: Path) -> None:
    stale = "put what `python -m peer.core.phases` prints between the ```mermaid fences of peer/README.md"
    assert f"```mermaid\n{drawing()}\n```\n" in (root / "peer" / "README.md").read_text(), stale

"""Transcripts of one site, each a file: what happens to it, and what it then does.

``pytest tests/scenarios --rewrite-scenarios`` writes the commands as they are now. Every moved line needs a reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.core_world import Simulation
from peer.core import commands, events
from peer.core.machine import SiteMachine
from peer.core.phases import Phase

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_site_does_what_its_transcript_says(path: Path, scenario: Any, rewrite: bool) -> None:
    text = path.read_text()
    played = scenario(text).play()
    if rewrite:
        path.write_text(played)
    else:
        assert played == text, f"{path.name} reads differently now"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_says_what_it_shows(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert sum(line.startswith("rules ") for line in lines) == 1
    times = [float(line.split()[1]) for line in lines if line.startswith("> ")]
    assert times == sorted(times)


def play_secure_sums(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The messages of a federation that adds up under masks: keys and masks are no words of a transcript."""
    handle, seen = SiteMachine.handle, set[str]()

    def remember(site: SiteMachine, event: events.Event, *, now_s: float) -> list[commands.Command]:
        out = handle(site, event, now_s=now_s)
        seen.update(type(message).__name__ for message in (event, *out))
        return out

    with monkeypatch.context() as patched:
        patched.setattr(SiteMachine, "handle", remember)
        run = Simulation(("africa", "america", "asia"), method="fedavg", secure=True, rounds=2)
        run.run(until=run.finished)
    return seen


def test_every_phase_event_and_command_is_shown_somewhere(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    played = [scenario(path.read_text()) for path in FILES]
    for each in played:
        each.play()
    seen = set().union(*(each.messages for each in played)) | play_secure_sums(monkeypatch)
    bases = {events.Event, commands.Command}
    messages = {
        kind.__name__
        for module in (events, commands)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, tuple(bases)) and kind not in bases
    }
    assert messages - seen == {"Rehearse", "SumFailed"}, "`check` orders the one; the other needs a lost file"
    assert {str(phase) for phase in Phase} - set().union(*(each.phases for each in played)) == {"new"}

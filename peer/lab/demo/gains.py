"""Each site's gain from joining: a method against training alone, and the method's share of the room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peer.documents.commands import DemoGain, DemoMethod, DemoSplits
from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report.table import unit_of
from peer.lab.statistics.room import Values, share_of_room

TESTS = ("local", "global")


def compare(methods: Mapping[str, DemoMethod], metric: str) -> dict[str, dict[str, DemoGain]]:
    """Compute by test and method the mean gain over training alone, and the room where it was measured."""
    return {test: {label: _compare(methods, label, test, metric) for label in joined(methods)} for test in TESTS}


def conclude(methods: Mapping[str, DemoMethod], metric: str, over_splits: DemoSplits | None = None) -> str:
    """Write one sentence for each method: each site's gain from joining, on its own test data, over splits if known."""
    if over_splits is None:
        return " ".join(_conclude(methods, label, metric) for label in joined(methods))
    return " ".join(_conclude_splits(label, over_splits, metric) for label in joined(methods))


def _conclude_splits(label: str, over_splits: DemoSplits, metric: str) -> str:
    unit, tests = unit_of(metric), over_splits["metrics"][metric]
    factor, point, digits = unit.point

    def write(test: str) -> str:
        gains = {site: interval["gain"] for site, interval in tests[test][label].items()}
        return ", ".join(
            f"{site} {'–' if gain is None else f'{factor * gain:+.{digits}f}'}" for site, gain in gains.items()
        )

    splits = len(over_splits["seeds"])
    return (
        f"Joining by {label} gave, in {point} of {unit.name} and as means of {splits} splits, on each site's own "
        f"test data {write('local')}; on the test data of all sites {write('global')}."
    )


def joined(methods: Mapping[str, DemoMethod]) -> Iterator[str]:
    """Yield the methods by which sites train together."""
    return (label for label in methods if label not in ("local", CENTRALISED))


def _compare(methods: Mapping[str, DemoMethod], label: str, test: str, metric: str) -> DemoGain:
    own, local = _values(methods[label], test), _values(methods["local"], test)
    if CENTRALISED not in methods:
        return {"gain": share_of_room(own, local, own).gain.difference}
    share = share_of_room(own, local, _values(methods[CENTRALISED], test))
    room = share.room.difference
    has_room = room is not None and room >= unit_of(metric).room_min
    return {"gain": share.gain.difference, "room": room, "share": share.share.value if has_room else None}


def _values(method: DemoMethod, test: str) -> Values:
    return {0: {site: figures[f"{test}_test"] for site, figures in method["sites"].items()}}


def _conclude(methods: Mapping[str, DemoMethod], label: str, metric: str) -> str:
    unit = unit_of(metric)
    factor, point, digits = unit.point
    local, own = methods["local"]["sites"], methods[label]["sites"]
    differences = ", ".join(
        f"{site} {_difference(own[site]['local_test'], local[site]['local_test'], unit.digits)}" for site in own
    )
    sentence = f"Joining by {label} gave {differences} of {unit.name} on each site's own test data"
    gain = _compare(methods, label, "local", metric)
    if gain["gain"] is None:
        return f"{sentence}."
    mean, room = f"{factor * gain['gain']:.{digits}f}", gain.get("room")
    if room is None:
        return f"{sentence}: on average {mean} {point}."
    bound = f"{factor * room:.{digits}f}"
    if gain.get("share") is None:
        return f"{sentence}: on average {mean} {point}; pooling all data gives {bound}, so there is hardly any room."
    return f"{sentence}: on average {mean} of the {bound} {point} that pooling all data gives."


def _difference(value: float | None, base: float | None, digits: int) -> str:
    return "–" if value is None or base is None else f"{value - base:+.{digits}f}"

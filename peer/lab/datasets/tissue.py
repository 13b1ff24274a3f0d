"""Grey and white matter in slices of ONE brain: the MNI152 template from the package ``nilearn``.

The T1 image and the tissue maps are real, each an average of 152 people. There are no patients:
every slice of every site is of the same template, so that no figure from it says anything about a
hospital's segmentation. The sites have a constructed domain shift: sagittal, coronal or axial
slices, and for ``axial-inverted`` axial slices with inverted contrast.

The classes are 0 background, 1 grey matter, 2 white matter; a pixel gets the class with the largest
share of it. Background is everything outside the brain, and everything within it that is neither
grey nor white matter, such as cerebrospinal fluid.

Slices are taken from slabs with gaps between them, so that no training slice is next to a test
slice. The template is the same left and right: sagittal slices come from the right half only. The
axial sites have the same test slices, each in its contrast, and different training slabs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError
from peer.lab.datasets.baselines import round_score
from peer.train.data import prepared_folder

Image: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.uint8]

PACKAGE, DATA = "nilearn", "nilearn/datasets/data"
FILE = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
SHAPE, CORNER_MM = (197, 233, 189), (-98, -134, -72)  # voxels of 1 mm; the first one's MNI coordinates
PINNED = "install the version that requirements/data.txt pins"
IMAGES, LABELS = "images", "labels"
CLASSES = ("background", "grey matter", "white matter")

SIDE_MM = 192  # of the square that a slice is cut to: the brain is 181 mm long
SIZES = (32, 48, 64, 96, 192)  # pixels: a whole number of voxels each, and multiples of 16
SLAB, GAP = 8, 6  # slices of 1 mm; the tissue of two slices has a Dice of 0.92 at 1 mm, of 0.6 across a gap
BRAIN_MIN = 0.15  # of the brain in the largest slice: slices with less show hardly more than a rim
NEIGHBOURS = 3  # adjacent slabs, of which one is for the test: every part of the brain is in both splits
LEVELS = 32  # of grey, for the baseline


@dataclass(frozen=True, slots=True)
class View:
    """A site's slices: their axis and contrast, and its training slabs of `NEIGHBOURS`."""

    axis: int
    first: int = 0
    step: int = 1
    inverted: bool = False


SITES: Mapping[str, View] = {
    "axial": View(axis=2, first=0, step=2),
    "axial-inverted": View(axis=2, first=1, step=2, inverted=True),
    "coronal": View(axis=1),
    "sagittal": View(axis=0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The template in a cube of `SIDE_MM` voxels of 1 mm, axes to the right, to the front and upwards.

    ``image``: T1, 0 outside the brain. ``grey``, ``white``: their share of each voxel in 255ths.
    All ``(x, y, z)``. ``corner_mm``: the first voxel in MNI coordinates.
    """

    image: NDArray[np.uint8]
    grey: NDArray[np.uint8]
    white: NDArray[np.uint8]
    corner_mm: tuple[int, ...]

    def inverted(self) -> Template:
        """Invert the brain's greys; outside the brain the image stays 0."""
        brain = self.image > 0
        darkest, brightest = self.image[brain].min(), self.image.max()
        return replace(self, image=np.where(brain, darkest + (brightest - self.image), 0).astype(np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One sample: image ``(1, h, w)`` in [0, 1] and labels ``(h, w)``.

    Rows run downwards or, seen from above, to the back; columns run to the right or, seen from the
    side, to the front.
    """

    position_mm: int
    image: Image
    labels: Labels


Splits: TypeAlias = Mapping[str, Sequence[Slice]]
"""A site's slices by ``training`` or ``test``."""


def prepare(out: Path, *, seed: int = 0, size: int = 64, source: Path | None = None) -> dict[str, Any]:
    """Write the four sites' folders and ``summary.json``.

    Args:
        seed: decides which slabs are for the test; the same seed, the same bytes.
        size: pixels along each side of a slice, one of `SIZES`.
        source: a folder with the template's three files; default: the one in the installed package.
    """
    source = source or prepared_folder.package_file(PACKAGE, DATA)
    prepared_folder.make_empty(out)
    template = read_template(source)
    sites: dict[str, Splits] = {}
    for site, view in SITES.items():
        shown = template.inverted() if view.inverted else template
        slabs = split(slabs_of(template, view.axis), view, seed=seed)
        sites[site] = {
            side: [cut(shown, view.axis, at, size) for slab in part for at in slab] for side, part in slabs.items()
        }
        _write(out / site, site, sites[site])
    summary = {
        "task": "mni-tissue",
        "seed": seed,
        "one_brain": "every slice of every site is of the same template, the average of 152 people",
        "constructed": "the sites: views of one template; the inverted contrast",
        "classes": list(CLASSES),
        "size": size,
        "pixel_mm": SIDE_MM // size,
        "gap_mm": GAP,
        "sites": {site: {side: _counts(part) for side, part in splits.items()} for site, splits in sites.items()},
        "floors_are": "mean Dice of both tissues",
        "floors": {"grey_level": {site: round_score(grey_level_baseline(splits)) for site, splits in sites.items()}},
    }
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def read_template(source: Path) -> Template:
    """Read the template from a folder with its three files. Raise ``DataError`` if one is another."""
    image, grey, white = (_read(source / FILE.format(kind)) for kind in ("t1", "gm", "wm"))
    inside = np.argwhere(image)
    start = (inside.min(axis=0) + inside.max(axis=0) + 1) // 2 - SIDE_MM // 2
    return Template(
        image=_cube(image, start),
        grey=_cube(np.where(image, grey, 0), start),
        white=_cube(np.where(image, white, 0), start),
        corner_mm=tuple((start + CORNER_MM).tolist()),
    )


def slabs_of(template: Template, axis: int) -> list[range]:
    """Return the slabs along an axis, from the midline to the right, to the front or upwards."""
    others = tuple({0, 1, 2} - {axis})
    brain = np.count_nonzero(template.image, axis=others)
    present = np.flatnonzero(brain >= BRAIN_MIN * brain.max()).tolist()
    first = max(present[0], -template.corner_mm[0]) if axis == 0 else present[0]
    return [range(start, start + SLAB) for start in range(first, present[-1] + 2 - SLAB, SLAB + GAP)]


def split(slabs: Sequence[range], view: View, *, seed: int) -> dict[str, list[range]]:
    """Split a site's slabs into ``training`` and ``test``; sites of one axis get the same test slabs."""
    parts: dict[str, list[range]] = {"training": [], "test": []}
    for start in range(0, len(slabs), NEIGHBOURS):
        by_name = {str(slab.start): slab for slab in slabs[start : start + NEIGHBOURS]}
        tested, *trained = prepared_folder.shuffle(list(by_name), seed=seed, purpose=f"axis {view.axis}")
        parts["test"].append(by_name[tested])
        parts["training"] += [by_name[name] for name in sorted(trained[view.first :: view.step], key=int)]
    return parts


def cut(template: Template, axis: int, at: int, size: int) -> Slice:
    """Cut the slice at a voxel of an axis; every pixel is the mean of its voxels."""
    image, grey, white = (
        _pool(np.take(volume, at, axis=axis).T[::-1], size)
        for volume in (template.image, template.grey, template.white)
    )
    labels = np.argmax([255 - grey - white, grey, white], axis=0).astype(np.uint8)
    return Slice(at + template.corner_mm[axis], (image / 255)[None].astype(np.float32), labels)


def grey_level_baseline(splits: Splits) -> float:
    """Compute the mean Dice on the test slices of a classifier that sees only a pixel's grey level.

    It gives each of `LEVELS` levels the most frequent class of the site's training pixels of that
    level.
    """
    counts = np.zeros((LEVELS, len(CLASSES)))
    for sample in splits["training"]:
        np.add.at(counts, (_levels(sample.image), sample.labels), 1)
    table = counts.argmax(axis=1)
    return float(np.mean([dice(table[_levels(sample.image)], sample.labels) for sample in splits["test"]]))


def dice(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """Compute the mean Dice of grey and white matter; the Dice of a class absent from both maps is 1."""
    scores = []
    for label in range(1, len(CLASSES)):
        one, other = predicted == label, labels == label
        extent = np.count_nonzero(one) + np.count_nonzero(other)
        scores.append(2 * np.count_nonzero(one & other) / extent if extent else 1.0)
    return float(np.mean(scores))


def _read(path: Path) -> NDArray[np.uint8]:
    try:
        image = nibabel.load(path)
        volume: NDArray[np.uint8] = np.asarray(image.dataobj)
    except Exception as error:  # nibabel, gzip and zlib each raise their own errors
        raise DataError(f"{path} cannot be read: {error}", PINNED) from error
    grid = np.eye(4)
    grid[:3, 3] = CORNER_MM
    if volume.dtype != np.uint8 or volume.shape != SHAPE or not np.array_equal(image.affine, grid) or not volume.any():
        raise DataError(
            f"{path} is not the template: bytes on {SHAPE} voxels of 1 mm, the first at {CORNER_MM}", PINNED
        )
    return volume


def _cube(volume: NDArray[np.uint8], start: NDArray[Any]) -> NDArray[np.uint8]:
    """Cut the cube of `SIDE_MM` voxels from ``start``; beyond the volume, it is 0."""
    cube = np.zeros([SIDE_MM] * 3, dtype=np.uint8)
    ends = np.minimum(start + SIDE_MM, volume.shape)
    own = tuple(slice(max(first, 0), end) for first, end in zip(start, ends, strict=True))
    cube[tuple(slice(part.start - first, part.stop - first) for part, first in zip(own, start, strict=True))] = volume[
        own
    ]
    return cube


def _pool(plane: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    pixels: NDArray[np.float64] = plane.reshape(size, SIDE_MM // size, size, SIDE_MM // size).mean(axis=(1, 3))
    return pixels


def _levels(image: Image) -> NDArray[np.intp]:
    levels: NDArray[np.intp] = np.minimum(image[0] * LEVELS, LEVELS - 1).astype(np.intp)
    return levels


def _write(path: Path, site: str, splits: Splits) -> None:
    view = SITES[site]
    for name in (IMAGES, LABELS):
        (path / name).mkdir(parents=True)
    entries: dict[str, list[dict[str, Any]]] = {}
    for side, part in splits.items():
        entries[side] = []
        for sample in part:
            file = f"{'xyz'[view.axis]}{sample.position_mm:+04d}.npy"
            np.save(path / IMAGES / file, sample.image)
            np.save(path / LABELS / file, sample.labels)
            entries[side].append(
                {"image": f"{IMAGES}/{file}", "label": f"{LABELS}/{file}", "position_mm": sample.position_mm}
            )
    document = {
        "name": f"Tissue of the MNI152 template, site {site}",
        "description": (
            "Slices of ONE brain, the average of 152 people: no figure from it says anything about patients. "
            "Constructed: the site" + (", and the inverted contrast." if view.inverted else ".")
        ),
        "reference": "Fonov et al., NeuroImage 54 (2011) 313-327; ICBM 2009a symmetric, read from the package nilearn",
        "licence": "nilearn: BSD 3-Clause; the template: McConnell Brain Imaging Centre, see its COPYING",
        "tensorImageSize": "2D",
        "modality": {"0": "T1"},
        "labels": {str(label): name for label, name in enumerate(CLASSES)},
        "numTraining": len(splits["training"]),
        "numTest": len(splits["test"]),
    }
    prepared_folder.write_json(path / prepared_folder.DATALIST, {**document, **entries})


def _counts(slices: Sequence[Slice]) -> dict[str, Any]:
    pixels = np.bincount(np.concatenate([sample.labels.ravel() for sample in slices]), minlength=len(CLASSES))
    return {
        "slices": len(slices),
        "pixel_shares": {
            name: round_score(share) for name, share in zip(CLASSES, (pixels / pixels.sum()).tolist(), strict=True)
        },
        "positions_mm": [sample.position_mm for sample in slices],
    }

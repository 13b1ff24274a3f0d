"""Polyps in colonoscopy: four collections of different hospitals, one site each.

Layout: one folder a collection, whose name contains ``ColonDB``, ``ETIS``, ``ClinicDB`` or
``Kvasir``. In it, or below it, lie a folder of masks (``masks``, ``Ground Truth``) and beside it
one of pictures (``images``, ``Original``, ``ETIS-LaribPolypDB``). A mask has its picture's name, in
some releases of ETIS and ColonDB with a ``p`` before it.

The adapter writes label maps of 0 and 1 from all masks, and PNG pictures from TIFF. The pictures
are frames of videos. In ClinicDB, the number of a frame gives its sequence. The files of ColonDB
and ETIS do not say which frames are of one video, and a warning says so. There is no published
split: all samples are in ``training``.
"""

from __future__ import annotations

import bisect
from pathlib import Path

from peer.lab.datasets import picture_files
from peer.lab.datasets.public_set import DEPTH_MAX, Adapter, Publication, PublicSet, PublishedCount, list_pictures

SITES = {"cvc-colondb": "colondb", "etis": "etis", "cvc-clinicdb": "clinicdb", "kvasir": "kvasir"}
"""Site -> a part of the name of its collection's folder, in the papers' order."""
SEQUENCES = (
    1, 26, 51, 68, 79, 104, 127, 152, 178, 200, 206, 228, 253, 278, 298, 318, 343, 364, 384, 409, 429, 448, 467, 479,
    504, 529, 547, 572, 592,
)  # fmt: skip
"""The first frame of each of ClinicDB's 29 sequences."""
MASKS = ("masks", "mask", "groundtruth")
PICTURES = ("images", "image", "original", "etislaribpolypdb")
LAYOUT = "a folder for each of CVC-ColonDB, ETIS-LaribPolypDB, CVC-ClinicDB and Kvasir-SEG with pictures and masks"

PUBLICATION = Publication(
    task="polyp",
    title="Polyp segmentation, four centres",
    kind="segmentation",
    classes=("background", "polyp"),
    layout=LAYOUT,
    reference=(
        "Bernal et al., Pattern Recognit 2012 (ColonDB) and Comput Med Imaging Graph 2015 (ClinicDB); Silva et al., "
        "IJCARS 2014 (ETIS); Jha et al., MMM 2020 (Kvasir-SEG)"
    ),
    licence="each collection's own terms: research and education",
    counts=(
        PublishedCount("cvc-colondb", 380, {"site": "cvc-colondb"}),
        PublishedCount("etis", 196, {"site": "etis"}),
        PublishedCount("cvc-clinicdb", 612, {"site": "cvc-clinicdb"}),
        PublishedCount("kvasir", 1000, {"site": "kvasir"}),
    ),
    federated=True,
)


def gather(pool: PublicSet) -> None:
    """Add every picture of the collections present in the source."""
    for site, name in SITES.items():
        pairs = find_collection(pool.source.resolve(), name)
        for image, mask in pairs:
            _add(pool, site, image, mask)
        if pairs and subject_of(site, pairs[0][0].stem) is None:
            pool.warnings.append(f"{site}: which frames are of one video is not known; a fold may divide a video")


def find_collection(source: Path, name: str) -> list[tuple[Path, Path]]:
    """Pair the pictures of a collection with their masks; empty if no folder's name contains ``name``.

    Of several pairs of folders (PNG and TIFF of the same frames), the function takes the one with
    the most pictures, and of equally large ones the first by name.
    """
    folders = [
        path
        for depth in range(1, DEPTH_MAX + 1)
        for path in sorted(source.glob("/".join("*" * depth)))
        if path.is_dir() and any(name in _normalise(part) for part in path.relative_to(source).parts[:-1])
    ]
    pairs: list[list[tuple[Path, Path]]] = [
        _pair_masks(images, masks)
        for masks in folders
        if _normalise(masks.name) in MASKS
        for images in sorted(masks.parent.iterdir())
        if images.is_dir() and _normalise(images.name) in PICTURES
    ]
    return max(pairs, key=len, default=[])


def subject_of(site: str, name: str) -> str | None:
    """Return the subject: in ClinicDB the sequence, in Kvasir the frame; None if it is not known."""
    if site == "kvasir":
        return f"kvasir-{name}"
    if site == "cvc-clinicdb" and name.isdecimal():
        return f"cvc-clinicdb-sequence-{bisect.bisect(SEQUENCES, int(name)):02d}"
    return None


def _normalise(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _pair_masks(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    by_name = {mask.stem: mask for mask in list_pictures(masks)}
    pairs = [(image, by_name.get(image.stem) or by_name.get(f"p{image.stem}")) for image in list_pictures(images)]
    return [(image, mask) for image, mask in pairs if mask]


def _add(pool: PublicSet, site: str, image: Path, mask: Path) -> None:
    copy, label = (Path(site) / kind / f"{image.stem}.png" for kind in ("images", "masks"))
    readable = picture_files.readable_path(image, mode="RGB", out=pool.out, copy=copy)
    picture_files.write_label_map(mask, picture=image, target=pool.out / label)
    pool.add(image=readable, label=label.as_posix(), subject=subject_of(site, image.stem), site=site)


prepare = Adapter(PUBLICATION, gather).prepare

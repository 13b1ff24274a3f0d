"""Polyps in colonoscopy: four collections of different hospitals, one site each.

Layout: one folder a collection, whose name contains ``ColonDB``, ``ETIS``, ``ClinicDB`` or ``Kvasir``; in it or below a
folder of masks (``masks``, ``Ground Truth``) beside one of pictures (``images``, ``Original``, ``ETIS-LaribPolypDB``).
A mask has its picture's name, ``p`` before it where ETIS and ColonDB were published so.

Label maps of 0 and 1 are made from all masks, PNG pictures from TIFF. Pictures are frames of videos: those of ClinicDB
name their sequence by their number; for ColonDB and ETIS the sequences' frames are not in the files, and the warning
says so. There is no published split: all samples are in ``training``.
"""

from __future__ import annotations

import bisect
from pathlib import Path

from peer.data.adapters import picture_files
from peer.data.adapters.public_set import DEPTH_MAX, Adapter, Publication, PublicSet, PublishedCount, pictures

SITES = {"cvc-colondb": "colondb", "etis": "etis", "cvc-clinicdb": "clinicdb", "kvasir": "kvasir"}
"""The sites in the papers' order, and what the name of a collection's folder contains."""
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
    spatial_dims=2,
    channels=("red", "green", "blue"),
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
    """Add every picture of the collections that are there."""
    for site, name in SITES.items():
        pairs = collection(pool.source.resolve(), name)
        for image, mask in pairs:
            _add(pool, site, image, mask)
        if pairs and subject_of(site, pairs[0][0].stem) is None:
            pool.warnings.append(f"{site}: which frames are of one video is not known; a fold may divide a video")


def collection(source: Path, name: str) -> list[tuple[Path, Path]]:
    """The pictures of a collection with their masks; none where no folder's name contains ``name``.

    Of several pairs of folders (PNG and TIFF of the same frames) the one with the most pictures is taken, among equal
    ones the first by name.
    """
    folders = [
        path
        for depth in range(1, DEPTH_MAX + 1)
        for path in sorted(source.glob("/".join("*" * depth)))
        if path.is_dir() and any(name in _plain(part) for part in path.relative_to(source).parts[:-1])
    ]
    pairs: list[list[tuple[Path, Path]]] = [
        _pairs(beside, masks)
        for masks in folders
        if _plain(masks.name) in MASKS
        for beside in sorted(masks.parent.iterdir())
        if beside.is_dir() and _plain(beside.name) in PICTURES
    ]
    return max(pairs, key=len, default=[])


def subject_of(site: str, name: str) -> str | None:
    """What a frame must not be parted from: in ClinicDB its sequence, in Kvasir itself; else None."""
    if site == "kvasir":
        return f"kvasir-{name}"
    if site == "cvc-clinicdb" and name.isdecimal():
        return f"cvc-clinicdb-sequence-{bisect.bisect(SEQUENCES, int(name)):02d}"
    return None


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    by_name = {mask.stem: mask for mask in pictures(masks)}
    found = [(image, by_name.get(image.stem) or by_name.get(f"p{image.stem}")) for image in pictures(images)]
    return [(image, mask) for image, mask in found if mask]


def _add(pool: PublicSet, site: str, image: Path, mask: Path) -> None:
    copy, label = (Path(site) / kind / f"{image.stem}.png" for kind in ("images", "masks"))
    shown = picture_files.entry(image, mode="RGB", out=pool.out, copy=copy)
    picture_files.label_map(mask, picture=image, made=pool.out / label)
    pool.add(
        {
            "image": shown,
            "label": label.as_posix(),
            "subject": subject_of(site, image.stem),
            "site": site,
        }
    )


ADAPTER = Adapter(PUBLICATION, gather)
prepare = ADAPTER.prepare

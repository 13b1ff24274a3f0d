"""Fed-ISIC2019 of FLamby: dermoscopy in eight classes, six centres, the published split of each.

Layout: ``ISIC_2019_Training_Input_preprocessed/<image>.jpg`` as FLamby's scripts write it (or the
downloaded pictures, ``ISIC_2019_Training_Input``), FLamby's table ``train_test_split`` and, for
lesion, sex and age, ``ISIC_2019_Training_Metadata.csv``.

FLamby split pictures, not lesions: some lesions have pictures in both splits. By default the
adapter keeps FLamby's split, as the papers do: ``subject`` is then the picture, ``lesion`` a key of
its own, and a warning counts those lesions. With ``lesions_apart``, it leaves their training
pictures out, and ``subject`` is the lesion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from peer.errors import DataError
from peer.lab.datasets.public_set import (
    Adapter,
    Publication,
    PublicSet,
    PublishedCount,
    by_site,
    locate,
    parse_number,
    read_table,
)

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
SITES = ("bcn", "ham-vidir-molemax", "ham-vidir-modern", "ham-rosendahl", "msk", "ham-vienna-dias")
SIZES = ((9930, 2483), (3163, 791), (2691, 672), (1807, 452), (655, 164), (351, 88))
"""Training and test pictures of each site."""

TABLES = ("train_test_split", "train_test_split.csv")
FOLDERS = ("ISIC_2019_Training_Input_preprocessed", "ISIC_2019_Training_Input")
METADATA = "ISIC_2019_Training_Metadata.csv"
SIDES = {"train": "training", "test": "test"}

PUBLICATION = Publication(
    task="fed-isic2019",
    title="Fed-ISIC2019 (FLamby)",
    classes=CLASSES,
    layout=f"{FOLDERS[0]} and FLamby's train_test_split (flamby/datasets/fed_isic2019/dataset_creation_scripts)",
    reference="Ogier du Terrail et al., FLamby, NeurIPS 2022; ISIC 2019: BCN20000, HAM10000, MSK",
    licence="CC BY-NC 4.0",
    counts=(PublishedCount("samples", 23247), *by_site(SITES, SIZES)),
    federated=True,
)


def gather(pool: PublicSet, table: Path, images: Path, *, lesions_apart: bool = False) -> None:
    """Add every picture; with ``lesions_apart``, no training picture of a lesion of a test set."""
    rows = read_table(table, ("image", "target", "center", "fold"))
    metadata = _read_metadata(pool.source, needed=lesions_apart)
    lesions = {side: _lesions(rows, metadata, side) for side in SIDES}
    shared = lesions["train"] & lesions["test"]
    for row in rows:
        lesion = metadata.get(row["image"], {}).get("lesion_id")
        if lesions_apart and row["fold"] == "train" and lesion in shared:
            pool.dropped["the lesion is in a test set"] += 1
        else:
            _add(pool, row, table, images, metadata.get(row["image"], {}), lesions_apart=lesions_apart)
    if shared and not lesions_apart:
        pool.warnings.append(f"{len(shared)} lesions are in training and in test; --lesions-apart keeps them apart")
    elif not metadata:
        pool.warnings.append(f"{METADATA} is not there: lesion, sex and age are not known")


def _add(
    pool: PublicSet,
    row: Mapping[str, str],
    table: Path,
    images: Path,
    metadata: Mapping[str, str],
    *,
    lesions_apart: bool,
) -> None:
    try:
        label, site, side = int(float(row["target"])), SITES[int(float(row["center"]))], SIDES[row["fold"]]
    except (ValueError, IndexError, KeyError):
        values = f"target {row['target']!r}, center {row['center']!r}, fold {row['fold']!r}"
        raise DataError(f"{table}: {row['image']} has {values}", PUBLICATION.remedy) from None
    path = images / f"{row['image']}.jpg"
    if not path.is_file():
        pool.absent.append(path.name)
        return
    lesion = metadata.get("lesion_id") or None
    pool.add(
        image=str(path),
        label=label,
        subject=(lesion if lesions_apart else None) or row["image"],
        site=site,
        lesion=lesion,
        sex=metadata.get("sex") or None,
        age=parse_number(metadata.get("age_approx", "")),
        location=metadata.get("anatom_site_general") or None,
        side=side,
    )


def _read_metadata(source: Path, *, needed: bool) -> dict[str, dict[str, str]]:
    try:
        path = locate(source, METADATA, publication=PUBLICATION)
    except DataError as error:
        if needed:
            raise DataError(f"{error.message}, which names the lesions", "download it, or keep the split") from error
        return {}
    return {row["image"]: row for row in read_table(path, ("image", "lesion_id"))}


def _lesions(rows: list[dict[str, str]], metadata: Mapping[str, Mapping[str, str]], side: str) -> set[str]:
    named = {metadata.get(row["image"], {}).get("lesion_id", "") for row in rows if row["fold"] == side}
    return named - {""}


prepare = Adapter(PUBLICATION, gather, [TABLES, FOLDERS]).prepare

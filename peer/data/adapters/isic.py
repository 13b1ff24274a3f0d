"""Fed-ISIC2019 of FLamby: dermoscopy in eight classes, six centres, the published split of each.

Layout: ``ISIC_2019_Training_Input_preprocessed/<image>.jpg`` as FLamby's scripts make it (or the pictures as
downloaded, ``ISIC_2019_Training_Input``), FLamby's table ``train_test_split`` and, for lesion, sex and age,
``ISIC_2019_Training_Metadata.csv``.

FLamby split pictures, not lesions: pictures of one lesion are on both sides. By default that split is kept, as the
papers do: ``subject`` is then the picture, ``lesion`` a key of its own, and a warning counts the lesions concerned.
With ``lesions_apart`` those are taken out of training, and ``subject`` is the lesion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from peer.data.adapters.public_set import (
    Adapter,
    Publication,
    PublicSet,
    PublishedCount,
    by_site,
    locate,
    number,
    read_table,
)
from peer.errors import DataError

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
    kind="classification",
    spatial_dims=2,
    channels=("red", "green", "blue"),
    classes=CLASSES,
    layout=f"{FOLDERS[0]} and FLamby's train_test_split (flamby/datasets/fed_isic2019/dataset_creation_scripts)",
    reference="Ogier du Terrail et al., FLamby, NeurIPS 2022; ISIC 2019: BCN20000, HAM10000, MSK",
    licence="CC BY-NC 4.0",
    counts=(
        PublishedCount("samples", 23247),
        *by_site(SITES, SIZES),
    ),
    federated=True,
)


def gather(pool: PublicSet, table: Path, images: Path, *, lesions_apart: bool = False) -> None:
    """Add every picture of the table; with ``lesions_apart`` none to train on whose lesion is in a test set."""
    rows = read_table(table, ("image", "target", "center", "fold"))
    known = _metadata(pool.source, needed=lesions_apart)
    lesions = {side: _lesions(rows, known, side) for side in SIDES}
    shared = lesions["train"] & lesions["test"]
    for row in rows:
        lesion = known.get(row["image"], {}).get("lesion_id")
        if lesions_apart and row["fold"] == "train" and lesion in shared:
            pool.dropped["the lesion is in a test set"] += 1
        else:
            _add(pool, row, table, images, known.get(row["image"], {}), lesions_apart=lesions_apart)
    if shared and not lesions_apart:
        pool.warnings.append(f"{len(shared)} lesions are in training and in test; --lesions-apart keeps them apart")
    elif not known:
        pool.warnings.append(f"{METADATA} is not there: lesion, sex and age are not known")


def _add(
    pool: PublicSet, row: Mapping[str, str], table: Path, images: Path, known: Mapping[str, str], *, lesions_apart: bool
) -> None:
    try:
        label, site, side = int(float(row["target"])), SITES[int(float(row["center"]))], SIDES[row["fold"]]
    except (ValueError, IndexError, KeyError):
        found = f"target {row['target']!r}, center {row['center']!r}, fold {row['fold']!r}"
        raise DataError(f"{table}: {row['image']} has {found}", PUBLICATION.remedy) from None
    path = images / f"{row['image']}.jpg"
    if not path.is_file():
        pool.absent.append(path.name)
        return
    lesion = known.get("lesion_id") or None
    pool.add(
        {
            "image": str(path),
            "label": label,
            "subject": (lesion if lesions_apart else None) or row["image"],
            "site": site,
            "lesion": lesion,
            "sex": known.get("sex") or None,
            "age": number(known.get("age_approx", "")),
            "location": known.get("anatom_site_general") or None,
        },
        side=side,
    )


def _metadata(source: Path, *, needed: bool) -> dict[str, dict[str, str]]:
    try:
        path = locate(source, METADATA, publication=PUBLICATION)
    except DataError as error:
        if needed:
            raise DataError(f"{error.message}, which names the lesions", "download it, or keep the split") from error
        return {}
    return {row["image"]: row for row in read_table(path, ("image", "lesion_id"))}


def _lesions(rows: list[dict[str, str]], known: Mapping[str, Mapping[str, str]], side: str) -> set[str]:
    named = {known.get(row["image"], {}).get("lesion_id", "") for row in rows if row["fold"] == side}
    return named - {""}


ADAPTER = Adapter(PUBLICATION, gather, [TABLES, FOLDERS])
prepare = ADAPTER.prepare

"""ABIDE I of the Preprocessed Connectomes Project: maps of resting-state activity, autism or control.

Layout: ``Phenotypic_V1_0b_preprocessed1.csv`` and, below ``ccs/filt_noglobal`` (band-pass, no
global signal), the maps ``<FILE_ID>_<derivative>.nii.gz``. They lie in one folder for each
derivative, as in the project's bucket, or all in one folder, as nilearn stores them.

This is FedASD of FedSKD: an image has four maps of a subject as channels. The 871 subjects are
those that all three raters passed (nilearn's rule "quality-checked" gives the same numbers), from
17 institutions in four regions. All samples are in training: the experiment draws the folds.
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
    by_class,
    parse_number,
    read_table,
    site_name,
)

PHENOTYPES = "Phenotypic_V1_0b_preprocessed1.csv"
MAPS = "ccs/filt_noglobal"
CLASSES = ("control", "autism")
DEGREES = ("degree_weighted", "degree_binarize")
"""The two published kinds of degree centrality; the paper does not say which one it uses."""

REGIONS: Mapping[str, tuple[str, ...]] = {
    "europe": ("LEUVEN", "MAX_MUN", "TRINITY", "SBL"),
    "west-us": ("UCLA", "USM", "SDSU", "STANFORD", "OHSU", "CALTECH"),
    "central-us": ("UM", "PITT", "CMU"),
    "east-us": ("NYU", "YALE", "KKI", "OLIN"),
}
"""The institutions of each site; LEUVEN_1 and LEUVEN_2 are one institution, likewise UCLA and UM."""

PASSES: Mapping[str, tuple[str, ...]] = {
    "qc_rater_1": ("OK",),
    "qc_anat_rater_2": ("OK", "maybe"),
    "qc_func_rater_2": ("OK", "maybe"),
    "qc_anat_rater_3": ("OK",),
    "qc_func_rater_3": ("OK",),
}
"""Passing ratings by a rater's column."""

NO_FILE = "no_filename"
DIAGNOSES = {"1": 1, "2": 0}  # DX_GROUP: autism, control
SEXES = {"1": "male", "2": "female"}

PUBLICATION = Publication(
    task="abide",
    title="ABIDE I (PCP): ReHo, degree centrality, LFCD, VMHC",
    spatial_dims=3,
    channels=("ReHo", "degree centrality", "LFCD", "VMHC"),
    classes=CLASSES,
    layout=f"{PHENOTYPES} and {MAPS}/**/<FILE_ID>_<derivative>.nii.gz",
    reference="Di Martino et al., Mol Psychiatry 2014; Craddock et al., Neuro Bureau Preprocessing Initiative, 2013",
    licence="CC BY-NC-SA 3.0; non-commercial research",
    counts=(
        PublishedCount("samples", 871),
        PublishedCount("subjects", 871, of="subject"),
        PublishedCount("institutions", 17, of="institution"),
        *by_class(CLASSES, (468, 403)),
        *by_class(CLASSES, (96, 76), site="europe"),
        *by_class(CLASSES, (116, 128), site="west-us"),
        *by_class(CLASSES, (104, 77), site="central-us"),
        *by_class(CLASSES, (152, 122), site="east-us"),
    ),
    federated=True,
)


def gather(pool: PublicSet, table: Path, maps: Path, *, degree: str = DEGREES[0]) -> None:
    """Add the maps of every subject that all raters passed; ``degree`` is one of `DEGREES`."""
    columns = ("SUB_ID", "SITE_ID", "FILE_ID", "DX_GROUP", "AGE_AT_SCAN", "SEX", *PASSES)
    files = {path.name: path for path in maps.rglob("*.nii.gz")}
    for row in read_table(table, columns):
        if row["FILE_ID"] == NO_FILE:
            pool.dropped["not preprocessed"] += 1
        elif any(row[rater] not in passing for rater, passing in PASSES.items()):
            pool.dropped["failed quality control"] += 1
        else:
            _add(pool, row, table, files, ("reho", degree, "lfcd", "vmhc"))


def region_of(site_id: str) -> tuple[str, str]:
    """Return the region and institution of a ``SITE_ID``. Raise ``KeyError`` if ABIDE I has no such site."""
    institution = site_id.removesuffix("_1").removesuffix("_2")
    return {member: region for region, members in REGIONS.items() for member in members}[institution], institution


def _add(
    pool: PublicSet, row: Mapping[str, str], table: Path, files: Mapping[str, Path], maps: tuple[str, ...]
) -> None:
    try:
        region, institution = region_of(row["SITE_ID"])
        label = DIAGNOSES[row["DX_GROUP"]]
    except KeyError:
        values = f"SITE_ID {row['SITE_ID']} and DX_GROUP {row['DX_GROUP']}"
        raise DataError(f"{table}: {row['SUB_ID']} has {values}, unknown in ABIDE I", PUBLICATION.remedy) from None
    names = [f"{row['FILE_ID']}_{name}.nii.gz" for name in maps]
    absent = [name for name in names if name not in files]
    if absent:
        pool.absent += absent
        pool.dropped["a map is absent"] += 1
        return
    pool.add(
        image=[str(files[name]) for name in names],
        label=label,
        subject=row["SUB_ID"],
        site=region,
        institution=site_name(institution),
        sex=SEXES.get(row["SEX"]),
        age=parse_number(row["AGE_AT_SCAN"]),
    )


prepare = Adapter(PUBLICATION, gather, [[PHENOTYPES], [MAPS]], {"degree": DEGREES}).prepare

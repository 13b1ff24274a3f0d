import json
from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_table, write_volume
from peer.errors import UsageError
from peer.lab.datasets import abide
from peer.lab.partition.kinds import ABIDE, ABIDE_REGIONS, canonical_spelling

MAPS = ("reho", "degree_weighted", "lfcd", "vmhc")
RATERS = ("qc_rater_1", "qc_anat_rater_2", "qc_func_rater_2", "qc_anat_rater_3", "qc_func_rater_3")
SUBJECTS = [
    # number, site, file, autism, sex, raters
    (50003, "PITT", "Pitt_0050003", True, 1, "OK OK OK OK OK"),
    (50004, "PITT", "Pitt_0050004", False, 2, "OK maybe maybe OK OK"),
    (50682, "LEUVEN_1", "Leuven_1_0050682", False, 1, "OK OK OK OK OK"),
    (50722, "LEUVEN_2", "Leuven_2_0050722", True, 1, "OK OK OK OK OK"),
    (51201, "UCLA_1", "UCLA_1_0051201", True, 2, "OK OK OK OK OK"),
    (51202, "UCLA_1", "UCLA_1_0051202", False, 1, "OK OK OK OK OK"),
    (50952, "NYU", "NYU_0050952", True, 1, "OK OK OK OK OK"),
    (50953, "NYU", "NYU_0050953", False, 1, "OK OK OK OK OK"),
    (50002, "PITT", "no_filename", True, 1, "OK OK OK OK OK"),
    (50005, "PITT", "Pitt_0050005", True, 1, "maybe OK OK OK OK"),
    (50006, "PITT", "Pitt_0050006", True, 1, "OK OK fail OK OK"),
    (50007, "PITT", "Pitt_0050007", True, 1, "OK OK OK maybe OK"),
]


def row(number: int, site: str, file: str, autism: bool, sex: int, raters: str) -> dict[str, object]:
    ratings = dict(zip(RATERS, raters.split(), strict=True))
    return {
        "": 0, "SUB_ID": number, "SITE_ID": site, "FILE_ID": file, "DX_GROUP": 1 if autism else 2,
        "AGE_AT_SCAN": 24.45, "SEX": sex, **ratings,
    }  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The layout of the project's bucket, with another pipeline beside."""
    base = tmp_path / "in"
    write_table(base / "Phenotypic_V1_0b_preprocessed1.csv", [row(*subject) for subject in SUBJECTS])
    for _, _, file, *_ in SUBJECTS:
        for name in (*MAPS, "degree_binarize"):
            write_volume(base / "Outputs" / "ccs" / "filt_noglobal" / name / f"{file}_{name}.nii.gz")
    write_volume(base / "Outputs" / "cpac" / "filt_noglobal" / "reho" / "Pitt_0050003_reho.nii.gz")
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(abide, tmp_path, source=source)
    assert not test
    assert training[0] == {
        "image": [
            str(source / "Outputs" / "ccs" / "filt_noglobal" / name / f"Pitt_0050003_{name}.nii.gz") for name in MAPS
        ],
        "label": 1, "subject": "50003", "site": "central-us", "institution": "pitt", "sex": "male", "age": 24.45,
    }  # fmt: skip
    assert [(entry["site"], entry["institution"], entry["sex"]) for entry in training[1:5]] == [
        ("central-us", "pitt", "female"),
        ("europe", "leuven", "male"),
        ("europe", "leuven", "male"),
        ("west-us", "ucla", "female"),
    ]
    assert summary["dropped"] == {"not preprocessed": 1, "failed quality control": 3}
    assert set(summary["sites"]) == set(abide.REGIONS)
    europe = json.loads((tmp_path / "out" / "europe" / "datalist.json").read_text())
    assert [entry["subject"] for entry in europe["training"]] == ["50682", "50722"]
    for warning in (
        "samples: 871 expected, 8 found",
        "institutions: 17 expected, 4 found",
        "autism: 403 expected, 4 found",
        "europe, control: 96 expected, 1 found",
    ):
        assert warning in summary["warnings"]


def test_all_maps_in_one_folder_and_the_other_degree(tmp_path: Path, source: Path) -> None:
    folder = source / "Outputs" / "ccs" / "filt_noglobal"
    for path in list(folder.glob("*/*.nii.gz")):
        path.rename(folder / path.name)
    _, training, _ = prepare(abide, tmp_path, source=source.parent, degree="degree_binarize")
    assert training[0]["image"][1] == str(folder / "Pitt_0050003_degree_binarize.nii.gz")


def test_a_subject_without_a_map_is_left_out_and_the_map_named(tmp_path: Path, source: Path) -> None:
    (source / "Outputs" / "ccs" / "filt_noglobal" / "vmhc" / "NYU_0050952_vmhc.nii.gz").unlink()
    summary = abide.prepare(tmp_path / "out", source=source)
    assert summary["dropped"]["a map is absent"] == 1
    assert "1 listed files are not there: NYU_0050952_vmhc.nii.gz" in summary["warnings"]
    assert summary["sites"]["east-us"]["training"]["samples"] == 1


def test_the_regions_are_those_of_the_partition() -> None:
    assert abide.REGIONS == ABIDE_REGIONS
    for site_id, institution in (("UM_2", "UM"), ("MAX_MUN", "MAX_MUN"), ("NYU", "NYU")):
        assert abide.region_of(site_id) == (ABIDE[canonical_spelling(site_id)], institution)


def test_what_is_no_abide_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses(abide, source, "degree is 'eigenvector', none of degree_weighted", UsageError, degree="eigenvector")
    refuses(abide, tmp_path / "empty", r"empty holds no Phenotypic_V1_0b_preprocessed1\.csv; give --source the folder")
    phenotypes = source / "Phenotypic_V1_0b_preprocessed1.csv"
    write_table(phenotypes, [row(29006, "ABIDEII-IU_1", "IU_29006", True, 1, "OK OK OK OK OK")])
    refuses(abide, source, "29006 has SITE_ID ABIDEII-IU_1 and DX_GROUP 1, unknown in ABIDE I")
    write_table(phenotypes, [{"SUB_ID": 1, "SITE_ID": "NYU"}])
    refuses(abide, source, "has no column AGE_AT_SCAN, DX_GROUP, FILE_ID")
    (source / "Outputs").rename(source / "elsewhere")
    (source / "elsewhere" / "ccs").rename(source / "elsewhere" / "niak")
    refuses(abide, source, "holds no ccs/filt_noglobal")


def test_the_published_numbers_of_the_regions_add_up() -> None:
    numbers = {count.name: count.expected for count in abide.PUBLICATION.counts}
    for name in abide.CLASSES:
        assert sum(numbers[f"{region}, {name}"] for region in abide.REGIONS) == numbers[name]
    assert sum(map(len, abide.REGIONS.values())) == numbers["institutions"]

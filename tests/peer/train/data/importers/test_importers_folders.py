"""BIDS and nnU-Net folders, and exports of a PACS."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from fakes import image_files
from peer.documents.data import DatalistImported
from peer.errors import DataError, PeerError, UsageError
from peer.train.data.image_files import open_image

Import = Callable[..., DatalistImported]
FRAMES = image_files.FRAMES


def nifti(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return image_files.nifti(path, np.ones((2, 2, 2)))


def training(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder / "datalist.json").read_text())
    return [*document["training"], *document["test"]]


@pytest.fixture
def bids(tmp_path: Path) -> Path:
    folder = tmp_path / "bids"
    for number in (1, 2, 3, 4):
        for suffix in ("T1w", "FLAIR"):
            nifti(folder / f"sub-{number:02}" / "anat" / f"sub-{number:02}_{suffix}.nii.gz")
        nifti(folder / "derivatives" / "seg" / f"sub-{number:02}" / f"sub-{number:02}_space-T1w_mask.nii.gz")
    nifti(folder / "sub-05" / "ses-1" / "anat" / "sub-05_ses-1_acq-fast_T1w.nii.gz")
    rows = ["sub-01\tcontrol", "sub-02\tpatient", "03\tcontrol", "sub-04\tn/a", "sub-06\tpatient"]
    (folder / "participants.tsv").write_text("\n".join(["participant_id\tgroup", *rows]), encoding="utf-8-sig")
    return folder


def test_a_bids_folder_has_its_labels_in_participants_tsv(bids: Path, tmp_path: Path, import_source: Import) -> None:
    answer = import_source(bids, suffixes=("T1w",), classes=("control", "patient"), test_share=0.0)
    assert answer["layout"] == "bids"
    labels = {entry["subject"]: entry["label"] for entry in training(tmp_path)}
    assert labels == {"sub-01": 0, "sub-02": 1, "sub-03": 0}
    reasons = {row["reason"] for row in answer["left_out"]}
    assert reasons == {"no label", "not in participants.tsv", "no image _T1w"}


def test_bids_suffixes_are_channels_and_label_maps_are_derivatives(
    bids: Path, tmp_path: Path, import_source: Import
) -> None:
    import_source(bids, suffixes=("T1w", "FLAIR"), label_suffix="mask", test_share=0.0)
    first = training(tmp_path)[0]
    assert [Path(name).name for name in first["image"]] == ["sub-01_T1w.nii.gz", "sub-01_FLAIR.nii.gz"]
    assert first["label"].endswith("sub-01_space-T1w_mask.nii.gz")


def test_a_bids_folder_of_several_suffixes_needs_a_choice(bids: Path, import_source: Import) -> None:
    with pytest.raises(UsageError, match=r"T1w \(5\), FLAIR \(4\); choose with --suffix"):
        import_source(bids)


@pytest.fixture
def nnunet(tmp_path: Path) -> Path:
    folder = tmp_path / "Dataset001_Liver"
    for case in ("liver_001", "liver_002", "liver_003"):
        for channel in ("0000", "0001"):
            nifti(folder / "imagesTr" / f"{case}_{channel}.nii.gz")
        if case != "liver_003":
            nifti(folder / "labelsTr" / f"{case}.nii.gz")
    describe(folder)
    return folder


def describe(folder: Path, **parts: Any) -> None:
    document = {"channel_names": {"0": "CT", "1": "PET"}, "labels": {"background": 0, "liver": 1}, **parts}
    (folder / "dataset.json").write_text(json.dumps(document))


def test_an_nnunet_folder_has_a_file_a_channel(nnunet: Path, tmp_path: Path, import_source: Import) -> None:
    answer = import_source(nnunet, test_share=0.5)
    assert (answer["layout"], answer["task"]) == ("nnunet", "segmentation")
    assert answer["classes"] == {"0": "background", "1": "liver"}
    assert [len(entry["image"]) for entry in training(tmp_path)] == [2, 2]
    assert answer["left_out"][0]["examples"] == ["imagesTr/liver_003"]
    assert answer["drawn"] is not None


def test_a_case_may_end_in_four_digits(nnunet: Path, import_source: Import) -> None:
    for number in range(4):
        nifti(nnunet / "labelsTr" / f"amos_000{number}.nii.gz")
        for channel in ("0000", "0001"):
            nifti(nnunet / "imagesTr" / f"amos_000{number}_{channel}.nii.gz")
    for case in ("liver_001", "liver_002"):
        (nnunet / "labelsTr" / f"{case}.nii.gz").unlink()
    reasons = {row["reason"] for row in import_source(nnunet, test_share=0.5)["left_out"]}
    assert reasons == {"no label in labelsTr"}


def test_a_label_map_without_image_is_counted_and_a_hidden_image(nnunet: Path, import_source: Import) -> None:
    nifti(nnunet / "labelsTr" / "liver_077.nii.gz")
    nifti(nnunet / "imagesTr" / ".liver_078_0000.nii.gz")
    (nnunet / "imagesTr" / "._liver_001_0000.nii.gz").touch()  # which macOS writes beside each file
    left_out = import_source(nnunet, test_share=0.5)["left_out"]
    hidden = [row["examples"] for row in left_out if row["reason"] == "hidden file: its name begins with a dot"]
    assert hidden == [["imagesTr/.liver_078_0000.nii.gz"]]
    assert {"reason": "no image in imagesTr", "count": 1, "examples": ["labelsTr/liver_077"]} in left_out


def test_labelled_test_images_of_nnunet_are_the_test_split(nnunet: Path, import_source: Import) -> None:
    for channel in ("0000", "0001"):
        nifti(nnunet / "imagesTs" / f"liver_009_{channel}.nii.gz")
    nifti(nnunet / "labelsTs" / "liver_009.nii.gz")
    answer = import_source(nnunet)
    assert answer["drawn"] is None
    assert answer["splits"]["test"]["samples"] == 1


def test_the_decathlon_has_all_channels_in_one_file(nnunet: Path, tmp_path: Path, import_source: Import) -> None:
    for path in (nnunet / "imagesTr").iterdir():
        path.unlink()
    nifti(nnunet / "imagesTr" / "liver_001.nii.gz")
    describe(nnunet, labels={"0": "background", "1": "liver"})
    import_source(nnunet, test_share=0.0)
    assert training(tmp_path)[0]["image"] == "Dataset001_Liver/imagesTr/liver_001.nii.gz"


def test_mapped_labels_of_the_decathlon_keep_their_names(nnunet: Path, import_source: Import) -> None:
    describe(nnunet, labels={"0": "background", "2": "liver"})
    assert import_source(nnunet, label_values=((2, 1),))["classes"] == {"0": "background", "1": "liver"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"labels": {"background": 0, "whole": [1, 2]}}, "regions of several values"),
        ({"labels": {"background": 0, "ignore": 1}}, "`ignore` would be trained as a class"),
        ({"labels": {"background": 0, "liver": 2}}, "labels are 0, 2; number them .* or give --map 2=1"),
        ({"channel_names": {"0": "CT", "1": "PET", "2": "MR"}}, "liver_001 has 2 of 3 channels"),
        ({"file_ending": ".mha"}, r"holds no file \*.mha"),
    ],
)
def test_an_nnunet_folder_that_would_train_wrongly_is_refused(
    nnunet: Path, import_source: Import, parts: dict[str, Any], message: str
) -> None:
    describe(nnunet, **parts)
    with pytest.raises(DataError, match=message):
        import_source(nnunet)


def export(path: Path, *, patient: str, series: str, number: int = 1, **tags: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image_files.dicom(path, FRAMES[number - 1], number=number)
    header = pydicom.dcmread(path)
    header.PatientID, header.SeriesInstanceUID, header.StudyInstanceUID = patient, series, f"{series}.9"
    for tag, value in tags.items():
        setattr(header, tag, value)
    header.save_as(path)
    return path


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    """Two series in folders of their own, one mixed with others in a flat folder."""
    folder = tmp_path / "export"
    for patient, series in (("001", "1.1"), ("002", "1.2")):
        for number in (1, 2, 3, 4):
            export(folder / series / f"{number}.dcm", patient=patient, series=series, number=number)
    for number in (1, 2, 3, 4):
        export(
            folder / "flat" / f"IM.{number:04}", patient="003", series="1.3", number=number, SeriesDescription="thin"
        )
    export(folder / "flat" / "IM.0009", patient="003", series="1.4", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    (folder / "flat" / "notes.txt").write_text("exported by nobody")
    folder.with_name("labels.csv").write_text("Patient ID;label\n1;0\n2;1\n3;1\n4;0\n")
    return folder


def test_an_export_is_grouped_by_series_and_images_stay_where_they_are(
    pacs: Path, tmp_path: Path, import_source: Import
) -> None:
    answer = import_source(pacs, labels=tmp_path / "labels.csv", test_share=0.0)
    samples = {entry["subject"]: entry for entry in training(tmp_path)}
    assert samples["001"]["image"] == "export/1.1"
    assert [samples[name]["label"] for name in ("001", "002", "003")] == [0, 1, 1]
    linked = tmp_path / samples["003"]["image"]
    assert open_image(linked).shape == (5, 3, 4)
    assert all(path.is_symlink() for path in linked.iterdir())
    reasons = {row["reason"]: row["count"] for row in answer["left_out"]}
    assert reasons == {"localizer": 1, "no DICOM file": 1, "no image": 1}
    assert "3 values of PatientID were matched without their leading zeros" in answer["notes"][0]


def test_series_are_chosen_by_description_and_images_may_be_samples(
    pacs: Path, tmp_path: Path, import_source: Import
) -> None:
    options = {"labels": tmp_path / "labels.csv", "test_share": 0.0, "each_image": True}
    with pytest.raises(DataError, match="one class only"):
        import_source(pacs, series="THIN*", **options)
    assert not (tmp_path / "datalist-series").exists()
    answer = import_source(pacs, **options)
    assert answer["shapes"] == {"3x5": 12}


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("PatientID,label\n001,0\n001,1\n", DataError, "line 3: PatientID 001 has the label '1', in line 2 '0'"),
        ("Name,label\nX,0\n", DataError, "none of the columns Name, label is one of SeriesInstanceUID"),
        ("PatientID,label\n,0\n", DataError, "line 2: PatientID is empty"),
        ("PatientID\n001\n", DataError, "give --column label=COLUMN"),
    ],
)
def test_a_table_of_labels_that_is_unclear_is_refused(
    pacs: Path, tmp_path: Path, import_source: Import, table: str, error: type[PeerError], message: str
) -> None:
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(error, match=message):
        import_source(pacs, labels=tmp_path / "labels.csv")


def test_an_export_without_a_table_of_labels_is_refused(pacs: Path, import_source: Import) -> None:
    with pytest.raises(UsageError, match="--labels TABLE"):
        import_source(pacs)
    (pacs.parent / "empty").mkdir()
    with pytest.raises(DataError, match="holds no DICOM image"):
        import_source(pacs.parent / "empty", labels=pacs.parent / "labels.csv")


@pytest.mark.parametrize("damaged", ["1.1/3.dcm", "flat/IM.0002"])
def test_a_damaged_slice_is_a_fault_of_its_series_and_no_shorter_volume(
    pacs: Path, tmp_path: Path, import_source: Import, damaged: str
) -> None:
    export(pacs / "4" / "1.dcm", patient="004", series="1.8")
    (pacs / damaged).write_bytes(bytes(2000))
    with pytest.raises(DataError, match=rf"{damaged} cannot be read, and lies among its slices"):
        import_source(pacs, labels=tmp_path / "labels.csv")
    answer = import_source(pacs, labels=tmp_path / "labels.csv", leaves_out_faulty=True, test_share=0.0)
    reasons = {row["reason"]: row["count"] for row in answer["left_out"]}
    assert reasons["a slice is damaged"] == 1
    assert len(training(tmp_path)) == 3


@pytest.mark.parametrize("at", [200, 400])
def test_an_outermost_slice_that_is_cut_short_makes_no_shorter_volume(
    pacs: Path, tmp_path: Path, import_source: Import, at: int
) -> None:
    for path in (pacs / "1.1" / "4.dcm", pacs / "flat" / "IM.0004"):
        path.write_bytes(path.read_bytes()[:at])
    with pytest.raises(DataError, match=r"4.dcm cannot be read, and lies among its slices; .*IM.0004 cannot be read"):
        import_source(pacs, labels=tmp_path / "labels.csv")


@pytest.mark.parametrize(
    "kind",
    [
        {"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]},
        {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7"},
        {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7.4", "ImageType": ["DERIVED", "PRIMARY"]},
    ],
)
def test_secondary_images_beside_a_scan_are_left_out_unless_a_series_is_named(
    pacs: Path, tmp_path: Path, import_source: Import, kind: dict[str, Any]
) -> None:
    screen = {**kind, "SeriesDescription": "screen", "Modality": "CT"}
    export(pacs / "screen" / "1.dcm", patient="001", series="1.9", **screen)
    answer = import_source(pacs, labels=tmp_path / "labels.csv", test_share=0.0)
    assert {row["reason"] for row in answer["left_out"]} >= {"secondary image (CT), which only --series takes"}
    assert len(training(tmp_path)) == 3
    (tmp_path / "datalist.json").unlink()
    shutil.rmtree(tmp_path / "datalist-series")
    export(pacs / "screen" / "2.dcm", patient="002", series="1.10", **screen)
    import_source(pacs, labels=tmp_path / "labels.csv", series="screen", test_share=0.0)
    assert [entry["image"] for entry in training(tmp_path)] == ["export/screen/1.dcm", "export/screen/2.dcm"]


def test_a_picture_of_a_screen_is_no_sample_of_any_modality(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    kind = {"Modality": "US", "ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]}
    export(pacs / "screen" / "1.dcm", patient="001", series="1.9", **kind)
    answer = import_source(pacs, labels=tmp_path / "labels.csv", test_share=0.0)
    assert {row["reason"] for row in answer["left_out"]} >= {"picture of a screen, which only --series takes"}
    assert len(training(tmp_path)) == 3


def test_hidden_slices_and_secondary_captures_are_named(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    (pacs / "1.1" / "4.dcm").rename(pacs / "1.1" / ".4.dcm")
    export(
        pacs / "report" / "1.dcm", patient="001", series="1.9", Modality="OT", SOPClassUID="1.2.840.10008.5.1.4.1.1.7"
    )
    answer = import_source(pacs, labels=tmp_path / "labels.csv", test_share=0.0)
    assert {"hidden file: its name begins with a dot"} <= {row["reason"] for row in answer["left_out"]}
    assert any(note.startswith("1 series are secondary captures (OT)") for note in answer["notes"])


def test_a_table_of_other_patients_shows_the_names_of_both(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    (tmp_path / "labels.csv").write_text("PatientID,label\nP-001,0\nP-002,1\n")
    with pytest.raises(
        DataError, match=r"\(no label for its PatientID\): 00[123]: series .*PatientID P-001: labels.csv"
    ):
        import_source(pacs, labels=tmp_path / "labels.csv")


def test_a_compressed_slice_makes_no_shorter_volume(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    path = (pacs / "1.1" / "4.dcm").rename(pacs / "1.1" / "4.dcm.gz")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=r"4\.dcm\.gz cannot be read, and lies among its slices"):
        import_source(pacs, labels=tmp_path / "labels.csv")


def test_a_slice_that_says_another_series_is_named(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    export(pacs / "1.1" / "4.dcm", patient="001", series="1.7", number=4)
    export(pacs / "5" / "1.dcm", patient="001", series="1.8")
    notes = import_source(pacs, labels=tmp_path / "labels.csv", test_share=0.0)["notes"]
    assert any(f"look alike: {pacs / '1.1' / '4.dcm'}; one that" in note for note in notes)


def test_an_export_without_preambles_says_so(pacs: Path, tmp_path: Path, import_source: Import) -> None:
    for path in pacs.rglob("*.dcm"):
        path.write_bytes(path.read_bytes()[132:])
    shutil.rmtree(pacs / "flat")
    with pytest.raises(DataError, match=r"holds no DICOM image: 8 left out \(no DICOM file by PS3.10"):
        import_source(pacs, labels=tmp_path / "labels.csv")


def test_an_import_of_nothing_lists_what_was_left_out(bids: Path, import_source: Import) -> None:
    (bids / "participants.tsv").write_text("participant_id\tgroup\n1\tcontrol\n2\tpatient\n")
    with pytest.raises(DataError, match=r"no usable sample; 5 left out \(not in participants.tsv\): .*sub-01"):
        import_source(bids, suffixes=("T1w",), classes=("control", "patient"))

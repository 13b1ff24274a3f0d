"""One phantom whose right answer is known, painted into files of every format and orientation.

``PHANTOM`` is a volume in RAS, ``(x, y, z)``, with three corners marked by values of their own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

PHANTOM = np.full((5, 3, 4), 10)
PHANTOM[4, 0, 0], PHANTOM[0, 2, 0], PHANTOM[0, 0, 3] = 200, 100, 50  # most right, anterior, superior
SPACING = (2.0, 3.0, 4.0)
LPS_DIRECTIONS = {"L": (1, 0, 0), "R": (-1, 0, 0), "P": (0, 1, 0), "A": (0, -1, 0), "S": (0, 0, 1), "I": (0, 0, -1)}


def turned(axcodes: str) -> tuple[np.ndarray, np.ndarray]:
    """The phantom with its axes in these directions, and its affine to RAS."""
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(axcodes))
    return apply_orientation(PHANTOM, turn), np.diag([*SPACING, 1.0]) @ inv_ornt_aff(turn, PHANTOM.shape)


def nifti(path: Path, axcodes: str = "RAS", *, values: np.ndarray | None = None) -> nibabel.Nifti1Image:
    """A NIfTI file in this orientation; its image, to change and to save again."""
    array, affine = turned(axcodes)
    image = nibabel.Nifti1Image((array if values is None else values).astype(np.int16), affine)
    image.set_qform(affine, code=1)
    nibabel.save(image, path)
    return image


def planes(axcodes: str) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The pixels ``(slices, rows, columns)`` of slices whose columns, rows and order run in these
    directions, and the place of each as DICOM has it.
    """
    array, affine = turned(axcodes)
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    column, row = (np.array(LPS_DIRECTIONS[code]) for code in axcodes[:2])
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    places = [
        {
            "ImagePositionPatient": [*(lps @ [0, 0, index, 1])[:3]],
            "ImageOrientationPatient": [*column, *row],
            "PixelSpacing": [spacing[1], spacing[0]],
        }
        for index in range(array.shape[2])
    ]
    return array.transpose(2, 1, 0), places


def dataset(path: Path, pixels: np.ndarray, **tags: Any) -> FileDataset:
    """A DICOM file ``(rows, columns)``, with frames in front or colours behind, not yet saved."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.SeriesInstanceUID, file.PhotometricInterpretation = "1.2.3", "MONOCHROME2"
    bits = pixels.dtype.itemsize * 8
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = bits, bits, bits - 1, 0
    file.SamplesPerPixel = 1
    for key, value in tags.items():
        setattr(file, key, value)
    frames = pixels.shape[0] if pixels.ndim > 2 and file.SamplesPerPixel == 1 else 0
    if frames:
        file.NumberOfFrames = frames
    file.Rows, file.Columns = pixels.shape[1:3] if frames else pixels.shape[:2]
    if file.SamplesPerPixel > 1:
        file.PlanarConfiguration = 0
    file.PixelData = pixels.tobytes()
    return file


def series(
    folder: Path, axcodes: str = "LPS", *, numbers: str = "upwards", tags: Mapping[str, Any] | None = None
) -> list[Path]:
    """A folder with a file a slice; ``numbers`` run ``upwards``, ``downwards`` or ``mixed``."""
    folder.mkdir(exist_ok=True)
    pixels, places = planes(axcodes)
    count = len(places)
    order = {"upwards": range(count), "downwards": range(count)[::-1], "mixed": [0, 2, 1, *range(3, count)]}[numbers]
    paths = []
    for index, (slice_pixels, place) in enumerate(zip(pixels.astype(np.uint16), places, strict=True)):
        path = folder / f"{'edbca'[index]}.dcm"  # the names are in no order
        dataset(path, slice_pixels, InstanceNumber=order[index] + 1, **place, **(tags or {})).save_as(path)
        paths.append(path)
    return paths


def change(path: Path, **tags: Any) -> None:
    """Change tags of a DICOM file; None removes one."""
    import pydicom

    file = pydicom.dcmread(path)
    for key, value in tags.items():
        if value is None:
            delattr(file, key)
        else:
            setattr(file, key, value)
    file.save_as(path)


def classic(path: Path, axcodes: str = "LPS", **tags: Any) -> FileDataset:
    """One file with frames, of which only the first says its place."""
    pixels, places = planes(axcodes)
    distance = float(np.linalg.norm(np.subtract(*(places[k]["ImagePositionPatient"] for k in (1, 0)))))
    file = dataset(path, pixels.astype(np.uint16), SpacingBetweenSlices=distance, **places[0], **tags)
    file.save_as(path)
    return file


def enhanced(path: Path, axcodes: str = "LPS", *, shuffled: bool = False, slope: float = 1.0) -> FileDataset:
    """One file with frames, each of which says its place."""
    pixels, places = planes(axcodes)
    order = [2, 0, *range(3, len(places)), 1] if shuffled else list(range(len(places)))
    file = dataset(path, np.round(pixels[order] / slope).astype(np.uint16))
    file.SharedFunctionalGroupsSequence = Sequence([_groups(places[0], slope)])
    file.PerFrameFunctionalGroupsSequence = Sequence([_position(places[index]) for index in order])
    file.save_as(path)
    return file


def _groups(place: Mapping[str, Any], slope: float) -> Dataset:
    group, orientation, measures, values = Dataset(), Dataset(), Dataset(), Dataset()
    orientation.ImageOrientationPatient = place["ImageOrientationPatient"]
    measures.PixelSpacing = place["PixelSpacing"]
    values.RescaleSlope, values.RescaleIntercept, values.RescaleType = slope, 0, "US"
    group.PlaneOrientationSequence, group.PixelMeasuresSequence = Sequence([orientation]), Sequence([measures])
    group.PixelValueTransformationSequence = Sequence([values])
    return group


def real_world(first: int, last: int, unit: str = "mm2/s", **values: Any) -> Sequence:
    """The sequence of one mapping of stored values to real world values."""
    mapping, code = Dataset(), Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = unit, "UCUM", unit
    mapping.MeasurementUnitsCodeSequence = Sequence([code])
    for name, value in (("First", first), ("Last", last)):
        mapping.add_new(f"RealWorldValue{name}ValueMapped", "US", value)
    for key, value in values.items():
        setattr(mapping, f"RealWorldValue{key}", value)
    return Sequence([mapping])


def _position(place: Mapping[str, Any]) -> Dataset:
    group, position = Dataset(), Dataset()
    position.ImagePositionPatient = place["ImagePositionPatient"]
    group.PlanePositionSequence = Sequence([position])
    return group

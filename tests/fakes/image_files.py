"""One picture and one volume, with marked corners, in every format of files."""

from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from fakes import phantoms

PIXELS = np.zeros((3, 5))
PIXELS[0, 4], PIXELS[2, 0] = 200, 100  # the corners at the top right and at the bottom left
FRAMES = np.zeros((4, 3, 5))
FRAMES[0, 0, 4], FRAMES[0, 2, 0], FRAMES[3, 0, 0] = 200, 100, 50


def nifti(path: Path, array: np.ndarray) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    return path


def dicom(path: Path, pixels: np.ndarray, *, number: int = 1) -> Path:
    """A slice ``(rows, columns)``, or frames of them."""
    place = {"ImagePositionPatient": [0, 0, number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    tags = {"PixelSpacing": [1, 1], "SliceThickness": 1, "InstanceNumber": number, **place}
    phantoms.dataset(path, pixels.astype(np.uint16), **tags).save_as(path)
    return path


def picture(path: Path, pixels: np.ndarray) -> Path:
    """The pixels ``(rows, columns)`` as the format has them: in NIfTI, x runs along a row."""
    if path.suffix in (".png", ".bmp"):
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    elif path.suffix == ".npy":
        np.save(path, pixels)
    elif path.suffix == ".dcm":
        dicom(path, pixels)
    else:
        nifti(path, pixels.T.astype(np.float32))
    return path


def volume(path: Path, frames: np.ndarray) -> Path:
    """The slices ``(slices, rows, columns)`` as the format has them; a name without ending is a
    series of files.
    """
    if path.suffix == ".dcm":
        return dicom(path, frames)
    if path.suffix == "":
        path.mkdir()
        for index, pixels in enumerate(frames):
            dicom(path / f"{index}.dcm", pixels, number=index + 1)
    elif path.suffix == ".npy":
        np.save(path, frames.T)
    else:
        nifti(path, frames.T.astype(np.float32))
    return path

"""A datalist and the files behind it, looked at without torch: counts, classes, subjects, shapes, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
from numpy.typing import NDArray

from peer.datalist import SPLITS, Datalist, Sample, inspect_datalist, named

Found: TypeAlias = tuple[tuple[int, ...], Callable[[], NDArray[Any]]]
"""An image's shape as it is stored, and a function that reads its values."""


def survey(
    path: Path,
    *,
    root: Path | None = None,
    task: str = "classification",
    classes: int | None = None,
    whole: bool = False,
) -> dict[str, Any]:
    """Describe a datalist.

    Args:
        path: the JSON file.
        root: folder that its paths are relative to; default: the file's own.
        task: the federation's task kind.
        classes: number of classes; None leaves the labels' upper bound unchecked.
        whole: also read every value of every image; else only the files' headers are read.

    Returns:
        ``{datalist, splits: {training | test: {samples, subjects, unnamed, classes, shapes}}, unlabelled, problems}``;
        ``unnamed`` counts samples without a subject, among which leakage between the splits cannot be seen.
    """
    listed = inspect_datalist(path, root=root, task=task, classes=classes)
    unreadable: list[str] = []
    splits = {split: _describe(listed, split, unreadable, whole=whole) for split in SPLITS}
    problems = list(listed.problems)
    if unreadable:
        problems.append(f"files cannot be read: {named(unreadable)}; replace them or take them out of the datalist")
    return {"datalist": str(path), "splits": splits, "unlabelled": listed.unlabelled, "problems": problems}


def stored_shape(path: Path, *, whole: bool = False) -> tuple[int, ...]:
    """The shape of an image as it is stored.

    Args:
        path: a NIfTI, PNG, JPEG, BMP or DICOM file, a folder of DICOM slices, an ``.npy`` or ``.npz``.
        whole: also read the values.

    Raises:
        ValueError: it cannot be read, or with ``whole`` a value is not finite.
    """
    try:
        shape, values = READERS[_ending(path)](path)
        if whole and not np.isfinite(values()).all():
            raise ValueError("holds a NaN or an infinity")
    except KeyError:
        raise ValueError(f"has the ending {path.suffix!r}, none of {', '.join(filter(None, READERS))}") from None
    except Exception as error:  # every format has its own ways to be broken
        raise ValueError(str(error) or type(error).__name__) from error
    return tuple(int(size) for size in shape)


def _describe(listed: Datalist, split: str, unreadable: list[str], *, whole: bool) -> dict[str, Any]:
    samples: Iterable[Sample] = getattr(listed, split)
    shapes: Counter[str] = Counter()
    for sample in samples:
        for image in filter(Path.exists, sample.images):
            try:
                shapes["x".join(map(str, stored_shape(image, whole=whole)))] += 1
            except ValueError as error:
                unreadable.append(f"{image} ({error})")
    return {
        "samples": len(getattr(listed, split)),
        "subjects": len(listed.subjects(split)),
        "unnamed": sum(sample.subject is None for sample in samples),
        "classes": {str(label): count for label, count in listed.counts(split).items()},
        "shapes": dict(shapes.most_common()),
    }


def _nifti(path: Path) -> Found:
    image = nibabel.load(path)
    return image.shape, lambda: np.asarray(image.dataobj)


def _picture(path: Path) -> Found:
    from PIL import Image

    with Image.open(path) as image:
        bands = len(image.getbands())
        shape = (image.height, image.width) if bands == 1 else (image.height, image.width, bands)

    def values() -> NDArray[Any]:
        with Image.open(path) as image:
            return np.asarray(image)

    return shape, values


def _dicom(path: Path) -> Found:
    import pydicom

    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise ValueError("the folder is empty")
    header = pydicom.dcmread(files[0], stop_before_pixels=True)
    frames = int(header.get("NumberOfFrames", 1)) * len(files)
    shape = (header.Rows, header.Columns) if frames == 1 else (header.Rows, header.Columns, frames)
    return shape, lambda: np.stack([pydicom.dcmread(file).pixel_array for file in files])


def _array(path: Path) -> Found:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found.shape, lambda: found
    with found as arrays:
        array: NDArray[Any] = arrays["image" if "image" in arrays else arrays.files[0]]
    return array.shape, lambda: array


READERS: Mapping[str, Callable[[Path], Found]] = {
    ".nii": _nifti,
    ".nii.gz": _nifti,
    ".png": _picture,
    ".jpg": _picture,
    ".jpeg": _picture,
    ".bmp": _picture,
    ".npy": _array,
    ".npz": _array,
    ".dcm": _dicom,
    "": _dicom,
}
"""The reader by the end of the name; a folder, or a file without an ending, is DICOM."""


def _ending(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else "" if path.is_dir() else path.suffix.lower()

"""Survey of a datalist and its files, without torch: counts, classes, shapes and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
from numpy.typing import NDArray

from peer.data.datalist import SPLITS, Datalist, Sample, inspect_datalist, named
from peer.documents import DatalistSurvey, SplitSurvey
from peer.extras import missing_package

Shape: TypeAlias = tuple[int, ...]
StoredImage: TypeAlias = tuple[Shape, Callable[[], NDArray[Any]]]
"""An image's shape, and a function that reads its values, in any order."""

SCALES = {"segmentation": (1,), "super_resolution": (2, 4, 8)}
"""Task kind -> how many times as large as its image a label file may be."""


@dataclass(slots=True)
class _Faults:
    """Texts that name a file and its fault, by kind of fault."""

    unreadable: list[str] = field(default_factory=list)
    misfit: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def problems(self, task: str, classes: int | None) -> list[str]:
        """One line for each kind of fault."""
        lines = []
        if self.unreadable:
            lines.append(
                f"files cannot be read: {named(self.unreadable)}; replace them or take them out of the datalist"
            )
        if self.misfit:
            times = "not on the grid" if task == "segmentation" else "not 2, 4 or 8 times the size"
            lines.append(f"label files are {times} of their images: {named(self.misfit)}; make them anew")
        if self.values and task == "segmentation":
            allowed = "0, 1, ..." if classes is None else f"0 to {classes - 1}"
            lines.append(
                f"label maps hold other values than {allowed}: {named(self.values)}; map them or correct [task] classes"
            )
        elif self.values:
            lines.append(f"values are not from 0 to 1: {named(self.values)}; scale them")
        return lines


def survey(
    path: Path,
    *,
    root: Path | None = None,
    task: str = "classification",
    classes: int | None = None,
    whole: bool = False,
) -> DatalistSurvey:
    """Describe a datalist.

    Args:
        root: folder that its paths are relative to; default: the file's own.
        classes: number of classes; None leaves the labels' upper bound unchecked.
        whole: read every value of every image; otherwise only the files' headers. Label maps are
            read to the end in either case.

    Returns:
        ``{datalist, splits, unlabelled, problems}``; ``splits`` has for ``training`` and ``test``
        ``{samples, subjects, unnamed, classes, shapes, labels, label_shapes}``.
        ``unnamed`` counts samples without a subject, for which the survey cannot see a leakage
        between the splits. ``classes`` counts the samples of each class, or the label maps in which
        a label occurs. ``labels`` counts label files.
    """
    listed = inspect_datalist(path, root=root, task=task, classes=classes)
    faults = _Faults()
    splits = {split: _describe(listed, split, task, classes, faults, whole=whole) for split in SPLITS}
    problems = [*listed.problems, *faults.problems(task, classes)]
    return {"datalist": str(path), "splits": splits, "unlabelled": listed.unlabelled, "problems": problems}


def read_stored(path: Path, *, whole: bool = False, key: str = "image") -> tuple[Shape, NDArray[Any] | None]:
    """The shape of an image in the order of axes that training has, and with ``whole`` its values.

    A picture is rows x columns (x channels), a volume columns x rows x slices (x channels).

    Args:
        path: a NIfTI, PNG, JPEG, BMP or DICOM file, a folder of DICOM slices, an ``.npy`` or
            ``.npz``.

    Raises:
        ValueError: it cannot be read, or with ``whole`` a value is not finite.
        ConfigError: the package that reads it is not installed.
    """
    ending = _ending(path)
    try:
        shape, read = _array(path, key) if ending in ARRAYS else READERS[ending](path)
        values = read() if whole else None
        if values is not None and not np.isfinite(values).all():
            raise ValueError("holds a NaN or an infinity")
    except KeyError:
        known = ", ".join(filter(None, [*READERS, *ARRAYS]))
        raise ValueError(f"has the ending {path.suffix!r}, none of {known}") from None
    except ImportError as error:
        raise missing_package(error, f"reading {path.name}") from error
    except Exception as error:  # every format has its own ways to be broken
        raise ValueError(str(error) or type(error).__name__) from error
    return tuple(int(size) for size in shape), values


def _describe(
    listed: Datalist, split: str, task: str, classes: int | None, faults: _Faults, *, whole: bool
) -> SplitSurvey:
    samples: Iterable[Sample] = getattr(listed, split)
    shapes: Counter[str] = Counter()
    label_shapes: Counter[str] = Counter()
    present: Counter[int] = Counter(listed.counts(split))
    for sample in samples:
        grids: set[Shape] = set()
        for image in filter(Path.exists, sample.images):
            try:
                shape, values = read_stored(image, whole=whole)
            except ValueError as error:
                faults.unreadable.append(f"{image} ({error})")
                continue
            shapes["x".join(map(str, shape))] += 1
            grids.update(grid for grid, _ in _grids(image, shape))
            if task == "super_resolution":
                faults.values += _beyond_unit(image, values)
        if isinstance(sample.label, Path) and sample.label.exists():
            try:
                shape, labels = _label(sample.label, grids, task, classes, faults, whole=whole)
            except ValueError as error:
                faults.unreadable.append(f"{sample.label} ({error})")
                continue
            label_shapes["x".join(map(str, shape))] += 1
            present.update(labels)
    return {
        "samples": len(getattr(listed, split)),
        "subjects": len(listed.subjects(split)),
        "unnamed": sum(sample.subject is None for sample in samples),
        "classes": {str(label): count for label, count in sorted(present.items())},
        "shapes": dict(shapes.most_common()),
        "labels": sum(isinstance(sample.label, Path) for sample in samples),
        "label_shapes": dict(label_shapes.most_common()),
    }


def _label(
    path: Path, grids: set[Shape], task: str, classes: int | None, faults: _Faults, *, whole: bool
) -> tuple[Shape, list[int]]:
    """A label file's shape and, of a label map, its labels; adds their problems to the faults."""
    maps = task == "segmentation"
    shape, values = read_stored(path, whole=whole or maps, key="label" if maps else "image")
    fitting = {tuple(scale * length for length in grid) for grid in grids for scale in SCALES.get(task, (1,))}
    own = {grid for grid, channels in _grids(path, shape) if channels == 1 or not maps}
    if grids and not own & fitting:
        faults.misfit.append(f"{path} ({'x'.join(map(str, shape))})")
    if not maps or values is None:
        faults.values += _beyond_unit(path, values)
        return shape, []
    labels = np.unique(values)
    wrong = labels[(labels < 0) | (labels >= (classes or np.inf)) | (labels != np.round(labels))]
    if wrong.size:
        faults.values.append(f"{path} ({wrong[0]:g})")
        return shape, []
    return shape, [int(label) for label in labels]


def _beyond_unit(path: Path, values: NDArray[Any] | None) -> list[str]:
    """The file with its range, if its values were read and lie outside [0, 1]; else nothing.

    The trainer divides pictures of 8 bits by 255, so that they are always inside.
    """
    if values is None or (values.dtype == np.uint8 and READERS.get(_ending(path)) is _picture):
        return []
    lowest, highest = values.min(), values.max()
    return [f"{path} ({lowest:g} to {highest:g})"] if lowest < 0 or highest > 1 else []


def _grids(path: Path, shape: Shape) -> list[tuple[Shape, int]]:
    """The possible meanings of a shape: a grid, and a number of channels."""
    ending = _ending(path)
    if ending in ARRAYS:
        return [(shape, 1), (shape[1:], shape[0] if shape else 1)]
    reader = READERS[ending]
    if reader is _nifti:
        return [(shape, 1), (shape[:-1], shape[-1])]
    height, width, *more = shape
    return [((height, width), *(more or (1,)))] if reader is _picture else [(shape, 1)]


def _nifti(path: Path) -> StoredImage:
    image = nibabel.load(path)
    shape = image.shape if len(image.shape) > 2 else image.shape[::-1]  # a plane is a picture, x its columns
    return shape, lambda: np.asarray(image.dataobj)


def _picture(path: Path) -> StoredImage:
    from PIL import Image

    with Image.open(path) as image:
        bands = len(image.getbands())
        shape = (image.height, image.width) if bands == 1 else (image.height, image.width, bands)

    def values() -> NDArray[Any]:
        with Image.open(path) as image:
            return np.asarray(image)

    return shape, values


def _dicom(path: Path) -> StoredImage:
    import pydicom

    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise ValueError("the folder is empty")
    header = pydicom.dcmread(files[0], stop_before_pixels=True)
    frames = int(header.get("NumberOfFrames", 1)) * len(files)
    shape = (header.Rows, header.Columns) if frames == 1 else (header.Columns, header.Rows, frames)
    return shape, lambda: np.stack([pydicom.dcmread(file).pixel_array for file in files])


def _array(path: Path, key: str) -> StoredImage:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded.shape, lambda: loaded
    with loaded as arrays:
        array: NDArray[Any] = arrays[key if key in arrays else arrays.files[0]]
    return array.shape, lambda: array


READERS: Mapping[str, Callable[[Path], StoredImage]] = {
    ".nii": _nifti,
    ".nii.gz": _nifti,
    ".png": _picture,
    ".jpg": _picture,
    ".jpeg": _picture,
    ".bmp": _picture,
    ".dcm": _dicom,
    "": _dicom,
}
"""Ending of a file's name -> its reader; a folder, or a file without an ending, is DICOM."""

ARRAYS = (".npy", ".npz")


def _ending(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else "" if path.is_dir() else path.suffix.lower()

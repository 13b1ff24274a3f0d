"""Read DICOM: one image, one file with frames (enhanced or classic), or a folder with one series.

Source: DICOM PS3.3, C.7.6.2 (image plane), C.7.6.16 (functional groups), C.11.1 (modality LUT).
All three give the same axes and values. Slices are ordered by InstanceNumber if that follows their positions, else by
position. An input that would yield another volume than the scanner's is an error.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.encaps import generate_fragments
from pydicom.errors import InvalidDicomError
from pydicom.misc import is_dicom
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
from pydicom.uid import RLELossless

from peer.errors import ConfigError
from peer.extras import install_remedy
from peer.train.data.dicom_notes import notes_of
from peer.train.data.real_world_values import MAPPING, RealWorldMapping, read_mapping, read_relationship

Vector: TypeAlias = NDArray[Any]

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
GAP_MIN, UNEVEN_SHARE = 1.5, 0.2
"""A slice is missing if the distance is ``GAP_MIN`` times the median. Distances may differ by ``UNEVEN_SHARE``, as
positions are often rounded to 0.1 mm.
"""

UNITS_FROM = frozenset({"CT", "NM", "PT"})
"""Modalities whose values are measurements; for them, MONOCHROME1 affects the display only."""

DIGITS = re.compile(r"\d+")

VALUE_FIELDS = (
    "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "DoseGridScaling", "PixelPaddingValue", MAPPING,
    "PixelIntensityRelationship", "FloatPixelPaddingValue", "DoubleFloatPixelPaddingValue",
)  # fmt: skip
"""Fields that change the meaning of stored values: either all slices of a volume have such a field, or none."""

SHAPE_FIELDS = ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation")
UNIT_FIELDS, UNIT_KINDS = ("RescaleType", "Units", "DoseUnits"), ("SUVType", "DecayCorrection")
SERIES_FIELDS = ("PatientID", "FrameOfReferenceUID", *UNIT_FIELDS, *UNIT_KINDS)
"""Fields that all slices of a volume have alike, the second ones where a slice has them."""
PERSONAL = frozenset({"PatientID"})

PADDING_FIELDS = (
    ("PixelPaddingValue", "PixelPaddingRangeLimit"),
    ("FloatPixelPaddingValue", "FloatPixelPaddingRangeLimit"),
    ("DoubleFloatPixelPaddingValue", "DoubleFloatPixelPaddingRangeLimit"),
)
"""The value, or the first and last value, of pixels that were not measured, by the type of pixels."""

FRAME_GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")

SHAPES = {"MONOCHROME1": "INVERSE", "MONOCHROME2": "IDENTITY"}
"""Photometric interpretation -> the presentation LUT shape that says the same (PS3.3, C.11.6)."""

COMPONENTS = {word: name for name in ("MAGNITUDE", "PHASE", "REAL", "IMAGINARY") for word in (name, name[0])}
"""Words for the components of complex values -> their names here."""

PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")

CONTAINERS = frozenset({".bz2", ".crdownload", ".gz", ".part", ".tmp", ".xz", ".zip", ".zst"})
"""Last suffixes of a slice that is compressed, or whose transfer did not end."""

FRAME_STARTS = (b"\xff\xd8\xff", b"\xff\x4f\xff\x51")
"""First bytes of a frame in JPEG and JPEG-LS, and in JPEG 2000."""

RLE_HEADER_BYTES, RLE_SEGMENTS_MAX = 64, 15

FRAME_BYTES_MIN = 8
"""Minimum size of a compressed frame: the header of its item (PS3.5, A.4)."""

MISSING_DECODER, TWELVE_BITS = "missing dependencies", "Pillow does not support 'JPEG Extended'"
"""Parts of pydicom's errors if no installed package decodes a transfer syntax, or none but Pillow, which cannot."""


@dataclass(frozen=True, slots=True)
class DicomImage:
    """The content of the headers; ``peer.train.data.image_files.StoredImage`` explains the fields.

    A single image has an ``affine``, too, whose third column is the normal.
    """

    space: tuple[int, ...]
    channels: int
    depth: str
    read: Callable[[], NDArray[Any]]
    affine: Vector | None
    doubts: tuple[str, ...]
    relationship: str = ""
    unit: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DicomSlice:
    """One slice: the index of its file and of its frame there, and its place, if known.

    Attributes:
        axes: the directions in which columns and in which rows follow each other, ``(2, 3)``.
        spacing: mm between rows and between columns.
        rescale: slope and intercept of this frame alone.
        mapping: to real world values, of this frame or its file, where slope and intercept do not apply it.
        component: of complex values, such as magnitude or phase; empty if not stated.
    """

    name: str
    file: int
    frame: int
    number: int | None
    position: Vector | None
    axes: Vector | None
    spacing: Vector | None
    rescale: tuple[float, float] | None = None
    mapping: RealWorldMapping | None = None
    component: str = ""


def open_dicom(path: Path, *, is_label_map: bool = False) -> DicomImage:
    """Read the headers of a file or of a folder with one series; raise ``ValueError`` if it is not an image.

    Args:
        is_label_map: read the stored numbers of a palette or of MONOCHROME1, not their appearance.
    """
    files, headers = _read_headers(path)
    header = headers[0]
    _check_alike(files, headers)
    for file, other in zip(files, headers, strict=True):
        _check_stored_bits(file, other)
        _check_meaning(file, other)
    planes = [plane for index, other in enumerate(headers) for plane in _planes(files[index], index, other)]
    unscaled = [plane.name for plane in planes if plane.rescale is None]
    if unscaled and len(unscaled) < len(planes):
        raise ValueError(f"{unscaled[0]} has no RescaleSlope, other frames have one")
    units = {plane.mapping and plane.mapping.unit: plane.name for plane in planes}
    if len(units) > 1:
        raise ValueError(f"{' and '.join(units.values())} map their values to real world values of different kinds")
    components = {plane.component: plane.name for plane in planes if plane.component}
    if len(components) > 1:
        listed = " and ".join(f"{name} ({component})" for component, name in components.items())
        raise ValueError(f"{listed} hold different components of complex values; make a folder of each")
    relationships = {read_relationship(file.name, other): file.name for file, other in zip(files, headers, strict=True)}
    if len(relationships) > 1:
        raise ValueError(f"{' and '.join(relationships.values())} differ in PixelIntensityRelationship")
    planes, step = _in_order(planes)
    affine = _affine(planes[0], step)
    doubts: tuple[str, ...] = ()
    if affine is None:
        lacking = "its slices" if len(planes) > 1 else "the slice"
        doubts = (f"says no position and orientation of {lacking} in the patient",)
    rows, columns = int(header.Rows), int(header.Columns)
    space = (rows, columns) if len(planes) == 1 else (columns, rows, len(planes))
    sign = "int" if header.get("PixelRepresentation", 0) else "uint"
    depth = f"{sign}{header.get('BitsAllocated', 16)}"
    channels = _channels(header, is_label_map)
    mapping = planes[0].mapping
    stated = [next(filter(None, map(header.get, UNIT_FIELDS)), ""), *map(header.get, UNIT_KINDS)]
    unit = mapping.unit if mapping else " ".join(map(str, filter(None, stated)))
    (relationship,) = relationships
    return DicomImage(
        space, channels, depth, lambda: _read_planes(files, planes, is_label_map), affine, doubts, relationship, unit,
        tuple(notes_of(header)),
    )  # fmt: skip


def storage_class(header: Any) -> str:
    """Return the UID of a file's kind, which is its first element; empty if even that is lost."""
    stored = header.get("SOPClassUID") or getattr(header, "file_meta", {}).get("MediaStorageSOPClassUID")
    return str(stored or "")


def named_like(path: Path, slices: Iterable[Path]) -> bool:
    """Return whether a file's name has the suffix of these slices or, without a suffix, differs in digits alone.

    A suffix of a container or of an unfinished transfer does not count.
    """
    if path.suffix.lower() in CONTAINERS:
        return named_like(path.with_suffix(""), slices)
    if path.suffix and not path.suffix[1:].isdigit():
        return path.suffix.lower() in {file.suffix.lower() for file in slices}
    return DIGITS.sub("0", path.name) in {DIGITS.sub("0", file.name) for file in slices}


def _check_alike(files: Sequence[Path], headers: Sequence[Any]) -> None:
    """Raise ``ValueError`` if slices differ in a field that one image has once."""
    for key in (*SHAPE_FIELDS, *SERIES_FIELDS):
        values = Counter(str(other.get(key)) for other in headers if key in SHAPE_FIELDS or other.get(key))
        if len(values) > 1:
            listed = ", ".join(f"{value} ({count} files)" for value, count in values.most_common())
            raise ValueError(f"its slices differ in {key}{'' if key in PERSONAL else f': {listed}'}")
    for key in VALUE_FIELDS:
        without = [file.name for file, other in zip(files, headers, strict=True) if key not in other]
        if without and len(without) < len(files):
            raise ValueError(f"{without[0]} has no {key}, other slices have one")


def _check_meaning(file: Path, header: Any) -> None:
    """Raise ``ValueError`` if a file says in two ways what its values mean, or does not say what they need."""
    rescale = _read_rescale(file.name, header)
    groups = [group for key in FRAME_GROUPS for group in header.get(key) or ()]
    others = [key for key in ("ModalityLUTSequence", "DoseGridScaling") if key in header]
    others += ["slopes of its frames"] if any("PixelValueTransformationSequence" in group for group in groups) else []
    if others and rescale not in (None, (1.0, 0.0)):
        raise ValueError(
            f"{file.name} has RescaleSlope and RescaleIntercept, and {others[0]} besides; keep one of both"
        )
    if header.get("Modality") == "RTDOSE" and "DoseGridScaling" not in header:
        raise ValueError(f"{file.name} stores a dose and has no DoseGridScaling, without which its unit is unknown")
    photometric, shape = header.get("PhotometricInterpretation"), header.get("PresentationLUTShape")
    is_contradicted = shape in SHAPES.values() and SHAPES.get(photometric, shape) != shape
    if is_contradicted and header.get("Modality") not in UNITS_FROM:
        raise ValueError(f"{file.name} contradicts itself: {photometric}, with PresentationLUTShape {shape}")


def _read_rescale(name: str, fields: Any) -> tuple[float, float] | None:
    """Return slope and intercept; ``None`` if there is neither. Raise ``ValueError`` if one lacks or is no number."""
    given = [key for key in ("RescaleSlope", "RescaleIntercept") if key in fields]
    if not given:
        return None
    if len(given) == 1:
        other = "RescaleIntercept" if given == ["RescaleSlope"] else "RescaleSlope"
        raise ValueError(f"{name} has a {given[0]} and no {other}; write both, or neither")
    try:
        return float(fields.RescaleSlope), float(fields.RescaleIntercept)
    except TypeError as error:
        values = " and ".join(f"{key} {str(fields.get(key) or '')!r}" for key in given)
        raise ValueError(f"{name} has {values}, which are no numbers") from error


def _check_stored_bits(file: Path, header: Any) -> None:
    """Raise ``ValueError`` if the stored bits are not the lowest ones of their word; old scanners write such files."""
    stored, highest = header.get("BitsStored"), header.get("HighBit")
    if None not in (stored, highest) and int(highest) != int(stored) - 1:
        raise ValueError(
            f"{file.name} stores its {stored} bits up to bit {highest}, not {int(stored) - 1}; rewrite it with the "
            "values in the lowest bits"
        )


def _read_headers(path: Path) -> tuple[list[Path], list[Any]]:
    """Return the files of one series that hold pixels, and their headers."""
    if not path.is_dir():
        candidates = [path]
    else:
        visible = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if not visible:
            raise ValueError("the folder is empty")
        whole = {file for file in visible if is_dicom(file)}
        # A damaged slice keeps its name: it must not pass for a note beside the series.
        candidates = [file for file in visible if file in whole or named_like(file, [*whole, Path("a.dcm")])]
        if not candidates:
            raise ValueError(f"the folder holds no DICOM file; it holds {visible[0].name}")
    files, headers, others = [], [], {}
    for file in candidates:
        try:
            header = pydicom.dcmread(file, stop_before_pixels=True)
        except InvalidDicomError as error:  # whose text advises to force it
            reason = "is missing DICOM's preamble: it is damaged, or no DICOM file by PS3.10"
            raise ValueError(f"{file.name}: {reason}" if path.is_dir() else reason) from error
        except Exception as error:
            raise ValueError(f"{file.name}: {error}" if path.is_dir() else str(error)) from error
        if "SegmentSequence" in header:
            raise ValueError(f"{file.name} is a DICOM segmentation; convert it to a NIfTI label map")
        if "Rows" in header:
            files.append(file)
            headers.append(header)
        else:  # a DICOMDIR, a report, a presentation state, or a slice that is cut short
            others[file] = header
    if not files:
        raise ValueError("holds no pixels")
    kinds = {storage_class(header) for header in headers}
    for file, header in others.items():
        if storage_class(header) in {"", *kinds}:
            raise ValueError(f"{file.name} lacks its pixels: it is cut short or damaged")
    series = Counter(str(header.get("SeriesInstanceUID", "")) for header in headers)
    if len(series) > 1:
        described = ", ".join(
            f"{_describe_series(next(other for other in headers if str(other.get('SeriesInstanceUID', '')) == uid))} "
            f"({count} files)"
            for uid, count in series.most_common()
        )
        raise ValueError(f"the folder holds {len(series)} series: {described}; make a folder of each")
    return files, headers


def _describe_series(header: Any) -> str:
    number, text = header.get("SeriesNumber", "?"), header.get("SeriesDescription", "")
    return f"number {number} {text}".strip()


# --- planes ---------------------------------------------------------------------------------------
def _planes(file: Path, index: int, header: Any) -> Iterator[DicomSlice]:
    name, count = file.name, int(header.get("NumberOfFrames") or 1)
    if count != 1:
        _check_frames(file, header, count)
    number = header.get("InstanceNumber")
    plane = DicomSlice(
        name, index, 0, None if number is None else int(number), *_place(header, header, header.get("PixelSpacing"))
    )
    groups = header.get("PerFrameFunctionalGroupsSequence")
    if groups is not None:
        if len(groups) != count:
            raise ValueError(f"{name} has {count} frames and describes {len(groups)}")
        yield from _enhanced(plane, groups, header.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()], header)
        return
    mapping = read_mapping(header.get(MAPPING) or (), _read_rescale(name, header), header)
    kind: Sequence[str] = header.get("ImageType") or []  # of one value, a text
    names_component = header.get("Modality") == "MR" and not isinstance(kind, str) and len(kind) > 2
    component = _component(kind[2]) if names_component else ""  # PS3.3, C.8.3.1
    plane = replace(plane, mapping=mapping, component=component)
    yield from [plane] if count == 1 else _classic(plane, count, header)


def _component(word: Any) -> str:
    """Return the component of complex values that a word names, such as M, PHASE or M_FFE; empty if it names none."""
    return COMPONENTS.get(str(word or "").upper().partition("_")[0], "")


def _check_frames(file: Path, header: Any, count: int) -> None:
    """Raise ``ValueError`` if the file is too small to hold this many frames."""
    size, syntax = file.stat().st_size, getattr(header, "file_meta", {}).get("TransferSyntaxUID")
    is_stored_whole = syntax is not None and not syntax.is_compressed and not syntax.is_deflated
    frame_bytes = _frame_bits(header) // 8 if is_stored_whole else FRAME_BYTES_MIN
    if not 0 < count * frame_bytes <= size:
        raise ValueError(
            f"{file.name} says that it has {count} frames, which do not fit into its {size} bytes; it is cut short or "
            "damaged"
        )


def _frame_bits(header: Any) -> int:
    """Return the number of bits of a frame that is not compressed."""
    samples = 2 if "422" in str(header.get("PhotometricInterpretation")) else int(header.get("SamplesPerPixel", 1))
    return int(header.Rows) * int(header.Columns) * samples * int(header.get("BitsAllocated", 16))


def _check_no_more_frames(dataset: Any) -> None:
    """Raise ``ValueError`` if the pixel data have more frames than the header says, which nobody would read."""
    count, pixels = int(dataset.get("NumberOfFrames") or 1), next(filter(None, map(dataset.get, PIXELS)), b"")
    syntax, bits = dataset.file_meta.TransferSyntaxUID, _frame_bits(dataset)
    if syntax.is_private or not bits:
        return  # pydicom says what is wrong
    if syntax.is_compressed and not syntax.is_deflated:
        is_runs = syntax == RLELossless
        stored = sum(
            _is_frame_of_runs(part) if is_runs else part.startswith(FRAME_STARTS) for part in generate_fragments(pixels)
        )
    else:
        said = math.ceil(count * bits / 8)
        is_full_colour = "422" in str(dataset.PhotometricInterpretation) and 2 * len(pixels) == 3 * said
        is_whole = len(pixels) <= said + 1 or is_full_colour  # a byte more makes the number even
        stored = count if is_whole else 8 * len(pixels) // bits
    if stored > count and pixels:
        raise ValueError(f"says that it has {count} frame{'s' * (count > 1)}, and holds the pixels of {stored}")


def _is_frame_of_runs(part: bytes) -> bool:
    """Return whether an item of RLE is a frame, which begins with the number of its segments (PS3.5, G.5)."""
    return len(part) >= RLE_HEADER_BYTES and 0 < int.from_bytes(part[:4], "little") <= RLE_SEGMENTS_MAX


def _enhanced(plane: DicomSlice, groups: Sequence[Any], shared: Sequence[Any], header: Any) -> Iterator[DicomSlice]:
    def items(group: Any, sequence: str) -> Sequence[Any]:
        chosen: Sequence[Any] = group.get(sequence) or shared[0].get(sequence) or ()
        return chosen

    def item(group: Any, sequence: str) -> Any:
        return next(iter(items(group, sequence)), pydicom.Dataset())

    for frame, group in enumerate(groups):
        position, orientation = item(group, "PlanePositionSequence"), item(group, "PlaneOrientationSequence")
        spacing = item(group, "PixelMeasuresSequence").get("PixelSpacing")
        values = item(group, "PixelValueTransformationSequence")
        name = f"frame {frame + 1} of {plane.name}"
        rescale = _read_rescale(name, values)
        place = _place(position, orientation, spacing)
        component = _component(item(group, "MRImageFrameTypeSequence").get("ComplexImageComponent"))
        applied = _read_rescale(plane.name, header) if rescale is None else rescale
        mapping = read_mapping(items(group, MAPPING) or header.get(MAPPING) or (), applied, header)
        yield DicomSlice(name, plane.file, frame, frame, *place, rescale, mapping, component)


def _classic(plane: DicomSlice, count: int, header: Any) -> Iterator[DicomSlice]:
    """Place the frames of a classic file along the normal, if it states their distance."""
    offsets: Sequence[Any] | None = header.get("GridFrameOffsetVector")
    distance = header.get("SpacingBetweenSlices")
    along: Vector | None
    if offsets is not None and len(offsets) == count:
        along = np.array([float(offset) for offset in offsets]) - float(offsets[0])
    elif distance:
        along = np.arange(count) * float(distance)
    else:
        along = None
    for frame in range(count):
        position = None
        if along is not None and plane.position is not None and plane.axes is not None:
            position = plane.position + along[frame] * np.cross(*plane.axes)
        yield replace(plane, name=f"frame {frame + 1} of {plane.name}", frame=frame, number=frame, position=position)


def _place(position: Any, orientation: Any, spacing: Any) -> tuple[Vector | None, Vector | None, Vector | None]:
    """Return position, axes and spacing, each None if missing; raise ``ValueError`` for an invalid one."""
    start, axes = position.get("ImagePositionPatient"), orientation.get("ImageOrientationPatient")
    place = tuple(
        None if value is None else np.array([float(part) for part in value]) for value in (start, axes, spacing)
    )
    if any(value is not None and not np.isfinite(value).all() for value in place):
        raise ValueError("has a position, an orientation or a spacing that is not finite")
    start, axes, spacing = place
    if axes is not None:
        axes = axes.reshape(2, 3)
        if not np.allclose(axes @ axes.T, np.eye(2), atol=1e-2):
            raise ValueError(f"its ImageOrientationPatient {axes.ravel().tolist()} is no pair of directions")
    if spacing is not None and (spacing <= 0).any():
        raise ValueError(f"its PixelSpacing is {spacing.tolist()}")
    return start, axes, spacing


def _in_order(planes: list[DicomSlice]) -> tuple[list[DicomSlice], Vector | None]:
    """Return the slices in spatial order, and the vector from one to the next, if known.

    Raises:
        ValueError: slices are missing, coincide, are unevenly spaced or differ in their
            geometry.
    """
    if len(planes) == 1:
        return planes, None
    first = planes[0]
    for what in ("position", "axes", "spacing"):
        lacking = [plane.name for plane in planes if getattr(plane, what) is None]
        if lacking and len(lacking) < len(planes):
            raise ValueError(f"{lacking[0]} does not say its {what}, other slices do")
    for what, tolerance in (("axes", 1e-3), ("spacing", 1e-3)):
        for plane in planes:
            if getattr(plane, what) is not None and not np.allclose(
                getattr(plane, what), getattr(first, what), atol=tolerance
            ):
                raise ValueError(
                    f"{first.name} and {plane.name} differ in the {what} of their pixels, as a localiser's slices do"
                )
    numbers = [plane.number for plane in planes]
    are_numbered = None not in numbers and len(set(numbers)) == len(numbers)
    by_number = sorted(planes, key=lambda plane: plane.number or 0) if are_numbered else planes
    if first.position is None or first.axes is None:
        if not are_numbered:
            raise ValueError(
                "its slices say neither a position nor a number of their own, so that their order is unknown"
            )
        for before, after in itertools.pairwise(by_number):
            if (after.number or 0) - (before.number or 0) > 1:
                raise ValueError(f"slices are missing between {before.name} and {after.name}, by their InstanceNumber")
        return by_number, None
    normal = np.cross(*first.axes)
    along = [float(plane.position @ normal) for plane in by_number if plane.position is not None]
    if not (are_numbered and (np.diff(along) > 0).all()) and not (are_numbered and (np.diff(along) < 0).all()):
        order = np.argsort(along, kind="stable")
        by_number, along = [by_number[index] for index in order], [along[index] for index in order]
    _check_distances(by_number, np.abs(np.diff(along)))
    last, start = by_number[-1].position, by_number[0].position
    return by_number, None if last is None or start is None else (last - start) / (len(planes) - 1)


def _check_distances(planes: Sequence[DicomSlice], distances: Vector) -> None:
    median = float(np.quantile(distances, 0.5, method="lower"))  # "lower", so that a gap among three slices is found
    for before, after, distance in zip(planes, planes[1:], distances, strict=False):
        pair = f"{before.name} and {after.name}"
        if distance < 1e-3:
            raise ValueError(f"{pair} lie at one place: these are several phases, echoes or copies; keep one of each")
        if distance > GAP_MIN * median:
            count = round(distance / median) - 1
            missing = "a slice is" if count == 1 else f"{count} slices are"
            raise ValueError(f"{missing} missing between {pair}: {distance:.3g} mm apart, others {median:.3g} mm")
        if abs(distance - median) > UNEVEN_SHARE * median:
            raise ValueError(f"{pair} are {distance:.3g} mm apart, others {median:.3g} mm: the slices are uneven")


def _affine(first: DicomSlice, step: Vector | None) -> Vector | None:
    """Build the map from columns, rows and slices to mm in RAS; for a single slice, its normal replaces the step."""
    if first.position is None or first.axes is None or first.spacing is None:
        return None
    affine = np.eye(4)
    affine[:3, 0] = first.axes[0] * first.spacing[1]
    affine[:3, 1] = first.axes[1] * first.spacing[0]
    affine[:3, 2] = np.cross(*first.axes) if step is None else step
    affine[:3, 3] = first.position
    return LPS_TO_RAS @ affine


# --- values ---------------------------------------------------------------------------------------
def _channels(header: Any, is_label_map: bool) -> int:
    photometric = str(header.get("PhotometricInterpretation", ""))
    if photometric == "PALETTE COLOR":
        return 1 if is_label_map or _has_grey_palette(header) else 3
    samples = int(header.get("SamplesPerPixel", 1))
    if samples not in (1, 3):
        raise ValueError(f"has {samples} samples a pixel; 1 and 3 are known")
    return samples


def _has_grey_palette(header: Any) -> bool:
    tables = [header.get(f"{colour}PaletteColorLookupTableData") for colour in ("Red", "Green", "Blue")]
    return tables[0] is not None and tables[0] == tables[1] == tables[2]


def _read_planes(files: Sequence[Path], planes: Sequence[DicomSlice], is_label_map: bool) -> NDArray[Any]:
    """Return the values ``(c, rows, columns)`` of one slice, or ``(c, columns, rows, slices)``."""
    frames: dict[int, NDArray[Any]] = {}
    slices = []
    for plane in planes:
        if plane.file not in frames:
            try:
                frames[plane.file] = _decode(pydicom.dcmread(files[plane.file]), is_label_map)
            except ConfigError:
                raise
            except Exception as error:
                raise ValueError(f"{files[plane.file].name}: {error}" if len(files) > 1 else str(error)) from error
        values = frames[plane.file][plane.frame]
        if plane.rescale is not None:
            values = values * plane.rescale[0] + plane.rescale[1]
        slices.append(values if plane.mapping is None or is_label_map else plane.mapping.apply(values))
    return slices[0] if len(slices) == 1 else np.stack([values.swapaxes(1, 2) for values in slices], axis=-1)


def _decode(dataset: Any, is_label_map: bool) -> NDArray[Any]:
    """Return what ``_read_frames`` does; raise ``ConfigError`` if the file's compression needs another package."""
    try:
        return _read_frames(dataset, is_label_map)
    except Exception as error:
        text = str(error)
        if not text:
            raise ValueError("has pixel data that cannot be decoded: it is cut short or damaged") from error
        if MISSING_DECODER in text or (TWELVE_BITS in text and "pylibjpeg" not in text):
            raise ConfigError(
                f"reading DICOM files in {dataset.file_meta.TransferSyntaxUID.name} needs the Python packages "
                "pylibjpeg, pylibjpeg-libjpeg and pylibjpeg-openjpeg, not all installed here",
                install_remedy("decoders"),
            ) from error
        raise


def _read_frames(dataset: Any, is_label_map: bool) -> NDArray[Any]:
    """Return the values of one file, ``(frames, c, rows, columns)``: colours in RGB, grey values as measured."""
    _check_no_more_frames(dataset)
    values = dataset.pixel_array
    photometric = str(dataset.get("PhotometricInterpretation", ""))
    if is_label_map and _channels(dataset, is_label_map) == 1:
        values = values[..., None]
    elif photometric == "PALETTE COLOR":
        values = apply_color_lut(values, dataset)
        values = values[..., :1] if _has_grey_palette(dataset) else values
    elif _channels(dataset, is_label_map) == 3:
        if photometric not in ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"):
            raise ValueError(f"has the colours {photometric}, which are none of RGB, YBR and PALETTE COLOR")
    else:
        padding = _find_padding(values, dataset)
        if photometric == "MONOCHROME1" and dataset.get("Modality") not in UNITS_FROM:
            # Stored values begin at 0, or, if signed, at minus half the range: -1 - v stays in the range.
            top = 0 if dataset.get("PixelRepresentation", 0) else (1 << int(dataset.BitsStored))
            values = (top - 1 - values.astype(np.int64)).astype(np.float32)
            values = _rescale(values, dataset)
        else:
            values = apply_modality_lut(values, dataset)
        if "DoseGridScaling" in dataset:  # PS3.3, C.8.8.3: of a dose in gray
            values = values * float(dataset.DoseGridScaling)
        if padding is not None and not padding.all():
            values = np.where(padding, values[~padding].min(), values)
        values = values[..., None]
    values = values.reshape(-1, *values.shape[-3:])
    return np.moveaxis(values, -1, 1)


def _find_padding(values: NDArray[Any], dataset: Any) -> NDArray[np.bool_] | None:
    """Mark the pixels that were not measured (PS3.3, C.7.5.1.1.2); None if the file has none."""
    key, limit = next((keys for keys in PADDING_FIELDS if dataset.get(keys[0]) is not None), ("", ""))
    if not key:
        return None
    first, last = dataset.get(key), dataset.get(limit, dataset.get(key))
    padding: NDArray[np.bool_] = (values >= min(first, last)) & (values <= max(first, last))
    return padding if padding.any() else None


def _rescale(values: NDArray[Any], dataset: Any) -> NDArray[Any]:
    if "ModalityLUTSequence" in dataset:
        raise ValueError("is MONOCHROME1 with a modality LUT; convert it to MONOCHROME2")
    return values * float(dataset.get("RescaleSlope", 1)) + float(dataset.get("RescaleIntercept", 0))

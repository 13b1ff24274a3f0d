"""Open an image file without torch: its values, its axes, and its place in the patient.

A picture's axes are rows and columns (height, width), a volume's are columns, rows and slices, as NIfTI stores them.
Arrays keep their axes as stored.
"""

from __future__ import annotations

import gzip
import itertools
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform
from numpy.typing import NDArray

from peer.core.class_numbering import plain_name
from peer.errors import ConfigError, DataError
from peer.extras import missing_package
from peer.train.data import edf_files, tiff_files
from peer.train.data.file_names import named

Shape: TypeAlias = tuple[int, ...]
Values: TypeAlias = NDArray[Any]
Affine: TypeAlias = NDArray[np.float64]
Turn: TypeAlias = NDArray[np.float64]
"""nibabel's orientation array: for each spatial axis, the axis that it becomes, and 1 or -1."""

OBLIQUE_DEGREES = 20
"""The survey warns of images whose axes deviate more from the patient's: turning the axes keeps that angle."""

SHIFT_MAX = 0.1
"""Share of a voxel by which the grids of two files may differ and still count as one."""

VALUES_MAX = 1 << 31
"""Maximum number of values in an image, 8 GiB as float32: more than a long functional MRI of the whole brain has."""

PAGES_MAX = 4096
"""Maximum number of pages in a TIFF file: the slices of the longest CT. Pillow's time grows quadratically."""

SURPLUS_BYTES_MAX = 1 << 20
"""Maximum number of bytes after the values of a NIfTI file, and in any case less than a slice: with as much, the header
says less than there is.
"""

HEADER_BYTES = 1024
"""Number of bytes from which nibabel detects a file's type."""

MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
"""NIfTI's unit of length -> mm; a file without a unit is in mm."""

IMAGE_KEY, LABEL_KEY = "image", "label"
OTHER_NAMES = {
    IMAGE_KEY: frozenset({"annotation", "label", "labels", "mask", "seg", "segmentation", "target", "y"}),
    LABEL_KEY: frozenset({"image", "images", "img", "x"}),
}
"""Key -> names of arrays that are not what is asked for, even if a file has no other."""
ORIENTATION_TAG, PHOTOMETRIC_TAG, WHITE_IS_0 = 274, 262, 0
"""Numbers of tags, which TIFF and EXIF share, and a value of the second."""
DENSITIES, SQUARE_TOLERANCE = ("dpi", "jfif_density", "aspect", "resolution"), 0.01
"""Pillow's names for pixels a length, across and down; the share by which they may differ."""
STORED_STEPS = {"L;2": 85, "L;4": 17}
"""Pillow's name for grey of 2 and 4 bits -> how far apart it puts neighbouring values of the file."""
ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
COLOUR_SPACES = frozenset({"CMYK", "HSV", "LAB", "YCbCr"})


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as its file's header describes it.

    Attributes:
        space: the sides of the image, without channels.
        channels: the number of channels; None for an array, whose first axis may be space or channels.
        depth: numpy's name for the values' type in the file.
        read: reads the values: ``(channels, *space)``, or an array as stored.
        affine: maps columns, rows and slices to mm in RAS; None if the file does not state
            it.
        spacing: mm between voxels along each axis of ``space``, if the file states them.
        doubts: reasons why the file's place in the patient cannot be relied on.
        notes: what a user should look at.
        signals: the channels of a recording by label and unit, and their rate; empty for other
            formats.
        relationship: how values relate to the intensity of an X-ray beam, if that is not linear.
        unit: of the values, if the file states it.
    """

    space: Shape
    channels: int | None
    depth: str
    read: Callable[[], Values]
    affine: Affine | None = None
    spacing: tuple[float, ...] | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    signals: str = ""
    relationship: str = ""
    unit: str = ""

    @property
    def orientation(self) -> str:
        """The directions in which the axes of a volume run, such as ``RAS``; empty if unknown."""
        if self.affine is None or self.doubts or len(self.space) < 3:
            return ""
        return "".join(map(str, nibabel.aff2axcodes(self.affine)))

    @property
    def shape(self) -> Shape:
        """``space``, followed by the number of channels if there are several; for an array, all its axes."""
        return self.space if self.channels in (None, 1) else (*self.space, int(self.channels or 1))


def open_image(path: Path, *, key: str = IMAGE_KEY) -> StoredImage:
    """Read a file's header.

    Args:
        path: a NIfTI, PNG, JPEG, BMP, TIFF, DICOM or EDF file, a folder of DICOM slices, an ``.npy``
            or ``.npz``.
        key: the array to take from an ``.npz`` of several. ``label``: the file is a label map: read
            its numbers, not the colours of a palette.

    Raises:
        ValueError: the file cannot be read, or training on it would be wrong.
        ConfigError: the package that reads it is not installed.
    """
    ending = file_ending(path)
    if ending not in FORMATS and ending not in ARRAYS:
        known = ", ".join([*ARRAYS, *filter(None, FORMATS)])
        raise ValueError(f"has the ending {path.suffix!r}, none of {known}")
    if path.exists() and not (path.is_file() or path.is_dir()):  # to open a named pipe may never end
        raise ValueError("is no regular file")
    try:
        image = _open_array(path, key) if ending in ARRAYS else FORMATS[ending](path, key == LABEL_KEY)
    except ImportError as error:
        raise missing_package(error, f"reading {ending or 'DICOM'} files") from error
    except OSError as error:
        raise ValueError(error.strerror or str(error) or type(error).__name__) from error
    except Exception as error:  # each format raises its own types of errors
        raise ValueError(str(error) or type(error).__name__) from error
    if math.prod(image.shape) > VALUES_MAX:
        sides = "x".join(map(str, image.shape))
        raise ValueError(f"has {sides} values, at most {VALUES_MAX} are read; write a file a part")
    return image


def read_values(path: Path, image: StoredImage, *, nan: str | None = None) -> Values:
    """Read the values of an opened image.

    Args:
        nan: ``background``: the values may hold a NaN, which ``fill_nan`` replaces.

    Raises:
        ValueError: they cannot be read, are not real numbers, or one is not finite as float32.
        ConfigError: the package that decodes them is not installed.
    """
    try:
        values = image.read()
    except ConfigError:
        raise
    except ImportError as error:
        raise missing_package(error, f"reading {file_ending(path) or 'DICOM'} files") from error
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if values.dtype.kind not in "biuf":
        raise ValueError(f"holds values of the type {values.dtype}, which are no real numbers")
    if not np.isfinite(values).all() and (nan is None or np.isinf(values).any()):
        raise ValueError("holds a NaN or an infinity" if nan is None else "holds an infinity")
    if values.dtype in (np.float64, np.longdouble) and (np.abs(values) > np.finfo(np.float32).max).any():
        raise ValueError("holds a value beyond float32, in which networks compute: divide all images by one number")
    return values


def fill_nan(values: Values) -> Values:
    """Replace each NaN of finite values ``(c, *space)`` by the lowest other value of its channel.

    Raise ``ValueError`` if a channel has no other value.
    """
    holes = np.isnan(values)
    if not holes.any():
        return values
    axes = tuple(range(1, values.ndim))
    if holes.all(axis=axes).any():
        raise ValueError("holds a channel of NaN alone")
    return np.where(holes, np.nanmin(values, axis=axes, keepdims=True), values)


def file_ending(path: Path) -> str:
    """Return the suffix that determines the format, in lower case; empty for a folder."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else "" if path.is_dir() else path.suffix.lower()


# --- orientation ----------------------------------------------------------------------------------
def turn_to(affine: Affine, axcodes: str) -> Turn:
    """Return the turn that brings a volume with this affine to the directions ``axcodes``."""
    turn: Turn = ornt_transform(io_orientation(affine), axcodes2ornt(axcodes))
    return turn


def turn_back(turn: Turn) -> Turn:
    """Return the inverse of a turn."""
    plain = np.stack([np.arange(len(turn)), np.ones(len(turn))], axis=1)
    back: Turn = ornt_transform(plain, turn)
    return back


def apply_turn(values: Values, turn: Turn) -> Values:
    """Permute and flip the spatial axes of values ``(c, *space)``."""
    turned: Values = np.moveaxis(apply_orientation(np.moveaxis(values, 0, -1), turn), -1, 0)
    return turned


def grid_shift(one: Affine, other: Affine, space: Shape) -> float | None:
    """Return the distance in mm of the corners of two volumes of one shape; None if they share a grid."""
    shift = _corner_shift(one, other, space)
    return shift if shift > SHIFT_MAX * min(_column_lengths(one)) else None


def _corner_shift(one: Affine, other: Affine, space: Shape) -> float:
    """Return the largest distance, in mm along an axis, between the corners of volumes with these affines."""
    corners = np.array([(*corner, 1.0) for corner in itertools.product(*((0.0, side - 1.0) for side in space))])
    return float(np.abs((corners @ (one - other).T)[:, :3]).max())


# --- formats --------------------------------------------------------------------------------------
def _open_nifti(path: Path, _: bool) -> StoredImage:
    try:
        image = nibabel.load(path)
    except ImageFileError:
        if path.name.lower().endswith(".gz"):
            with gzip.open(path) as file:  # a damaged container is not a file of another type
                file.read(HEADER_BYTES)
        raise
    if image.get_data_dtype().names or image.get_data_dtype().kind == "c":
        raise ValueError(f"holds values of the type {image.get_data_dtype()}, not one number a voxel")
    depth = str(image.get_data_dtype().newbyteorder("="))
    try:
        sizes, unit = image.shape, MILLIMETRES.get(image.header.get_xyzt_units()[0], 1.0)
    except KeyError as error:
        raise ValueError(f"says its lengths in an unknown unit (xyzt_units {image.header['xyzt_units']})") from error
    if len(sizes) < 3:  # a plane is a picture, in which x runs along a row
        zooms = tuple(unit * float(zoom) for zoom in image.header.get_zooms())[: len(sizes)]
        return StoredImage(sizes[::-1], 1, depth, lambda: _read_nifti(path, image).T[None], spacing=zooms[::-1])
    if len(sizes) > 4 and set(sizes[3:-1]) != {1}:
        raise ValueError(f"has {len(sizes)} dimensions: {'x'.join(map(str, sizes))}; write a file a volume")
    space, channels = sizes[:3], sizes[-1] if len(sizes) > 3 else 1

    def read() -> Values:
        return np.moveaxis(_read_nifti(path, image).reshape(*space, channels, order="A"), -1, 0)

    scale = np.diag([unit, unit, unit, 1.0])
    affine = scale @ np.asarray(image.affine, dtype=np.float64)
    doubts = _nifti_doubts(image.header, affine)
    doubts, notes = (doubts, ()) if doubts else _compare_forms(image, affine, scale)
    spacing = None if doubts else _column_lengths(affine)
    notes = notes if doubts else (*notes, *_notes_of_angles(affine))
    return StoredImage(tuple(space), channels, depth, read, affine, spacing, doubts, notes)


def _read_nifti(path: Path, image: Any) -> Values:
    """Read the values, and the file to its end: its checksum is compared, and a slice beyond the header is found."""
    itemsize = image.get_data_dtype().itemsize
    end = image.dataobj.offset + math.prod(image.shape) * itemsize
    surplus_max = min(SURPLUS_BYTES_MAX, max(math.prod(image.shape[:2]) * itemsize - 1, 0))
    if path.name.lower().endswith(".gz"):
        with gzip.open(path) as file:
            content = file.read(end)
            surplus = len(file.read(surplus_max + 1))
        image = type(image).from_bytes(content)
    else:
        surplus = path.stat().st_size - end
    if surplus > surplus_max:
        raise ValueError(
            f"goes on for more than {surplus_max} bytes after the values of its header, which may say less than there "
            "is; write the volume anew"
        )
    return np.asarray(image.dataobj)


def _nifti_doubts(header: Any, affine: Affine) -> tuple[str, ...]:
    if not (int(header["sform_code"]) or int(header["qform_code"])):
        return ("says no orientation: its sform_code and its qform_code are 0",)
    upright_volume = math.prod(_column_lengths(affine))
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) <= 1e-9 * upright_volume:
        return ("has an affine of volume zero, so that its axes have no direction",)
    return ()


def _compare_forms(image: Any, affine: Affine, scale: Affine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return doubts and notes about a file whose sform and qform place it differently in the patient."""
    if not int(image.header["sform_code"]):
        return (), ()
    if not int(image.header["qform_code"]):
        return (), _compare_lengths(image, affine, scale)
    try:
        second = scale @ image.get_qform(coded=False)
    except Exception:  # a broken quaternion is no second opinion
        return (), ()
    codes = ["".join(map(str, nibabel.aff2axcodes(matrix))) for matrix in (affine, second)]
    if codes[0] != codes[1]:
        return (f"contradicts itself: by its sform the axes are {codes[0]}, by its qform {codes[1]}",), ()
    shift = _corner_shift(affine, second, image.shape[:3])
    if shift <= min(_column_lengths(affine)):
        return (), ()
    where = f"its qform puts corners up to {shift:.3g} mm from where its sform, which is taken, does"
    return (), (f"contradicts itself: {where}",)


def _compare_lengths(image: Any, affine: Affine, scale: Affine) -> tuple[str, ...]:
    """Return a note about a file with a sform alone, whose pixdim gives its voxels other lengths."""
    lengths = np.array(_column_lengths(affine))
    others = np.diag(scale)[:3] * np.array([float(zoom) for zoom in image.header.get_zooms()[:3]])
    shifts = np.abs(others - lengths) * (np.array(image.shape[:3]) - 1)
    if not np.isfinite(others).all() or (others <= 0).any() or shifts.max() <= lengths.min():
        return ()
    listed = ["x".join(f"{length:.3g}" for length in each) for each in (others, lengths)]
    return (f"contradicts itself: its pixdim says voxels of {listed[0]} mm, its sform, which is taken, {listed[1]} mm",)


@contextmanager
def _opened_picture(path: Path) -> Iterator[Any]:
    """Open a picture without its name: pillow maps a named file, and then paints turned TIFF pages in disorder."""
    from PIL import Image, UnidentifiedImageError

    with path.open("rb") as file:
        try:
            opened = Image.open(file)
        except UnidentifiedImageError as error:
            raise ValueError(tiff_files.describe_unread(path)) from error
        with opened as image:
            yield image


def _open_picture(path: Path, is_label_map: bool) -> StoredImage:
    with _opened_picture(path) as image:
        if image.format != "TIFF" and (frames := int(getattr(image, "n_frames", 1))) > 1:
            raise ValueError(f"holds {frames} frames; write a file a picture")
        turned = image.getexif().get(ORIENTATION_TAG, 1)
        notes = [f"is turned as its EXIF tag {turned} says: see that its label map is, too"] if turned > 1 else []
        across, down = map(float, next(filter(None, map(image.info.get, DENSITIES)), (1, 1)))
        if across > 0 < down and not math.isclose(across, down, rel_tol=SQUARE_TOLERANCE):
            notes.append(f"says that its pixels are not square ({across:g} to {down:g} a length), which is not applied")
        pages, headers = 1, {_describe_page(image, is_label_map)}
        while image.format == "TIFF" and _has_page(image, pages):
            pages += 1
            headers.add(_describe_page(image, is_label_map))
            if pages > PAGES_MAX:
                raise ValueError(f"holds more than {PAGES_MAX} pages; save it as NIfTI or as .npy, channels first")
        if image.format == "TIFF":
            tiff_files.check_meaning(image, pages, is_label_map=is_label_map)
    if len(headers) > 1:
        kinds = ", ".join(sorted({f"{rows}x{columns}x{channels}" for rows, columns, channels, _ in headers}))
        raise ValueError(f"holds {pages} pages that differ ({kinds}), as a pyramid does; write a file a picture")
    ((rows, columns, channels, depth),) = headers

    def read() -> Values:
        with _opened_picture(path) as image:
            if image.format == "PNG":
                image.verify()  # pillow ignores the chunks' checksums when it decodes
            if image.format == "TIFF":
                tiff_files.check_parts(path, image, pages)
        with _opened_picture(path) as image:
            if pages == 1:
                return _read_page(image, is_label_map)
            slices = []
            for page in range(pages):
                image.seek(page)
                slices.append(_read_page(image, is_label_map).swapaxes(1, 2))
            return np.stack(slices, axis=-1)

    space = (rows, columns) if pages == 1 else (columns, rows, pages)
    return StoredImage(space, channels, depth, read, notes=tuple(notes))


def _has_page(image: Any, page: int) -> bool:
    """Go to a page, if the file has it. Counting all pages first would follow a malicious chain of any length."""
    try:
        image.seek(page)
    except EOFError:
        return False
    return True


def _describe_page(image: Any, is_label_map: bool) -> tuple[int, int, int, str]:
    """Return rows, columns, channels and the values' type; raise ``ValueError`` if pillow would lose values."""
    raw = _raw_mode(image)
    if ";16" in raw and not image.mode.startswith("I"):
        raise ValueError(f"has colours of 16 bits ({raw}), of which pillow keeps 8; save it as .npy, channels first")
    if image.mode in COLOUR_SPACES:
        raise ValueError(f"is in the colour space {image.mode}; save it as RGB or in grey")
    if image.mode in ("P", "PA"):
        grey = is_label_map or _has_grey_palette(image)
    else:
        grey = image.mode not in ("RGB", "RGBX", "RGBA", "RGBa")
    if image.format == "TIFF" and image.tag_v2.get(PHOTOMETRIC_TAG) == WHITE_IS_0 and image.mode in ("F", "I"):
        raise ValueError("says that white is 0, of values whose black it does not say; save it with black as 0")
    columns, rows = image.size
    if image.format != "TIFF" and image.getexif().get(ORIENTATION_TAG, 1) in range(5, 9):
        columns, rows = rows, columns
    depth = {"1": "bool", "I": "int32", "F": "float32"}.get(image.mode, "uint16" if image.mode[0] == "I" else "uint8")
    return rows, columns, 1 if grey else 3, tiff_files.sample_type(image) or depth


def _raw_mode(image: Any) -> str:
    """Return pillow's name for how the file packs its values; empty if it has none."""
    raw = image.tile[0][3] if image.tile else ""
    return raw if isinstance(raw, str) else str(raw[0]) if raw else ""


def _has_grey_palette(image: Any) -> bool:
    palette = np.asarray(image.getpalette("RGB")).reshape(-1, 3)
    return bool((palette == palette[:, :1]).all())


def _read_page(image: Any, is_label_map: bool) -> Values:
    """Return the values ``(c, rows, columns)``: upright, with the palette's colours and without alpha."""
    from PIL import ImageOps

    step = STORED_STEPS.get(_raw_mode(image), 1) if is_label_map else 1
    grey = _describe_page(image, is_label_map)[2] == 1
    inverted = (
        image.mode.startswith("I;16") and image.format == "TIFF" and image.tag_v2.get(PHOTOMETRIC_TAG) == WHITE_IS_0
    )
    if is_label_map and image.mode == "P":
        return np.asarray(ImageOps.exif_transpose(image))[None]
    transparent = image.mode in ALPHA or "transparency" in image.info
    sample_type = tiff_files.sample_type(image)
    image = ImageOps.exif_transpose(image)
    if image.mode in ("P", "PA") or transparent or image.mode == "RGBX":
        if image.mode.startswith("I"):
            raise ValueError("has transparent pixels in 16 bits; save it without transparency")
        image = image.convert("RGBA" if transparent else "RGB")
        values = np.asarray(image)
        if transparent and (values[..., 3] < 255).any():
            raise ValueError("has transparent pixels, of which no file says the colour; flatten it on a background")
        values = values[..., :1] if grey else values[..., :3]
    else:
        values = np.asarray(image)
        values = values[..., None] if values.ndim == 2 else values
    if sample_type is not None:
        values = values.view(sample_type)
    if inverted:  # TIFF's white is 0: pillow turns 1 and 8 bits around, but not 16
        values = np.iinfo(np.uint16).max - values
    return np.moveaxis(values // step if step > 1 else values, -1, 0)


def _open_dicom(path: Path, is_label_map: bool) -> StoredImage:
    from peer.train.data.dicom_files import open_dicom
    from peer.train.data.dicom_notes import is_hidden_slice

    image = open_dicom(path, is_label_map=is_label_map)
    affine, is_volume = image.affine, len(image.space) > 2
    spacing = None if affine is None else _column_lengths(affine)
    if spacing is not None and not is_volume:
        spacing = spacing[1::-1]  # rows, columns
    notes = _notes_of_angles(affine) if affine is not None and is_volume else ()
    parts = sorted(path.iterdir()) if path.is_dir() else []
    if folders := [part.name for part in parts if part.is_dir()]:
        notes += (f"holds folders beside its slices ({named(folders)}), which are not read",)
    if hidden := [part.name for part in parts if is_hidden_slice(part)]:
        notes += (f"holds hidden DICOM files ({named(hidden)}), which are not read",)
    notes += image.notes
    return StoredImage(
        image.space, image.channels, image.depth, image.read, affine, spacing, image.doubts if is_volume else (), notes,
        relationship=image.relationship, unit=image.unit,
    )  # fmt: skip


def _open_edf(path: Path, _: bool) -> StoredImage:
    try:
        header, signals = edf_files.open_recording(path)
    except DataError as error:
        raise ValueError(error.message.removeprefix(f"{path} ")) from error
    shape = (len(signals), header.records * signals[0].samples)
    return StoredImage(
        shape,
        None,
        "int16",
        lambda: edf_files.read_recording(path),
        signals=edf_files.describe_signals(header, signals),
    )


def _open_array(path: Path, key: str) -> StoredImage:
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            file.seek(0)
            shape, depth = _read_array_header(file, path.stat().st_size)
            return StoredImage(shape, None, depth, lambda: np.load(path, allow_pickle=False))
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if not members:
            raise ValueError("holds no array")
        named = [member for member in members if member.filename == f"{key}.npy"]
        if not named and len(members) > 1:
            names = ", ".join(member.filename.removesuffix(".npy") for member in members)
            raise ValueError(f"holds several arrays ({names}), none of them named {key}; rename the one that is meant")
        (chosen,) = named or members
        name = chosen.filename.removesuffix(".npy")
        if plain_name(name) in OTHER_NAMES.get(key, ()):
            raise ValueError(f"holds the array {name} alone, and none named {key}")
        with archive.open(chosen) as member:
            shape, depth = _read_array_header(member, chosen.file_size)

    def read() -> Values:
        with np.load(path, allow_pickle=False) as arrays:
            array: Values = arrays[chosen.filename]
            return array

    return StoredImage(shape, None, depth, read)


def _read_array_header(file: IO[bytes], size: int) -> tuple[Shape, str]:
    """Read the shape and type of the values from a file of this size in numpy's format."""
    try:
        read_header = ARRAY_HEADERS[np.lib.format.read_magic(file)]
    except (ValueError, KeyError) as error:  # the third version only serves names of fields
        raise ValueError("is no array of numbers in numpy's format") from error
    shape, _, depth = read_header(file)
    if depth.hasobject:
        raise ValueError("holds pickled Python objects, which are never read; save an array of numbers")
    expected = file.tell() + math.prod(shape) * depth.itemsize
    if size < expected:
        raise ValueError(f"is cut short: it has {size} of {expected} bytes")
    if size > expected:
        raise ValueError(
            f"goes on for {size - expected} bytes after its array, which are not read; save one array a file"
        )
    return tuple(shape), str(depth)


def _column_lengths(affine: Affine) -> tuple[float, ...]:
    return tuple(float(length) for length in np.linalg.norm(affine[:3, :3], axis=0))


def _notes_of_angles(affine: Affine) -> tuple[str, ...]:
    """Note axes that are oblique in the patient, or not orthogonal to each other."""
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    angle = float(np.degrees(np.arccos(np.clip(np.abs(directions).max(axis=0), 0, 1))).max())
    notes = [f"lies oblique by {angle:.0f} degrees"] if angle > OBLIQUE_DEGREES else []
    cosines = directions.T @ directions - np.eye(3)
    if np.abs(cosines).max() > np.sin(np.radians(2)):
        notes.append("has slices that are sheared, as by a tilted gantry")
    return tuple(notes)


FORMATS: dict[str, Callable[[Path, bool], StoredImage]] = {
    ".nii": _open_nifti,
    ".nii.gz": _open_nifti,
    ".png": _open_picture,
    ".jpg": _open_picture,
    ".jpeg": _open_picture,
    ".bmp": _open_picture,
    ".tif": _open_picture,
    ".tiff": _open_picture,
    ".dcm": _open_dicom,
    "": _open_dicom,
    ".edf": _open_edf,
}
"""Suffix -> function that opens the format; a folder, or a file without a suffix, is DICOM."""

ARRAYS = (".npz", ".npy")
ZIP = b"PK\x03\x04"
ARRAY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
PICTURES = tuple(ending for ending, opener in FORMATS.items() if opener is _open_picture)
DICOM = tuple(ending for ending, opener in FORMATS.items() if opener is _open_dicom)
NIFTI = tuple(ending for ending, opener in FORMATS.items() if opener is _open_nifti)

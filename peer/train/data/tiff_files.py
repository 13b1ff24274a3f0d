"""What a TIFF file says of its pages and values and pillow ignores: axes, calibrations, masks, checksums, types."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

BITS_TAG, SAMPLE_FORMAT_TAG, DESCRIPTION_TAG, COMPRESSION_TAG, WIDTH_TAG = 258, 339, 270, 259, 256
SAMPLES_TAG, FILL_ORDER_TAG, KIND_TAG, GDAL_TAG = 277, 266, 254, 42112
REDUCED, MASK = 1, 4
"""Bits of the tag that says what a page is."""
PARTS = ((273, 279), (324, 325))
"""Tags with the offsets and the sizes of strips, or of tiles."""
DEFLATE = frozenset({8, 32946})
PIECE_BYTES, TILE_BYTES_MAX = 1 << 20, 64 << 20
"""How much is inflated at once; what tiles may have beyond the picture's edges."""
SAMPLE_KINDS = {1: "uint", 2: "int", 3: "float", 5: "complex int", 6: "complex"}
STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PAGE_AXES = {
    "ImageJ=": re.compile(r"^(channels|frames)=(\d{1,9})", re.MULTILINE),
    "<": re.compile(r"\b(SizeC|SizeT)\s*=\s*\"(\d{1,9})"),
}
"""How the descriptions of ImageJ and OME begin -> matches their numbers of channels and moments."""
IMAGES = re.compile(r"^images=(\d{1,9})", re.MULTILINE)
"""Matches the number of slices in ImageJ's description, which stand behind each other with one page for all."""
CALIBRATION = re.compile(r"^(cf|c[0-9])=(\S+)", re.MULTILINE)
"""Matches ImageJ's function from stored values to measured ones, and its coefficients."""
NEUTRAL = {"cf": 0.0, "c0": 0.0, "c1": 1.0}
UNCALIBRATED = {"20", "21"}
"""ImageJ's numbers for no function, and for an optical density without one."""
GDAL_ROLES = re.compile(r'role="(scale|offset)"[^>]*>\s*([^<\s]+)')
SLICE_AXES = frozenset("ZYXSIQ")
"""Axes that tifffile names and that a volume or a picture has; I and Q say nothing."""


def check_meaning(image: Any, pages: int, *, is_label_map: bool) -> None:
    """Raise ``ValueError`` if a page is no slice, or a value not what it measures.

    Args:
        image: of pillow, at any page.
        pages: their number.
        is_label_map: the values are numbers of classes, which no calibration changes.
    """
    for page in range(pages):
        image.seek(page)
        if pages > 1 and int(image.tag_v2.get(KIND_TAG, 0)) & (REDUCED | MASK):
            raise ValueError(f"says that page {page + 1} is a mask or a preview, not a slice; write a file a picture")
    image.seek(0)
    text = str(image.tag_v2.get(DESCRIPTION_TAG, ""))
    _check_axes(image, text, pages)
    if not is_label_map:
        _check_calibration(text, str(image.tag_v2.get(GDAL_TAG, "")))


def _check_axes(image: Any, text: str, pages: int) -> None:
    """Raise ``ValueError`` if the description counts channels or moments among the pages, or slices without a page."""
    patterns = [pattern for start, pattern in PAGE_AXES.items() if text.lstrip().startswith(start)]
    counts = {name.lower(): int(count) for pattern in patterns for name, count in pattern.findall(text)}
    samples = int(image.tag_v2.get(SAMPLES_TAG, 1))
    others = {name: count for name, count in counts.items() if count > 1 and (name, count) != ("sizec", samples)}
    axes, shape = _read_shape(text)
    if shape and [*image.size[::-1]] not in (shape[-2:], shape[-3:-1]):
        axes, shape = "", []  # of the picture that this one was made from
    sizes = zip(axes, shape or [pages] * len(axes), strict=False)
    others |= {f"axis {axis}": size for axis, size in sizes if axis not in SLICE_AXES and size > 1}
    if others:
        listed = ", ".join(f"{name} = {count}" for name, count in others.items())
        raise ValueError(f"says that its pages are not slices alone ({listed}); save it as .npy, channels first")
    images = IMAGES.search(text) if text.startswith("ImageJ=") else None
    said = int(images[1]) if images else math.prod(shape) // max(math.prod(image.size) * samples, 1) if shape else pages
    if said > pages:
        raise ValueError(f"says that it has {said} slices, and has a page for {pages}; save it as NIfTI or as .npy")


def _read_shape(text: str) -> tuple[str, list[int]]:
    """Return the names of the axes and their sizes from the JSON that tifffile writes; empty if it wrote none."""
    try:
        document = json.loads(text) if text.startswith("{") else {}
    except (ValueError, RecursionError):
        return "", []
    axes, shape = document.get("axes", ""), document.get("shape", [])
    is_shape = isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    return axes if isinstance(axes, str) else "", shape if is_shape else []


def _check_calibration(text: str, gdal: str) -> None:
    """Raise ``ValueError`` if ImageJ or GDAL wrote that the stored values are others than the measured ones."""
    function = dict(CALIBRATION.findall(text)) if text.startswith("ImageJ=") else {}
    if function and function.get("cf") not in UNCALIBRATED:
        changed = {name: value for name, value in function.items() if _number(value) != NEUTRAL.get(name, 0.0)}
        if changed:
            listed = ", ".join(f"{name} = {value}" for name, value in function.items())
            raise ValueError(
                f"says that its values are to be calibrated ({listed}); convert it to 32 bits in ImageJ, which does it"
            )
    scaled = {role: value for role, value in GDAL_ROLES.findall(gdal) if _number(value) != float(role == "scale")}
    if scaled:
        listed = ", ".join(f"{role} = {value}" for role, value in scaled.items())
        raise ValueError(f"says that its values are to be scaled ({listed}); save the scaled ones")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_parts(path: Path, image: Any, pages: int) -> None:
    """Raise ``ValueError`` if a deflated strip or tile is not whole: libtiff stops reading before its checksum."""
    for page in range(pages):
        image.seek(page)
        parts = next((tags for tags in PARTS if {*tags} <= {*image.tag_v2}), None)
        is_reversed = image.tag_v2.get(FILL_ORDER_TAG, 1) != 1  # the bits of each byte
        if image.tag_v2.get(COMPRESSION_TAG) not in DEFLATE or parts is None or is_reversed:
            continue
        starts, lengths = parts
        bits = max(image.tag_v2.get(BITS_TAG, (1,))) * max(1, image.tag_v2.get(SAMPLES_TAG, 1))
        left = 2 * math.prod(image.size) * bits // 8 + TILE_BYTES_MAX
        with path.open("rb") as file:
            for offset, size in zip(image.tag_v2[starts], image.tag_v2[lengths], strict=True):
                file.seek(offset)
                left -= count_deflated(file.read(size), left)


def count_deflated(content: bytes, bytes_max: int) -> int:
    """Return the number of bytes that a strip or tile holds; raise ``ValueError`` if it is damaged or too large."""
    decoder, count = zlib.decompressobj(), 0
    try:
        while content and not decoder.eof:
            count += len(decoder.decompress(content, PIECE_BYTES))
            content = decoder.unconsumed_tail
            if count > bytes_max:
                raise ValueError("is damaged: its strips or tiles hold more than the picture has")
    except zlib.error as error:
        raise ValueError(f"is damaged: {error}") from error
    if not decoder.eof:
        raise ValueError("is damaged: a strip or tile is an incomplete or truncated stream")
    return count


def describe_unread(path: Path) -> str:
    """Describe a file that pillow cannot open; of a TIFF file, name the type of its values."""
    from PIL import TiffImagePlugin

    with path.open("rb") as file:
        start = file.read(16)
        if start[:4] not in STARTS:
            return "is no picture that pillow reads"
        try:
            tags: Any = TiffImagePlugin.ImageFileDirectory_v2(start if b"+" in start[:4] else start[:8])
            file.seek(tags.next)
            tags.load(file)
        except struct.error:
            return "is cut short or damaged: its description of the picture is not whole"
    if WIDTH_TAG not in tags:
        return "is cut short or damaged: its description of the picture is not there"
    kind = SAMPLE_KINDS.get(tags.get(SAMPLE_FORMAT_TAG, (1,))[0], "unknown")
    return f"holds values of the type {kind}{tags.get(BITS_TAG, (1,))[0]}, which pillow does not read; save it as .npy"


def sample_type(image: Any) -> str | None:
    """Return numpy's name for the type of a TIFF page that pillow reads with the right bits and the wrong sign."""
    if image.format != "TIFF":
        return None
    kind, bits = image.tag_v2.get(SAMPLE_FORMAT_TAG, (1,))[0], image.tag_v2.get(BITS_TAG, (1,))[0]
    return {("I", 1, 32): "uint32", ("L", 2, 8): "int8"}.get((image.mode, kind, bits))

"""What a DICOM file or folder says and its reader does not apply: noted by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydicom.misc import is_dicom

ASPECTS = ("PixelAspectRatio", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
"""Fields that state the sides of a pixel where ``PixelSpacing``, which alone is read, may be absent."""
CENTIMETRES = 3
"""PhysicalUnitsXDirection and PhysicalUnitsYDirection of a region of tissue; other units are of Doppler and curves."""
PHILIPS_SCALE = (0x2005, 0x100E)


def notes_of(header: Any) -> Iterator[str]:
    """Yield notes of fields that change the geometry or the values and are not applied."""
    for key in ASPECTS if "PixelSpacing" not in header else ():
        sides = [f"{float(side):g}" for side in header.get(key) or ()]
        if len({*sides}) > 1:
            yield f"has {key} {':'.join(sides)}: its pixels are not square, which is not applied"
    yield from _ultrasound_notes(header)
    scale = header[PHILIPS_SCALE].value if PHILIPS_SCALE in header else None
    if scale not in (None, 1):
        yield f"has Philips' scale slope (2005,100E) {scale:g}, which is not applied: volumes may differ in their scale"


def _ultrasound_notes(header: Any) -> Iterator[str]:
    """Yield a note if an ultrasound image has regions of several scales, or pixels that are not square there."""
    sides = {
        tuple(f"{abs(float(region.get(f'PhysicalDelta{axis}', 0))):.3g}" for axis in "XY")
        for region in header.get("SequenceOfUltrasoundRegions") or ()
        if all(region.get(f"PhysicalUnits{axis}Direction") == CENTIMETRES for axis in "XY")
    }
    pairs = ", ".join(":".join(pair) for pair in sorted(sides))
    if any(len({*pair}) > 1 for pair in sides):
        yield f"has ultrasound regions of {pairs} cm a pixel: its pixels are not square, which is not applied"
    elif len(sides) > 1:
        yield f"has ultrasound regions of several scales, {pairs} cm a pixel, which are not applied"


def is_hidden_slice(path: Path) -> bool:
    """Return whether a file is DICOM, and its name begins with a dot, so that no reader takes it."""
    return path.name.startswith(".") and path.is_file() and is_dicom(path)

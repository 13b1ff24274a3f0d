"""What stored values of a DICOM image measure, where the file says more than slope, intercept and modality LUT.

Source: DICOM PS3.3, C.7.6.16.2.11 (real world value mapping) and C.8.7.1.1.2 (pixel intensity relationship).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAPPING = "RealWorldValueMappingSequence"
FIRST = ("DoubleFloatRealWorldValueFirstValueMapped", "RealWorldValueFirstValueMapped")
LAST = ("DoubleFloatRealWorldValueLastValueMapped", "RealWorldValueLastValueMapped")
BEAM_MODALITIES = frozenset({"XA", "RF"})
"""Modalities whose relationship to the X-ray beam a modality LUT undoes; others store what was processed for eyes."""
TOLERANCE = 1e-5
"""By which slopes differ that were written as text of up to 16 characters and as a double; of intercepts, also relative
to the slope: far below one stored value."""
REMEDY = "keep the one that counts, and remove the other from a copy of the file"


@dataclass(frozen=True, slots=True)
class RealWorldMapping:
    """From stored values between ``first`` and ``last`` to measured ones: by a table, or by slope and intercept."""

    first: float
    last: float
    slope: float
    intercept: float
    unit: str
    table: tuple[float, ...] = ()

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Map the values; raise ``ValueError`` if the mapping does not define one of them."""
        outside = values[(values < self.first) | (values > self.last)]
        if outside.size:
            raise ValueError(
                f"stores {outside.flat[0]:g}, which its real world value mapping, of {self.first:g} to {self.last:g}, "
                "does not define; correct the mapping, or remove it from a copy of the file"
            )
        if self.table:
            return np.asarray(self.table)[np.asarray(values - self.first, dtype=np.int64)]
        return values * self.slope + self.intercept


def read_mapping(items: Sequence[Any], rescale: tuple[float, float] | None, header: Any) -> RealWorldMapping | None:
    """Return the mapping of a frame, or ``None`` where there is none or slope and intercept already apply it.

    Args:
        items: of the sequence.
        rescale: slope and intercept of the frame or of its file, if any.
        header: of the file.

    Raises:
        ValueError: there are several mappings, or the file gives its values another meaning besides.
    """
    mappings = list(dict.fromkeys(_read_item(item) for item in items))
    if not mappings:
        return None
    if len(mappings) > 1:
        described = ", ".join(_describe(mapping) for mapping in mappings)
        raise ValueError(f"has {len(mappings)} real world value mappings: {described}; {REMEDY}")
    (mapping,) = mappings
    slope, intercept = rescale or (1.0, 0.0)
    is_same = (
        not mapping.table
        and math.isclose(mapping.slope, slope, rel_tol=TOLERANCE)
        and math.isclose(mapping.intercept, intercept, rel_tol=TOLERANCE, abs_tol=TOLERANCE * abs(slope))
    )
    for key in ("ModalityLUTSequence", "DoseGridScaling"):
        if key in header:
            raise ValueError(f"has {key} and a real world value mapping, {_describe(mapping)}; {REMEDY}")
    if is_same:
        return None
    if (slope, intercept) != (1.0, 0.0):
        raise ValueError(
            f"has RescaleSlope {slope:.9g} and RescaleIntercept {intercept:.9g}, and another real world value mapping, "
            f"{_describe(mapping)}; {REMEDY}"
        )
    if header.get("PhotometricInterpretation") == "MONOCHROME1":
        raise ValueError("is MONOCHROME1 with a real world value mapping; convert it to MONOCHROME2")
    return mapping


def _read_item(item: Any) -> RealWorldMapping:
    first, last = (next((item[key].value for key in keys if key in item), None) for keys in (FIRST, LAST))
    if first is None or last is None:
        raise ValueError("has a real world value mapping that does not say of which values; correct or remove it")
    units = item.get("MeasurementUnitsCodeSequence") or ()
    unit = str(units[0].get("CodeValue", "")) if units else ""
    if "RealWorldValueLUTData" in item:
        table = tuple(float(value) for value in np.atleast_1d(item.RealWorldValueLUTData))
        if len(table) != int(last) - int(first) + 1:
            raise ValueError(
                f"has a real world value mapping of {len(table)} values from {first} to {last}; correct it"
            )
        return RealWorldMapping(float(first), float(last), 1.0, 0.0, unit, table)
    if "RealWorldValueSlope" not in item:
        raise ValueError("has a real world value mapping with neither a slope nor a table; correct or remove it")
    slope, intercept = float(item.RealWorldValueSlope), float(item.get("RealWorldValueIntercept", 0.0))
    return RealWorldMapping(float(first), float(last), slope, intercept, unit)


def _describe(mapping: RealWorldMapping) -> str:
    form = "a table" if mapping.table else f"slope {mapping.slope:.9g}, intercept {mapping.intercept:.9g}"
    return form + (f" in {mapping.unit}" if mapping.unit else "")


def read_relationship(name: str, header: Any) -> str:
    """Return how values relate to the X-ray beam's intensity, if the file says so and no modality LUT undoes it.

    Raises:
        ValueError: the file lacks the modality LUT from which the intensity follows.
    """
    relationship = str(header.get("PixelIntensityRelationship") or "")
    if relationship in ("", "LIN") or "ModalityLUTSequence" in header:
        return ""
    if header.get("Modality") in BEAM_MODALITIES:
        raise ValueError(
            f"{name} stores no intensities (PixelIntensityRelationship {relationship}) and has no modality LUT, which "
            "gives them; export it with the LUT, or as LIN, or remove the element from copies of all images if all are "
            "stored so"
        )
    return relationship

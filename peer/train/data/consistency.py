"""Checks that the images of a datalist match in channels, orientation, spacing and type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from nibabel.orientations import inv_ornt_aff

from peer.train.data.file_names import named
from peer.train.data.image_files import Affine, Shape, StoredImage, grid_shift, turn_to

Meaning: TypeAlias = tuple[int, int]
"""Number of spatial dimensions, and of channels."""

SPACING_RATIO_MAX = 1.1
"""If voxels differ by more along an axis, a distance in voxels has no fixed length in the patient."""


@dataclass(slots=True)
class Consistency:
    """Collects the properties of every sample of a datalist, and reports the samples that differ from most."""

    meanings: list[tuple[str, set[Meaning]]] = field(default_factory=list)
    orientations: dict[str, str] = field(default_factory=dict)
    spacings: dict[str, tuple[float, ...]] = field(default_factory=dict)
    depths: dict[str, str] = field(default_factory=dict)
    unplaced: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    signals: dict[str, str] = field(default_factory=dict)
    relationships: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    def add(self, images: Mapping[Path, StoredImage]) -> None:
        """Add the files of one sample."""
        paths, files = list(images), list(images.values())
        name, first = str(paths[0]), files[0]
        self.meanings.append((name, sample_meanings(files)))
        for path, image in images.items():
            self.depths[str(path)] = image.depth
            self.doubts += [f"{path} {doubt}" for doubt in image.doubts]
            self.notes += [f"{path} {note}" for note in image.notes]
            self.relationships[str(path)] = image.relationship or "LIN or not stated"
            if image.unit:
                self.units[str(path)] = image.unit
            if image.signals:
                self.signals[str(path)] = image.signals
            if image.spacing is not None:
                self.spacings[str(path)] = image.spacing
            if image.orientation:
                self.orientations[str(path)] = image.orientation
            elif len(image.space) > 2 and not image.doubts:
                self.unplaced.append(str(path))
            shift = distance_of(first, image)
            if shift is not None:
                self.split.append(f"{path} (up to {shift:.3g} mm from {paths[0].name})")

    def add_label(self, path: Path, label: StoredImage, image: StoredImage | None) -> None:
        """Add a label file, which may contradict itself, or be turned where its image is not."""
        self.doubts += [f"{path} {doubt}" for doubt in label.doubts]
        self.notes += [f"{path} {note}" for note in label.notes if image is None or note not in image.notes]

    def problems(self) -> list[str]:
        """Return the problems that make training fail under any configuration."""
        lines = []
        counts = Counter(meaning for _, meanings in self.meanings for meaning in meanings)
        if counts:
            usual = max(counts, key=lambda meaning: (counts[meaning], -meaning[1]))
            others = [f"{name} ({_describe(meanings)})" for name, meanings in self.meanings if usual not in meanings]
            if others:
                lines.append(
                    f"images are of another kind than most, which have {_describe({usual})}: {named(others)}; "
                    "convert them or take them out of the datalist"
                )
        if self.split:
            lines.append(f"files of one sample lie on different grids: {named(self.split)}; resample them to one")
        return lines

    def warnings(self, settled: Collection[str] = ()) -> list[str]:
        """Return the findings that a user should look at, except those that a ``settled`` key of [data] settles."""
        lines = []
        if "orientation" not in settled and (mixed := mixed_orientations(self.orientations)) is not None:
            lines.append(f'{mixed}; set [data] orientation = "RAS" at all sites')
        if self.orientations and self.unplaced:
            lines.append(
                f"volumes say no orientation, and others do: {named(self.unplaced)}; they stay as stored, whatever "
                "[data] orientation says"
            )
        if self.doubts and "orientation" not in settled:  # training says what it refuses
            lines.append(f"{named(self.doubts)}; training refuses them where [data] orientation turns volumes")
        if self.notes:
            lines.append(f"{named(self.notes)}; look at them before you train")
        by_length = [np.array(sorted(spacing)) for spacing in self.spacings.values()]
        if "spacing" not in settled and by_length and len({len(lengths) for lengths in by_length}) == 1:
            lengths = np.array(by_length)
            if (lengths.max(axis=0) > SPACING_RATIO_MAX * lengths.min(axis=0)).any():
                least, most = (
                    "x".join(f"{length:.3g}" for length in bound(axis=0)) for bound in (lengths.min, lengths.max)
                )
                lines.append(
                    f"distances of voxels run from {least} to {most} mm; set [data] spacing, if sizes in the patient "
                    "matter"
                )
        if len(set(self.signals.values())) > 1:
            lines.append(
                f"recordings differ in their signals: {_outliers(self.signals)}; training takes channels by their "
                "order, whatever their label and rate"
            )
        if len(set(self.relationships.values())) > 1:
            lines.append(
                f"values relate otherwise to the X-ray beam's intensity, by PixelIntensityRelationship: "
                f"{_outliers(self.relationships)}; take one kind"
            )
        if len(set(self.units.values())) > 1:
            lines.append(f"values are in several units: {_outliers(self.units)}; convert them to one")
        if len(set(self.depths.values())) > 1 and not {"intensity", "normalise"} & {*settled}:
            lines.append(
                f"values are of several types: {_outliers(self.depths)}; with other ranges, set [data] intensity or "
                "normalise"
            )
        return lines


def sample_meanings(files: Iterable[StoredImage]) -> set[Meaning]:
    """Return the possible meanings of one sample's files together; an array's first axis is space or channels."""
    meanings: set[Meaning] | None = None
    for image in files:
        if image.channels is not None:
            own = {(len(image.space), image.channels)}
        else:
            own = {(len(image.space), 1), (len(image.space) - 1, image.space[0] if image.space else 1)}
        if meanings is None:
            meanings = own
        else:
            meanings = {(dims, count + more) for dims, count in meanings for others, more in own if dims == others}
    return meanings or set()


def mixed_orientations(orientations: Mapping[str, str]) -> str | None:
    """Name the volumes whose orientation differs from most; ``None`` if all have the same."""
    if len(set(orientations.values())) < 2:
        return None
    return f"volumes run in different directions: {_outliers(orientations)}"


def distance_of(one: StoredImage, other: StoredImage) -> float | None:
    """Return the distance of two volumes in the patient, in mm, independent of the order of their axes.

    Returns None if they share a grid, or the distance is unknown.
    """
    if one.affine is None or not one.orientation:
        return None
    turned = turn_like(other, one)
    return None if turned is None or turned[0] != one.space else grid_shift(one.affine, turned[1], one.space)


def turn_like(image: StoredImage, other: StoredImage) -> tuple[Shape, Affine] | None:
    """Return the sides and the affine of a volume once its axes run like another's; None if either lacks a place."""
    if image.affine is None or not (image.orientation and other.orientation):
        return None
    turn = turn_to(image.affine, other.orientation)
    sides = dict(zip(turn[:, 0].astype(int).tolist(), image.space, strict=True))
    return tuple(sides[axis] for axis in sorted(sides)), image.affine @ inv_ornt_aff(turn, image.space)


def _outliers(kinds: Mapping[str, str]) -> str:
    """Describe the most frequent kind, and the files of the others."""
    (usual, count), *_ = Counter(kinds.values()).most_common()
    return f"{usual} ({count} files), but {named(f'{name} {kind}' for name, kind in kinds.items() if kind != usual)}"


def _describe(meanings: Iterable[Meaning]) -> str:
    return (
        " or ".join(
            f"{dims} dimensions and {count} channel{'s' * (count != 1)}"
            for dims, count in sorted(meanings, reverse=True)
        )
        or "files that do not go together"
    )

"""The documents that ``data import`` prints with ``--json``.

``peer.documents`` says how they are described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class ImportedSplit(TypedDict):
    """One list of an imported datalist."""

    samples: Annotated[int, "number of samples"]
    subjects: Annotated[int, "number of different subjects"]
    unnamed: Annotated[int, "samples without a subject"]
    classes: Annotated[dict[str, int], "samples of each class"]
    class_subjects: Annotated[dict[str, int], "subjects of each class"]


class LeftOutSamples(TypedDict):
    """What an import left out for one reason."""

    reason: Annotated[str, "why"]
    count: Annotated[int, "how many"]
    examples: Annotated[list[str], "the first of them, by file and line"]


class DrawnSplits(TypedDict):
    """How an import drew the splits."""

    seed: Annotated[int, "the same seed, the same splits"]
    test_share: Annotated[float, "share of each class's subjects that are for testing"]


class DatalistImported(TypedDict):
    """The datalist that an import wrote, and what it left out."""

    datalist: Annotated[str, "the file"]
    source: Annotated[str, "the table or folder"]
    layout: Annotated[str, '"table", "bids", "nnunet" or "dicom"']
    task: Annotated[str, "the learning task"]
    encoding: Annotated[str | None, "of the table"]
    columns: Annotated[dict[str, str], "by role, the column of the table"]
    classes: Annotated[dict[str, str], "names by number; empty where the source has none"]
    splits: Annotated[dict[str, ImportedSplit], "`training` and `test`"]
    drawn: Annotated[DrawnSplits | None, "null: the source has the splits"]
    shapes: Annotated[dict[str, int], "images by shape"]
    left_out: Annotated[list[LeftOutSamples], "by reason, the most frequent first"]
    notes: Annotated[list[str], "what to know before training on it"]


DOCUMENTS: Mapping[str, Any] = {"data import": DatalistImported}
"""By command, the type of the document that ``--json`` prints."""

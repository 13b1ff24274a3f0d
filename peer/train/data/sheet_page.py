"""The contact sheet as one HTML file: pictures and style inside, no script and no external resource."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from peer.core.targets import EVENT_NAMES
from peer.documents.data import ContactSheet, DatalistInspected, SheetColumn, SheetHistogram, SheetSample, SheetView
from peer.train.data.table_sheet import BINS
from peer.web_page import render_page

OUTLINES = 7
"""Colours of labels, as ``peer.train.inference.sheet_pictures`` draws them; then they begin again."""
HIDDEN = ("augmentation", "channels", "classes", "input_size", "intensity")
"""Keys of the preparation that the page words differently."""
SHOWN_PARTS_MAX = 3
CHANNEL_HEIGHT = 24


def render(document: DatalistInspected, sheet: ContactSheet, pictures: Sequence[Mapping[str, Any]]) -> str:
    """Return the page; ``pictures`` are those of the sheet's samples, in their order."""
    labels = range(1, sheet["preparation"]["classes"]) if sheet["task"] == "segmentation" else ()
    return render_page(
        "contact_sheet.html.j2",
        title=f"Contact sheet of {document['datalist']}",
        styles=["contact_sheet.css"],
        images=True,
        facts=list(_facts(sheet)),
        is_upright=any(sample["orientation"] for sample in sheet["samples"]),
        gaps=[*document["problems"], *document["warnings"], *sheet["gaps"]],
        splits=list(sheet["splits"]),
        counts=_counts(document, sheet),
        has_subjects=any(split["subjects"] for split in sheet["splits"].values()),
        pooled=_pooled(sheet["histograms"]),
        outlines=[((label - 1) % OUTLINES + 1, _class_name(sheet, str(label))) for label in labels],
        groups=_groups(sheet, pictures),
        columns=[_column(column, sheet) for column in sheet["columns"]],
        strata=_strata(sheet),
        bins=BINS,
        version=version("mhfl-peer"),
    )


def number(value: float) -> str:
    """Return a value in four digits, with a minus sign of full width."""
    return f"{value:.4g}".replace("-", "−")


def _facts(sheet: ContactSheet) -> Iterator[tuple[str, str]]:
    preparation = sheet["preparation"]
    yield "settings of", sheet["site"] or "the command's options"
    yield "task", sheet["task"]
    if sheet["columns"]:
        yield "the network gets", f"{preparation['channels']} channels of {preparation['columns']} columns"
        return
    size = " x ".join(map(str, preparation["input_size"]))
    yield "the network gets", f"{preparation['channels']} channel{'s' * (preparation['channels'] > 1)} of {size}"
    for key, value in preparation.items():
        if key not in HIDDEN and (words := _words(value)):
            yield key, words
    if "intensity" in preparation:
        yield "intensity", _range(preparation["intensity"])
    yield "augmentation", _words(preparation["augmentation"])


def _range(intensity: Mapping[str, Any]) -> str:
    """Return the values that become 0 and 1."""
    kind = "percentiles " if intensity["percentiles"] else ""
    return f"{kind}{number(intensity['low'])} to {number(intensity['high'])}"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part is not None)
    return " x ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _counts(document: DatalistInspected, sheet: ContactSheet) -> list[tuple[str, list[tuple[int | None, int | None]]]]:
    """Samples and subjects of each class and split; of a label, the maps in which it occurs."""
    splits, counted = sheet["splits"], range(sheet["preparation"]["classes"])
    of_classes = any(split["classes"] for split in splits.values())
    labels = {str(label) for label in counted} if of_classes else set()
    labels |= {label for split in splits.values() for label in split["classes"]}
    rows: list[tuple[str, list[tuple[int | None, int | None]]]] = [
        ("all", [(split["samples"], split["subjects"]) for split in splits.values()])
    ]
    for label in sorted(labels, key=int):
        rows.append(
            (
                _class_name(sheet, label),
                [(split["classes"].get(label, 0), split["class_subjects"].get(label, 0)) for split in splits.values()],
            )
        )
    if not of_classes:
        maps = {split: part["classes"] for split, part in document["splits"].items()}
        present = sorted({label for counts in maps.values() for label in counts}, key=int)
        # The survey counts the maps held out for validation with those of training.
        rows += [
            (f"maps with {_class_name(sheet, label)}", [(maps.get(split, {}).get(label), None) for split in splits])
            for label in present
        ]
    return rows


def _class_name(sheet: ContactSheet, label: str) -> str:
    name = sheet["classes"].get(label)
    if sheet["classes"] == EVENT_NAMES:
        return EVENT_NAMES[label]
    return f"class {label}, {name}" if name else f"class {label}"


def _pooled(histograms: Mapping[str, SheetHistogram]) -> dict[str, object] | None:
    """Return the points of each split's histogram, in a picture of 100 by 100."""
    if not histograms:
        return None
    first = next(iter(histograms.values()))
    top = max(max(histogram["shares"]) for histogram in histograms.values()) ** 0.5 or 1
    lines = {
        split: " ".join(
            f"{(index + 0.5) / len(histogram['shares']) * 100:.1f},{100 - 95 * share**0.5 / top:.1f}"
            for index, share in enumerate(histogram["shares"])
        )
        for split, histogram in histograms.items()
    }
    return {"lowest": number(first["lowest"]), "highest": number(first["highest"]), "lines": lines}


def _groups(sheet: ContactSheet, pictures: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Return the cards of neighbouring samples with the same split and label."""
    pairs = zip(sheet["samples"], pictures, strict=True)
    return [
        {
            "split": split,
            "name": "" if label is None else _class_name(sheet, str(label)),
            "cards": [_card(sample, shown, sheet) for sample, shown in members],
        }
        for (split, label), members in itertools.groupby(pairs, lambda pair: (pair[0]["split"], pair[0]["label"]))
    ]


def _card(sample: SheetSample, shown: Mapping[str, Any], sheet: ContactSheet) -> dict[str, object]:
    unplaced: list[SheetView] = [{**view, "edges": None} for view in sample["views"]]  # a flip swaps the directions
    versions = (
        ("as the network sees it", shown.get("image"), shown.get("curves"), sample["views"]),
        ("augmented", shown.get("augmented"), shown.get("augmented_curves"), unplaced),
        ("target", shown.get("target"), None, sample["views"]),
    )
    return {
        "name": sample["image"],
        "short_name": _short(sample["image"]),
        "is_volume": len(sample["views"]) > 1,
        "versions": [
            {
                "caption": caption,
                "pictures": list(_pictures(images, views, sample["image"])) if images else [],
                "signal": _signal(channels) if channels else None,
            }
            for caption, images, channels, views in versions
            if images or channels
        ],
        "lines": list(_lines(sample, sheet)),
        "histogram": _heights(sample["histogram"]),
    }


def _strata(sheet: ContactSheet) -> list[tuple[int, str]]:
    """Return colour and name of each class, or of persons with and without the event, of a table's rows."""
    groups = {part["group"] for column in sheet["columns"] for part in column["distributions"]} - {None}
    return [(_colour(group), _class_name(sheet, str(group))) for group in sorted(groups, key=lambda group: group or 0)]


def _colour(group: int | None) -> int:
    return (group or 0) % OUTLINES + 1


def _column(column: SheetColumn, sheet: ContactSheet) -> dict[str, object]:
    """Return the drawings of a column: a histogram or bars of the levels, and the missing share, split by split."""
    parts = {
        split: [part for part in column["distributions"] if part["split"] == split and part["rows"]]
        for split in sheet["splits"]
    }
    top = max((max(part["shares"]) for each in parts.values() for part in each), default=0.0) or 1.0
    missing = [
        [(_colour(part["group"]), 100 * part["missing"] / part["rows"]) for part in each] for each in parts.values()
    ]
    levels = [
        (level, [[(_colour(part["group"]), 100 * part["shares"][place]) for part in each] for each in parts.values()])
        for place, level in enumerate(column["levels"])
    ]
    return {
        "name": column["name"],
        "unit": column["unit"],
        "is_target": column["is_target"],
        "splits": list(parts),
        "histograms": [
            [(_colour(part["group"]), _steps(part["shares"], top)) for part in each] for each in parts.values()
        ]
        if column["kind"] == "number"
        else [],
        "ends": [number(end) for end in (column["lowest"], column["highest"]) if end is not None],
        "rows": [*levels, ("missing", missing)],
    }


def _steps(shares: Sequence[float], top: float) -> str:
    """Return the outline of a histogram, closed along its base, in a picture of 100 by 100."""
    width = 100 / len(shares)
    heights = [100 - 96 * share / top for share in shares]
    points = [(edge, height) for place, height in enumerate(heights) for edge in (width * place, width * (place + 1))]
    return " ".join(f"{x:.4g},{y:.1f}" for x, y in [(0.0, 100.0), *points, (100.0, 100.0)])


def _short(name: str) -> str:
    """Return the end of a long path."""
    parts = name.split("/")
    return name if len(parts) <= SHOWN_PARTS_MAX else f"…/{'/'.join(parts[1 - SHOWN_PARTS_MAX :])}"


def _lines(sample: SheetSample, sheet: ContactSheet) -> Iterator[str]:
    """Return what is known of a sample."""
    if sample["problem"]:
        yield f"cannot be read: {sample['problem']}"
    yield f"subject {sample['subject']}" if sample["subject"] else "no subject"
    if sample["orientation"]:
        yield f"axes run to {', '.join(sample['orientation'])}"
    if sample["labels"]:
        shares = (
            f"{_class_name(sheet, label)} {100 * share:.3g} %"
            for label, share in sample["labels"].items()
            if label != "0"
        )
        yield ", ".join(shares) or "no label but 0"
    for name, values in (("stored", sample["stored"]), ("prepared", sample["prepared"])):
        if values is not None:
            ends = f"{number(values['lowest'])} to {number(values['highest'])}"
            yield f"{name} {values['shape']}, {ends}, mean {number(values['mean'])}"


def _pictures(images: Sequence[str], views: Sequence[SheetView], name: str) -> Iterator[dict[str, object]]:
    for image, view in zip(images, views, strict=True):
        plane = f"{view['plane']} {view['index']}" if view["plane"] else ""
        yield {"image": image, "words": f"{name} {plane}".strip(), "edges": view["edges"] or {}, "plane": plane}


def _signal(channels: Sequence[Sequence[float]]) -> dict[str, object]:
    """Return the channels one below another, each in its own range."""
    lines = []
    for channel, values in enumerate(channels):
        low, high = min(values), max(values)
        bottom, height = CHANNEL_HEIGHT * (channel + 1) - 2, CHANNEL_HEIGHT - 4
        points = (
            f"{index},{bottom - height * (value - low) / ((high - low) or 1):.1f}" for index, value in enumerate(values)
        )
        lines.append(" ".join(points))
    return {"width": max(len(channels[0]) - 1, 1), "height": CHANNEL_HEIGHT * len(channels), "channels": lines}


def _heights(histogram: SheetHistogram | None) -> list[float]:
    """Return the heights of a histogram's bars, up to 100."""
    if histogram is None:
        return []
    shares = [share**0.5 for share in histogram["shares"]]  # else an image's background hides all else
    top = max(shares) or 1
    return [100 * share / top for share in shares]

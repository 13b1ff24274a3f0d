"""The contact sheet as one HTML file: pictures and style inside, no script and no external resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from peer.documents.data import ContactSheet, DatalistInspected, SheetHistogram, SheetSample, SheetView
from peer.web_page import escape, render_page

WARNING = "This page shows patients' images. It stays in the hospital: send it to nobody, and delete it after use."
OUTLINES = 7
"""Colours of labels, as ``peer.train.inference.sheet_pictures`` draws them; then they begin again."""
HIDDEN = ("augmentation", "channels", "classes", "input_size", "intensity")
"""Keys of the preparation that the page words differently."""
SHOWN_PARTS_MAX = 3
STYLE = """
:root { --late: #9a6700; --bar: #8c959f; --training: #0969da; --validation: #1a7f37; --test: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --late: #e3b341; --bar: #6e7681; --training: #6cb0ff; --validation: #4ac26b; --test: #f0a35e; }
}
body { padding-top: 1.25rem; max-width: 92rem; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .6rem; }
h3 { margin: 1.1rem 0 .5rem; }
p { margin: .3rem 0; max-width: 60rem; }
.patients, .gaps li { background: var(--warn); border-left: 4px solid var(--warn-rule); padding: .4rem .8rem; }
.patients { font-weight: 600; margin: .7rem 0; max-width: none; }
.gaps { list-style: none; padding: 0; margin: .5rem 0; } .gaps li { margin: .25rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; color: var(--faint); padding: 0; margin: .3rem 0; }
.facts b { color: var(--ink); font-weight: 600; }
.counts { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; align-items: flex-start; }
.wide { overflow-x: auto; max-width: 100%; }
table { font-size: .88rem; overflow-wrap: normal; }
th, td { padding: .25rem .7rem .25rem 0; }
td:first-child { white-space: normal; }
td.none { color: var(--late); font-weight: 700; } td small { color: var(--faint); }
.pooled { flex: 1 1 20rem; max-width: 34rem; margin: 0; }
.pooled svg { display: block; width: 100%; height: 7rem; background: var(--shade); border-radius: 4px; }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .86rem; color: var(--faint); margin: .2rem 0; }
.key i {
  display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; vertical-align: -.1rem;
}
.key .training { background: var(--training); } .key .validation { background: var(--validation); }
.key .test { background: var(--test); }
.key .label1 { background: #ffc400; } .key .label2 { background: #00c8ff; } .key .label3 { background: #ff50a0; }
.key .label4 { background: #5ae65a; } .key .label5 { background: #ff8228; } .key .label6 { background: #aa82ff; }
.key .label7 { background: #f0f05a; }
.ends {
  display: flex; justify-content: space-between; gap: .6rem; overflow-wrap: normal;
  font-size: .8rem; color: var(--faint);
}
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: .9rem; }
.card { border: 1px solid var(--rule); border-radius: 6px; padding: .6rem; background: var(--shade); margin: 0; }
.card .shown { display: flex; gap: .6rem; flex-wrap: wrap; }
.card .version { flex: 1 1 8.5rem; min-width: 0; margin: 0; }
.card.volume .version { flex-basis: 100%; }
.version > figcaption { font-size: .78rem; color: var(--faint); margin-bottom: .15rem; }
.views { display: flex; gap: .3rem; align-items: flex-start; }
.view { flex: 1 1 0; min-width: 0; }
.picture { position: relative; background: #000; color: #fff; line-height: 0; }
.view img { width: 100%; height: auto; image-rendering: pixelated; display: block; }
.view b { position: absolute; font: 600 11px/1 system-ui, sans-serif; text-shadow: 0 0 3px #000, 0 0 2px #000; }
.view small { color: var(--faint); }
.left { left: 3px; top: 50%; transform: translateY(-50%); }
.right { right: 3px; top: 50%; transform: translateY(-50%); }
.top { top: 3px; left: 50%; transform: translateX(-50%); }
.bottom { bottom: 3px; left: 50%; transform: translateX(-50%); }
.curves { display: block; width: 100%; background: var(--paper); border-radius: 4px; }
.curves polyline { fill: none; stroke: var(--training); stroke-width: 1; vector-effect: non-scaling-stroke; }
.card .name { font-weight: 600; font-size: .86rem; margin: .45rem 0 .1rem; }
.card .lines { font-size: .8rem; color: var(--faint); margin: 0; }
.card .histogram { display: block; width: 100%; height: 1.7rem; margin-top: .35rem; fill: var(--bar); }
footer { margin-top: 2.5rem; }
@media print { .card { break-inside: avoid; } body { max-width: none; padding: 0; } }
"""


def render(document: DatalistInspected, sheet: ContactSheet, pictures: Sequence[Mapping[str, Any]]) -> str:
    """The page; ``pictures`` are those of the sheet's samples, in their order."""
    title = f"Contact sheet of {document['datalist']}"
    lines = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="patients">{escape(WARNING)}</p>',
        *_preparation(sheet),
        *_gaps([*document["problems"], *document["warnings"], *sheet["gaps"]]),
        '<h2>What there is</h2>\n<div class="counts">',
        _counts(document, sheet),
        _pooled(sheet["histograms"]),
        "</div>",
        *_cards(sheet, pictures),
        f"<footer>mhfl-peer {escape(version('mhfl-peer'))}</footer>",
    ]
    return render_page(title, "\n".join(lines), style=STYLE, images=True)


def number(value: float) -> str:
    """A value in four digits, with a minus sign of full width."""
    return f"{value:.4g}".replace("-", "−")


def _preparation(sheet: ContactSheet) -> Iterator[str]:
    preparation = sheet["preparation"]
    size = " x ".join(map(str, preparation["input_size"]))
    facts: list[tuple[str, object]] = [
        ("settings of", sheet["site"] or "the command's options"),
        ("task", sheet["task"]),
        ("the network gets", f"{preparation['channels']} channel{'s' * (preparation['channels'] > 1)} of {size}"),
        *((key, _words(value)) for key, value in preparation.items() if key not in HIDDEN),
        *([("intensity", _range(preparation["intensity"]))] if "intensity" in preparation else []),
        ("augmentation", _words(preparation["augmentation"])),
    ]
    is_placed = any(sample["orientation"] for sample in sheet["samples"])
    upright = (
        " Volumes stand upright here; the lines below say how their axes run for the network." if is_placed else ""
    )
    yield '<p class="facts">' + "".join(f"<span>{escape(key)} <b>{escape(value)}</b></span>" for key, value in facts)
    yield (
        '</p>\n<p class="note">Each picture is what the network gets, through the trainer\'s own code. Black and white '
        "are the lowest and the highest value of its image. Training samples are augmented anew in every step; "
        f"one example stands beside each. Other samples never are.{upright} Histograms show square roots of shares.</p>"
    )


def _range(intensity: Mapping[str, Any]) -> str:
    """The values that become 0 and 1."""
    kind = "percentiles " if intensity["percentiles"] else ""
    return f"{kind}{number(intensity['low'])} to {number(intensity['high'])}"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part is not None)
    return " x ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _gaps(gaps: Sequence[str]) -> Iterator[str]:
    if gaps:
        yield "<h2>Look at this first</h2>"
        yield '<ul class="gaps">' + "".join(f"<li>{escape(gap)}</li>" for gap in gaps) + "</ul>"


def _counts(document: DatalistInspected, sheet: ContactSheet) -> str:
    """Samples and subjects of each class and split; of a label, the maps in which it occurs."""
    splits, counted = sheet["splits"], range(sheet["preparation"]["classes"])
    of_classes = any(split["classes"] for split in splits.values())
    labels = {str(label) for label in counted} if of_classes else set()
    labels |= {label for split in splits.values() for label in split["classes"]}
    named = any(split["subjects"] for split in splits.values())
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
    head = "".join(f"<th>{escape(split)}</th>" for split in splits)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(_count(*cell, named=named) for cell in cells)}</tr>"
        for name, cells in rows
    )
    return f'<div class="wide"><table><thead><tr><th>samples</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _count(samples: int | None, subjects: int | None, *, named: bool) -> str:
    if samples is None:
        return "<td></td>"
    words = f" <small>of {subjects} subject{'s' * (subjects != 1)}</small>" if named and subjects is not None else ""
    return f"<td{'' if samples else ' class=none'}>{samples}{words}</td>"


def _class_name(sheet: ContactSheet, label: str) -> str:
    name = sheet["classes"].get(label)
    return f"class {label}, {name}" if name else f"class {label}"


def _pooled(histograms: Mapping[str, SheetHistogram]) -> str:
    """The histograms of all splits over one another: a shift between them is seen at once."""
    if not histograms:
        return ""
    first = next(iter(histograms.values()))
    top = max(max(histogram["shares"]) for histogram in histograms.values()) ** 0.5 or 1
    lines = []
    for split, histogram in histograms.items():
        points = " ".join(
            f"{(index + 0.5) / len(histogram['shares']) * 100:.1f},{100 - 95 * share**0.5 / top:.1f}"
            for index, share in enumerate(histogram["shares"])
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="var(--{split})" stroke-width="2" ')
    paths = "".join(f'{line}vector-effect="non-scaling-stroke"/>' for line in lines)
    key = "".join(f'<span><i class="{split}"></i>{split}</span>' for split in histograms)
    return (
        f'<figure class="pooled"><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="histograms by split">{paths}</svg><div class="ends"><span>{number(first["lowest"])}</span>'
        f"<span>values that the network gets, of the samples below</span><span>{number(first['highest'])}</span></div>"
        f'<div class="key">{key}</div></figure>'
    )


def _cards(sheet: ContactSheet, pictures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heading: tuple[str, int | None] | None = None
    if sheet["task"] == "segmentation":
        names = [(label, _class_name(sheet, str(label))) for label in range(1, sheet["preparation"]["classes"])]
        marks = (
            f'<span><i class="label{(label - 1) % OUTLINES + 1}"></i>{escape(name)}</span>' for label, name in names
        )
        yield f'<p class="key">{"".join(marks)}</p>'
    for sample, shown in zip(sheet["samples"], pictures, strict=True):
        if heading is None or heading[0] != sample["split"]:
            yield ("</div>" if heading else "") + f"<h2>{escape(sample['split'].capitalize())}</h2>"
        if heading != (sample["split"], sample["label"]):
            closing = "</div>" if heading and heading[0] == sample["split"] else ""
            name = "" if sample["label"] is None else f"<h3>{escape(_class_name(sheet, str(sample['label'])))}</h3>"
            yield f'{closing}{name}<div class="cards">'
            heading = sample["split"], sample["label"]
        yield _card(sample, shown, sheet)
    yield "</div>"


def _card(sample: SheetSample, shown: Mapping[str, Any], sheet: ContactSheet) -> str:
    kind = " volume" if len(sample["views"]) > 1 else ""
    unplaced: list[SheetView] = [{**view, "edges": None} for view in sample["views"]]  # a flip swaps the directions
    versions = (
        ("as the network sees it", shown.get("image"), shown.get("curves"), sample["views"]),
        ("augmented", shown.get("augmented"), shown.get("augmented_curves"), unplaced),
        ("target", shown.get("target"), None, sample["views"]),
    )
    figures = "".join(
        f'<figure class="version"><figcaption>{caption}</figcaption>{_views(images, views, sample["image"])}'
        f"{_curves(lines)}</figure>"
        for caption, images, lines, views in versions
        if images or lines
    )
    name = sample["image"]
    return (
        f'<article class="card{kind}"><div class="shown">{figures}</div>'
        f'<p class="name" title="{escape(name)}">{escape(_short(name))}</p>'
        f'<p class="lines">{"<br>".join(_lines(sample, sheet))}</p>{_histogram(sample["histogram"])}</article>'
    )


def _short(name: str) -> str:
    """The end of a long path."""
    parts = name.split("/")
    return name if len(parts) <= SHOWN_PARTS_MAX else f"…/{'/'.join(parts[1 - SHOWN_PARTS_MAX :])}"


def _lines(sample: SheetSample, sheet: ContactSheet) -> Iterator[str]:
    """What is known of a sample, as HTML."""
    if sample["problem"]:
        yield f"cannot be read: {escape(sample['problem'])}"
    yield f"subject {escape(sample['subject'])}" if sample["subject"] else "no subject"
    if sample["orientation"]:
        yield f"axes run to {escape(', '.join(sample['orientation']))}"
    if sample["labels"]:
        shares = (
            f"{escape(_class_name(sheet, label))} {100 * share:.3g} %"
            for label, share in sample["labels"].items()
            if label != "0"
        )
        yield ", ".join(shares) or "no label but 0"
    for name in ("stored", "prepared"):
        values = sample["stored"] if name == "stored" else sample["prepared"]
        if values is not None:
            ends = f"{number(values['lowest'])} to {number(values['highest'])}"
            yield f"{name} {escape(values['shape'])}, {ends}, mean {number(values['mean'])}"


def _views(images: Sequence[str] | None, views: Sequence[SheetView], name: str) -> str:
    if not images:
        return ""
    parts = []
    for image, view in zip(images, views, strict=True):
        edges = "".join(f'<b class="{side}">{letter}</b>' for side, letter in (view["edges"] or {}).items())
        plane = f"{view['plane']} {view['index']}" if view["plane"] else ""
        note = f"<small>{escape(plane)}</small>" if plane else ""
        parts.append(
            f'<div class="view"><div class="picture"><img src="data:image/png;base64,{image}" '
            f'alt="{escape(f"{name} {plane}".strip())}">{edges}</div>{note}</div>'
        )
    return f'<div class="views">{"".join(parts)}</div>'


def _curves(lines: Sequence[Sequence[float]] | None) -> str:
    """The channels of a signal, one below another, each in its own range."""
    if not lines:
        return ""
    band = 24
    parts = []
    for channel, values in enumerate(lines):
        low, high = min(values), max(values)
        points = " ".join(
            f"{index},{band * (channel + 1) - 2 - (band - 4) * (value - low) / ((high - low) or 1):.1f}"
            for index, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}"/>')
    height = band * len(lines)
    return (
        f'<svg class="curves" viewBox="0 0 {max(len(lines[0]) - 1, 1)} {height}" height="{height}" '
        f'preserveAspectRatio="none" role="img" aria-label="{len(lines)} channels">{"".join(parts)}</svg>'
    )


def _histogram(histogram: SheetHistogram | None) -> str:
    if histogram is None:
        return ""
    shares = [share**0.5 for share in histogram["shares"]]  # else an image's background hides all else
    top = max(shares) or 1
    bars = "".join(
        f'<rect x="{index}" y="{100 - 100 * share / top:.1f}" width=".9" height="{100 * share / top:.1f}"/>'
        for index, share in enumerate(shares)
        if share
    )
    return (
        f'<svg class="histogram" viewBox="0 0 {len(shares)} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="histogram of the prepared values">{bars}</svg>'
    )

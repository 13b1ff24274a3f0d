"""The documents that ``data import``, ``data inspect`` and ``statistics`` print with ``--json``.

``peer.documents`` says how they are described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from peer.documents.commands import DatalistSurvey


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
    layout: Annotated[str, '"table", "folders", "arrays", "bids", "nnunet" or "dicom"']
    task: Annotated[str, "the learning task"]
    target: Annotated[str, 'what is predicted: "class", "labels", "number" or "survival"']
    encoding: Annotated[str | None, "of the table"]
    columns: Annotated[dict[str, str], "by role, the column of the table"]
    classes: Annotated[dict[str, str], "names by number; empty where the source has none; of survival its two groups"]
    splits: Annotated[dict[str, ImportedSplit], "`training` and `test`"]
    drawn: Annotated[DrawnSplits | None, "null: the source has the splits"]
    shapes: Annotated[dict[str, int], "images by shape"]
    left_out: Annotated[list[LeftOutSamples], "by reason, the most frequent first"]
    notes: Annotated[list[str], "what to know before training on it"]


class ValueRange(TypedDict):
    """The values of an image."""

    shape: Annotated[str, "channels first"]
    lowest: Annotated[float, "smallest value"]
    highest: Annotated[float, "largest value"]
    mean: Annotated[float, "mean"]
    deviation: Annotated[float, "standard deviation"]


class SheetHistogram(TypedDict):
    """How values are distributed, in bins of equal width."""

    lowest: Annotated[float, "where the first bin begins"]
    highest: Annotated[float, "where the last bin ends"]
    shares: Annotated[list[float], "of the values, by bin"]


class SheetView(TypedDict):
    """A plane through an image that the page shows."""

    plane: Annotated[str, "its name; empty for a picture"]
    index: Annotated[int | None, "of a volume: the slice, counted from 0"]
    edges: Annotated[
        Mapping[str, str] | None, "the directions in the patient at `left`, `right`, `top` and `bottom`, where known"
    ]


class SheetSample(TypedDict):
    """A sample on the page."""

    split: Annotated[str, '"training", "validation" or "test"']
    image: Annotated[str, "as the datalist names it"]
    label: Annotated[int | None, "its class"]
    subject: Annotated[str | None, "as the datalist names it"]
    problem: Annotated[str, "why it cannot be read; else empty"]
    stored: Annotated[ValueRange | None, "as its files have it"]
    prepared: Annotated[ValueRange | None, "as the network gets it"]
    orientation: Annotated[str | None, "for each axis, the direction in the patient in which it runs, where known"]
    labels: Annotated[Mapping[str, float], "of a label map: the share of each label at the network's size"]
    histogram: Annotated[SheetHistogram | None, "of the prepared values"]
    views: Annotated[list[SheetView], "in the order of the pictures; of a signal none"]


class SheetSplit(TypedDict):
    """The samples of one use."""

    samples: Annotated[int, "number of samples"]
    subjects: Annotated[int, "number of different subjects"]
    unnamed: Annotated[int, "samples without a subject"]
    classes: Annotated[Mapping[str, int], "samples of each class"]
    class_subjects: Annotated[Mapping[str, int], "subjects of each class"]


class SheetDistribution(TypedDict):
    """How the values of a column are distributed in one split and group."""

    split: Annotated[str, '"training", "validation" or "test"']
    group: Annotated[int | None, "the class; of survival 1 with the event, else 0; null: there are no groups"]
    rows: Annotated[int, "number of rows"]
    missing: Annotated[int, "rows without a value"]
    shares: Annotated[list[float], "of the rows, by bin or level"]


class SheetColumn(TypedDict):
    """A column of a table on the page."""

    name: Annotated[str, "the federation's"]
    kind: Annotated[str, '"number", "category" or "flag"']
    unit: Annotated[str, "of a number"]
    is_target: Annotated[bool, "whether it is to be predicted"]
    levels: Annotated[list[str], "of a category; of a flag no and yes"]
    lowest: Annotated[float | None, "of a number: where the first bin begins"]
    highest: Annotated[float | None, "of a number: where the last bin ends; later times count in it"]
    distributions: Annotated[list[SheetDistribution], "by split and group"]


class ContactSheet(TypedDict):
    """The facts on the page that `--out` writes."""

    page: Annotated[str, "the file, which shows patients' images, or distributions of their values"]
    site: Annotated[str | None, "whose settings prepared the samples; null: those of the options"]
    task: Annotated[str, "the learning task"]
    classes: Annotated[Mapping[str, str], "names by number, where there are any; of survival of its two groups"]
    preparation: Annotated[Mapping[str, Any], "how a file becomes the network's input"]
    splits: Annotated[Mapping[str, SheetSplit], "`training`, `validation` and `test`, as the trainer divides them"]
    gaps: Annotated[list[str], "what the data lacks"]
    histograms: Annotated[Mapping[str, SheetHistogram], "of the shown samples, by split"]
    samples: Annotated[list[SheetSample], "the shown samples; of a table none"]
    columns: Annotated[list[SheetColumn], "of a table: its columns, then what is to be predicted"]


class DatalistInspected(DatalistSurvey):
    """The content of a datalist, and its problems."""

    sheet: Annotated[NotRequired[ContactSheet], "with `--out`: the facts on the page"]


class GroupSize(TypedDict):
    """How many a group has; 0 of a site with fewer people than its `[egress] count_min`."""

    samples: Annotated[int | None, "labelled samples, of training, validation and test; null with noise"]
    people: Annotated[int, "subjects; a sample without one counts as its own"]


class NoiseFacts(TypedDict):
    """The noise in the figures of all; errors are those of noise alone, to first order."""

    epsilon: Annotated[float, "what it guarantees to each person"]
    delta: Annotated[float, "of epsilon"]
    count_error: Annotated[float, "standard error of a count: of people, of missing values, and of each cell"]


class VariableFigures(TypedDict):
    """What is counted of a variable in a group, after the sites withheld what is of few people.

    With noise, a person with several samples counts as the mean of them; nothing is withheld; the figures of all may be
    below 0, and are null where the noise hides them.
    """

    known: Annotated[int, "samples with a value; with noise people"]
    missing: Annotated[int | None, "samples without one, or whose value was left out; null of times"]
    withheld: Annotated[int, "sites that left out values, because few people have one or few have none"]
    mean: Annotated[float | None, "of a number, in its unit"]
    deviation: Annotated[float | None, "standard deviation of a number, in its unit; divides by n - 1"]
    counts: Annotated[list[int], "samples in each cell; the rest of `known` is withheld"]
    small: Annotated[list[int], "for each cell, the sites that sent 0 because it has few people"]
    known_error: Annotated[NotRequired[float], "of all, with noise: the standard error of `known`"]
    mean_error: Annotated[NotRequired[float | None], "of all, with noise: the standard error of the mean"]
    deviation_error: Annotated[NotRequired[float | None], "of all, with noise: the standard error of the deviation"]


class VariableStatistics(TypedDict):
    """A column of the table, or what would be predicted."""

    role: Annotated[str, '"column" or "target"']
    name: Annotated[str, "its name; of a class `class`, of survival `event` and two times"]
    kind: Annotated[str, '"number", "category", "flag" or "time"']
    unit: Annotated[str, "of a number or a time"]
    range: Annotated[list[float] | None, "the agreed range of a number"]
    cells: Annotated[list[str], "levels, no and yes, or ranges of equal width"]
    own: Annotated[VariableFigures, "of this site, as it was sent, but without noise"]
    all: Annotated[VariableFigures, "of all members"]
    difference: Annotated[
        float | None, "standardised mean difference of this site from the others; null where it has none"
    ]
    difference_error: Annotated[NotRequired[float | None], "with noise: its standard error"]


class SurvivalInterval(TypedDict):
    """A row of a Kaplan-Meier table; `at_risk` and `survival` are null from the first withheld count on."""

    interval: Annotated[str, "from and to, in the unit of the times"]
    end: Annotated[float, "where it ends"]
    at_risk: Annotated[int | None, "under observation at its beginning"]
    events: Annotated[int, "in it"]
    censored: Annotated[int, "in it; in the last one, also who was observed longer"]
    survival: Annotated[float | None, "Kaplan-Meier's estimate at its end; null once noise hides who is at risk"]
    survival_error: Annotated[NotRequired[float | None], "of all, with noise: its standard error"]


class FederationStatistics(TypedDict):
    """What the method `statistics` counted: this site's own figures beside those of all members.

    Also the content of `statistics.json` in the folder of the site's generation, and of a run of `simulate` in
    `sites/NAME`.
    """

    federation: Annotated[str, "its name"]
    site: Annotated[str, "this site"]
    round: Annotated[int, "in which the members sent their tables"]
    members: Annotated[list[str], "whose tables were added up, this site's included"]
    count_min: Annotated[int, "this site's `[egress] count_min`, which has no effect with noise"]
    noise: Annotated[NotRequired[NoiseFacts], "only of a federation with noise"]
    own: Annotated[GroupSize, "of this site, as it was sent, but without noise"]
    all: Annotated[GroupSize, "of all members"]
    variables: Annotated[list[VariableStatistics], "the columns, then what would be predicted"]
    survival: Annotated[
        Mapping[str, list[SurvivalInterval] | None], "by `own` and `all`; null unless survival would be predicted"
    ]
    page: Annotated[NotRequired[str], "with `--out`: the file"]


DOCUMENTS: Mapping[str, Any] = {
    "data import": DatalistImported,
    "data inspect": DatalistInspected,
    "statistics": FederationStatistics,
}
"""By command, the type of the document that ``--json`` prints."""

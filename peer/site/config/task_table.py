"""``[task]`` of federation.toml, and whether a site's ``[data]`` fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.spec import HYPER
from peer.core import limits
from peer.core.columns import TableColumn, count_channels
from peer.core.targets import Target, TargetKind
from peer.core.tasks import CLASSIFYING, objective_of
from peer.site.config.site_tables import DataConfig, ModelConfig, TrainingConfig
from peer.site.config.toml import Count, Loose, Positive, StrictTable, key_problem, suggestion
from peer.site.config.value_types import Finite, Text

TARGET_KEYS = ("target", "range", "unit", "times", "horizon")
"""Keys of ``[task]`` that a target other than a class needs."""


class ColumnConfig(StrictTable):
    """``[[task.column]]``: a column of the table that every site has, under this or a name of its own."""

    name: Text
    """Its name in this federation; a site with another name for it says so in [data.columns]."""
    kind: Literal["number", "category", "flag"]
    """ "number", "category" (one of `levels`) or "flag" (yes or no)."""
    range: Annotated[tuple[Finite, Finite], Loose] | None = None
    """Of a number: the lowest and the highest value that may occur, which become -1 and 1 at every site. A value
    outside is counted and named, and then missing."""
    levels: Annotated[tuple[Text, ...], Loose, Field(max_length=limits.LEVELS_MAX)] = ()
    """Of a category: its values. Another value is counted and named, and then missing."""
    unit: str = ""
    """Of a number, for people."""
    missing: Annotated[tuple[Text, ...], Loose, Field(max_length=limits.LEVELS_MAX)] = ()
    """Cells that stand where nothing was measured, such as "0" or "-9", beside an empty one, NA, ? and the like."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.range is not None) != (self.kind == "number"):
            raise key_problem("range", f"a {self.kind} has {'one' if self.kind == 'number' else 'none'}")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise key_problem(
                "range", f"{self.range[0]:g} is not below {self.range[1]:g}; write the lower number first"
            )
        if bool(self.levels) != (self.kind == "category"):
            raise key_problem("levels", f"a {self.kind} has {'some' if self.kind == 'category' else 'none'}")
        if self.levels and len({level.strip().casefold() for level in self.levels}) in (1, *range(len(self.levels))):
            raise key_problem("levels", "needs two or more different names")
        return self

    def to_column(self) -> TableColumn:
        return TableColumn(**self.model_dump())


class TaskConfig(StrictTable):
    """``[task]``: the learning task."""

    kind: Literal["classification", "segmentation", "time_series", "super_resolution", "tabular"]
    """ "classification", "segmentation", "time_series" (spatial_dims = 1), "super_resolution" or "tabular" (the rows of
    a table)."""
    target: TargetKind = "class"
    """What is predicted of an image, a signal or a row: "class" (one of `classes`), "labels" (several, each yes or no,
    named by `class_names`), "number" (in `range`) or "survival" (the time to an event, in the intervals of `times`)."""
    spatial_dims: Annotated[int, Field(ge=1, le=3)]
    """1, 2 or 3; leave it out where kind is "tabular"."""
    in_channels: Count
    """Channels of one sample; leave it out where kind is "tabular"."""
    classes: Count
    """Classes; of super-resolution: output channels. Leave it out with another target than "class"."""
    class_names: Annotated[tuple[Text, ...], Loose] = ()
    """The names of classes or labels, in the order of their numbers at every site: a datalist with other names for
    classes is refused, and predictions and exports have them."""
    range: Annotated[tuple[Finite, Finite], Loose] | None = None
    """Of a number to predict: the lowest and the highest value that may occur."""
    unit: Text | None = None
    """Of a number to predict or of `times`, for people."""
    times: Annotated[tuple[Positive, ...], Loose, Field(max_length=limits.INTERVALS_MAX)] = ()
    """Of survival: the ends of the intervals, rising, such as [6, 12, 24] in months. A person who is observed for
    longer counts as observed until the last one."""
    horizon: Positive | None = None
    """Of survival: the one of `times` at which predictions are compared with what happened; default: the last one."""
    same_input_size: bool = True
    """Whether all sites use one input size; only then can models with position-bound layers move."""
    column: Annotated[tuple[ColumnConfig, ...], Loose, Field(max_length=limits.COLUMNS_MAX)] = ()
    """The columns of the table, where kind is "tabular"."""

    def document(self) -> dict[str, Any]:
        """Return the table as federation.toml has it."""
        columns = [column.model_dump(exclude_defaults=True) for column in self.column]
        default = {key for key in TARGET_KEYS if getattr(self, key) == TaskConfig.model_fields[key].default}
        return self.model_dump(exclude={"column", *default}) | ({"column": columns} if columns else {})

    @property
    def objective(self) -> str:
        """What decides losses and metrics: the kind, or the target where that is no class."""
        return objective_of(self.kind, self.target)

    def labelling(self) -> dict[str, Any]:
        """Return what a reader of datalists takes of the task, by its arguments' names."""
        columns = tuple(column.to_column() for column in self.column)
        names = {"task": self.kind, "classes": self.classes, "class_names": self.class_names}
        return names | {"columns": columns, "target": self.to_target()}

    def to_target(self) -> Target:
        names = self.class_names if self.target == "labels" else ()
        horizon = self.horizon or (self.times[-1] if self.times else 0.0)
        return Target(self.target, names, self.range, self.unit or "", self.times, horizon)

    @model_validator(mode="before")
    @classmethod
    def _with_sizes(cls, document: Any) -> Any:
        """Fill in the sizes of a table's row, which follow from its columns, and of a prediction without classes."""
        if not isinstance(document, dict):
            return document
        document = _with_outputs(document)
        if document.get("kind") != "tabular":
            return document
        columns = document.get("column")
        if not columns or not isinstance(columns, list | tuple):
            raise key_problem("column", "a table needs columns: [[task.column]] with name, kind and range or levels")
        levels = [column.get("levels") for column in columns if isinstance(column, dict)]
        sizes = {"spatial_dims": 1, "in_channels": count_channels(levels)}
        for key, size in sizes.items():
            if document.get(key, size) != size:
                raise key_problem(key, f"is {size} for these columns; leave it out")
        return document | sizes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind != "tabular" and self.column:
            raise key_problem("column", f'a {self.kind} task has none; take kind = "tabular"')
        names = [column.name.strip().casefold() for column in self.column]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise key_problem("column", f"{repeated!r} stands there {names.count(repeated)} times")
        if self.kind != "super_resolution" and self.target == "class" and self.classes < 2:
            raise key_problem("classes", f"{self.kind} needs at least 2, not {self.classes}")
        if (problem := _target_problem(self)) is not None:
            raise key_problem(*problem)
        if self.kind == "time_series" and self.spatial_dims != 1:
            raise key_problem("spatial_dims", f"a time series has 1, not {self.spatial_dims}")
        if self.class_names:
            different = {name.strip().casefold() for name in self.class_names}
            if len(self.class_names) != self.classes or len(different) != self.classes:
                raise key_problem("class_names", f"needs {self.classes} different names, one a class")
        return self


def _with_outputs(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in ``classes``, the outputs of a network, where they follow from the target."""
    keys = {"labels": "class_names", "survival": "times"}
    target = document.get("target")
    listed = document.get(keys.get(str(target), ""))
    outputs = 1 if target == "number" else len(listed) if isinstance(listed, list | tuple) else None
    if outputs is None:
        return dict(document)
    if document.get("classes", outputs) != outputs:
        raise key_problem("classes", f"is {outputs} for this target; leave it out")
    return dict(document) | {"classes": outputs}


def _target_problem(task: TaskConfig) -> tuple[str, str] | None:
    """Return a key that does not fit the target, and why; ``None`` if all do."""
    if task.target != "class" and task.kind not in CLASSIFYING:
        return "target", f"{task.kind} predicts a map or an image; leave it out"
    takes = {"number": {"range", "unit"}, "survival": {"times", "unit", "horizon"}}.get(task.target, set())
    for key in TARGET_KEYS[1:]:
        if key not in takes and getattr(task, key):
            return key, f"target = {task.target!r} has none; leave it out"
    if task.target == "number" and (task.range is None or task.range[0] >= task.range[1]):
        return "range", "a number needs the lowest and the highest value that may occur, in this order"
    if task.target == "number" and task.class_names:
        return "class_names", "a number has no classes; leave it out"
    if task.target == "labels" and not task.class_names:
        return "class_names", "several labels need their names"
    if task.target == "survival":
        if not task.times or list(task.times) != sorted(set(task.times)):
            return "times", "needs the ends of the intervals, each later than the one before"
        if task.horizon is not None and task.horizon not in task.times:
            return "horizon", f"is none of times = {list(task.times)}"
        if task.class_names:
            return "class_names", "survival has no classes; leave it out"
    return None


def table_problems(task: TaskConfig, data: DataConfig) -> Iterator[str]:
    """Problems with the keys that only tables have, and with those that they have not."""
    if task.kind != "tabular":
        if data.columns:
            yield f"data.columns: {task.kind} has no table; leave it out"
        return
    known = [column.name for column in task.column]
    for name in data.columns.keys() - set(known):
        yield f"data.columns.{name}: the federation has no such column{suggestion(name, known)}"
    default = DataConfig()
    for key in ("input_size", "regions", "normalise", "orientation", "spacing", "scale", "intensity", "nan"):
        if getattr(data, key) != getattr(default, key):
            yield f"data.{key}: is for images and signals; a table's columns have ranges and levels; leave it out"


def sampling_problems(task: TaskConfig, training: TrainingConfig) -> Iterator[str]:
    """Problems with balanced batches: a sample needs one class, and each class counts alike already."""
    if training.class_sampling is None:
        return
    if task.objective not in CLASSIFYING:
        yield f"training.class_sampling: a sample of {task.objective} has no single class; leave it out"
    if training.class_weights == "balanced":
        yield 'training.class_weights: with class_sampling = "balanced" every class counts alike; leave out one of them'


def geometry_problems(task: TaskConfig, data: DataConfig) -> Iterator[str]:
    """Problems with the keys that say how images are turned, resampled and scaled."""
    if data.orientation is not None and task.spatial_dims < 3:
        yield "data.orientation: only volumes have one; leave it out"
    if data.spacing is not None and len(data.spacing) != task.spatial_dims:
        yield f"data.spacing: {len(data.spacing)} distances for spatial_dims = {task.spatial_dims}"
    if task.kind == "super_resolution":
        if data.spacing is not None:
            yield "data.spacing: would interpolate what the network must learn; super-resolution takes none"
        if data.intensity is not None:
            yield "data.intensity: super-resolution takes images with values from 0 to 1; leave it out"
        if data.nan is not None:
            yield "data.nan: super-resolution would learn the filled places; leave it out"


def scale_problems(kind: str, data: DataConfig, model: ModelConfig) -> Iterator[str]:
    """Problems with the keys that only super-resolution has."""
    if kind != "super_resolution":
        if data.scale is not None:
            yield f"data.scale: {kind} has none; leave it out"
        return
    if data.normalise != "none":
        yield f"data.normalise: {data.normalise} would part an image from its target; super-resolution takes none"
    if data.scale is None:
        yield "data.scale: super-resolution needs 2, 4 or 8"
        return
    large, side = {data.scale * length for length in data.input_size}, model.parameters.get("side")
    if side is not None and large != {side}:
        yield f"model.parameters.side: [data] scale times [data] input_size is {sorted(large)}"
    elif side is None and "scale" in HYPER.get(model.name, ()) and model.parameters.get("scale") != data.scale:
        yield f"model.parameters.scale: {model.name} must have {data.scale}, as [data] scale has"

"""``[task]`` of federation.toml, and whether a site's ``[data]`` fits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from peer.core import limits
from peer.core.columns import TableColumn, count_channels
from peer.site.config.site_tables import DataConfig
from peer.site.config.toml import Count, Loose, StrictTable, key_problem, suggestion
from peer.site.config.value_types import Finite, Text


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
    a table, of one class each)."""
    spatial_dims: Annotated[int, Field(ge=1, le=3)]
    """1, 2 or 3; leave it out where kind is "tabular"."""
    in_channels: Count
    """Channels of one sample; leave it out where kind is "tabular"."""
    classes: Count
    """Classes; of super-resolution: output channels."""
    class_names: Annotated[tuple[Text, ...], Loose] = ()
    """The classes' names, in the order of their numbers at every site: a datalist with other names for them is refused,
    and predictions and exports have them."""
    same_input_size: bool = True
    """Whether all sites use one input size; only then can models with position-bound layers move."""
    column: Annotated[tuple[ColumnConfig, ...], Loose, Field(max_length=limits.COLUMNS_MAX)] = ()
    """The columns of the table, where kind is "tabular"."""

    def document(self) -> dict[str, Any]:
        """Return the table as federation.toml has it."""
        columns = [column.model_dump(exclude_defaults=True) for column in self.column]
        return self.model_dump(exclude={"column"}) | ({"column": columns} if columns else {})

    @model_validator(mode="before")
    @classmethod
    def _with_sizes(cls, document: Any) -> Any:
        """Fill in the sizes of a table's row, which follow from its columns."""
        if not isinstance(document, dict) or document.get("kind") != "tabular":
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
        if self.kind != "super_resolution" and self.classes < 2:
            raise key_problem("classes", f"{self.kind} needs at least 2, not {self.classes}")
        if self.kind == "time_series" and self.spatial_dims != 1:
            raise key_problem("spatial_dims", f"a time series has 1, not {self.spatial_dims}")
        if self.class_names:
            different = {name.strip().casefold() for name in self.class_names}
            if len(self.class_names) != self.classes or len(different) != self.classes:
                raise key_problem("class_names", f"needs {self.classes} different names, one a class")
        return self


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

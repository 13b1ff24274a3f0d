"""``mhfl-peer data``: the settings that prepare a site's samples, their check, and the page of `inspect --out`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from peer.core.worker_protocol import WorkerSetting, to_json
from peer.documents.commands import DatalistSurvey
from peer.documents.data import ContactSheet, DatalistInspected
from peer.errors import ConfigError, DataError, UsageError
from peer.site.config import toml
from peer.site.config.rules import worker_setting
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_tables import DataConfig
from peer.site.config.task_table import TaskConfig, geometry_problems
from peer.train.data.datalist import inspect_datalist
from peer.train.data.file_names import named
from peer.train.data.image_files import Shape, StoredImage, open_image, turn_to

if TYPE_CHECKING:
    from peer.site.config.site_folder import SiteFolder

REMEDY = "or give --site NAME for a site's own settings"


def setting_of_site(folder: SiteFolder, datalist: Path | None, root: Path | None) -> WorkerSetting:
    """Build the setting of the site's worker, with another datalist if one is named."""
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    setting = worker_setting(federation, site, folder.site, home=folder.path, folder=folder.path)
    data = dict(setting.site["data"])
    if datalist is not None:
        data |= {"datalist": str(datalist.absolute()), "root": None}
    if root is not None:
        data["root"] = str(root.absolute())
    return dataclasses.replace(setting, site={**setting.site, "data": data})


def setting_of_options(
    survey: DatalistSurvey,
    datalist: Path,
    root: Path | None,
    task: str,
    classes: int | None,
    *,
    input_size: str | None,
    in_channels: int | None,
    **keys: Any,
) -> WorkerSetting:
    """Build a setting for a datalist without a site.

    Raise ``UsageError`` if a value is wrong, or is missing and the files do not determine it.

    Args:
        survey: the survey of the datalist, which has the shapes and classes that occur.
        keys: keys of ``[data]``, each as given on the command line, or None.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    if "spacing" in given:
        given["spacing"] = _numbers(given["spacing"], float, "--spacing", "1x1x2")
    if "intensity" in given:
        kind, *bounds = given["intensity"]
        given["intensity"] = [kind, *_numbers(",".join(bounds), float, "--intensity", "window 40 400")]
    size = None if input_size is None else _numbers(input_size, int, "--input-size", "64x64")
    _check_keys(task, {"input_size": size or [1, 1, 1], **given}, sized=size is not None)
    if size is None or in_channels is None:
        dims = 1 if task == "time_series" else len(size) if size is not None else None
        images = _first_images(datalist, root, task)
        own_size, channels = _image_size(survey, images[0], given, dims=dims, in_channels=in_channels)
        size, in_channels = size or list(own_size), in_channels or channels * len(images)
        _check_keys(task, {"input_size": size, **given}, sized=True)
    data: dict[str, Any] = {"datalist": str(datalist.absolute()), "input_size": size, **given}
    if root is not None:
        data["root"] = str(root.absolute())
    if task == "super_resolution":
        data["scale"] = 2
    elif classes is None:
        classes = max([1, *(int(label) for split in survey["splits"].values() for label in split["classes"])]) + 1
    kind = {"kind": task, "spatial_dims": len(size), "in_channels": in_channels, "classes": classes or in_channels}
    federation = {"name": "none", "rounds": 1, "task": kind, "method": {"name": "local"}, "site": [{"name": "none"}]}
    here = str(datalist.absolute().parent)
    return WorkerSetting("", "", federation, {"data": data}, here, here)


def _numbers(text: str, kind: type[int] | type[float], option: str, example: str) -> list[Any]:
    try:
        return [kind(number) for number in re.split("[x,]", text.lower())]
    except ValueError:
        raise UsageError(f"{option} {text}: write it as {example}", REMEDY) from None


def _check_keys(task: str, keys: Mapping[str, Any], *, sized: bool) -> None:
    """Raise ``UsageError`` if site.toml would reject these keys.

    Args:
        sized: whether the input size is known, which the others must fit.
    """
    try:
        data = toml.validate(DataConfig, keys, "the options")
    except ConfigError as error:
        key, _, reason = error.message.removeprefix("the options: ").partition(":")
        raise UsageError(f"--{key.replace('_', '-')}:{reason}", f"write it as [data] has it; {REMEDY}") from error
    kind = TaskConfig.model_construct(kind=task, spatial_dims=len(data.input_size))
    for problem in geometry_problems(kind, data) if sized else ():
        raise UsageError(problem.replace("data.", "--", 1))


def _first_images(datalist: Path, root: Path | None, task: str) -> list[StoredImage]:
    """Open the images of the first readable sample."""
    listed = inspect_datalist(datalist, root=root, task=task)
    for sample in (*listed.training, *listed.test):
        with contextlib.suppress(ValueError):
            return [open_image(path) for path in sample.images]
    raise DataError(f"{datalist}: no image can be read", "`data inspect` without --out says why")


def _image_size(
    survey: DatalistSurvey,
    image: StoredImage,
    keys: Mapping[str, Any],
    *,
    dims: int | None,
    in_channels: int | None,
) -> tuple[Shape, int]:
    """Return the sides and channels of an image after the transforms that these keys set.

    Raise ``UsageError`` if the datalist's images differ in shape, or it is unclear whether an array's first axis is its
    channels.
    """
    shapes = sorted({shape for split in survey["splits"].values() for shape in split["shapes"]})
    if dims is None and len(shapes) > 1:
        problem = f"the images have {len(shapes)} shapes: {named(shapes)}"
        raise UsageError(f"--input-size is missing, and {problem}", f"give it, {REMEDY}")
    space, channels, lengths = image.space, image.channels, image.spacing
    if channels is None:  # an array, whose first axis may be its channels
        if dims is None and in_channels is None and len(space) == 3:
            problem = f"an array of {shapes[0]} may be a volume or have channels"
            raise UsageError(f"--input-size is missing, and {problem}", f"give it, {REMEDY}")
        has_channels = len(space) > (dims or 3) or (in_channels or 1) > 1
        space, channels = (space[1:], space[0]) if has_channels else (space, 1)
    if keys.get("orientation", "stored") != "stored" and len(space) == 3 and image.affine is not None:
        order = np.argsort(turn_to(image.affine, keys["orientation"])[:, 0])
        space = tuple(space[axis] for axis in order)
        lengths = tuple(lengths[axis] for axis in order) if lengths is not None else None
    wanted = keys.get("spacing", ())
    if lengths is not None and len(wanted) == len(lengths):
        sides = zip(space, lengths, wanted, strict=True)
        space = tuple(max(1, round(side * own / target)) for side, own, target in sides)
    return space, channels


def survey_arguments(setting: WorkerSetting) -> dict[str, Any]:
    """Return the arguments of ``survey`` for a site's datalist."""
    data, base = setting.site["data"], Path(setting.base_folder)
    task = toml.validate(TaskConfig, setting.federation["task"], "federation.toml")
    root = data.get("root")
    return {
        "path": base / data["datalist"],
        "root": None if root is None else base / root,
        **task.labelling(),
    }


def survey_prepared(setting: WorkerSetting) -> DatalistSurvey:
    """Survey a site's datalist to the end; its problems include those of samples as training prepares them."""
    from peer.train.data.label_maps import describe_lost_classes
    from peer.train.data.survey import survey
    from peer.train.inference import model_state

    data = setting.site["data"]
    settled = [key for key in ("orientation", "spacing", "intensity") if data.get(key) is not None]
    settled += ["normalise"] if data.get("normalise", "none") != "none" else []
    document = survey(**survey_arguments(setting), whole=True, nan=data.get("nan"), settled=settled)
    answer = model_state.run_module(
        "peer.train.inference.sample_check", {"setting": to_json(setting)}, name="the check"
    )
    problems = document["problems"]
    known = "\n".join(problems)
    left_out = [f"{name} ({reason})" for name, reason in answer["left_out"].items() if name not in known]
    if left_out:
        problems.append(
            f"samples cannot be prepared as [data] says: {named(left_out)}; correct [data] or the files, or take them "
            "out of the datalist"
        )
    if answer["lost_classes"]:
        document["warnings"].append(describe_lost_classes(answer["lost_classes"]))
    if answer["refusal"] is not None and not problems:
        problems.append(answer["refusal"])
    return document


def write(page: Path, setting: WorkerSetting, document: DatalistInspected, *, samples: int) -> ContactSheet:
    """Have a process with torch prepare the samples; write the page, readable by this user alone."""
    from peer.site.config.site_folder import write_atomically
    from peer.train.data import sheet_page
    from peer.train.inference import model_state

    request = {"setting": to_json(setting), "samples": samples}
    answer = model_state.run_module("peer.train.inference.contact_sheet", request, name="the contact sheet")
    sheet = cast(ContactSheet, {**answer["sheet"], "page": str(page)})
    write_atomically(page, sheet_page.render(document, sheet, answer["pictures"]).encode(errors="surrogateescape"))
    return sheet

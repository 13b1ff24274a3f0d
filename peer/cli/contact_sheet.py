"""The page of ``mhfl-peer data inspect --html``: which settings prepare the samples, and its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from peer.core.tasks import CLASSIFYING, ROWS_COLUMNS
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.data.documents import ContactSheet, DatalistInspected
from peer.errors import UsageError

if TYPE_CHECKING:
    from peer.config.site_folder import SiteFolder


def setting_of_site(folder: SiteFolder, datalist: Path | None, root: Path | None) -> WorkerSetting:
    """What the site's worker gets, with another datalist where one is named."""
    from peer.config.schema import FederationConfig, SiteConfig

    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    document = site.model_dump(mode="json")
    if datalist is not None:
        document["data"]["datalist"] = str(datalist.absolute())
        document["data"]["root"] = None
    if root is not None:
        document["data"]["root"] = str(root.absolute())
    return WorkerSetting(
        site_name=folder.site,
        federation_digest=federation.digest,
        federation=federation.model_dump(mode="json"),
        site=document,
        home=str(folder.path),
        base_folder=str(folder.path),
    )


def setting_of_options(
    datalist: Path,
    root: Path | None,
    task: str,
    classes: int | None,
    *,
    input_size: str | None,
    in_channels: int,
    normalise: str,
    samples: int,
) -> WorkerSetting:
    """A setting for a datalist of no site; ``UsageError`` where the size is missing or wrong."""
    try:
        size = [int(side) for side in (input_size or "").lower().split("x")]
    except ValueError:
        size = []
    if not 1 <= len(size) <= 3 or min(size) < 1:
        given = "is missing" if input_size is None else f"{input_size}: write sizes such as 64x64"
        raise UsageError(f"--input-size {given}", "give it, or --site NAME for a site's own settings")
    if classes is None and task != "super_resolution":
        classes = _count_classes(datalist, root, task)
    data: dict[str, Any] = {"datalist": str(datalist.absolute()), "input_size": size, "normalise": normalise}
    if root is not None:
        data["root"] = str(root.absolute())
    if task == "super_resolution":
        data["scale"] = 2
    kind = {"kind": task, "spatial_dims": len(size), "in_channels": in_channels, "classes": classes or in_channels}
    federation = {"name": "", "image_axes": ROWS_COLUMNS, "task": kind, "method": {"name": "local"}}
    site = {"data": data, "model": {"name": "resnet10"}}
    here = str(datalist.absolute().parent)
    return WorkerSetting("", "", federation, site, here, here)


def _count_classes(datalist: Path, root: Path | None, task: str) -> int:
    """The classes that occur: in the lists, or in the label maps."""
    from peer.data.datalist import inspect_datalist
    from peer.data.survey import survey

    if task in CLASSIFYING:
        listed = inspect_datalist(datalist, root=root, task=task)
        labels = {*listed.counts("training"), *listed.counts("test")}
    else:
        splits = survey(datalist, root=root, task=task)["splits"]
        labels = {int(label) for split in splits.values() for label in split["classes"]}
    return max(labels, default=1) + 1


def survey_arguments(setting: WorkerSetting) -> tuple[Path, Path | None, str, int]:
    """The datalist, its root, the task and the number of classes."""
    data, task, base = setting.site["data"], setting.federation["task"], Path(setting.base_folder)
    root = data.get("root")
    return base / data["datalist"], None if root is None else base / root, task["kind"], task["classes"]


def write(page: Path, setting: WorkerSetting, document: DatalistInspected, *, samples: int) -> ContactSheet:
    """Have a process with torch prepare the samples; write the page, readable by this user alone."""
    from peer.config.site_folder import write_atomically
    from peer.data import sheet_page
    from peer.inference import model_state

    request = {"setting": to_json(setting), "samples": samples}
    answer = model_state.run_module("peer.inference.contact_sheet", request, name="the contact sheet")
    sheet = cast(ContactSheet, {**answer["sheet"], "page": str(page)})
    write_atomically(page, sheet_page.render(document, sheet, answer["pictures"]).encode(errors="surrogateescape"))
    return sheet

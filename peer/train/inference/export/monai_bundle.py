"""A MONAI bundle: the network, its preprocessing and its inference as MONAI's configuration, and
the weights.

Source: MONAI Bundle Specification, https://docs.monai.io/en/stable/mb_specification.html A bundle
names a network of MONAI's own as MONAI does; any other by ``build`` of this package, which loading
then needs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser, verify_net_in_out
from torch import Tensor, nn

from models.foreign import foreign_call
from models.spec import MONAI_PREFIX
from peer.core.tasks import CLASSIFYING
from peer.files import write_file
from peer.train.data.image_files import ARRAYS, NIFTI, PICTURES
from peer.train.errors import UnusableConfigurationError
from peer.train.images import BYTE_MAX, INTERPOLATION, PICTURE_DIMS
from peer.train.inference.export.graph import quiet
from peer.train.inference.export.predictor import Predictor, build

METADATA, INFERENCE, WEIGHTS, README, CARD, LICENCE = (
    "configs/metadata.json",
    "configs/inference.json",
    "models/model.pt",
    "docs/README.md",
    "docs/card.json",
    "LICENSE",
)
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
BUILD = f"{build.__module__}.{build.__qualname__}"
COLUMNS_FIRST = f"not str(x.meta['filename_or_obj']).lower().endswith({ARRAYS})"
"""Whether MONAI's reader gave the columns of a picture before its rows: of every file but arrays."""

HAS_FRAMES = (
    "pathlib.Path(str(x.meta['filename_or_obj'])).is_file() and "
    f"not str(x.meta['filename_or_obj']).lower().endswith({(*ARRAYS, *NIFTI)})"
)
"""Whether MONAI's reader gave the rows, frames and columns of one DICOM file: no other single file
is a volume.
"""

READERS = ("PydicomReader", "PILReader", "NumpyReader", "NibabelReader")
"""MONAI's; MONAI tries the last one first, and each refuses files of other formats."""

REFUSE = "(_ for _ in ()).throw(ValueError({!r}))"
"""An expression that raises: what MONAI would read otherwise than the site must not pass."""

PLAIN_PICTURE = (
    "$lambda x: x if not isinstance(x.meta.get('mode'), str) or x.meta['mode'] in ('1', 'L', 'I', 'I;16', 'F', 'RGB') "
    "and (lambda image: image.getexif().get(274, 1) == 1 and getattr(image, 'n_frames', 1) == 1)"
    "(Image.open(io.BytesIO(pathlib.Path(str(x.meta['filename_or_obj'])).read_bytes()))) else "
    + REFUSE.format("save the picture upright, in grey or RGB, without palette and alpha")
)
"""Not a converter of MONAI's PILReader: where one raises, MONAI reads the file without it."""

PLAIN_DICOM = (
    f"$lambda x: x if str(x.meta['filename_or_obj']).lower().endswith({(*ARRAYS, *NIFTI, *PICTURES)}) or "
    "pydicom.dcmread(next((file for file in sorted(pathlib.Path(str(x.meta['filename_or_obj'])).glob('*')) "
    "if pydicom.misc.is_dicom(file)), x.meta['filename_or_obj']), stop_before_pixels=True)"
    ".get('PhotometricInterpretation') in ('MONOCHROME2', 'RGB') else "
    + REFUSE.format("convert this DICOM image to NIfTI: MONAI would read its palette or its inverted grey as stored")
)
HAS_ORIENTATION = (
    f"$lambda x: x if str(x.meta['filename_or_obj']).lower().endswith({ARRAYS}) "
    f"or not ({HAS_FRAMES}) and abs(float(torch.linalg.det(x.affine[:3, :3]))) > 1e-9 "
    "and (int(x.meta.get('sform_code', 1)) or int(x.meta.get('qform_code', 1))) else "
    + REFUSE.format("MONAI reads no orientation from this file; write it as NIfTI with one")
)
HAS_SPACING = (
    f"$lambda x: x if not str(x.meta['filename_or_obj']).lower().endswith({(*ARRAYS, *PICTURES)}) else "
    + REFUSE.format("the file says no distance of its voxels")
)

IMPORTS = [
    "$import io",
    "$import pathlib",
    "$import nibabel",
    "$from PIL import Image",
    "$import pydicom",
    "$import torch",
    "$import monai",
]

FREE_SIDE = 16
"""Places along a side that MONAI's check uses where any number is allowed."""

Config = dict[str, Any]


def write(folder: Path, predictor: Predictor, card: Mapping[str, Any], *, arrays: str) -> str:
    """Write all files but the model card into an existing folder; return the name of the network's
    constructor.

    Args:
        arrays: the name of the image in an ``.npz``.
    """
    if card["input"]["spacing"] is not None and card["task"]["kind"] == "segmentation":
        raise UnusableConfigurationError(
            "[data] spacing: MONAI's transforms do not put a label map back on its image's own grid; export the model "
            "as ONNX or .pt2, with which `mhfl-peer predict` does"
        )
    network, weights = network_def(predictor, card["network"], card["input"]["size"])
    content = io.BytesIO()
    torch.save({name: tensor.detach().contiguous() for name, tensor in weights.items()}, content)
    inference = {"network_def": network, **_inference(card, arrays=arrays)}
    write_new(folder, INFERENCE, json.dumps(inference, indent=2).encode())
    write_new(folder, WEIGHTS, content.getvalue())
    write_new(folder, LICENCE, f"{card['licence']}\n".encode())
    write_new(folder, METADATA, json.dumps(_metadata(card), indent=2).encode())
    definition: str = network["_target_"]
    return definition


def write_new(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the bundle, durably."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)


def network_def(
    predictor: Predictor, description: Mapping[str, Any], size: Sequence[int]
) -> tuple[Config, dict[str, Tensor]]:
    """Return the configuration of the network, and the weights under the names in that network.

    A network of MONAI's own is configured as itself, unless it returns no plain tensor: an inferer
    needs one.
    """
    spec = description["network"]
    if "mixture" not in description and spec["name"].startswith(MONAI_PREFIX):
        shape = {key: spec[key] for key in ("spatial_dims", "in_channels", "classes")}
        inner = predictor.dam.get_submodule("network")
        with torch.no_grad():
            output = inner(torch.zeros(1, spec["in_channels"], *size))
        if isinstance(output, Tensor):
            _, arguments = foreign_call(spec["name"], **shape, hyper=spec["hyper"])
            return {"_target_": spec["name"], **arguments}, dict(inner.state_dict())
    return {"_target_": BUILD, **description}, dict(predictor.state_dict())


def read_config(folder: Path) -> ConfigParser:
    """MONAI's parser of an own bundle; it runs the configuration as code."""
    config = ConfigParser()
    config.read_config(folder / INFERENCE)
    config.read_meta(folder / METADATA)
    config["bundle_root"] = str(folder)
    return config


def load(folder: Path) -> tuple[nn.Module, Any]:
    """Load the network that MONAI's tools build from the bundle, with weights; and the preprocessing."""
    files = {"meta_file": str(folder / METADATA), "config_file": str(folder / INFERENCE)}
    with quiet():
        verify_net_in_out(net_id="network_def", **files, device="cpu", any=FREE_SIDE)
        config = read_config(folder)
        network: nn.Module = config.get_parsed_content("network_def")
        preprocessing = config.get_parsed_content("preprocessing")
    network.load_state_dict(torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True))
    return network.eval(), preprocessing


def _inference(card: Mapping[str, Any], *, arrays: str) -> Config:
    task = card["task"]
    saved, run = _saving(card)
    return {
        "imports": IMPORTS,
        "bundle_root": ".",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "checkpoint": "$@bundle_root + '/models/model.pt'",
        "dataset_dir": "$@bundle_root + '/data'",
        "output_dir": "$@bundle_root + '/eval'",
        "network": "$@network_def.to(@device)",
        "preprocessing": preprocessing(card, arrays=arrays),
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': str(path)} for path in sorted(pathlib.Path(@dataset_dir).iterdir())]",
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {"_target_": "Compose", "transforms": _postprocessing(card) + saved},
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
        },
        "predict": (
            "$lambda image: @postprocessing({'pred': monai.data.MetaTensor("
            "@inferer(image.as_tensor()[None].to(@device), @network)[0].detach().cpu(), meta=image.meta)})['pred']"
        ),
        **({"saver": _TABLE} if task["kind"] in CLASSIFYING else {}),
        "run": [
            "$@network.load_state_dict(torch.load(@checkpoint, map_location=@device, weights_only=True))",
            "$@network.eval()",
            *run,
        ],
    }


_TABLE = {"_target_": "CSVSaver", "output_dir": "@output_dir", "filename": "predictions.csv"}


def preprocessing(card: Mapping[str, Any], *, arrays: str) -> Config:
    """Return the transform with the steps of ``peer.train.images.Preparation``, in MONAI's and torch's functions."""
    input_facts, dims = card["input"], card["task"]["spatial_dims"]
    options = {"NumpyReader": {"npz_keys": arrays}}
    readers: list[Any] = [{"_target_": reader, **options.get(reader, {})} for reader in READERS]
    steps: list[Config] = [
        {"_target_": "LoadImaged", "keys": "image", "image_only": True, "dtype": None, "reader": readers},
        {"_target_": "EnsureChannelFirstd", "keys": "image"},
        # Arrays do not name their axes: a first axis beyond those of space holds channels.
        _function(f"$lambda image: image[0] if image.ndim > {dims + 1} else image"),
        _function(PLAIN_PICTURE),
        _function(PLAIN_DICOM),
        *_order_axes(card, "image"),
    ]
    if input_facts["free_size"]:
        steps.append(_function(f"$lambda image: image.float() / ({BYTE_MAX} if image.dtype == torch.uint8 else 1)"))
        return {"_target_": "Compose", "transforms": steps}
    steps.append(_function("$lambda image: image.float()"))
    if input_facts.get("nan") is not None:
        lowest = f"image.nan_to_num(float('inf')).flatten(1).amin(1).reshape({[-1, *[1] * dims]})"
        steps.append(_function(f"$lambda image: torch.where(image.isnan(), {lowest}, image)"))
    steps += _intensity(input_facts["intensity"])
    size, spacing = list(input_facts["size"]), input_facts["spacing"]
    grid = str(size)
    if spacing is not None:
        steps.append(_function(HAS_SPACING))
        # A picture's rows come first, its distances as MONAI has them along its columns.
        lengths = f"image.pixdim[:{dims}]{'.flip(0)' if dims == PICTURE_DIMS else ''}.tolist()"
        grid = f"[max(1, round(side * mm / to)) for side, mm, to in zip(image.shape[1:], {lengths}, {spacing})]"
    smaller = "[min(pair) for pair in zip(image.shape[1:], size)]"
    resize = f"torch.nn.functional.interpolate(image[None], size={smaller}, mode='area')"
    resize = f"torch.nn.functional.interpolate({resize}, size=size, mode={INTERPOLATION[dims]!r}, align_corners=False)"
    steps.append(_function(f"$lambda image: (lambda size: {resize}[0])({grid})"))
    if spacing is not None:
        margins = (
            f"[margin for side, wanted in list(zip(image.shape[1:], {size}))[::-1] "
            "for margin in ((wanted - side) // 2, wanted - side - (wanted - side) // 2)]"
        )
        lowest = f"image.flatten(1).amin(1).reshape({[-1, *[1] * dims]})"
        padded = f"torch.nn.functional.pad(image - low, {margins}) + low"
        steps.append(_function(f"$lambda image: (lambda low: {padded})({lowest})"))
    if input_facts["normalise"] == "zscore":
        steps.append({"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True})
    elif input_facts["normalise"] == "unit":
        steps.append({"_target_": "ScaleIntensityd", "keys": "image", "channel_wise": True})
    return {"_target_": "Compose", "transforms": steps}


def _intensity(intensity: Mapping[str, Any] | None) -> list[Config]:
    if intensity is None:
        return []
    low, high = intensity["low"], intensity["high"]
    scaled = {"keys": "image", "b_min": 0.0, "b_max": 1.0, "clip": True}
    if intensity["percentiles"]:
        target = "ScaleIntensityRangePercentilesd"
        return [{"_target_": target, "lower": low, "upper": high, "channel_wise": True, **scaled}]
    return [{"_target_": "ScaleIntensityRanged", "a_min": low, "a_max": high, **scaled}]


def _order_axes(card: Mapping[str, Any], key: str) -> list[Config]:
    """Return the steps from the axes of MONAI's readers to the network's (``image``), or back (``pred``)."""
    input_facts, dims = card["input"], card["task"]["spatial_dims"]
    if input_facts["orientation"] != "stored":
        turn = "monai.transforms.Orientation(axcodes={}, labels=None)(x)"
        if key == "image":
            array = f"str(x.meta['filename_or_obj']).lower().endswith({ARRAYS})"
            turned = turn.format(repr(input_facts["orientation"]))
            return [_function(HAS_ORIENTATION), _function(f"$lambda x: x if {array} else {turned}")]
        stored = "''.join(nibabel.aff2axcodes(x.meta['original_affine']))"
        return [_function(f"$lambda x: {turn.format(stored)}", keys=key)]
    if dims == 1:
        return []
    if dims == PICTURE_DIMS:
        condition, turn = COLUMNS_FIRST, "transpose(-1, -2)"
    else:
        condition, turn = HAS_FRAMES, "permute(0, 3, 1, 2)" if key == "image" else "permute(0, 2, 3, 1)"
    return [_function(f"$lambda x: x.{turn} if {condition} else x", keys=key)]


def _place(card: Mapping[str, Any]) -> list[Config]:
    """Return the step that gives a prediction, turned back, the affine of its image's file."""
    if card["input"]["orientation"] == "stored":
        return []
    source = "$lambda x: monai.data.MetaTensor(x.as_tensor(), affine=x.meta['original_affine'], meta=x.meta)"
    return [_function(source, keys="pred")]


def _postprocessing(card: Mapping[str, Any]) -> list[Config]:
    kind, dims = card["task"]["kind"], card["task"]["spatial_dims"]
    if kind == "super_resolution":
        return [*_order_axes(card, "pred"), *_place(card)]
    steps: list[Config] = [{"_target_": "Activationsd", "keys": "pred", "softmax": True}]
    if kind == "segmentation":
        grid = f"[int(side) for side in pred.meta['spatial_shape'][-{dims}:]]"
        steps += [
            *_order_axes(card, "pred"),
            _function(
                f"$lambda pred: torch.nn.functional.interpolate(pred[None], size={grid}, "
                f"mode={INTERPOLATION[dims]!r}, align_corners=False)[0]",
                keys="pred",
            ),
            *_place(card),
            {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        ]
    return steps


def _saving(card: Mapping[str, Any]) -> tuple[list[Config], list[str]]:
    """Return the transforms that save predictions, and the expressions that MONAI runs over the data."""
    kind = card["task"]["kind"]
    if kind in CLASSIFYING:
        return [], [
            "$[@saver.save(@predict(item['image']), item['image'].meta) for item in @dataset]",
            "$@saver.finalize()",
        ]
    step: Config = {
        "_target_": "SaveImaged",
        "keys": "pred",
        "output_dir": "@output_dir",
        "resample": False,
        "separate_folder": False,
    }
    if kind == "super_resolution":
        share = 1 / card["input"]["scale"]
        dims = card["task"]["spatial_dims"]
        finer = [
            [share if row == column else (share - 1) / 2 if column == 3 else 0.0 for column in range(4)]
            if row < dims
            else [float(row == column) for column in range(4)]
            for row in range(4)
        ]
        moved = f"torch.matmul(image.affine, torch.tensor({finer}, dtype=image.affine.dtype))"
        step = {**step, "output_dtype": "$torch.float32"}
        voxels = _function(
            f"$lambda image: monai.data.MetaTensor(image.as_tensor(), affine={moved}, meta=image.meta)", keys="pred"
        )
        return [voxels, step], ["$[@predict(item['image']).shape for item in @dataset]"]
    return [step], ["$[@predict(item['image']).shape for item in @dataset]"]


def _function(source: str, *, keys: str = "image") -> Config:
    return {"_target_": "Lambdad", "keys": keys, "func": source, "track_meta": True}


def _metadata(card: Mapping[str, Any]) -> Config:
    task, input_facts, versions = card["task"], card["input"], card["versions"]
    version = f"{card['generation']}.{card['round']}.0"
    kind = "channel" if task["kind"] == "super_resolution" else "class"
    unnamed = [f"{kind} {index}" for index in range(task["classes"])]
    free = [*["*"] * task["spatial_dims"]]
    image = {
        "type": "series" if task["kind"] == "time_series" else "image",
        "format": "sequence" if task["kind"] == "time_series" else "magnitude",
        "modality": "n/a",
        "num_channels": task["in_channels"],
        "spatial_shape": free if input_facts["free_size"] else list(input_facts["size"]),
        "dtype": "float32",
        "value_range": [0, 1] if input_facts["free_size"] or input_facts["normalise"] == "unit" else [],
        "is_patch_data": False,
        "channel_def": {str(index): "image" for index in range(task["in_channels"])},
    }
    vector = task["kind"] in CLASSIFYING
    pred = {
        "type": "probabilities" if vector else "image",
        "format": {"segmentation": "labels", "super_resolution": "magnitude"}.get(task["kind"], "classes"),
        "num_channels": task["classes"],
        "spatial_shape": [] if vector else free if input_facts["free_size"] else list(input_facts["size"]),
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": dict(zip(map(str, range(task["classes"])), task.get("class_names") or unnamed, strict=True)),
    }
    return {
        "schema": SCHEMA,
        "version": version,
        "changelog": {version: f"as after round {card['round']} of {card['rounds']}"},
        "monai_version": versions["monai"],
        "pytorch_version": versions["torch"],
        "numpy_version": versions["numpy"],
        "required_packages_version": {name: versions[name] for name in ("nibabel", "pillow", "pydicom")},
        "name": f"{card['federation']['name']} at {card['site']}",
        "task": task["kind"].replace("_", " "),
        "description": card["summary"],
        "authors": f"site {card['site']} of federation {card['federation']['name']}",
        "copyright": card["licence"],
        "intended_use": card["intended_use"],
        "data_source": "the site's own patients",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
    }

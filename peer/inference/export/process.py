"""From a site's finished state to a file that others can load: run as ``python -m peer.inference.export.process``.

It reads one JSON document from standard input and answers with one on standard output, so that who asks needs neither
torch nor the memory for it. It writes where it is told to, which is nowhere in the site's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.core.commands import Source
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.data.datalist import inspect_datalist
from peer.files import remove_folder, write_file
from peer.inference.export import graph, model_card, monai_bundle
from peer.inference.export.equivalence import Run, Samples, compared, judged, samples_of
from peer.inference.export.load import digest
from peer.inference.export.predictor import Predictor, Shares, taken_from
from peer.inference.predict import reading
from peer.training.errors import UnusableConfigurationError, reason_of
from peer.training.settings import TrainingSettings
from peer.training.trainer import Trainer

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every file in a zipped bundle, the oldest that the format knows: equal bundles are equal bytes."""


def export(
    trainer: Trainer, state: str, sources: tuple[Source, ...], *, form: str, out: Path, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write what the site predicts with, and its model card; nothing is returned unless both are there and compared.

    Args:
        trainer: of the site.
        state: the finished state.
        sources: what of other sites may be taken along.
        form: ``monai_bundle``, ``pt2`` or ``onnx``.
        out: the file, or the bundle's folder, or its ``.zip``; its folder is there, itself it is not.
        facts: as ``model_card.facts`` has them.

    Returns:
        The model card's facts.

    Raises:
        ConfigurationError: the network cannot be exported so, or what was written computes something else.
        OSError: it cannot be written.
    """
    settings = trainer.settings
    samples = samples_of(settings)
    listed = inspect_datalist(settings.data.datalist, root=settings.data.root, task=settings.task.kind)
    made = model_card.facts({**facts, "form": form}, settings, listed)
    trainer.load(state, sources)
    if facts["left_out"]:  # the newest figures are of a mixture that does not leave
        made["metrics"] = {**made["metrics"], "exported": trainer.evaluate(trainer.data.test)}
    classes = settings.task.kind != "super_resolution"

    def own(images: Tensor) -> Tensor:
        return _shares(trainer.predict(images), classes)

    owned = [own(image[None]) for image in samples.images]
    predictor, description = taken_from(trainer, state, sources)
    made |= {"network": description, "parameters": sum(tensor.numel() for tensor in predictor.parameters())}
    module = Shares(predictor, classes=classes).eval()

    def reference(images: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = module(images)
        return output

    of_site = [(reference(image[None]), before) for image, before in zip(samples.images, owned, strict=True)]
    what = "this model beside the site's networks, both in PyTorch"
    made["checks"].append(judged(what, of_site, samples=len(of_site), source=samples.source))
    if form == "bundle":
        _bundle(out, predictor, made, reference, samples, settings)
    else:
        _graph(out, module, made, reference, samples, form=form)
    return made


def _graph(out: Path, module: Shares, made: dict[str, Any], reference: Run, samples: Samples, *, form: str) -> None:
    """Write a ``.pt2`` or ONNX file, and the card beside it."""
    name = made["network"]["network"]["name"]
    made["output"] = graph.PROBABILITIES if module.classes else graph.ENLARGED
    try:
        program = graph.traced(module, samples.images[0], free_space=made["input"]["free_size"], name=name)
    except UnusableConfigurationError:
        if not made["input"]["free_size"]:
            raise
        size = " x ".join(map(str, samples.images[0].shape[1:]))
        # What enlarges images of any size may still do so at one.
        made["input"] |= {
            "free_size": False,
            "steps": [*made["input"]["steps"][:-1], f"It takes images of {size} alone."],
        }
        program = graph.traced(module, samples.images[0], free_space=False, name=name)
    if form == "onnx":
        content = graph.onnx(program, output=made["output"], name=name)
        run, _ = graph.run_onnx(content)
        made["checks"].append(compared("ONNX, run by onnxruntime on the CPU, beside PyTorch", run, reference, samples))
        content = graph.with_card(content, made)
    else:
        run, _ = graph.run_pt2(graph.pt2(program, {}))
        made["checks"].append(compared(".pt2, loaded by torch.export, beside PyTorch", run, reference, samples))
        content = graph.pt2(program, made)
    write_file(out, content)
    write_file(out.with_name(f"{out.name}.md"), model_card.markdown(made).encode())


def _bundle(
    out: Path, predictor: Predictor, made: dict[str, Any], reference: Run, samples: Samples, settings: TrainingSettings
) -> None:
    """Write a bundle's folder, or a zip of it."""
    zipped = out.suffix == ".zip"
    folder = out.with_suffix("") if zipped else out
    folder.mkdir()
    definition = monai_bundle.write(folder, predictor, made, arrays=_array_name(samples))
    made["definition"] = definition
    network, preprocessing = monai_bundle.loaded(folder)
    classes = settings.task.kind != "super_resolution"

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            return _shares(network(images), classes)

    made["checks"].append(
        compared(
            "the bundle's network, made and loaded as its configuration says, beside PyTorch", run, reference, samples
        )
    )
    if samples.files:
        load, finish = reading(settings.task, settings.data)
        pairs = []
        for files in samples.files:
            found = preprocessing({"image": [str(path) for path in files]})["image"]
            pairs.append((found.as_tensor(), finish(load(files))))
        what = "the bundle's preprocessing beside the site's"
        made["checks"].append(judged(what, pairs, samples=len(pairs), source=samples.source))
    monai_bundle.put(folder, monai_bundle.CARD, json.dumps(made, indent=2).encode())
    monai_bundle.put(folder, monai_bundle.README, model_card.markdown(made).encode())
    if zipped:
        _zip(folder, out)


def _zip(folder: Path, out: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(str(Path(folder.name) / path.relative_to(folder)), date_time=ZIP_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            archive.writestr(entry, path.read_bytes())
    write_file(out, content.getvalue())  # durably: the ledger will say that it left
    remove_folder(folder)


def _array_name(samples: Samples) -> str:
    """The name of the image in the site's ``.npz`` files: ``image``, or the first that there is."""
    for files in samples.files:
        if files[0].suffix.lower() == ".npz":
            with np.load(files[0], allow_pickle=False) as arrays:
                return "image" if "image" in arrays else str(arrays.files[0])
    return "image"


def _shares(prediction: Tensor, classes: bool) -> Tensor:
    return prediction.float().softmax(dim=1) if classes else prediction.float()


def in_float32(setting: WorkerSetting) -> WorkerSetting:
    """The setting as an export computes: on the CPU, where a training on the GPU is not in its way, and in float32.

    There the runtimes agree to the sixth digit; a GPU with reduced precision would hide a mistake of that size. Nor is
    anything cached on disk, as that would be the temporary folder's.
    """
    training = {**(setting.site.get("training") or {}), "device": "cpu", "precision": "fp32"}
    data = dict(setting.site["data"])
    if data.get("cache") == "disk":
        data["cache"] = "none"
    return dataclasses.replace(setting, site={**setting.site, "training": training, "data": data})


def main() -> None:
    """Answer ``{"setting", "state", "sources", "form", "out", "facts"}`` with ``{"card", "sha256", "bytes"}``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    state, out = str(request["state"]), Path(request["out"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = export(
                Trainer(in_float32(from_json(WorkerSetting, request["setting"]))),
                state,
                from_json(tuple[Source, ...], request["sources"]),
                form=str(request["form"]),
                out=out,
                facts=request["facts"],
            )
            sha256, size = digest(out)
    except Exception as error:
        sys.exit(reason_of(error))
    json.dump({"card": made, "sha256": sha256, "bytes": size}, sys.stdout)


if __name__ == "__main__":
    main()

"""Export a site's finished state to a file for others: run as ``python -m peer.train.inference.export.process``.

The process reads one JSON document from standard input and answers with one on standard output, so that the caller
needs neither torch nor the memory for it. It writes to the request's path, which is outside the site's folder.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.core.artifacts import Source
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.files import remove_folder, write_file
from peer.train.errors import UnusableConfigurationError, reason_of
from peer.train.inference.export import graph, model_card, monai_bundle
from peer.train.inference.export.equivalence import Run, Samples, choose_samples, compare, compare_pairs
from peer.train.inference.export.load import digest
from peer.train.inference.export.predictor import Predictor, RowShares, Shares, build_predictor, graph_module
from peer.train.inference.predict import image_reader
from peer.train.outputs import final_outputs
from peer.train.samples import inspect_samples
from peer.train.settings import TaskSettings, TrainingSettings
from peer.train.trainer import Trainer

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""Time of every file in a zipped bundle, the format's oldest: equal bundles have equal bytes."""


def export(
    trainer: Trainer, state: str, sources: tuple[Source, ...], *, form: str, out: Path, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the site's predictor and its model card; return only after both are written and compared.

    Args:
        sources: the artifacts of other sites that the file may include.
        out: the file, or the bundle's folder, or its ``.zip``; its parent must exist, and it must
            not.
        facts: the facts for ``model_card.collect_facts``.

    Raises:
        UnusableConfigurationError: the form cannot represent the network, or the file's outputs
            differ.
        OSError: the file cannot be written.
    """
    settings = trainer.settings
    if form == "bundle" and not _has_bundle(settings.task):
        raise UnusableConfigurationError("a MONAI bundle has images and classes; export this model as onnx or pt2")
    samples = choose_samples(settings)
    datalist = inspect_samples(settings.task, settings.data)
    card = model_card.collect_facts({**facts, "form": form}, settings, datalist)
    trainer.load(state, sources)
    if facts["left_out"]:  # the newest metrics are those of the whole mixture
        card["metrics"] = {**card["metrics"], "exported": trainer.evaluate(trainer.data.test)}

    def predict_as_site(images: Tensor) -> Tensor:
        return final_outputs(trainer.predict(images).float(), settings.task)

    own_outputs = [predict_as_site(image[None]) for image in samples.images]
    predictor, description = build_predictor(trainer, state, sources)
    card |= {"network": description, "parameters": sum(tensor.numel() for tensor in predictor.parameters())}
    module = graph_module(predictor, settings.task)

    def reference(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = module(inputs)
        return output

    pairs = [(reference(each[None]), before) for each, before in zip(samples.inputs, own_outputs, strict=True)]
    subject = "this model beside the site's networks, both in PyTorch"
    card["checks"].append(compare_pairs(subject, pairs, samples=len(pairs), source=samples.source))
    if form == "bundle":
        _bundle(out, predictor, card, reference, samples, settings)
    else:
        card["output"] = model_card.OUTPUT_NAMES.get(settings.task.objective, graph.PROBABILITIES)
        _graph(out, module, card, reference, samples, settings.task, form=form)
    return card


def _graph(
    out: Path,
    module: Shares | RowShares,
    card: dict[str, Any],
    reference: Run,
    samples: Samples,
    task: TaskSettings,
    *,
    form: str,
) -> None:
    """Write a ``.pt2`` or ONNX file, and the card beside it."""
    name = card["network"]["network"]["name"]
    remedy = "export it as a bundle" if _has_bundle(task) else "predict with it here, with `mhfl-peer predict`"
    trace = partial(graph.trace, module, samples.inputs[0], name=name, remedy=remedy)
    try:
        program = trace(free_space=card["input"]["free_size"])
    except UnusableConfigurationError:
        if not card["input"]["free_size"]:
            raise
        size = " x ".join(map(str, samples.images[0].shape[1:]))
        # A network that cannot be traced for all sizes may be traceable for one.
        card["input"] |= {
            "free_size": False,
            "steps": [*card["input"]["steps"][:-1], f"It takes images of {size} alone."],
        }
        program = trace(free_space=False)
    if form == "onnx":
        content = graph.to_onnx(program, input_name=card["input"]["name"], output=card["output"], name=name)
        run, _ = graph.run_onnx(content)
        card["checks"].append(compare("ONNX, run by onnxruntime on the CPU, beside PyTorch", run, reference, samples))
        content = graph.add_card(content, card)
    else:
        run, _ = graph.run_pt2(graph.to_pt2(program, {}))
        card["checks"].append(compare(".pt2, loaded by torch.export, beside PyTorch", run, reference, samples))
        content = graph.to_pt2(program, card)
    write_file(out, content)
    write_file(out.with_name(f"{out.name}.md"), model_card.render_markdown(card).encode())


def _has_bundle(task: TaskSettings) -> bool:
    """Return whether a MONAI bundle can represent the task."""
    return task.kind != "tabular" and task.target.kind == "class"


def _bundle(
    out: Path, predictor: Predictor, card: dict[str, Any], reference: Run, samples: Samples, settings: TrainingSettings
) -> None:
    """Write a bundle's folder, or a zip of it."""
    zipped = out.suffix == ".zip"
    folder = out.with_suffix("") if zipped else out
    folder.mkdir()
    definition = monai_bundle.write(folder, predictor, card, arrays=_array_name(samples))
    card["definition"] = definition
    network, preprocessing = monai_bundle.load(folder)

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            return final_outputs(network(images).float(), settings.task)

    card["checks"].append(
        compare(
            "the bundle's network, card and loaded as its configuration says, beside PyTorch", run, reference, samples
        )
    )
    if samples.files:
        load, finish = image_reader(settings.task, settings.data)
        pairs = []
        for files in samples.files:
            image = preprocessing({"image": [str(path) for path in files]})["image"]
            pairs.append((image.as_tensor(), finish(load(files))))
        subject = "the bundle's preprocessing beside the site's"
        card["checks"].append(compare_pairs(subject, pairs, samples=len(pairs), source=samples.source))
    monai_bundle.write_new(folder, monai_bundle.CARD, json.dumps(card, indent=2).encode())
    monai_bundle.write_new(folder, monai_bundle.README, model_card.render_markdown(card).encode())
    if zipped:
        _zip(folder, out)


def _zip(folder: Path, out: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(str(Path(folder.name) / path.relative_to(folder)), date_time=ZIP_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            archive.writestr(entry, path.read_bytes())
    write_file(out, content.getvalue())  # durably: the ledger will record its export
    remove_folder(folder)


def _array_name(samples: Samples) -> str:
    """Return the name of the image in the site's ``.npz`` files: ``image``, or the first array."""
    for files in samples.files:
        if files[0].suffix.lower() == ".npz":
            with np.load(files[0], allow_pickle=False) as arrays:
                return "image" if "image" in arrays else str(arrays.files[0])
    return "image"


def in_float32(setting: WorkerSetting) -> WorkerSetting:
    """Return the setting for an export: on the CPU, beside a training on the GPU, and in float32.

    On the CPU the runtimes agree to the sixth digit; a GPU with reduced precision would hide an error of that size. The
    export caches nothing on disk, because the cache would lie in the temporary folder.
    """
    training = {**setting.site["training"], "device": "cpu", "precision": "fp32"}
    data = dict(setting.site["data"])
    if data["cache"] == "disk":
        data["cache"] = "none"
    return dataclasses.replace(setting, site={**setting.site, "training": training, "data": data})


def main() -> None:
    """Answer ``{"setting", "state", "sources", "form", "out", "facts"}`` with ``{"card", "sha256", "bytes"}``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    state, out = str(request["state"]), Path(request["out"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            card = export(
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
    json.dump({"card": card, "sha256": sha256, "bytes": size}, sys.stdout)


if __name__ == "__main__":
    main()

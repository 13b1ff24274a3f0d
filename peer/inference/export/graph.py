"""A network as one file that runs without this program: torch's ``.pt2`` and ONNX, written and read in memory."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from peer.errors import ConfigError
from peer.extras import require_extra
from peer.training.errors import UnusableConfigurationError

INPUT, PROBABILITIES, ENLARGED = "image", "probabilities", "enlarged"
"""Names of the input, and of the output by whether classes are predicted."""

OPSET = 20
"""Of ONNX, from 2023: the first whose GridSample and Gelu are whole, and every runtime in use has it."""

BATCH_MAX, SIDE_MAX = 4096, 1 << 16
"""Bounds of the free dimensions, which the exporter wants to know; samples, and places along a side."""

CARD = "card.json"
"""The model card's facts: the extra file of a ``.pt2``, the metadata of an ONNX file."""

Run: TypeAlias = Callable[[Tensor], Tensor]
"""The output ``(b, classes, ...)`` for images ``(b, c, *space)``, float32 on the CPU."""


def traced(module: nn.Module, image: Tensor, *, free_space: bool, name: str) -> ExportedProgram:
    """The module as a graph of operators, for any batch.

    Args:
        module: in evaluation mode, on the CPU; takes one tensor and gives one.
        image: a prepared image ``(c, *space)``; its size is the only one that the graph takes.
        free_space: whether other sizes are taken, too: of all images that the network takes.
        name: the network's, for errors.

    Raises:
        ConfigurationError: the network does what no graph can hold; the message names it.
    """
    # Two samples: the exporter takes a batch of one for a constant.
    example = torch.stack([image, image])
    free: dict[int, Any] = {0: Dim("batch", min=1, max=BATCH_MAX)}
    if free_space:
        free |= {axis: Dim(f"side{axis - 1}", min=2, max=SIDE_MAX) for axis in range(2, example.ndim)}
    try:
        with quiet(), torch.no_grad():
            module(example)  # what a network checks once, it checks before it is traced
            program = torch.export.export(module, (example,), dynamic_shapes=(free,), strict=False)
    except Exception as error:
        raise UnusableConfigurationError(_unfit(name, "pt2", error)) from error
    _forget_sources(program)
    return program


def pt2(program: ExportedProgram, card: Mapping[str, Any]) -> bytes:
    """The content of a ``.pt2`` file, with the card's facts as ``extra/card.json``."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={CARD: json.dumps(card)})
    return buffer.getvalue()


def run_pt2(content: bytes) -> tuple[Run, str]:
    """What a ``.pt2`` file computes, and its card as text, empty where it has none.

    Reading one can run code that its author put into it: it may hold pickled weights, and expressions that are
    evaluated. Whoever calls this has made sure that the content is what somebody trusted wrote.
    """
    cards = {CARD: ""}
    with quiet():
        program = torch.export.load(io.BytesIO(content), extra_files=cards)
        module = program.module()

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = module(images)
        return output

    text: str | bytes = cards[CARD]
    return run, text.decode() if isinstance(text, bytes) else text


def onnx(program: ExportedProgram, *, output: str, name: str) -> bytes:
    """The graph in ONNX, weights inside.

    Args:
        program: of :func:`traced`.
        output: the output's name.
        name: the network's, for errors.

    Raises:
        ConfigurationError: ONNX lacks one of its operators, the file would be over the 2 GiB that one can hold, or the
            packages that write it are not installed.
    """
    _require("onnx", "onnxscript")
    try:
        with quiet(), torch.no_grad():
            made = torch.onnx.export(
                program,
                input_names=[INPUT],
                output_names=[output],
                dynamic_shapes=(_free_axes(program),),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            assert made is not None
            content: bytes = made.model_proto.SerializeToString()
    except Exception as error:
        raise UnusableConfigurationError(_unfit(name, "onnx", error)) from error
    return content


def with_card(content: bytes, card: Mapping[str, Any]) -> bytes:
    """An ONNX file with the card's facts in its metadata, as one JSON text and as texts of their own."""
    import onnx as library

    model = library.load_from_string(content)
    library.helper.set_model_props(model, {CARD: json.dumps(card), **_texts(card)})
    model.producer_name, model.doc_string = "mhfl-peer", f"Model card: see the metadata property {CARD}."
    described: bytes = model.SerializeToString()
    return described


def run_onnx(content: bytes) -> tuple[Run, str]:
    """What an ONNX file computes, on the CPU, and its card as text, empty where it has none.

    Weights outside the file are not looked for: onnxruntime refuses them where it is given the content alone.

    Raises:
        ConfigurationError: onnxruntime is not installed.
        Exception: whatever onnxruntime finds wrong with the file.
    """
    _require("onnxruntime")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()

    def run(images: Tensor) -> Tensor:
        (found,) = session.run(None, {taken.name: images.contiguous().numpy()})
        return torch.from_numpy(found)

    return run, session.get_modelmeta().custom_metadata_map.get(CARD, "")


def _forget_sources(program: ExportedProgram) -> None:
    """Drop the file and line that each operator comes from: paths of this machine are nobody else's business."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _free_axes(program: ExportedProgram) -> dict[int, str]:
    """The names of the input's free dimensions by axis."""
    (taken,) = program.graph_signature.user_inputs
    (shape,) = (node.meta["val"].shape for node in program.graph.nodes if node.name == taken)
    names = ["batch", "channels", *(f"side{number}" for number in range(1, len(shape)))]
    return {axis: names[axis] for axis, size in enumerate(shape) if not isinstance(size, int)}


def _require(*modules: str) -> None:
    """``UnusableConfigurationError`` unless they are installed, before minutes are spent."""
    try:
        require_extra("export", "ONNX", modules)
    except ConfigError as error:
        raise UnusableConfigurationError(str(error)) from error


def _texts(card: Mapping[str, Any]) -> dict[str, str]:
    """The card's plain values for whoever looks at the file with another program."""
    return {key: str(value) for key, value in card.items() if isinstance(value, str | int | float)}


def _unfit(name: str, form: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return f"{name} cannot be exported to {form}: {reason}; export it as a bundle"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without other programs' words about how they work: what concerns an operator is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

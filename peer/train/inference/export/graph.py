"""A network as one file that runs without this program: torch's ``.pt2`` and ONNX."""

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
from peer.train.errors import UnusableConfigurationError

PROBABILITIES = "probabilities"
"""Name of the output with classes."""

OPSET = 20
"""ONNX opset of 2023: the first with complete GridSample and Gelu, supported by every runtime in use."""

BATCH_MAX, SIDE_MAX = 4096, 1 << 16
"""Upper bounds of the free dimensions, which the exporter needs: samples, and places along a side."""

CARD = "card.json"
"""The model card's facts: an extra file in a ``.pt2``, metadata in an ONNX file."""

Run: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the output ``(b, classes, ...)`` for images ``(b, c, *space)``, float32 on the CPU."""


def trace(module: nn.Module, image: Tensor, *, free_space: bool, name: str, remedy: str = "") -> ExportedProgram:
    """Trace the module into a graph of operators, for any batch size.

    Args:
        module: in evaluation mode, on the CPU; takes one tensor and returns one.
        image: a prepared image ``(c, *space)`` or a table's row ``(columns,)``; without ``free_space`` the graph takes
            its size only.
        free_space: whether the graph takes every size that the network takes.
        remedy: what else to do, for the message.

    Raises:
        UnusableConfigurationError: a graph cannot represent the network; the message says why.
    """
    # Two samples: the exporter treats a batch of one as a constant.
    example = torch.stack([image, image])
    free: dict[int, Any] = {0: Dim("batch", min=1, max=BATCH_MAX)}
    if free_space:
        free |= {axis: Dim(f"side{axis - 1}", min=2, max=SIDE_MAX) for axis in range(2, example.ndim)}
    try:
        with quiet(), torch.no_grad():
            module(example)  # a network's one-time checks run before the trace
            program = torch.export.export(module, (example,), dynamic_shapes=(free,), strict=False)
    except Exception as error:
        raise UnusableConfigurationError(_cannot_export(name, "a graph", error, remedy)) from error
    _forget_sources(program)
    return program


def to_pt2(program: ExportedProgram, card: Mapping[str, Any]) -> bytes:
    """Encode a ``.pt2`` file, with the card's facts as ``extra/card.json``."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={CARD: json.dumps(card)})
    return buffer.getvalue()


def run_pt2(content: bytes) -> tuple[Run, str]:
    """Return the function of a ``.pt2`` file, and its card as text, empty if it has none.

    Reading such a file can run its author's code: it may contain pickled weights, and expressions that torch evaluates.
    The caller must ensure that the content comes from a trusted source.
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


def to_onnx(program: ExportedProgram, *, input_name: str = "image", output: str, name: str) -> bytes:
    """Encode the graph in ONNX, weights included.

    Raise ``UnusableConfigurationError`` if ONNX lacks one of its operators, the file would exceed ONNX's limit of 2
    GiB, or the packages that write it are not installed.
    """
    _require("onnx", "onnxscript")
    try:
        with quiet(), torch.no_grad():
            onnx_program = torch.onnx.export(
                program,
                input_names=[input_name],
                output_names=[output],
                dynamic_shapes=(_free_axes(program),),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            assert onnx_program is not None
            content: bytes = onnx_program.model_proto.SerializeToString()
    except Exception as error:
        raise UnusableConfigurationError(_cannot_export(name, "onnx", error, "export it as pt2")) from error
    return content


def add_card(content: bytes, card: Mapping[str, Any]) -> bytes:
    """Add the card's facts to an ONNX file's metadata, as one JSON text and as single texts."""
    import onnx as library

    model = library.load_from_string(content)
    library.helper.set_model_props(model, {CARD: json.dumps(card), **_texts(card)})
    model.producer_name, model.doc_string = "mhfl-peer", f"Model card: see the metadata property {CARD}."
    described: bytes = model.SerializeToString()
    return described


def run_onnx(content: bytes) -> tuple[Run, str]:
    """Return the function of an ONNX file, on the CPU, and its card as text, empty if it has none.

    onnxruntime gets the content alone, and therefore refuses weights outside the file.

    Raises:
        UnusableConfigurationError: onnxruntime is not installed.
        Exception: onnxruntime cannot use the file.
    """
    _require("onnxruntime")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (graph_input,) = session.get_inputs()

    def run(images: Tensor) -> Tensor:
        (output,) = session.run(None, {graph_input.name: images.contiguous().numpy()})
        return torch.from_numpy(output)

    return run, session.get_modelmeta().custom_metadata_map.get(CARD, "")


def _forget_sources(program: ExportedProgram) -> None:
    """Drop the source file and line of each operator: paths of this machine must not leave it."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _free_axes(program: ExportedProgram) -> dict[int, str]:
    """Return the names of the input's free dimensions by axis."""
    (graph_input,) = program.graph_signature.user_inputs
    (shape,) = (node.meta["val"].shape for node in program.graph.nodes if node.name == graph_input)
    names = ["batch", "channels", *(f"side{number}" for number in range(1, len(shape)))]
    return {axis: names[axis] for axis, size in enumerate(shape) if not isinstance(size, int)}


def _require(*modules: str) -> None:
    """Raise ``UnusableConfigurationError`` unless the modules are installed, before minutes of work."""
    try:
        require_extra("export", "ONNX", modules)
    except ConfigError as error:
        raise UnusableConfigurationError(str(error)) from error


def _texts(card: Mapping[str, Any]) -> dict[str, str]:
    """Return the card's plain values as texts, for readers with another program."""
    texts = {key: str(value) for key, value in card.items() if isinstance(value, str | int | float)}
    task = card.get("task", {})
    return texts | {key: json.dumps(task[key]) for key in ("class_names", "columns", "target") if task.get(key)}


def _cannot_export(name: str, form: str, error: Exception, remedy: str) -> str:
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return f"{name} cannot be exported to {form}: {reason}" + (f"; {remedy}" if remedy else "")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and logs of libraries; errors that concern an operator are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

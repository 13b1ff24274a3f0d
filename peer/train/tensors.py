"""States of networks, as bytes for disk and wire, and as means over several sites."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from peer.core.artifacts import TensorSpec
from peer.core.plan import Wire
from peer.train.errors import UnusableConfigurationError

State = dict[str, Tensor]
"""Parameters and buffers by name."""

VALUES_AT_ONCE_MAX = 4 << 20
"""Values of all sites together: sorted in float64, with their positions, they take 130 MB."""

DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def state_of(network: nn.Module) -> State:
    """Copy the state to the CPU, sorted by name; no two tensors share memory."""
    state = network.state_dict()
    return {name: state[name].detach().to("cpu", copy=True).contiguous() for name in sorted(state)}


def pack(state: Mapping[str, Tensor]) -> bytes:
    """Encode the state as a safetensors file; the mapping's order does not change its bytes."""
    content: bytes = safetensors.torch.save({name: state[name] for name in sorted(state)})
    return content


def unpack(content: bytes) -> State:
    """Decode the state in a safetensors file."""
    state: State = safetensors.torch.load(content)
    return state


def load_checkpoint_file(content: bytes) -> Any:
    """Decode a file of ``torch.save``, tensors and plain values alone, without running code.

    Raise ``ValueError`` for a compressed archive: torch writes none, and a small one can fill the memory.
    """
    file = io.BytesIO(content)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed, as torch.save writes no file")
        file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def refuse_expanded(state: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` for a tensor with more values than its file stores: a copy could fill the memory."""
    for name, tensor in state.items():
        if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"tensor {name!r} is no plain array of numbers")
        size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        if size > stored:
            raise ValueError(f"tensor {name!r} has {size} bytes, of which the file stores {stored}")


def as_sent(state: State, wire: Wire) -> State:
    """Convert the state to the wire's type: bfloat16 rounds every float32 tensor to nearest, ties to even."""
    if wire == "float32":
        return state
    return {name: each.bfloat16() if each.dtype == torch.float32 else each for name, each in state.items()}


def as_received(sent: State, like: State) -> State:
    """Convert the state to the element types of another with the same names; bfloat16 to float32 is exact."""
    return {name: tensor.to(like[name].dtype) for name, tensor in sent.items()}


def describe(state: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
    """Return names, element types and shapes, sorted by name.

    Raise ``UnusableConfigurationError`` for a type that no artifact can contain.
    """
    for name, tensor in state.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise UnusableConfigurationError(
                f"tensor {name!r} of the model is {tensor.dtype}, which no artifact can hold"
            )
    return tuple(TensorSpec(name, DTYPE_NAMES[state[name].dtype], tuple(state[name].shape)) for name in sorted(state))


def non_finite(state: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity, or None."""
    for name in sorted(state):
        tensor = state[name]
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name
    return None


def mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> State:
    """Compute the weighted mean of several states, bit-identical at every site that averages the same ones.

    Floating tensors, including batch norm statistics, are summed in float64 in the given order and rounded once. For
    integer buffers, the result is the largest value, since a count has no mean.

    Args:
        states: states with equal names, shapes and types; in ascending order of their origins, so that
            sites agree.
        weights: one positive weight per state; default: all equal.

    Raises:
        ValueError: there is no state, two differ in form, or a weight is not positive and finite.
    """
    shares = [1.0] * len(states) if weights is None else [float(weight) for weight in weights]
    if len(shares) != len(states) or not all(0 < share < float("inf") for share in shares):
        raise ValueError(f"weights {shares} must be one positive number for each of {len(states)} states")
    return {name: _mean([state[name] for state in states], shares) for name in _common_names(states)}


def trimmed_mean(states: Sequence[Mapping[str, Tensor]], trimmed: int) -> State:
    """Compute the mean of each coordinate without its ``trimmed`` smallest and as many largest values.

    If all but one or two values are trimmed, this is the coordinate-wise median. Integer buffers and precision are
    those of ``mean``. Raise ``ValueError`` if no value would be left.
    """
    if 2 * trimmed >= len(states):
        raise ValueError(f"of {len(states)} states, {trimmed} cannot be trimmed at either end")
    result = {}
    for name in _common_names(states):
        tensors = [state[name] for state in states]
        if trimmed and tensors[0].is_floating_point():
            means = [_trimmed_mean(piece, trimmed) for piece in pieces(tensors)]
            result[name] = torch.cat(means).reshape(tensors[0].shape)
        else:
            result[name] = _mean(tensors, [1.0] * len(tensors))
    return result


def pieces(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut the tensors at the same places into flat pieces, at most ``VALUES_AT_ONCE_MAX`` values over all tensors."""
    flat = [tensor.flatten() for tensor in tensors]
    size = max(1, VALUES_AT_ONCE_MAX // len(flat))
    for start in range(0, max(1, flat[0].numel()), size):
        yield [tensor[start : start + size] for tensor in flat]


def _trimmed_mean(tensors: Sequence[Tensor], trimmed: int) -> Tensor:
    kept = torch.stack(list(tensors)).sort(dim=0).values[trimmed : len(tensors) - trimmed]
    return _mean(list(kept), [1.0] * len(kept))


def _common_names(states: Sequence[Mapping[str, Tensor]]) -> list[str]:
    """Return the tensors' names; raise ``ValueError`` unless there is a state, and all have the same form."""
    if not states:
        raise ValueError("a mean needs at least one state")
    form = describe(states[0])
    for index, state in enumerate(states[1:], start=1):
        if describe(state) != form:
            differing = sorted({spec.name for spec in set(describe(state)) ^ set(form)})
            raise ValueError(f"state {index} differs from state 0 in {differing[0]!r}; only equal forms have a mean")
    return [spec.name for spec in form]


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        largest = first.clone()
        for tensor in tensors[1:]:
            largest = torch.maximum(largest, tensor) if first.dtype != torch.bool else largest | tensor
        return largest
    total = torch.zeros_like(first, dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total += tensor.to(torch.float64) * share
    return (total / sum(shares)).to(first.dtype)

"""Data-parallel training of one stage by several processes.

Each process is a rank, loads its share of every batch, and runs the networks on it. The losses see the outputs for the
joint batch at every rank, so that a method's losses equal those of one process, whichever samples they compare. All
tensors but those inside a network are *joint*: every rank has the same values. The gradient of a joint tensor, or of a
parameter, may differ between ranks. Its mean over the ranks is the gradient that one process computes for the joint
batch, whether or not shares are equal:

* ``join`` makes the joint output of the ranks' rows. Backwards it sums all ranks' gradients and keeps the own rows.
* A share is a slice of a joint input. Backwards the other rows have no gradient at this rank.
* ``average_gradients`` takes the mean before the optimisers step, so that parameters stay equal.

In training mode, batch normalisation would see one share only. ``Ranks.prepare`` synchronises it on a GPU. Elsewhere
such a stage is undivided: each rank runs the whole batch. So is, on every device, a stage with instance normalisation
that tracks running statistics, which PyTorch cannot synchronise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from peer.core.limits import SHARE_MIN
from peer.train.errors import UnusableConfigurationError

Item = TypeVar("Item")


class Collectives(Protocol):
    """Exchanges tensors of one shape and type between all ranks; each rank calls in the same order."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, ordered by rank."""

    def add_up(self, tensor: Tensor) -> None:
        """Replace the tensor by the sum over all ranks, which is bit-identical at each."""


class ProcessGroup:
    """The collectives of torch's process group, which must be initialised."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(tensors, tensor)
        return tensors

    def add_up(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)


class Ranks:
    """All ranks, from the view of one of them.

    Args:
        rank: the rank of this process, counted from 0.
        count: the number of ranks.
    """

    def __init__(self, rank: int, count: int, collectives: Collectives) -> None:
        self.rank, self.count, self._collectives = rank, count, collectives
        self._divides = True

    def prepare(self, networks: Iterable[nn.Module], device: torch.device) -> bool:
        """Begin a stage that trains these networks: synchronise batch norms on a GPU.

        Returns:
            Whether the ranks divide the stage's batches.
        """
        norms = False
        for network in networks:
            if device.type == "cuda":
                nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
            norms = norms or lone_norm(network, device) is not None
        self._divides = not norms
        return self._divides

    def check_norms(self, networks: Mapping[str, nn.Module], device: torch.device) -> None:
        """Raise ``UnusableConfigurationError`` if the ranks could not divide one of the site's own networks."""
        for name, network in networks.items():
            norm = lone_norm(network, device)
            if norm is not None:
                named = getattr(network, "spec", {}).get("name", name)
                raise UnusableConfigurationError(
                    f"[training] processes = {self.count}: {named} has {norm}; set processes = 1 and raise threads, or "
                    "take networks without it"
                )

    def share(self, count: int) -> slice | None:
        """Return this rank's slice of a batch; None if it has too few rows, or the stage is not divided."""
        if not self._divides or count < SHARE_MIN * self.count:
            return None
        return slice(*self._bounds(count, self.rank))

    def own(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this rank's share of the items of a batch, or all of them if the batch is not divided."""
        rows = self.share(len(items))
        return items if rows is None else items[rows]

    def divide(self, inputs: tuple[Any, ...]) -> Share | None:
        """Return this rank's share of a network's inputs; None if each rank runs the network on all samples.

        The first tensor gives the number of samples. Each tensor with as many rows is divided.
        """
        count = next((len(tensor) for tensor in _tensors(inputs) if tensor.ndim), 0)
        rows = self.share(count)
        if rows is None:
            return None
        own = _map_tensors(inputs, lambda tensor: tensor[rows] if tensor.ndim and len(tensor) == count else tensor)
        return Share(self, own, rows, count)

    def join(self, own: Tensor, count: int) -> Tensor:
        """Return the joint tensor of all ranks' rows, ``count`` of them; gradient flows."""
        joint: Tensor = _Join.apply(own, self, count)  # type: ignore[no-untyped-call]
        return joint

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients by their means over the ranks; those of one type are sent together."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self._collectives.add_up(flat)
            flat /= self.count
            means = torch.split(flat, [each.numel() for each in gradients])
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _bounds(self, count: int, rank: int) -> tuple[int, int]:
        """Return first row and end of a rank's share; shares differ by at most one, larger ones first."""
        share, rest = divmod(count, self.count)
        first = rank * share + min(rank, rest)
        return first, first + share + (rank < rest)

    def _gather_rows(self, own: Tensor, count: int) -> Tensor:
        """Gather all ranks' rows, sent as bytes, because not every backend supports every type."""
        sizes = [end - first for first, end in (self._bounds(count, rank) for rank in range(self.count))]
        if len(own) != sizes[self.rank]:
            raise UnusableConfigurationError(
                f"[training] processes = {self.count}: a network of the method gives a tensor {tuple(own.shape)} for "
                f"{sizes[self.rank]} samples, which ranks cannot join; set processes = 1"
            )
        rows = own.new_zeros((max(sizes), *own.shape[1:]))  # all ranks send equal shapes; shares may differ by a row
        rows[: len(own)] = own
        received = self._collectives.gather(rows.view(torch.uint8))
        return torch.cat([part.view(own.dtype)[:size] for part, size in zip(received, sizes, strict=True)])

    def _sum_gradient(self, gradient: Tensor) -> Tensor:
        """Sum all ranks' gradients of a joint tensor; return this rank's rows."""
        total = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True).contiguous()
        self._collectives.add_up(total)
        return total[slice(*self._bounds(len(total), self.rank))].to(gradient.dtype)


class Share:
    """This rank's rows of a network's inputs, with the means to join outputs."""

    def __init__(self, ranks: Ranks, inputs: tuple[Any, ...], rows: slice, count: int) -> None:
        self.inputs = inputs
        self._ranks, self._rows, self._count = ranks, rows, count
        self._joined: dict[int, tuple[Tensor, Tensor]] = {}

    def join(self, output: Any) -> Any:
        """Return the joint output. Fields of a named tuple are joined when read: most losses read few features."""
        if isinstance(output, Tensor):
            if id(output) not in self._joined:  # one feature may be in several fields
                self._joined[id(output)] = output, self._ranks.join(output, self._count)
            return self._joined[id(output)][1]
        if isinstance(output, tuple) and hasattr(output, "_fields"):
            return JointOutput(output, self.join)
        if isinstance(output, list | tuple):
            return type(output)(map(self.join, output))
        if isinstance(output, Mapping):
            return {key: self.join(value) for key, value in output.items()}
        return output


class JointOutput:
    """Joins each attribute of a named tuple when it is first read, in the same order at every rank.

    It has no items, which would be those of the share.
    """

    def __init__(self, output: Any, join: Callable[[Any], Any]) -> None:
        self._output, self._join = output, join

    def __getattr__(self, name: str) -> Any:
        if name not in self._output._fields:
            raise AttributeError(f"{type(self._output).__name__} has no field {name!r}")
        value = self._join(getattr(self._output, name))
        setattr(self, name, value)
        return value


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, count: int) -> Tensor:
        ctx.ranks = ranks
        return ranks._gather_rows(own, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks._sum_gradient(gradient), None, None


def lone_norm(network: nn.Module, device: torch.device) -> str | None:
    """Return a kind of layer that would keep statistics of this rank's samples alone, with the reason; None without
    one.
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm) and device.type != "cuda":
            return "batch normalisation, which several processes synchronise on GPUs alone"
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            return "instance normalisation with track_running_stats = True, which several processes cannot synchronise"
    return None


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and mappings."""
    tensors: list[Tensor] = []
    _map_tensors(value, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        items = [_map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    return value

r"""Clipped and noised gradients: what a step of a private stage reveals of its people.

.. math:: G = \sum_p \mathrm{clip}_C(g_p) + \mathcal N(0, \sigma^2 C^2 I), \qquad \text{gradient} = G / n_0

Each person's gradient :math:`g_p`, over all tensors of the step as one vector, is clipped to the norm C, rounded to a
grid of :math:`C / 2^{32}`, and added up as integers; the noise is an integer, too, so that no digit of a sum tells how
it came about. A normal number that is rounded before it is added to an integer is the rounded sum of both: what is
released is computed from a Gaussian mechanism's result alone. Rounding d coordinates can lengthen a person's vector by
:math:`\sqrt d / 2` units at most, which the noise takes into account.

Source: Abadi et al. 2016 (clipping by person, noise); Dong, Roth & Su 2022 (composition, in ``peer.core.privacy``).
Differs: every step has all people, and adds the noise to integers. Nothing is drawn at random but the noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from peer.core.commands import Train
from peer.core.privacy import Noise
from peer.methods.method import VISITOR, Stage
from peer.train.errors import UnusableConfigurationError
from peer.train.settings import TrainingSettings

UNITS = 2**32
"""Grid units in the clipping norm."""
INFO = b"mhfl noise 1"
KEY_BYTES = 32
NORMALS_AT_ONCE = 1 << 16
"""Normal numbers drawn at once: an even number, whose key stream stays in the processor's cache."""


class NormalStream:
    """Normal numbers N(0, 1), rounded after scaling, from the key stream of ChaCha20: equal keys, equal numbers.

    They are those of double precision, and end at 9.4 standard deviations, beyond which there is 1e-20.

    Source: Box & Muller 1958; RFC 8439, with an all-zero nonce and the counter from 0.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def draw(self, count: int, scale: float | NDArray[np.float64]) -> NDArray[np.int64]:
        """Return ``(count,)`` integers: the nearest to normal numbers of one, or ``(count,)``, standard deviations."""
        drawn = np.empty(count + count % 2, np.int64)
        scales = np.broadcast_to(np.append(scale, 0.0) if np.ndim(scale) and count % 2 else scale, len(drawn))
        for first in range(0, len(drawn), NORMALS_AT_ONCE):
            part = drawn[first : first + NORMALS_AT_ONCE]
            words = np.frombuffer(self._encryptor.update(bytes(part.nbytes)), "<u8").astype(np.float64)
            half = len(part) // 2
            radius = np.sqrt(-2 * np.log((words[:half] + 1) * 2.0**-64))
            scaled = scales[first : first + len(part)]
            angle = 2 * np.pi * 2.0**-64 * words[half:]
            part[:half] = np.rint(radius * scaled[:half] * np.cos(angle))
            part[half:] = np.rint(radius * scaled[half:] * np.sin(angle))
        return drawn[:count]


class PrivateSum:
    """The sum of clipped gradients of one step, on the grid.

    Args:
        noise: of the federation.
        parameters: those whose gradients one vector has.
    """

    def __init__(self, noise: Noise, parameters: Sequence[nn.Parameter]) -> None:
        self._noise, self._parameters = noise, parameters
        self._sums = [torch.zeros(each.shape, dtype=torch.int64, device=each.device) for each in parameters]
        self.people = self.clipped = self.releases = 0

    def add(self) -> None:
        """Add the gradient of one person, which the parameters have, and take it from them.

        One that is not finite counts as zero: an error would tell that somebody's is.
        """
        gradients = [each.grad for each in self._parameters]
        norm = math.sqrt(sum(float(each.double().square().sum()) for each in gradients if each is not None))
        self.people += 1
        self.clipped += norm > self._noise.clip
        factor = UNITS / max(norm, self._noise.clip)
        for total, parameter, gradient in zip(self._sums, self._parameters, gradients, strict=True):
            if gradient is not None and math.isfinite(norm):
                total += (gradient.double() * factor).round().to(torch.int64)
            parameter.grad = None

    def release(self, key: bytes, *purpose: object) -> None:
        """Set the parameters' gradients to the noised sum over the public number of people.

        The noise is a function of the key, the purpose, the noise's scale and the sum itself: a repeated step has the
        same noise, and no difference of two releases is without any.
        """
        shapes = [tuple(total.shape) for total in self._sums]
        digest = hashlib.sha256(repr((purpose, self._noise, shapes)).encode())  # another scale is another release
        for total in self._sums:
            digest.update(total.cpu().numpy().tobytes())
        stream = _stream(key, digest.digest())
        size = sum(total.numel() for total in self._sums)
        scale = self._noise.sigma * (UNITS + math.sqrt(size) / 2)
        unit = self._noise.clip / UNITS / self._noise.people
        for total, parameter in zip(self._sums, self._parameters, strict=True):
            drawn = torch.from_numpy(stream.draw(total.numel(), scale)).reshape(total.shape).to(total.device)
            parameter.grad = ((total + drawn).double() * unit).to(parameter.dtype)
        self.releases += 1


@dataclass(frozen=True)
class SumNoise:
    """The noise of sums over people, of one stage: see :class:`peer.methods.method.NoiseOnSums`.

    Attributes:
        noise: of the federation.
        key: of the federation and generation, from which the noise is drawn.
        purpose: the round and the stage.
        released: the sums to which noise was drawn, with it.
    """

    noise: Noise
    key: bytes = field(repr=False)
    purpose: str
    released: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def bound(self) -> float:
        """The norm by which one person changes the sums at most."""
        return self.noise.clip

    @property
    def multiplier(self) -> float:
        """The standard deviation of this site's noise, in units of the bound."""
        return self.noise.share

    def draw(self, sums: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
        """Return the noise of integer sums, in integers of these standard deviations."""
        if not all((scale > 0).all() for scale in scales):
            raise ValueError("noise of no scale hides nothing")
        digest = hashlib.sha256(repr((self.purpose, self.noise, self.noise.sharers)).encode())
        for each in (*sums, *scales):
            digest.update(repr(tuple(each.shape)).encode() + each.cpu().contiguous().numpy().tobytes())
        stream = _stream(self.key, digest.digest())
        drawn = [stream.draw(scale.numel(), scale.double().flatten().cpu().numpy()) for scale in scales]
        noise = [torch.from_numpy(each).reshape(total.shape) for each, total in zip(drawn, sums, strict=True)]
        self.released.extend(total.cpu() + each for total, each in zip(sums, noise, strict=True))
        return noise

    def has_drawn(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a sum with its noise, or counts this site as one."""
        if tensor.dtype == torch.int64 and tensor.ndim == 0 and int(tensor) == 1:
            return True
        return any(torch.equal(tensor.cpu(), each) for each in self.released)


@dataclass(frozen=True)
class StageNoise:
    """The noise of one stage.

    Attributes:
        noise: of the federation.
        networks: those that train with noise, by the plan's names.
        key: of the federation and generation, from which the noise is drawn.
        purpose: the round and the stage.
    """

    noise: Noise
    networks: frozenset[str]
    key: bytes = field(repr=False)
    purpose: str

    def covers(self, network: str) -> bool:
        """Return whether a network of the stage trains with noise."""
        return declared_name(network) in self.networks


def declared_name(network: str) -> str:
    """Return a plan's name of a stage's network: ``visitor-asia`` is a ``visitor``."""
    return VISITOR if network.startswith(f"{VISITOR}-") else network


def buffers_of(networks: Iterable[nn.Module]) -> list[tuple[str, Tensor, Tensor]]:
    """Return name, buffer and copy of what networks keep beside their parameters."""
    return [(name, buffer, buffer.clone()) for network in networks for name, buffer in network.named_buffers()]


def refuse_changed(buffers: Iterable[tuple[str, Tensor, Tensor]]) -> None:
    """Raise ``UnusableConfigurationError`` if people have changed a buffer, which would leave without noise."""
    for name, buffer, before in buffers:
        if not torch.equal(buffer, before):
            raise UnusableConfigurationError(
                f"its buffer {name} keeps figures of the samples, which would leave without noise; federation.toml has "
                '[privacy] mechanism = "noise": take a network without running statistics'
            )


def refuse_batch_norm(networks: Iterable[nn.Module]) -> None:
    """Raise ``UnusableConfigurationError`` if a network in training mode mixes the samples of a batch."""
    for network in networks:
        for name, module in network.named_modules():
            if isinstance(module, _BatchNorm) and module.training:
                raise UnusableConfigurationError(
                    f"its layer {name} is a batch norm, in which each person changes the gradients of all others; "
                    'federation.toml has [privacy] mechanism = "noise": set norm = "group" in [model.parameters], or '
                    "take a network without batch norm"
                )


def stage_noise(settings: TrainingSettings, command: Train, stage: Stage) -> StageNoise | None:
    """Return the noise of a stage whose result may leave the site, in a private federation.

    Raises:
        UnusableConfigurationError: the stage trains otherwise than its plan declares; the accountant counts what is
            declared, and the valve trusts it.
    """
    plan = settings.plan
    if settings.noise is None or plan.sensitivity or command.stage not in plan.noised_stages:
        return None
    purpose = f"{command.round}/{command.stage}"
    if command.circulate is not None:  # a model of another site, on the labels alone
        return StageNoise(settings.noise, frozenset({VISITOR}), _key(settings), purpose)
    for steps in stage.passes:
        if (problem := plan.training_problem(command.stage, (step.trains for step in steps))) is not None:
            raise UnusableConfigurationError(f"method {settings.method}: {problem}")
    return StageNoise(settings.noise, plan.noised, _key(settings), purpose)


def sum_noise(settings: TrainingSettings, command: Train) -> SumNoise | None:
    """Return the noise of a method that sends sums over people, in a private federation."""
    if settings.noise is None or not settings.plan.sensitivity:
        return None
    return SumNoise(settings.noise, _key(settings), f"{command.round}/{command.stage}")


def _key(settings: TrainingSettings) -> bytes:
    if not settings.noise_key:
        raise UnusableConfigurationError("the worker of a private federation has got no key for its noise")
    return settings.noise_key


def _stream(key: bytes, digest: bytes) -> NormalStream:
    return NormalStream(HKDF(SHA256(), KEY_BYTES, salt=None, info=INFO + digest).derive(key))

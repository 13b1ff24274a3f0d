"""The tables of site.toml."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from models.spec import LIST_MAX, RANK_MAX, SIZE_MAX
from peer.core import limits
from peer.core.metrics import MetricName
from peer.core.plan import Kind, Plan
from peer.site.config.toml import (
    Count,
    Listen,
    Loose,
    NotNegative,
    ProxyUrl,
    Relay,
    Seconds,
    Share,
    StrictTable,
    key_problem,
    matching,
    split_address,
)
from peer.site.config.value_types import Digest, ModelName, Name

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


class EgressConfig(StrictTable):
    """``[egress]`` of site.toml: which artifacts, figures and sizes may leave the site.

    ``evaluate`` lets other sites evaluate this site's model, and this site theirs. The site reports
    no figure of a test split with fewer than ``evaluation_samples_min`` samples. ``reexport`` lets
    other sites include the artifacts that they received from this site in the models that they
    export.
    """

    kinds: Annotated[tuple[Kind, ...], Loose] | None = None
    receivers: Annotated[tuple[str, ...], Loose] = ("*",)
    newcomers: Literal["ask", "accept"] = "ask"
    bytes_per_round_max: Count | None = None
    evaluate: bool = False
    evaluation_samples_min: Count = limits.EVALUATION_SAMPLES_MIN
    training_set_size: bool = False
    reexport: bool = False

    def permitted_kinds(self, plan: Plan) -> tuple[Kind, ...]:
        """The artifact kinds that may leave: those listed or, without a list, the method's own."""
        listed = plan.sends if self.kinds is None else self.kinds
        return tuple(kind for kind in listed if kind not in plan.never_leaves)

    def permits_receiver(self, name: str) -> bool:
        """Whether the site of this name may receive anything."""
        return "*" in self.receivers or name in self.receivers


class DiscoveryConfig(StrictTable):
    """``[discovery]`` of site.toml: whether the site announces its address on the local network and
    looks for peers.

    Discovery yields addresses only: certificates prove which site answers at one.
    """

    zeroconf: bool = False


class MetricsConfig(StrictTable):
    """``[metrics]`` of site.toml: the address at which Prometheus scrapes the daemon.

    Without one there is no endpoint.
    The endpoint has no password and no TLS: any address but a loopback one needs ``public``.
    """

    listen: Listen | None = None
    public: bool = False

    @model_validator(mode="after")
    def _public_where_reachable(self) -> Self:
        if self.listen is not None and not self.public and not is_loopback(split_address(self.listen)[0]):
            raise key_problem(
                "listen",
                f"{self.listen} can be reached by others, without a password; "
                "take 127.0.0.1, or say `public = true` if that is meant",
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; of names, only ``localhost`` counts as such."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AugmentationConfig(StrictTable):
    """``[data.augmentation]``: random changes of training samples; with all zero there are none.

    Without ``flip``, images flip with probability 0.5, and signals never.
    """

    flip: Share | None = None
    rotate_degrees: Annotated[float, Field(ge=0, le=180)] = 15.0
    translate_share: Share = 0.05
    scale_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    probability: Share = 0.8


Number = Annotated[float, Field(allow_inf_nan=False)]
Millimetres = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Intensity = tuple[Literal["window", "range", "percentiles"], Number, Number]


def _intensity(intensity: Intensity) -> Intensity:
    """A window has a width, the other kinds their lower number first."""
    kind, first, second = intensity
    if kind == "window" and second <= 0:
        raise ValueError(f'a window is its centre and its width, such as ["window", 40, 400], not {second:g}')
    if kind != "window" and first >= second:
        raise ValueError(f"runs from {first:g} to {second:g}; write the lower number first")
    if kind == "percentiles" and not (first >= 0 and second <= 100):
        raise ValueError('percentiles are from 0 to 100, such as ["percentiles", 0.5, 99.5]')
    return intensity


def check_orientation(text: str) -> str:
    """``stored``, or three directions such as ``RAS``, one along each axis of the body."""
    if text == "stored" or sorted(AXIS_OF.get(letter, "") for letter in text) == sorted({*AXIS_OF.values()}):
        return text
    raise ValueError('write three directions such as "RAS" (right, anterior, superior), or "stored"')


AXIS_OF = {"R": "x", "L": "x", "A": "y", "P": "y", "S": "z", "I": "z"}


class DataConfig(StrictTable):
    """``[data]``: the samples; paths are relative to site.toml's folder.

    Only super-resolution has ``scale``, only volumes an ``orientation``.
    """

    datalist: str = "datalist.json"
    root: str | None = None
    public: str | None = None
    input_size: Annotated[tuple[Count, ...], Loose, Field(min_length=1, max_length=3, examples=[[224, 224]])]
    regions: str | None = None
    unreadable_share_max: Share = 0.05
    cache: Literal["memory", "disk", "none"] = "memory"
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    normalise: Literal["none", "zscore", "unit"] = "none"
    orientation: Annotated[str, AfterValidator(check_orientation)] | None = None
    spacing: Annotated[tuple[Millimetres, ...], Loose, Field(min_length=1, max_length=3)] | None = None
    scale: Literal[2, 4, 8] | None = None
    intensity: Annotated[Intensity, Loose, AfterValidator(_intensity)] | None = None
    augmentation: AugmentationConfig = AugmentationConfig()


class AdaptersConfig(StrictTable):
    """``[model.adapters]``: low-rank adapters on layers; all but they and the head is frozen."""

    layers: Annotated[tuple[str, ...], Loose, Field(min_length=1, max_length=LIST_MAX)]
    rank: Annotated[int, Field(ge=1, le=RANK_MAX)] = 8
    alpha: Annotated[float, Field(gt=0, le=SIZE_MAX)] = 16.0


class ModelConfig(StrictTable):
    """``[model]``: the site's network, and the weights that it begins with.

    ``weights`` is a file of tensors or a MONAI bundle's folder, relative to site.toml's folder.
    ``freeze`` names layers that do not learn.
    """

    name: ModelName = "resnet10"
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    features: Annotated[tuple[str, ...], Loose] = ()
    head: str | None = None
    weights: str | None = None
    weights_sha256: Digest | None = None
    freeze: Annotated[tuple[str, ...], Loose, Field(max_length=LIST_MAX)] = ()
    adapters: AdaptersConfig | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.weights is not None and self.weights_sha256 is None:
            raise key_problem("weights_sha256", "weights needs it; `sha256sum FILE` prints it")
        if self.weights is None and self.weights_sha256 is not None:
            raise key_problem("weights_sha256", "there are no weights; name their file in `weights`")
        key = "adapters" if self.adapters is not None else "freeze"
        if self.weights is None and (self.freeze or self.adapters is not None):
            raise key_problem(key, "needs weights: layers that do not learn would stay random")
        if self.freeze and self.adapters is not None:
            raise key_problem("freeze", "adapters freeze all but the head; leave it out")
        return self


class TrainingConfig(StrictTable):
    """``[training]``: how the worker computes.

    With ``gpu = "turns"``, the workers of a machine compute one after the other, in the order of their
    tickets in ``gpu_folder``, which all of them name; left out: the folder ``.gpu`` of their home. Of
    several ``processes``, each trains a share of every batch, on a GPU of its own where there are any.
    """

    device: Annotated[str, matching(DEVICE, "auto, cpu, cuda or cuda:N")] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: Count = 1
    processes: Annotated[int, Field(ge=1, le=limits.PROCESSES_MAX)] = 1
    readers: Annotated[int, Field(ge=1, le=limits.READERS_MAX)] = 1
    batch_size: Count = 8
    channels_last: bool = False
    checkpoint_s: Seconds = limits.CHECKPOINT_S
    hang_s: Seconds = limits.HANG_S
    gpu: Literal["shared", "turns"] = "shared"
    gpu_folder: str | None = None
    probe_ratio_max: NotNegative = limits.PROBE_RATIO_MAX

    @model_validator(mode="after")
    def _can_be_divided(self) -> Self:
        if self.processes == 1:
            return self
        if ":" in self.device:
            raise key_problem(
                "processes",
                f'each process takes a GPU of its own, and device = "{self.device}" names one; take "cuda", and choose '
                "the GPUs with the environment variable CUDA_VISIBLE_DEVICES",
            )
        if self.gpu == "turns":
            raise key_problem("processes", 'gpu = "turns" queues for one GPU; take "shared", or processes = 1')
        least = limits.SHARE_MIN * self.processes
        if self.batch_size < least:
            raise key_problem(
                "processes",
                f"each needs {limits.SHARE_MIN} samples of a batch, and batch_size is {self.batch_size}; raise it to "
                f"{least}, or lower processes",
            )
        return self


class ReferenceConfig(StrictTable):
    """``[reference]`` of site.toml: what the site's network reaches when it trains alone, and with the data
    of all sites pooled, on the site's own test data.

    It changes nothing but what `overview`, `dashboard` and `status --html` show.
    """

    metric: MetricName
    alone: Number
    pooled: Number

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.pooled <= self.alone:
            raise key_problem("pooled", f"{self.pooled:g} is not above alone = {self.alone:g}: there is no room")
        return self


class LimitsConfig(StrictTable):
    """``[limits]`` of site.toml: what the site takes from others.

    ``received_ratio_max`` is in multiples of what is its own. ``connections_max`` is a number of
    connections, and follows the roster where it is left out.
    """

    received_ratio_max: NotNegative = limits.RECEIVED_RATIO_MAX
    connections_max: Annotated[int, Field(ge=1, le=limits.CONNECTIONS_CONFIGURED_MAX)] | None = None


class ConnectConfig(StrictTable):
    """``[connect]`` of site.toml: how this site dials its peers, and how they reach it.

    ``proxy`` is ``none``, ``environment`` or ``http://host:port``; ``peers`` has the same for single
    sites and relays. The file has ``user:password`` for all of them. At each of ``relays``,
    ``name host:port``, the site parks connections, through which others reach it. At ``relay_listen``
    this site is such a relay for the other sites, and can be reached itself.
    """

    proxy: ProxyUrl = "none"
    peers: dict[Name, ProxyUrl] = Field(default_factory=dict)
    password_file: str | None = None
    relays: Annotated[tuple[Relay, ...], Loose] = ()
    relay_listen: Listen | None = None

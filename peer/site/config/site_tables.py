"""The tables of site.toml."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from models.spec import LIST_MAX, RANK_MAX, SIZE_MAX
from peer.core import limits
from peer.core.artifacts import Artifact
from peer.core.kinds import Kind
from peer.core.leak import CHANCE, Leak
from peer.core.metrics import MetricName
from peer.core.plan import Plan
from peer.site.config.toml import (
    Bytes,
    Count,
    Listen,
    Loose,
    NotNegative,
    Positive,
    ProxyUrl,
    Relay,
    Seconds,
    Share,
    StrictTable,
    key_problem,
    matching,
    split_address,
)
from peer.site.config.value_types import Digest, Finite, ModelName, Name, Text

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


class EgressConfig(StrictTable):
    """``[egress]`` of site.toml: which artifacts, figures and sizes may leave the site."""

    kinds: Annotated[tuple[Kind, ...], Loose] | None = None
    """Artifact kinds: "model", "head", "proxy", "messenger", "return" (a model that visited this site, for its owner
    alone), "prototype", "prediction", "sums"; left out: those that the method sends."""
    receivers: Annotated[tuple[str, ...], Loose] = ("*",)
    """Site names, or "*" for the whole roster."""
    newcomers: Literal["ask", "accept"] = "ask"
    """Whether sites that joined after the genesis may receive, too: "ask" waits for `federation accept NAME`."""
    bytes_per_round_max: Bytes | None = None
    """A bound for one round in bytes, for all receivers together; left out: none. Each receiver's first copy comes
    before a second one for any."""
    evaluate: bool = False
    """Whether this site's model may be evaluated at other sites, and theirs here, where federation.toml has
    global_test."""
    evaluation_samples_min: Count = limits.EVALUATION_SAMPLES_MIN
    """Of a smaller test split no figure leaves, nor its size: the others read "withheld"."""
    count_min: Count = limits.COUNT_MIN
    """Of the method `statistics`: no count of fewer people leaves this site, nor one that would tell such a count; 1
    withholds nothing. Without effect in a federation with noise, which hides small counts, too."""
    training_set_size: bool = False
    """Whether the others may learn how many samples this site trains on."""
    reexport: bool = False
    """Whether the others may put what they receive from this site (dFLMoE: its head) into models that they export."""
    leak_auc_max: Annotated[float, Field(ge=CHANCE, lt=1)] | None = None
    """An artifact stays here if the interval of its measured leak is above this AUC, alone or with what the same
    receiver had before: the others see a named absence. With it, all rounds are measured. Left out: no bound."""
    leak_unknown: Literal["send", "refuse"] = "send"
    """What becomes of an artifact where so few people cannot tell whether its leak is above leak_auc_max, or where it
    cannot be measured: "send" or "refuse"."""

    def permitted_kinds(self, plan: Plan) -> tuple[Kind, ...]:
        """Return the artifact kinds that may leave: those listed or, without a list, the method's own."""
        listed = plan.sends if self.kinds is None else self.kinds
        return tuple(kind for kind in listed if kind not in plan.never_leaves)

    def keeps(self, artifact: Artifact) -> bool:
        """Return whether an artifact of this site stays here for its leak; an untrained one knows nobody."""
        return artifact.steps > 0 and self.refuses(artifact.leak)

    def refuses(self, leak: Leak | None) -> bool:
        """Return whether a trained artifact with this measured leak stays here; ``None``: it was not measured."""
        if self.leak_auc_max is None:
            return False
        answer = "unknown" if leak is None else leak.answer(self.leak_auc_max)
        return answer == "above" or (answer == "unknown" and self.leak_unknown == "refuse")

    def permits_receiver(self, name: str) -> bool:
        """Return whether the site of this name may receive anything."""
        return "*" in self.receivers or name in self.receivers


class PrivacyConfig(StrictTable):
    """``[privacy]`` of site.toml: what this site measures before something leaves."""

    epsilon_max: Annotated[float, Field(gt=0)] | None = None
    """In a federation with noise: what this site's people may lose in all federations of this machine together, at the
    federation's delta; less than the federation's epsilon is possible. Once it is spent, the site receives, trains and
    sends nothing. Left out: the federation's epsilon."""
    population: str = ""
    """In a federation with noise: a name for the people of this site, where another site of this machine has other
    people under the same subjects. Left out: equal subjects of this machine's sites are one person."""
    leak: Literal["off", "last", "every"] = "last"
    """When the worker attacks the artifacts that it is about to send, with this site's own people: "off", "last" (the
    last artifacts of the federation, with up to 10,000 samples) or "every" (before that with as many people as take a
    tenth of a round's computation). The figures are in the ledger; the ten people with the highest scores stay here, in
    checkpoints/leak.json."""


class DiscoveryConfig(StrictTable):
    """``[discovery]`` of site.toml: how sites find each other on the local network."""

    zeroconf: bool = False
    """Tell this site's name and address on the local network (zeroconf), and listen for the others'; who they are,
    their certificates settle. Left out: false."""


class MetricsConfig(StrictTable):
    """``[metrics]`` of site.toml: the address at which Prometheus scrapes the daemon."""

    listen: Listen | None = None
    """Where Prometheus may ask: http://127.0.0.1:9464/metrics; left out: nowhere."""
    public: bool = False
    """Whether that may be an address which others can reach: there is neither password nor TLS."""

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
    """Return whether only this machine can reach the host; of names, only ``localhost`` counts as such."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AugmentationConfig(StrictTable):
    """``[data.augmentation]``: random changes of training samples."""

    flip: Share | None = None
    """Probability that an axis is flipped; left out: 0.5, and 0 in one dimension, where it would reverse time."""
    rotate_degrees: Annotated[float, Field(ge=0, le=180)] = 15.0
    """Largest rotation."""
    translate_share: Share = 0.05
    """Largest shift, as a share of the size."""
    scale_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Largest change of scale, as a share."""
    probability: Share = 0.8
    """Probability that a sample is rotated, shifted and scaled at all."""


Millimetres = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Intensity = tuple[Literal["window", "range", "percentiles"], Finite, Finite]


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
    """``[data]``: the samples; paths are relative to site.toml's folder."""

    datalist: str = "datalist.json"
    """The datalist in MONAI's form; paths are relative to this file."""
    root: str | None = None
    """What the paths in the datalist are relative to; left out: the datalist's folder."""
    public: str | None = None
    """FedMD, FedDF, pFedDF, DS-pFL, KT-pFL: the datalist of the public set, on whose training images the sites learn
    from each other's predictions; the digest of their files is [method] public_sha256 in federation.toml. It needs no
    labels."""
    input_size: Annotated[tuple[Count, ...], Loose, Field(max_length=3, examples=[[224, 224]])] = ()
    """The size to which each sample is brought: one number a spatial dimension, in the order that `data inspect` shows;
    in super-resolution the small image's. The rows of a table have none."""
    columns: dict[Text, str] = Field(default_factory=dict)
    """Of a table: this site's name of a column, by its name in the federation; "" where the site has no such column,
    and all its values are missing."""
    regions: str | None = None
    """Region masks for FedSKD: a NIfTI label map, or .npz with `masks` (r, *space)."""
    unreadable_share_max: Share = 0.05
    """The share of unreadable files from which training refuses to start."""
    cache: Literal["memory", "disk", "none"] = "memory"
    """Where prepared samples are kept: "memory", "disk" or "none"."""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the training samples set aside for validation."""
    normalise: Literal["none", "zscore", "unit"] = "none"
    """What becomes of an image's values: "none", "zscore" (mean 0, deviation 1) or "unit" (from 0 to 1). Left out:
    "none"."""
    orientation: Annotated[str, AfterValidator(check_orientation)] | None = None
    """The directions to which volumes are turned: "RAS" (to the right, to the front, upwards), another three, or
    "stored", which leaves them as their files have them. Left out: as stored, where all run alike. All sites should
    have the same."""
    spacing: Annotated[tuple[Millimetres, ...], Loose, Field(min_length=1, max_length=3)] | None = None
    """The distance between voxels in mm, along the axes of input_size: images are resampled to it, then cut or padded
    about their centre to input_size. Left out: the whole image is brought to input_size."""
    scale: Literal[2, 4, 8] | None = None
    """Super-resolution alone: how many times larger the target is than the image, 2, 4 or 8."""
    intensity: Annotated[Intensity, Loose, AfterValidator(_intensity)] | None = None
    """The values that become 0 and 1, before `normalise`; those beyond are clipped: ["window", centre, width] as CT has
    them in Hounsfield units, ["range", from, to], or ["percentiles", from, to] of each channel of each image."""
    nan: Literal["background"] | None = None
    """What becomes of a NaN, which some programs write where nothing was measured: "background" is the lowest other
    value of its channel. Left out: an image with a NaN is refused, since it may be damaged."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Random changes of training samples and of label maps with them; all zero: none. Super-resolution is only
    flipped."""


class AdaptersConfig(StrictTable):
    """``[model.adapters]``: low-rank adapters on layers."""

    layers: Annotated[tuple[str, ...], Loose, Field(min_length=1, max_length=LIST_MAX)]
    """The layers to adapt; each linear or convolution layer in them gets an adapter."""
    rank: Annotated[int, Field(ge=1, le=RANK_MAX)] = 8
    """The rank of the learned matrices."""
    alpha: Annotated[float, Field(gt=0, le=SIZE_MAX)] = 16.0
    """Their factor is alpha / rank."""


class ModelConfig(StrictTable):
    """``[model]``: the site's network, and the weights that it begins with, relative to site.toml's folder."""

    name: ModelName = "resnet10"
    """A name in models.MODELS, monai.networks.nets.<Name>, or package.module:Class of a package installed here."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the network."""
    features: Annotated[tuple[str, ...], Loose] = ()
    """Layers whose output is compared, for networks that are not in models.MODELS."""
    head: str | None = None
    """The layer that gives the prediction, for networks that are not in models.MODELS."""
    weights: str | None = None
    """Pretrained weights: a .safetensors file, a .pt file of which only tensors are read, or the folder of a MONAI
    bundle; what fits the network is loaded, and `check` says what does not."""
    weights_sha256: Digest | None = None
    """The file's SHA-256, as `sha256sum` prints it; another file is refused. Needed with weights."""
    freeze: Annotated[tuple[str, ...], Loose, Field(max_length=LIST_MAX)] = ()
    """Layers that do not learn, with all that is in them. They come from the file of weights, and are not sent: the
    other sites need the same file, in their own weights or in [base_weights]."""
    adapters: AdaptersConfig | None = None
    """Low-rank adapters on frozen layers of pretrained weights; all but them and the head is frozen."""

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
    """``[training]``: how the worker computes."""

    device: Annotated[str, matching(DEVICE, "auto, cpu, cuda or cuda:N")] = "auto"
    """ "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N"."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """ "fp32", or "bf16" (GPU)."""
    threads: Count = 1
    """CPU threads of the worker; the same number is part of the same bits."""
    processes: Annotated[int, Field(ge=1, le=limits.PROCESSES_MAX)] = 1
    """Processes that train each batch together, each on a share of it and on a GPU of its own; without a GPU, networks
    must be free of batch normalisation. It changes the last bits of results."""
    readers: Annotated[int, Field(ge=1, le=limits.READERS_MAX)] = 1
    """Threads that read the samples of the next steps where [data] cache is not "memory"; the log says when training
    waits."""
    batch_size: Count = 8
    """Samples in a batch."""
    channels_last: bool = False
    """Let images lie in memory with the channels of a pixel side by side: a step of a U-Net on pictures takes a sixth
    less time on a CPU, that of a ResNet the same. It changes the last bits of results."""
    class_weights: Literal["balanced"] | Annotated[tuple[Positive, ...], Loose] | None = None
    """What each class weighs in the cross-entropy with own labels: "balanced" is one over the class's number of
    training samples here (in segmentation: of places), so scaled that the mean is 1; or a number for each class, in
    the order of [task] class_names. Of several labels: what a present one weighs; "balanced" is the number of absent
    ones over that of present ones here. Left out: all weigh 1."""
    class_sampling: Literal["balanced"] | None = None
    """ "balanced": the classes that occur here take turns, so that a small one repeats in a pass, and a large one is a
    part of it. Every batch has each of them if `batch_size` is a multiple of their number, or at least twice it. Models
    that train here then tell less of the classes' shares. Left out: a pass has each sample once."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of a label's weight in the cross-entropy that is spread evenly over all classes; of several labels over
    yes and no."""
    clip_norm: Positive | None = None
    """The largest L2 norm of the gradient of a step, over all tensors that the step trains together; a longer one is
    scaled down to it. Left out: gradients stay as they are."""
    checkpoint_s: Seconds = limits.CHECKPOINT_S
    """Seconds between checkpoints within a round."""
    hang_s: Seconds = limits.HANG_S
    """Seconds without a sign of progress after which the daemon starts the worker again."""
    gpu: Literal["shared", "turns"] = "shared"
    """ "shared", or "turns": where several federations train on one GPU, their workers compute one after the other, a
    stage each, and free its memory in between. All of their sites must say so."""
    gpu_folder: str | None = None
    """The folder of the tickets, the same for all of them; left out: .gpu in the home of this site, which sites in one
    home share."""
    probe_ratio_max: NotNegative = limits.PROBE_RATIO_MAX
    """Models, heads and pairs of proxies that arrive are tried on 32 own samples first, and so are means of secure
    sums. A model is refused whose loss is so many times that of a prediction that knows nothing; raise it where
    `rounds` names sites that only have other classes than this one. 0: refuse none of them."""

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
    """``[reference]`` of site.toml: what the site's network reaches alone, and with the data of all sites."""

    metric: MetricName
    """A metric of the task: auc, accuracy, f1_macro; dice, pixel_accuracy; psnr, ssim."""
    alone: Finite
    """Its value by the method "local"."""
    pooled: Finite
    """Its value with the data of all sites pooled."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.pooled <= self.alone:
            raise key_problem("pooled", f"{self.pooled:g} is not above alone = {self.alone:g}: there is no room")
        return self


class LimitsConfig(StrictTable):
    """``[limits]`` of site.toml: what the site takes from others."""

    received_ratio_max: NotNegative = limits.RECEIVED_RATIO_MAX
    """So many times the bytes of the own artifact and the operations of the own network; 256 MiB and 100 G operations
    are always taken; 0: no bound but that of the protocol, 8 GiB."""
    connections_max: Annotated[int, Field(ge=1, le=limits.CONNECTIONS_CONFIGURED_MAX)] | None = None
    """Connections at a time, of peers and strangers; a connection takes some 50 KB and an open file. Left out: 512, and
    from 65 sites on 8 for each site of the roster. At least 4 for each other site."""


class ConnectConfig(StrictTable):
    """``[connect]`` of site.toml: how this site dials its peers, and how they reach it."""

    proxy: ProxyUrl = "none"
    """The HTTP proxy (CONNECT) through which it does: "none", "http://host:port", or "environment", which takes
    https_proxy and no_proxy as the daemon finds them at its start. TLS stays between the sites."""
    peers: dict[Name, ProxyUrl] = Field(default_factory=dict)
    """The proxy for single sites and relays."""
    password_file: str | None = None
    """A file with user:password for the proxy, which only the daemon's user may read."""
    relays: Annotated[tuple[Relay, ...], Loose] = ()
    """Relays, each by name and address, through which others reach this site where they cannot dial it."""
    relay_listen: Listen | None = None
    """Be a relay for the other sites at this address, beside `listen`; this site can be dialled there, too."""

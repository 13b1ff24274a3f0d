"""The commented site.toml that ``site init`` writes; ``deploy/examples/site.toml`` is the same text, as a test says."""

from __future__ import annotations

from peer.config.schema import loopback
from peer.config.toml import split_address

LISTEN = "127.0.0.1:7443"
SIZES = {1: "[1024]", 2: "[224, 224]", 3: "[32, 32, 32]"}
"""An input size for each number of spatial dimensions, to be changed by whoever knows the data."""

SITE_TOML = """\
# One site's private configuration: <home>/<federation>/<site>/site.toml. Nobody else sees it.
# A key in a line that starts with `#` and no space shows the default, or an example where it says so.

# Where the daemon listens for the other sites; port 0 takes any free one, which only discovery can tell them.
listen = "127.0.0.1:7443"
# SHA-256 of certificates that are refused whatever their dates, as `federation admit --replace` prints them. A running
# daemon follows this list and [addresses], and reads nothing else of this file.
#refuse_certificates = []
# Network classes beyond the registry that other sites may name, each "package.module:Class", installed here.
#allow_models = []

# Other sites' addresses where the roster's do not hold from here; read again while the daemon runs (an example).
#[addresses]
#asia = "10.0.0.7:7443"

[data]
# The datalist in MONAI's form; paths are relative to this file.
datalist = "datalist.json"
# What the paths in the datalist are relative to; left out: the datalist's folder (an example).
#root = "/data/abide"
# The size to which each sample is brought: one number a spatial dimension; in super-resolution the small image's.
input_size = [32, 32, 32]
# Region masks for FedSKD: a NIfTI label map, or .npz with `masks` (r, *space) (an example).
#regions = "aal116.nii.gz"
# The share of unreadable files from which training refuses to start.
#unreadable_share_max = 0.05
# Where prepared samples are kept: "memory", "disk" or "none".
#cache = "memory"
# The share of the training samples set aside for validation.
#validation_share = 0.0
# What becomes of an image's values: "none", "zscore" (mean 0, deviation 1) or "unit" (from 0 to 1).
#normalise = "none"
# Super-resolution alone: how many times larger the target is than the image, 2, 4 or 8 (an example).
#scale = 4

# Random changes of training samples and of label maps with them; all zero: none. Super-resolution is only flipped.
[data.augmentation]
# Probability that an axis is flipped; left out: 0.5, and 0 in one dimension, where it would reverse time (an example).
#flip = 0.5
# Largest rotation.
#rotate_degrees = 15.0
# Largest shift, as a share of the size.
#translate_share = 0.05
# Largest change of scale, as a share.
#scale_share = 0.1
# Probability that a sample is rotated, shifted and scaled at all.
#probability = 0.8

[model]
# A name in models.MODELS, monai.networks.nets.<Name>, or package.module:Class of a package installed here.
name = "resnet10"
# Layers whose output is compared, for networks that are not in models.MODELS (an example).
#features = ["layer1", "layer2", "layer3", "layer4"]
# The layer that gives the prediction, for networks that are not in models.MODELS (an example).
#head = "fc"

# Keyword arguments of the network (an example).
[model.parameters]
#width = 16

[training]
# "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
#device = "auto"
# "fp32", or "bf16" (GPU).
#precision = "fp32"
# CPU threads of the worker; the same number is part of the same bits.
#threads = 1
# Samples in a batch.
#batch_size = 8
# Seconds between checkpoints within a round.
#checkpoint_s = 300.0

# What may leave this site. Every byte that does is a row of `mhfl-peer egress`.
[egress]
# Artifact kinds: "model", "head", "proxy", "messenger"; left out: the one that the method sends.
#kinds = ["model"]
# Site names, or "*" for the whole roster.
#receivers = ["*"]
# A bound for one round in bytes; left out: none.
#bytes_per_round_max = 1000000000
# Whether this site's model may be evaluated at other sites, and theirs here, where federation.toml has global_test.
#evaluate = false
# Of a smaller test split no figure leaves, nor its size: the others read "withheld".
#evaluation_samples_min = 10
# Whether the others may learn how many samples this site trains on.
#training_set_size = false
# Whether the others may put what they receive from this site (dFLMoE: its head) into models that they export.
#reexport = false

# How sites find each other.
[discovery]
# Tell this site's name and address on the local network (zeroconf), and listen for the others'; who they are, their
# certificates settle. Left out: false.
zeroconf = true

# What a monitoring system may see.
[metrics]
# Where Prometheus may ask: http://127.0.0.1:9464/metrics; left out: nowhere.
listen = "127.0.0.1:9464"
# Whether that may be an address which others can reach: there is neither password nor TLS.
#public = false
"""


def site_toml(spatial_dims: int, address: str | None = None) -> str:
    """The template for a task of so many spatial dimensions, and for the address that the roster gives the site.

    Where others are to reach it, it listens on every interface, at that port: who gets in, certificates settle.
    """
    text = SITE_TOML.replace(f"input_size = {SIZES[3]}", f"input_size = {SIZES[spatial_dims]}")
    if address is None:
        return text
    host, port = split_address(address)
    everywhere = "[::]" if ":" in host else "0.0.0.0"
    listen = f"{'[::1]' if ':' in host else '127.0.0.1'}:{port}" if loopback(host) else f"{everywhere}:{port}"
    return text.replace(f'listen = "{LISTEN}"', f'listen = "{listen}"')

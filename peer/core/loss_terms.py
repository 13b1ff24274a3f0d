"""The words for the terms of a training loss; to add a term, add its words here and a row in deploy/glossary.md."""

from __future__ import annotations

import re
from collections.abc import Mapping

from peer.core.metrics import metric_title

NETWORKS: Mapping[str, str] = {
    "dam": "the local model",
    "ktm": "the received model",
    "visitor": "the visiting model",
    "proxy": "the proxy",
    "messenger": "the messenger",
    "mixture": "the mixture",
    "mixed": "the mixture",
    "global": "the global model",
    "twin": "the twin",
    "calibration": "the calibrated prediction",
    "personal": "the personal model",
}
"""The network that learns, after the last underscore of a supervised term."""
SUPERVISED: Mapping[str, str] = {
    "ce": "cross-entropy",
    "dice_ce": "Dice and cross-entropy",
    "dice": "Dice loss",
    "l1": "mean absolute difference",
    "bce": "cross-entropy of the labels",
    "mse": "squared error",
    "hazard": "log-likelihood loss of survival",
}
"""The losses on a site's own labels, before the underscore."""
TERMS: Mapping[str, str] = {
    "total": "training loss",
    "batch": "batch-wise similarity",
    "position": "pixel-wise similarity",
    "region": "region-wise similarity",
    "distillation_ratio": "distillation over the loss on labels",
    "kl_from_visitor": "distance to the visiting model's probabilities",
    "kl_from_dam": "distance to the local model's probabilities",
    "l1_from_visitor": "distance to the visiting model's images",
    "l1_from_dam": "distance to the local model's images",
    "mse_from_visitor": "distance to the visiting model's numbers",
    "mse_from_dam": "distance to the local model's numbers",
    "kl_dam": "distance to the proxy's probabilities",
    "kl_proxy": "distance of the proxy to the local model's probabilities",
    "forward_kl": "distance of the proxy to the local model",
    "forward_kl_private": "distance of the local model to the proxy",
    "feeding": "distance to the proxy's likeliest classes",
    "consensus": "consensus of local model and proxy",
    "distillation": "distance of the messenger to the local model",
    "alignment": "fit of received heads to own features",
    "prototype_distance": "distance to the prototypes",
    "prototype_contrast": "contrast of the trained prototypes",
    "prototype_spread": "spread of the prototypes",
    "proximal": "distance to the average of all sites",
    "contrast": "contrast to the other sites",
    "alpha": "share of the local model in the mixture",
    "origin": "cross-entropy of the site of origin",
    "digest": "distance to the public predictions",
    "public_spread": "spread of the public predictions",
}
"""All other terms."""
PAIR = re.compile(r"(?:kl|l1|mse)_(.+)_from_(.+)")
"""A term between two of several networks: the first learns from the second."""


def loss_title(term: str) -> str:
    """Return a loss term's name in words, also of a term without a record, such as a plug-in's."""
    if term in TERMS:
        return TERMS[term]
    if (pair := PAIR.fullmatch(term)) is not None:
        return f"distance of {_network(pair[1])} to {_network(pair[2])}"
    loss, _, network = term.rpartition("_")
    if loss in SUPERVISED:
        return f"{SUPERVISED[loss]} of {_network(network)}"
    return SUPERVISED.get(term) or metric_title(term)


def _network(name: str) -> str:
    """Return the words for a network; ``visitor-europe`` is the visiting model of that site."""
    visitor, _, origin = name.partition("-")
    return f"{origin}'s model" if visitor == "visitor" and origin else NETWORKS.get(name, name)

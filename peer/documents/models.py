"""The documents that `mhfl-peer models --json` prints; see ``peer.documents``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict


class ModelDescription(TypedDict):
    """A network.

    It has the keys from `problem` on with `--task`, with null values if there is a problem.
    """

    name: Annotated[str, "its name"]
    family: Annotated[str, "the task that it is for"]
    spatial_dims: Annotated[list[int], "dimensions in which it exists"]
    hyper: Annotated[Mapping[str, Any], "hyper-parameters"]
    differs: Annotated[str, "why its number of parameters is not the one that a paper prints; empty where it is"]
    problem: Annotated[NotRequired[str | None], "why it does not fit the task"]
    parameters: Annotated[NotRequired[int | None], "number of parameters"]
    state_values: Annotated[NotRequired[int | None], "number of values in parameters and buffers"]
    multiply_accumulates: Annotated[
        NotRequired[int | None], "for one sample; null without an input size, as all shapes are"
    ]
    prediction: Annotated[NotRequired[list[int] | None], "its shape"]
    taps: Annotated[NotRequired[list[list[int]] | None], "shapes of the compared features"]
    bottleneck: Annotated[NotRequired[list[int] | None], "its shape"]
    penultimate: Annotated[NotRequired[list[int] | None], "its shape"]
    bytes: Annotated[NotRequired[dict[str, int] | None], "of the tensors of an artifact, by kind"]


class ModelList(TypedDict):
    """The networks, and the task for which their sizes are given."""

    task: Annotated[Mapping[str, Any] | None, "kind and sizes of the task; null without `--task`"]
    input_size: Annotated[list[int] | None, "of one sample"]
    models: Annotated[list[ModelDescription], "the networks"]


class LayerDescription(TypedDict):
    """A layer of a network, as it ran once."""

    name: Annotated[str, "its name"]
    type: Annotated[str, "its class"]
    parameters: Annotated[int, "number of parameters, those of its parts included"]
    runs: Annotated[int, "times that it ran in one forward pass"]
    shape: Annotated[list[int], "of its output for one sample; empty where that is not one tensor"]
    tap: Annotated[bool, "whether `features` may name it"]


class ModelLayers(TypedDict):
    """The layers of a network, and the names proposed for `[model]`."""

    name: Annotated[str, "the network's name"]
    hyper: Annotated[Mapping[str, Any], "its hyper-parameters, as given"]
    input_size: Annotated[list[int], "of one sample"]
    own_taps: Annotated[bool, "whether it needs neither `features` nor `head`"]
    features: Annotated[list[str], "layers to compare, shallow to deep"]
    head: Annotated[str | None, "the layer that gives the prediction"]
    problem: Annotated[str | None, "why nothing can be proposed"]
    weights: Annotated[str | None, "the folder of the MONAI bundle whose network it is, where that has weights"]
    weights_sha256: Annotated[str | None, "the digest of its file of weights"]
    layers: Annotated[list[LayerDescription], "in the order of construction"]

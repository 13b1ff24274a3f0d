"""LC-Fed: sites average body and selection of channels, keep all heads, and calibrate their own."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter, Work
from peer.methods.averaging.plan import FEDAVG
from peer.methods.parameters import DICE

LC_FED = replace(
    FEDAVG,
    implementation="peer.methods.lc_fed.stages:LC_FED",
    state="the one model of all, whose head the others keep and do not average; and the selection of channels",
    published="body",
    phases=("train:head", "train:body", "exchange", "aggregate", "train:calibrate"),
    stages={"head": Work("step", 10, 1e-3), "body": Work("epoch", 1, 1e-3), "calibrate": Work("epoch", 1, 1e-3)},
    parameters={
        "contrast": Parameter(1.0, "weight of the contrast between the sites' selections of channels", 0.0),
        "window": Parameter(31, "pixels on a side of the window of disagreement and blur, odd", 3, 255),
        **DICE,
    },
    not_for=("classification", "time_series", "tabular", "super_resolution"),
    fixed_sites=True,
    uses_each=True,
    stays="each site's calibration of the head stays there",
    source="LC-Fed, ECCV 2022, without its server",
    travels=("dam", "head", "selection"),
    learning={
        "head": (Learning(("head",), reads=("dam", "selection")),),
        "body": (Learning(("dam", "selection"), reads=("head",)),),
        "calibrate": (Learning(("calibration",), reads=("dam", "head", "selection")),),
    },
)

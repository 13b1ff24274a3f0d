"""FedTGP: sites with any networks exchange only the mean feature of each class, and train prototypes of all on them."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Parameter, Work
from peer.methods.fedproto.plan import FEDPROTO

FEDTGP = replace(
    FEDPROTO,
    implementation="peer.methods.fedtgp.stages:FEDTGP",
    state="the mean feature of each class, and of how many samples it is",
    phases=("train", "train:prototypes", "exchange", "train:refine"),
    stages={**FEDPROTO.stages, "refine": Work("step", 100, 1e-2)},
    parameters={
        **{name: parameter for name, parameter in FEDPROTO.parameters.items() if name != "predict"},
        "lambda": Parameter(1.0, "weight of the distance to the trained prototypes", 0.0),
        "margin_max": Parameter(100.0, "largest margin between the prototypes of two classes", 0.0),
    },
    source="FedTGP, AAAI 2024, without its server",
)

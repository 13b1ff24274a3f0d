"""FedSM: sites average one model and a selector, exchange personal models, and select one to predict with."""

from __future__ import annotations

from dataclasses import replace

from peer.core.plan import Learning, Parameter
from peer.methods.averaging.plan import FEDAVG
from peer.methods.parameters import DICE_CE

FEDSM = replace(
    FEDAVG,
    implementation="peer.methods.fedsm.stages:FEDSM",
    state="the one model of all; the site's personal model, of the same network; and the selector of models",
    parameters={
        "lambda": Parameter(0.8, "share of a site's own personal model when it is pulled to the others'", 0.0, 1.0),
        "gamma": Parameter(0.9, "probability of a site above which its personal model predicts", 0.0, 1.0),
        "selector_width": Parameter(8, "channels of the selector's first stage", 1, 512),
        **DICE_CE,
    },
    fixed_sites=True,
    uses_each=True,
    stays="a site predicts with all sites' models, of which a selector chooses one for each image",
    source="FedSM, CVPR 2022, without its server",
    travels=("dam", "personal", "selector"),
    learning={"train": (Learning(("dam", "personal", "selector")),)},
)

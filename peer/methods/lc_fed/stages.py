r"""LC-Fed: in each round a site trains its own head, then the shared body with the selection of channels,
and, after the exchange, a calibration of the head, with which it predicts.

.. math:: L_{head} = \ell(M(x), y), \qquad
          L_{body} = \ell(M(x), y) - \frac{\gamma}{N-1} \sum_{j \ne i} \mathrm{mean}\,(h_i - h_j)^2,
          \qquad L_{cal} = \ell(\hat y, y)

M(x) is the network whose bottleneck z becomes :math:`(1 + h_i) z`; :math:`h_j` is the selection of
channels for site j, and :math:`\hat y` the calibrated prediction (:mod:`models.calibration`).

Source: Wang et al., ECCV 2022 (LC-Fed, arXiv 2207.04655), of which we read the abstract, and the
authors' code, `jcwang123/FedLC`; its ``head_iter`` is the count of the stage ``head``.
Differs: there is no server: every site averages body and selection, by default with equal weights.
The authors' code holds all heads in one process; here a site's head travels with the averaged
tensors, and the others keep the newest. Their first release calibrates after each step of the others, a
later one once the federated training is over; both on the heads of the round's beginning. Here each
round ends with it, on the average and the heads with which the site then predicts. Any network
whose bottleneck is the output of one layer can take part; theirs is a U-Net. In the contrast, z and
:math:`h_j` are constants and the weight is 1, as in their first release, whose z has already been
selected for site i; in a later one gradients reach the encoder, the weight is 0 by default, and the
sum is divided by the number of stages once for each site. The later code has its selections in a
plain list, so that neither optimiser nor average knows them; here both do. Dice is that of each
image's foreground, after a softmax; theirs takes a sigmoid and the whole batch. In each round,
head, body and selection begin with a fresh Adam.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from models import Network, Output, head_width
from models.calibration import ChannelSelection, HeadCalibration, disagreement_peaks
from peer.methods.method import (
    DAM,
    HEAD,
    Batch,
    BuildContext,
    Forward,
    KeptPart,
    Method,
    Stage,
    StageContext,
    Term,
    one_step_stage,
)
from peer.methods.received_states import ReceivedStates
from peer.methods.supervised import stage_loss

SELECTION, HEADS, CALIBRATION, SELECTED = "selection", "heads", "calibration", "selected"
"""Names of networks: selection of channels; other sites' heads; calibration; local model with selected channels."""


class Selected(NamedTuple):
    """The local model's output with selected channels, and its bottleneck before the selection."""

    output: Output
    bottleneck: Tensor


class SelectedModel(nn.Module):
    """The local model with the channels of its bottleneck selected for a site.

    No submodule is registered: the stage holds both parts as separate networks.
    """

    def __init__(self, dam: Network, selection: ChannelSelection, site: int) -> None:
        super().__init__()
        self._parts = (dam, selection, site)

    def forward(self, x: Tensor) -> Selected:
        dam, selection, site = self._parts
        thread, before = threading.get_ident(), list[Tensor]()

        def select(layer: nn.Module, inputs: Any, feature: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None
            before.append(feature)
            weights: Tensor = selection(feature, site)
            return feature * (1 + weights.reshape(*weights.shape, *(1 for _ in feature.shape[2:])))

        hook = dam.get_submodule(dam.bottleneck_layer).register_forward_hook(select)
        try:
            output: Output = dam(x)
        finally:
            hook.remove()
        (feature,) = before
        return Selected(output, feature)


def head(context: StageContext) -> Stage:
    """Train the head on the labels; body and selection are frozen."""
    loss = stage_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(SELECTED, batch.images).output.prediction
        return {f"{loss.name}_{DAM}": Term(loss.loss(prediction.float(), batch.targets))}

    return one_step_stage(_networks(context), (HEAD,), losses)


def body(context: StageContext) -> Stage:
    """Train the body and the selection on the labels and the contrast; the head is frozen."""
    loss, weight = stage_loss(context), float(context.parameters["contrast"])
    own, others = _site_indices(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        selected: Selected = forward(SELECTED, batch.images)
        terms = {f"{loss.name}_{DAM}": Term(loss.loss(selected.output.prediction.float(), batch.targets))}
        if others:
            feature = selected.bottleneck.detach()
            selection = forward(SELECTION, feature, own).float()
            with torch.no_grad():
                elsewhere = [forward(SELECTION, feature, other).float() for other in others]
            gaps = torch.stack([(selection - other).square().mean() for other in elsewhere])
            terms["contrast"] = Term(-gaps.mean(), weight)
        return terms

    return one_step_stage(_networks(context), (DAM, SELECTION), losses)


def calibrate(context: StageContext) -> Stage:
    """Train the calibration on the labels; all else is frozen."""
    loss = stage_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            output = forward(SELECTED, batch.images).output
        calibrated = forward(CALIBRATION, *_maps(context, output))
        return {f"{loss.name}_{CALIBRATION}": Term(loss.loss(calibrated.float(), batch.targets))}

    networks = {name: context.networks[name] for name in (HEADS, CALIBRATION)}
    return one_step_stage(_networks(context) | networks, (CALIBRATION,), losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return the calibrated prediction."""
    calibrated: Tensor = context.networks[CALIBRATION](*_maps(context, _select(context)(images).output))
    return calibrated


def _maps(context: StageContext, output: Output) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the calibration's inputs: the feature, the peaks of heads' disagreement, the own head's prediction."""
    heads: ReceivedStates = context.networks[HEADS]
    calibration: HeadCalibration = context.networks[CALIBRATION]
    feature = output.penultimate.to(next(calibration.parameters()).dtype)  # autocast may have narrowed it
    with torch.autocast(feature.device.type, enabled=False):  # at one precision, or equal heads would disagree
        own, *others = (
            _foreground(functional_call(context.dam.head, state, (feature,)), feature)
            for state in ({}, *heads.states().values())
        )
        return feature, disagreement_peaks(own, others, window=int(context.parameters["window"])), own


def _foreground(logits: Tensor, feature: Tensor) -> Tensor:
    """Compute probabilities of all classes but the background, of the feature's type."""
    return logits.to(feature).softmax(1)[:, 1:]


def _site_indices(context: StageContext) -> tuple[int, list[int]]:
    """Return the own site's index in the roster's order, and those of all others."""
    sites = context.networks[HEADS].sites
    own = sites.index(context.site)
    return own, [index for index in range(len(sites)) if index != own]


def _select(context: StageContext) -> SelectedModel:
    return SelectedModel(context.dam, context.networks[SELECTION], _site_indices(context)[0])


def _networks(context: StageContext) -> dict[str, Any]:
    # The loop sets the networks' modes in this order, so the head keeps its own.
    parts = {DAM: context.dam, HEAD: context.dam.head, SELECTION: context.networks[SELECTION]}
    return parts | {SELECTED: _select(context)}


def build_selection(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the selection of the bottleneck's channels, which starts alike at all sites."""
    dam: Network = networks[DAM]
    if not dam.bottleneck_layer:
        raise ValueError(
            f"lc_fed selects channels at the bottleneck, and {dam.spec['name']} has no named layer; choose another "
            "[shared_model]"
        )
    sites = {context.site, *context.sites}
    return ChannelSelection(sites=len(sites), channels=context.output.bottleneck.shape[1])


def build_heads(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty store of other sites' heads."""
    return ReceivedStates(networks[DAM].head, {context.site, *context.sites}, part=HEAD)


def build_calibration(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the calibration."""
    return HeadCalibration(
        features=head_width(networks[DAM].head),
        classes=context.classes,
        spatial_dims=context.output.prediction.ndim - 2,
        window=int(context.parameters["window"]),
    )


def keep_heads(
    networks: Mapping[str, Any],
    own: Mapping[str, Tensor],
    heads: Mapping[str, Mapping[str, Tensor]],
    parameters: Mapping[str, Any],
) -> None:
    """Keep the newest head of each site."""
    for site, state in heads.items():
        networks[HEADS].keep(site, state)


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand an odd window, a bottleneck of maps, and feature and prediction on one grid."""
    if parameters["window"] % 2 == 0:
        return f"[method] window must be odd, not {parameters['window']}"
    if own.bottleneck.ndim != own.prediction.ndim:
        return "lc_fed selects channels of maps, but the model's bottleneck is a vector; choose another [shared_model]"
    feature, prediction = own.penultimate.shape[2:], own.prediction.shape[2:]
    if feature == prediction:
        return None
    return f"the model's head takes a feature on the grid {tuple(feature)}, but predicts on {tuple(prediction)}"


LC_FED = Method(
    stages={"head": head, "body": body, "calibrate": calibrate},
    local_networks={SELECTION: build_selection, HEADS: build_heads, CALIBRATION: build_calibration},
    sent_beside=(SELECTION,),
    kept=KeptPart(prefix=lambda network: f"{network.head_name}.", keep=keep_heads),
    predict=predict,
    check_local=check_local,
)

r"""dFLMoE's private parts: a feature's transform for other sites' heads, and the mixture of their predictions.

Vector form (``spatial_dims=0``): features ``(b, d)``, predictions ``(b, C)``. Dense form:
``(b, d, *space)`` and ``(b, C, *space)``, all on one grid. All modules compute at the precision of
their own weights, outside autocast. ``add_expert`` adds the layers for another site, with weights
from torch's global generator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from models.attention import exact, linear

Attention = Literal["per_pixel", "per_sample"]
Mixing = Literal["attention", "gate"]

# The names, in a mixture's state, of its weights for a site.
KNOWN = re.compile(r"(?P<part>transform\.own|mixing\.rows)\.site:(?P<site>[^.]+)\.weight")

# Width of the space that all of a site's transforms share, of vectors and of dense features.
COMMON = 512
COMMON_DENSE = 64


class FeatureTransform(nn.Module):
    r"""The input of another site's head: :math:`W_j(W_{com}(I))`, with one W_j for each added site.

    Source: dFLMoE, eq. 3.
    Differs: the convolutions of the dense form are 1x1, which the paper leaves open. There is no
        activation in between.
    Shapes: ``(b, d, *space)`` to ``(b, d_j, *space)``.
    Gradient flow: into the feature.
    Args:
        features: d of this site's body.
        spatial_dims: 0 for vectors, 1 to 3 for dense features.
        common: width between the two maps; None takes 512 for vectors and 64 for dense features.
    Raises:
        KeyError: the site was not added.
    Example:
        >>> transform = FeatureTransform(8)
        >>> transform.add_expert("europe", 5)
        True
        >>> transform(torch.ones(2, 8), "europe").shape
        torch.Size([2, 5])
    """

    def __init__(self, features: int, *, spatial_dims: int = 0, common: int | None = None) -> None:
        super().__init__()
        self.spatial_dims, self.common = spatial_dims, common or (COMMON_DENSE if spatial_dims else COMMON)
        self.shared = linear(spatial_dims, features, self.common)
        self.own = nn.ModuleDict()
        self.widths: dict[str, int] = {}

    def add_expert(self, site: str, features: int) -> bool:
        """Add the site's W_j for a head of ``features`` inputs; return whether its weights are new.

        A known site keeps its weights, unless the width of its head has changed.
        """
        if self.widths.get(site) == features:
            return False
        self.own[_key(site)] = linear(self.spatial_dims, self.common, features).to(next(self.parameters()))
        self.widths[site] = features
        return True

    def forward(self, feature: Tensor, site: str) -> Tensor:
        """Transform the feature for the site's head."""
        with exact(self, feature) as (feature,):
            mapped: Tensor = self.own[_key(site)](self.shared(feature))
        return mapped


class ExpertAttention(nn.Module):
    r"""Cross-attention of a feature over the experts' predictions, which are both keys and values.

    .. math:: y_m = \mathrm{softmax}_n\!\left(\frac{W(I)\,K^\top}{\sqrt C}\right) V,\qquad K = V = (p_1,\dots,p_n)

    Source: dFLMoE, eq. 6: one head, no output projection, logits (of super-resolution: intensities)
        as K and V.
    Differs: the paper leaves the attention over dense predictions open. ``per_pixel`` has one query
        a pixel, whose keys are the n predictions there; ``per_sample`` takes the means over space
        as query and keys, and gives an expert the same weight at all pixels.
    Shapes: feature ``(b, d, *space)`` and n predictions ``(b, C, *space)`` to ``(b, C, *space)``.
    Gradient flow: into the feature, and into all predictions, as keys and as values.
    Args:
        features: d of this site's body.
        classes: C of the predictions.
        spatial_dims: 0 for vectors, 1 to 3 for dense features.
        attention: ``per_pixel`` or ``per_sample``, which for vectors are the same.
    Raises:
        ValueError: the attention is another, or the shapes do not fit.
    Example:
        >>> attention = ExpertAttention(8, 3)
        >>> alone = torch.tensor([[1.0, 2.0, 3.0]])
        >>> attention(torch.ones(1, 8), {"asia": alone}).tolist()
        [[1.0, 2.0, 3.0]]
    """

    def __init__(
        self, features: int, classes: int, *, spatial_dims: int = 0, attention: Attention = "per_pixel"
    ) -> None:
        super().__init__()
        self.query = linear(spatial_dims, features, classes)
        self.per_sample = _per_sample(attention)

    def weights(self, feature: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        """Compute each expert's weight, ``(b, n, *space)``, n in the mapping's order."""
        keys = _stack(feature, predictions)
        with exact(self, feature, keys) as (feature, keys):
            if self.per_sample:
                feature, keys = _mean(feature, 2), _mean(keys, 3)
            scores: Tensor = (self.query(feature).unsqueeze(1) * keys).sum(dim=2) / math.sqrt(keys.shape[2])
        return scores.softmax(dim=1)

    def forward(self, feature: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        """Mix the predictions."""
        return _mix(self.weights(feature, predictions), _stack(feature, predictions))


class ExpertGate(nn.Module):
    r"""The ablation "without MoE": an ordinary softmax gate.

    .. math:: y_m = \sum_n \mathrm{softmax}_n(g(I))\,p_n

    Source: dFLMoE, table 9.
    Differs: g has a row for each added site, and the softmax is over the sites that have a
        prediction.
    Shapes: feature ``(b, d, *space)`` and n predictions ``(b, C, *space)`` to ``(b, C, *space)``.
    Gradient flow: into the feature and the predictions.
    Args:
        features: d of this site's body.
        spatial_dims: 0 for vectors, 1 to 3 for dense features.
        attention: ``per_pixel`` or ``per_sample``, as of :class:`ExpertAttention`.
    Raises:
        ValueError: the attention is another, or the shapes do not fit.
        KeyError: a site was not added.
    Example:
        >>> gate = ExpertGate(8)
        >>> gate.add_expert("asia")
        True
        >>> gate(torch.ones(1, 8), {"asia": torch.tensor([[1.0, 2.0]])}).tolist()
        [[1.0, 2.0]]
    """

    def __init__(self, features: int, *, spatial_dims: int = 0, attention: Attention = "per_pixel") -> None:
        super().__init__()
        self.features, self.spatial_dims = features, spatial_dims
        self.per_sample = _per_sample(attention)
        self.rows = nn.ModuleDict()

    def add_expert(self, site: str) -> bool:
        """Add the site's row; return whether its weights are new."""
        if _key(site) in self.rows:
            return False
        row = linear(self.spatial_dims, self.features, 1)
        self.rows[_key(site)] = row.to(next(self.parameters(), next(row.parameters())))
        return True

    def weights(self, feature: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        """Compute each expert's weight, ``(b, n, *space)``, n in the mapping's order."""
        with exact(self, feature) as (feature,):
            feature = _mean(feature, 2) if self.per_sample else feature
            scores = torch.cat([self.rows[_key(site)](feature) for site in predictions], dim=1)
        return scores.softmax(dim=1)

    def forward(self, feature: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        """Mix the predictions."""
        return _mix(self.weights(feature, predictions), _stack(feature, predictions))


class Mixture(nn.Module):
    """One site's mixture of experts: its own head and those it received, on its own feature.

    Source: dFLMoE, eqs. 3 and 6. The mixture orders the experts by their sites' names, not by their
        arrival.
    Differs: the own head is an expert, too, and takes the untransformed feature; the local model has
        run it before.
    Shapes: feature ``(b, d, *space)`` and the own head's prediction ``(b, C, *space)`` to
        ``(b, C, *space)``.
    Gradient flow: into the feature, the prediction, the transform, the attention and every head;
        the method freezes some of them.
    Args:
        own: this site's name.
        features: d of this site's body.
        classes: C of the predictions.
        spatial_dims: 0 for vectors, 1 to 3 for dense features.
        mixing: ``attention``, or ``gate`` for the ablation without it.
        attention: ``per_pixel`` or ``per_sample``.
        transform: False is the ablation without it: every head must take d features.
        common: width of the transform's shared space; None as in :class:`FeatureTransform`.
    Raises:
        ValueError: mixing or attention is another, a head does not fit, or the heads predict
            different shapes.
        KeyError: a site was not added.
    Example:
        >>> mixture = Mixture(own="asia", features=8, classes=3)
        >>> mixture.add_expert("europe", 6)
        True
        >>> mixture(torch.ones(2, 8), torch.ones(2, 3), {"europe": nn.Linear(6, 3)}).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        own: str,
        features: int,
        classes: int,
        spatial_dims: int = 0,
        mixing: Mixing = "attention",
        attention: Attention = "per_pixel",
        transform: bool = True,
        common: int | None = None,
    ) -> None:
        super().__init__()
        self.own, self.features = own, features
        self.transform = FeatureTransform(features, spatial_dims=spatial_dims, common=common) if transform else None
        if mixing == "attention":
            self.mixing: nn.Module = ExpertAttention(features, classes, spatial_dims=spatial_dims, attention=attention)
        elif mixing == "gate":
            self.mixing = ExpertGate(features, spatial_dims=spatial_dims, attention=attention)
            self.mixing.add_expert(own)
        else:
            raise ValueError(f"mixing must be 'attention' or 'gate', not {mixing!r}")
        self.register_load_state_dict_pre_hook(_add_known_experts)  # type: ignore[no-untyped-call]  # as torch has it

    def add_expert(self, site: str, features: int) -> bool:
        """Add the layers for another site's head; return whether there are new weights."""
        if self.transform is None and features != self.features:
            raise ValueError(
                f"the head of {site} takes {features} features, this site's body gives {self.features}: without a "
                "transform they must be equal"
            )
        is_new = self.transform is not None and self.transform.add_expert(site, features)
        return (isinstance(self.mixing, ExpertGate) and self.mixing.add_expert(site)) or is_new

    def forward(self, feature: Tensor, own_prediction: Tensor, heads: Mapping[str, nn.Module]) -> Tensor:
        """Mix the own head's prediction with those of the others' heads."""
        with exact(self, feature, own_prediction) as (feature, own_prediction):
            predictions = {self.own: own_prediction}
            for site in sorted(heads):
                predictions[site] = heads[site](feature if self.transform is None else self.transform(feature, site))
            mixed: Tensor = self.mixing(feature, {site: predictions[site] for site in sorted(predictions)})
        return mixed

    def average(self, others: Mapping[str, Mixture]) -> None:
        """Set every layer to its mean over this site and the others that have it; every site averages for itself.

        The mean is in float64 and in the order of the sites' names, so that sites that average the
        same mixtures get the same bits. The mixture adds transforms that it lacks; it needs none
        for its own head.
        """
        mixtures = {**others, self.own: self}
        states = [mixtures[site].state_dict() for site in sorted(mixtures)]
        needless = f"transform.own.{_key(self.own)}."
        names = sorted({name for state in states for name in state if not name.startswith(needless)})
        self.load_state_dict({name: _average([state[name] for state in states if name in state]) for name in names})


class Expert(nn.Module):
    """Another site's head and the mixture sent with it, where mixtures are averaged.

    Source: dFLMoE, table 9, "centralized MoE & FST".
    Differs: none.
    Shapes: those of the head.
    Gradient flow: through the head; the mixture takes no part.
    Args:
        head: the other site's.
        mixture: the other site's, when it sent the head.
    Raises:
        Nothing of its own.
    Example:
        >>> expert = Expert(nn.Linear(6, 3), Mixture(own="europe", features=6, classes=3))
        >>> expert(torch.ones(2, 6)).shape
        torch.Size([2, 3])
    """

    def __init__(self, head: nn.Module, mixture: Mixture) -> None:
        super().__init__()
        self.head, self.mixture = head, mixture

    def forward(self, feature: Tensor) -> Tensor:
        """Return the head's prediction."""
        prediction: Tensor = self.head(feature)
        return prediction


def sites_in(names: Iterable[str]) -> list[str]:
    """Return the sites for which a state with these names has weights, sorted.

    Example:
        >>> sites_in(["mixing.query.weight", "transform.own.site:asia.weight", "transform.own.site:asia.bias"])
        ['asia']
    """
    return sorted({known["site"] for name in names if (known := KNOWN.fullmatch(name))})


def _add_known_experts(mixture: Mixture, state: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """Add the layers for the sites in a state before it is loaded."""
    for name, weight in state.items():
        known = KNOWN.fullmatch(name.removeprefix(prefix))
        if known and known["part"] == "transform.own" and mixture.transform is not None:
            mixture.transform.add_expert(known["site"], weight.shape[0])
        elif known and known["part"] == "mixing.rows" and isinstance(mixture.mixing, ExpertGate):
            mixture.mixing.add_expert(known["site"])


def _key(site: str) -> str:
    """Name a site's module; without the prefix the name could equal a method of ``ModuleDict``."""
    return f"site:{site}"


def _per_sample(attention: Attention) -> bool:
    if attention not in ("per_pixel", "per_sample"):
        raise ValueError(f"attention must be 'per_pixel' or 'per_sample', not {attention!r}")
    return attention == "per_sample"


def _stack(feature: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
    """Stack the predictions as ``(b, n, C, *space)``."""
    if not predictions:
        raise ValueError("there is no expert: the own head always is one")
    shapes = {site: tuple(prediction.shape) for site, prediction in predictions.items()}
    shape, *others = shapes.values()
    if any(other != shape for other in others):  # no set: an exporter's symbolic sizes have no hash
        raise ValueError(f"the experts predict different shapes: {shapes}")
    if (shape[0], *shape[2:]) != (feature.shape[0], *feature.shape[2:]):
        raise ValueError(f"the experts predict {shape}, which is not on the grid of the feature {tuple(feature.shape)}")
    return torch.stack(list(predictions.values()), dim=1)


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(2) * values.to(weights.dtype)).sum(dim=1)


def _average(tensors: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor in tensors:
        total += tensor.to("cpu", torch.float64)
    return (total / len(tensors)).to(tensors[0].dtype)


def _mean(x: Tensor, first: int) -> Tensor:
    """Compute the mean over the sides from this dimension on, kept as sides of 1."""
    return x.mean(dim=tuple(range(first, x.ndim)), keepdim=True) if x.ndim > first else x

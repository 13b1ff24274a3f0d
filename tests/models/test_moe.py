"""Transform and mixture against the equations in float64; absent experts, order of arrival, ablations."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.moe import Expert, ExpertAttention, ExpertGate, FeatureTransform, Mixture, sites_in
from models.network import head_width

GRIDS = {0: (), 1: (6,), 2: (3, 4), 3: (2, 3, 2)}
CLASSES = 3


def linear(dims: int, channels: int, out: int) -> nn.Module:
    return nn.Linear(channels, out) if dims == 0 else (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](channels, out, 1)


def mapped(layer: nn.Module, x: np.ndarray) -> np.ndarray:
    weight = layer.weight.detach().numpy()
    bias = layer.bias.detach().numpy().reshape(1, -1, *(1,) * (x.ndim - 2))
    return np.einsum("oc,bc...->bo...", weight.reshape(*weight.shape[:2]), x) + bias


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(0))
    return e / e.sum(0)


def make_mixture(dims: int, **options) -> tuple[Mixture, dict[str, nn.Module], Tensor]:
    """Of site b, with the heads of a and c, which take 4 and 7 features; and a feature of width 5."""
    torch.manual_seed(0)
    mixture = Mixture(own="b", features=5, classes=CLASSES, spatial_dims=dims, common=6, **options)
    heads = {site: linear(dims, width, CLASSES).double() for site, width in (("c", 7), ("a", 4), ("b", 5))}
    for site, width in (("c", 7), ("a", 4)):
        assert mixture.add_expert(site, width)
    return mixture.double(), heads, torch.randn(2, 5, *GRIDS[dims], dtype=torch.float64)


def mix(mixture: Mixture, feature: Tensor, heads: dict[str, nn.Module]) -> Tensor:
    """The mixture of all heads; the own head's prediction is an input."""
    others = {site: head for site, head in heads.items() if site != "b"}
    return mixture(feature, heads["b"](feature), others)


def literal(mixture: Mixture, heads: dict[str, nn.Module], feature: np.ndarray, *, per_sample: bool) -> np.ndarray:
    """The paper's equations with the experts in a list and the classes summed one by one."""
    predictions = [
        mapped(heads["a"], mapped(mixture.transform.own["site:a"], mapped(mixture.transform.shared, feature))),
        mapped(heads["b"], feature),
        mapped(heads["c"], mapped(mixture.transform.own["site:c"], mapped(mixture.transform.shared, feature))),
    ]
    space = tuple(range(2, feature.ndim))
    query = mapped(mixture.mixing.query, feature.mean(space, keepdims=True) if per_sample and space else feature)
    keys = [p.mean(space, keepdims=True) if per_sample and space else p for p in predictions]
    scores = np.stack([sum(query[:, c] * key[:, c] for c in range(CLASSES)) / np.sqrt(CLASSES) for key in keys])
    return sum(weight[:, None] * p for weight, p in zip(softmax(scores), predictions, strict=True))


@pytest.mark.parametrize("attention", ["per_pixel", "per_sample"])
@pytest.mark.parametrize("dims", GRIDS)
def test_the_mixture_by_the_equations(dims, attention):
    mixture, heads, feature = make_mixture(dims, attention=attention)
    out = mix(mixture, feature, heads)
    expected = literal(mixture, heads, feature.numpy(), per_sample=attention == "per_sample")
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dims", GRIDS)
@pytest.mark.parametrize("options", [{}, {"attention": "per_sample"}, {"mixing": "gate"}])
def test_without_other_heads_the_mixture_is_the_own_prediction(dims, options):
    mixture, heads, feature = make_mixture(dims, **options)
    assert torch.equal(mix(mixture, feature, {"b": heads["b"]}), heads["b"](feature))


def test_an_absent_expert_is_out_of_the_softmax():
    mixture, heads, feature = make_mixture(0)
    del heads["c"]
    predictions = {"a": heads["a"](mixture.transform(feature, "a")), "b": heads["b"](feature)}
    weights = mixture.mixing.weights(feature, predictions)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
    expected = weights[:, :1] * predictions["a"] + weights[:, 1:] * predictions["b"]
    torch.testing.assert_close(mix(mixture, feature, heads), expected)


@pytest.mark.parametrize("dims", [0, 2])
def test_gradients_reach_the_feature_and_every_weight(dims):
    mixture, heads, feature = make_mixture(dims)
    assert torch.autograd.gradcheck(lambda x: mix(mixture, x, heads), feature.requires_grad_())
    mix(mixture, feature, heads).square().sum().backward()
    parameters = [*mixture.parameters(), *(p for head in heads.values() for p in head.parameters())]
    assert all(p.grad.any() for p in parameters)


@pytest.mark.parametrize("dims", [0, 2])
def test_the_gate_by_its_formula(dims):
    mixture, heads, feature = make_mixture(dims, mixing="gate")
    x = feature.numpy()
    scores = np.stack([mapped(mixture.mixing.rows[f"site:{site}"], x)[:, 0] for site in "abc"])
    shared = mapped(mixture.transform.shared, x)
    inputs = {"b": x} | {site: mapped(mixture.transform.own[f"site:{site}"], shared) for site in "ac"}
    weights = zip(softmax(scores), "abc", strict=True)
    expected = sum(weight[:, None] * mapped(heads[site], inputs[site]) for weight, site in weights)
    out = mix(mixture, feature, heads)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-12, atol=1e-13)


def test_without_a_transform_heads_take_the_feature_as_it_is():
    torch.manual_seed(0)
    mixture = Mixture(own="b", features=5, classes=CLASSES, transform=False)
    assert not mixture.add_expert("a", 5)
    with pytest.raises(ValueError, match=r"the head of c takes 7 features, this site's body gives 5: without a transf"):
        mixture.add_expert("c", 7)
    head, feature = nn.Linear(5, CLASSES), torch.randn(2, 5)
    torch.testing.assert_close(mix(mixture, feature, {"a": head, "b": head}), head(feature))
    assert {name.split(".")[0] for name, _ in mixture.named_parameters()} == {"mixing"}


def test_a_transform_is_kept_until_the_head_has_another_width():
    transform = FeatureTransform(5, common=6).double()
    assert transform.add_expert("a", 4)
    before = transform.own["site:a"]
    assert not transform.add_expert("a", 4)
    assert transform.own["site:a"] is before
    assert transform.add_expert("a", 7)
    assert transform(torch.ones(1, 5, dtype=torch.float64), "a").shape == (1, 7)
    assert transform.own["site:a"].weight.dtype == torch.float64


def test_the_widths_between_the_maps():
    assert FeatureTransform(5).shared.out_features == 512
    assert FeatureTransform(5, spatial_dims=2).shared.out_channels == 64


@pytest.mark.parametrize("site", ["keys", "type", "own", "training", "a-b"])
def test_any_sites_name_will_do(site):
    mixture = Mixture(own="b", features=5, classes=CLASSES, mixing="gate")
    mixture.add_expert(site, 4)
    assert mixture(torch.ones(1, 5), torch.ones(1, CLASSES), {site: nn.Linear(4, CLASSES)}).shape == (1, CLASSES)


def test_autocast_does_not_reach_the_mixture():
    torch.manual_seed(0)
    mixture, heads = Mixture(own="b", features=5, classes=CLASSES), {"a": nn.Linear(4, CLASSES)}
    mixture.add_expert("a", 4)
    feature, own_prediction = torch.randn(2, 5).bfloat16(), torch.randn(2, CLASSES).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mixture(feature, own_prediction, heads)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, mixture(feature.float(), own_prediction.float(), heads))


# --- averaged ---------------------------------------------------------------------------------------------------------
def make_sites(**options) -> dict[str, Mixture]:
    """Mixtures of a, b and c, each with weights for the two others, of bodies that give 5 features."""
    mixtures = {}
    for number, own in enumerate("abc"):
        torch.manual_seed(number)
        mixtures[own] = Mixture(own=own, features=5, classes=CLASSES, common=6, **options)
        for other in "abc".replace(own, ""):
            mixtures[own].add_expert(other, 5)
        for value in mixtures[own].parameters():
            nn.init.normal_(value, std=10.0 ** (4 * number))  # float32 sums of these depend on their order
    return mixtures


def averaged_state(own: str, mixtures: dict[str, Mixture]) -> dict[str, Tensor]:
    """The state of a site after it averaged with the others."""
    mine = copy.deepcopy(mixtures[own])
    mine.average({site: other for site, other in mixtures.items() if site != own})
    return mine.state_dict()


@pytest.mark.parametrize("options", [{}, {"mixing": "gate"}, {"transform": False}])
def test_an_average_is_the_mean_of_whoever_has_the_layer(options):
    mixtures = make_sites(**options)
    states = {site: mixture.state_dict() for site, mixture in mixtures.items()}
    for own in "abc":
        state = averaged_state(own, mixtures)
        assert state.keys() == states[own].keys()
        for name, value in state.items():
            of = [state[name].double() for _, state in sorted(states.items()) if name in state]
            assert len(of) == (2 if name.startswith("transform.own") else 3)
            assert torch.equal(value, (sum(of[1:], of[0]) / len(of)).float())


@pytest.mark.parametrize("options", [{}, {"mixing": "gate"}])
def test_every_site_comes_to_the_same_bits_in_whatever_order_the_others_came(options):
    mixtures = make_sites(**options)
    states = {own: averaged_state(own, mixtures) for own in "abc"}
    for own in "abc":
        again = averaged_state(own, dict(reversed(mixtures.items())))
        assert all(torch.equal(value, again[name]) for name, value in states[own].items())
        for other in "abc":
            shared = states[own].keys() & states[other].keys()
            assert "transform.shared.weight" in shared
            assert shared >= {f"transform.own.site:{third}.bias" for third in {*"abc"} - {own, other}}
            assert all(torch.equal(states[own][name], states[other][name]) for name in shared)


def test_what_others_know_is_taken_over_and_a_transform_for_the_own_head_is_not():
    mixtures = make_sites()
    new = Mixture(own="b", features=5, classes=CLASSES, common=6)
    new.average({"a": mixtures["a"]})
    assert set(new.transform.own) == {"site:c"}
    assert torch.equal(new.transform.own["site:c"].weight, mixtures["a"].transform.own["site:c"].weight)
    assert new(torch.ones(1, 5), torch.ones(1, CLASSES), {"c": nn.Linear(5, CLASSES)}).shape == (1, CLASSES)


def test_an_average_of_nobody_changes_no_bit():
    mixture = make_sites()["a"]
    before = {name: value.clone() for name, value in mixture.state_dict().items()}
    mixture.average({})
    assert all(torch.equal(value, before[name]) for name, value in mixture.state_dict().items())


def test_an_expert_is_its_head():
    head = nn.Linear(4, CLASSES)
    expert, feature = Expert(head, make_sites()["a"]), torch.randn(2, 4)
    assert torch.equal(expert(feature), head(feature))
    assert head_width(expert) == 4
    assert head_width(nn.Sequential(nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, 2))) == 6


def test_the_sites_of_a_state():
    mixture = make_sites(mixing="gate")["b"]
    assert sites_in(mixture.state_dict()) == ["a", "b", "c"]
    assert sites_in(["mixing.query.weight", "transform.own.site:a.bias", "fc.site:a.weight"]) == []


def test_what_does_not_fit_is_named():
    for make in (lambda **o: ExpertAttention(5, 3, **o), lambda **o: ExpertGate(5, **o)):
        with pytest.raises(ValueError, match="attention must be 'per_pixel' or 'per_sample', not 'per_image'"):
            make(attention="per_image")
    with pytest.raises(ValueError, match="mixing must be 'attention' or 'gate', not 'mean'"):
        Mixture(own="b", features=5, classes=3, mixing="mean")
    attention = ExpertAttention(5, 3, spatial_dims=2)
    feature = torch.ones(1, 5, 4, 4)
    with pytest.raises(ValueError, match="there is no expert"):
        attention(feature, {})
    with pytest.raises(ValueError, match=r"predict different shapes: \{'a': \(1, 3, 4, 4\), 'b': \(1, 2, 4, 4\)\}"):
        attention(feature, {"a": torch.ones(1, 3, 4, 4), "b": torch.ones(1, 2, 4, 4)})
    reason = r"predict \(1, 3, 8, 8\), which is not on the grid of the feature \(1, 5, 4, 4\)"
    with pytest.raises(ValueError, match=reason):
        attention(feature, {"a": torch.ones(1, 3, 8, 8)})
    with pytest.raises(KeyError, match="site:a"):
        FeatureTransform(5)(torch.ones(1, 5), "a")

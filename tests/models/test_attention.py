"""Receiver and transmitter against the equations in float64, their sizes, ablations and gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes.networks import count_parameters, meta_network
from models.attention import ChannelAttention, Receiver, Transmitter

GRIDS = {0: (), 1: (7,), 2: (4, 3), 3: (2, 3, 2)}


def features(dims: int, channels: int, space: tuple[int, ...] | None = None) -> Tensor:
    return torch.randn(2, channels, *(GRIDS[dims] if space is None else space), dtype=torch.float64)


def project(layer: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    """A linear layer or a 1x1 convolution, position by position."""
    weight = layer.weight.detach().numpy()
    y = np.einsum("oc,bc...->bo...", weight.reshape(*weight.shape[:2]), x)
    if layer.bias is not None:
        y += layer.bias.detach().numpy().reshape(1, -1, *(1,) * (x.ndim - 2))
    return y


def attended(attention: ChannelAttention, query_feature: np.ndarray, value_feature: np.ndarray) -> np.ndarray:
    """Equations 8 to 11, one output channel after the other."""
    space = tuple(range(2, query_feature.ndim))
    q = project(attention.query, query_feature).mean(space)
    k = project(attention.key, value_feature).mean(space)
    w = project(attention.value, value_feature)
    d = q.shape[1]
    out = np.zeros_like(w)
    for b in range(len(q)):
        for m in range(d):
            scores = np.exp([q[b, m] * k[b, n] / np.sqrt(d) for n in range(d)])
            out[b, m] = sum(score * w[b, n] for n, score in enumerate(scores / scores.sum()))
    return out


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dims", GRIDS)
def test_receiver_and_transmitter_by_the_equations(dims):
    u, v = features(dims, 5), features(dims, 3)
    receiver, transmitter = (kind(3, 5, spatial_dims=dims).double() for kind in (Receiver, Transmitter))
    for module, asks_with_messenger in ((receiver, True), (transmitter, False)):
        local = project(module.project, v.numpy())
        pair = (u.numpy(), local) if asks_with_messenger else (local, u.numpy())
        out = module(u, v)
        assert out.shape == u.shape
        np.testing.assert_allclose(out.detach().numpy(), attended(module.attention, *pair), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_local_feature_is_resized_to_the_messengers_grid_first(dims):
    receiver = Receiver(3, 5, spatial_dims=dims).double()
    u, v = features(dims, 5), features(dims, 3, (9,) * dims)
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    resized = torch.nn.functional.interpolate(v, GRIDS[dims], mode=mode)
    torch.testing.assert_close(receiver(u, v), receiver(u, resized))


def test_the_vector_form_takes_the_mean_of_a_map():
    receiver = Receiver(3, 5).double()
    u, v = features(0, 5), features(2, 3)
    torch.testing.assert_close(receiver(u, v), receiver(u, v.mean((2, 3))))


@pytest.mark.parametrize("tokens", ["channel", "spatial"])
@pytest.mark.parametrize("kind", [Receiver, Transmitter])
def test_addition_is_the_ablation(kind, tokens):
    module = kind(3, 5, form="addition", tokens=tokens).double()
    u, v = features(0, 5), features(0, 3)
    assert torch.equal(module(u, v), u + module.project(v))
    assert len(list(module.parameters())) == 2


def test_tied_modules_share_their_weights():
    receiver = Receiver(3, 5)
    transmitter = Transmitter(3, 5, tied=receiver)
    assert [id(p) for p in transmitter.parameters()] == [id(p) for p in receiver.parameters()]
    assert {id(p) for p in Transmitter(3, 5).parameters()}.isdisjoint(id(p) for p in receiver.parameters())


@pytest.mark.parametrize("kind", [Receiver, Transmitter])
@pytest.mark.parametrize(
    ("dims", "options"),
    [
        *((dims, {"spatial_dims": dims}) for dims in GRIDS),
        *((dims, {"spatial_dims": dims, "tokens": "spatial"}) for dims in (1, 2, 3)),
        *((dims, {"spatial_dims": 0, "tokens": "spatial"}) for dims in (1, 2, 3)),
    ],
)
def test_gradients_reach_both_features_and_every_weight(kind, dims, options):
    module = kind(3, 5, **options).double()
    u, v = features(dims, 5).requires_grad_(), features(dims, 3).requires_grad_()
    assert torch.autograd.gradcheck(module, (u, v))
    module(u, v).square().sum().backward()
    assert all(tensor.grad.any() for tensor in (u, v, module.project.weight, *module.attention.parameters()))


def over_positions(attention, query_feature: np.ndarray, value_feature: np.ndarray) -> np.ndarray:
    """Equations 8 to 11 with positions as tokens, one position after the other."""
    q, k, w = (
        project(layer, x.reshape(*x.shape[:2], -1))
        for layer, x in zip(attention.children(), (query_feature, value_feature, value_feature), strict=True)
    )
    out = np.zeros_like(q)
    for b, p in np.ndindex(len(q), q.shape[2]):
        scores = np.exp([q[b, :, p] @ k[b, :, s] / np.sqrt(q.shape[1]) for s in range(k.shape[2])])
        out[b, :, p] = w[b] @ (scores / scores.sum())
    return out.reshape(*query_feature.shape)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("form", ["dense", "vector"])
def test_attention_over_positions_by_the_equations(dims, form):
    """The vector form takes maps on two grids, and the mean of the result."""
    dense = form == "dense"
    u, v = features(dims, 5), features(dims, 3, None if dense else (3,) * dims)
    for kind, asks_with_messenger in ((Receiver, True), (Transmitter, False)):
        module = kind(3, 5, spatial_dims=dims if dense else 0, tokens="spatial").double()
        local = project(module.project, v.numpy())
        expected = over_positions(
            module.attention, *((u.numpy(), local) if asks_with_messenger else (local, u.numpy()))
        )
        expected = expected if dense else expected.mean(tuple(range(2, dims + 2)))
        out = module(u, v)
        assert out.shape == (u.shape if dense else (2, 5))
        np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(module(u, v), out, rtol=0, atol=0)


def test_tokens_of_positions_carry_more_of_the_local_feature_than_two_numbers():
    """How many directions of the local feature a receiver hands on: singular values of its Jacobian."""
    ranks = {}
    for tokens, grid in (("channel", ()), ("spatial", (3, 3))):
        receiver = Receiver(24, 16, tokens=tokens).double()
        u, v = (torch.randn(1, channels, *grid, dtype=torch.float64) for channels in (16, 24))
        jacobian = torch.autograd.functional.jacobian(lambda v, r=receiver, u=u: r(u, v), v).reshape(16, -1)
        values = torch.linalg.svdvals(jacobian)
        ranks[tokens] = int((values > 0.01 * values[0]).sum())
    assert ranks == {"channel": 2, "spatial": 16}


def test_biases_are_of_the_vector_form_alone():
    assert all(layer.bias is not None for layer in ChannelAttention(4).children())
    assert all(layer.bias is None for layer in ChannelAttention(4, spatial_dims=2).children())


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet17", 4.216), ("resnet11", 2.096), ("resnet8", 1.553), ("resnet5", 1.355)]
)
def test_the_papers_sizes_are_a_client_with_one_attention_and_the_messenger(name, millions):
    parts = meta_network(name), meta_network("messenger_classification"), Receiver(512, 512)
    assert count_parameters(*parts) / 1e6 == pytest.approx(millions, abs=5.1e-4)


def test_autocast_does_not_reach_the_attention():
    receiver = Receiver(3, 5)
    u, v = torch.randn(2, 5), torch.randn(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(receiver(u, v), receiver(u, v))
        inside = receiver(u.bfloat16(), v.bfloat16())
    outside = receiver(u.bfloat16().float(), v.bfloat16().float())
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="form must be 'attention' or 'addition', not 'sum'"):
        Receiver(3, 5, form="sum")
    with pytest.raises(ValueError, match="tokens must be 'channel' or 'spatial', not 'pixel'"):
        Receiver(3, 5, tokens="pixel")
    vector, dense = Receiver(3, 5, form="addition"), Transmitter(3, 5, spatial_dims=2)
    reason = r"the messenger's feature must have 5 channels and 0 .*, not the shape \(2, 1\)"
    with pytest.raises(ValueError, match=reason):
        vector(torch.ones(2, 1), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"the local feature must have 3 channels and 0 .*, not the shape \(2, 4\)"):
        vector(torch.ones(2, 5), torch.ones(2, 4, 6, 6))
    with pytest.raises(ValueError, match=r"the messenger's feature must have 5 channels and 2 .*\(2, 5, 4\)"):
        dense(torch.ones(2, 5, 4), torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"the value feature must have 5 channels and 0 .*\(2, 5, 4\)"):
        ChannelAttention(5)(torch.ones(2, 5), torch.ones(2, 5, 4))

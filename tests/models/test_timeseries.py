"""Classifiers of series: the authors' sizes, and the attention and recurrence against plain formulas."""

import math

import pytest
import torch

from models import create_model
from models.timeseries import Recurrence, SelfAttention


@pytest.mark.parametrize(("name", "flattened"), [("tcn", (64, 127)), ("transformer", (32, 251)), ("rnn", (16, 501))])
def test_the_last_features_of_3000_steps_are_those_that_the_authors_flatten(name, flattened):
    model = create_model(name, spatial_dims=1, in_channels=1, classes=5).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 1, 3000)).taps[-1].shape == (1, *flattened)


def test_attention_by_its_formula():
    layer = SelfAttention(8).double().eval()
    x = torch.randn(2, 8, 5, dtype=torch.float64)
    normed = layer.norm(x.mT)
    q, k, v = (normed @ layer.attention.in_proj_weight.T + layer.attention.in_proj_bias).chunk(3, dim=2)
    heads = []
    for head in range(4):
        part = slice(2 * head, 2 * head + 2)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(2)
        heads.append(scores.softmax(dim=2) @ v[..., part])
    expected = x.mT + layer.attention.out_proj(torch.cat(heads, dim=2))
    torch.testing.assert_close(layer(x), expected.mT)


def test_three_recurrences_are_one_lstm_of_three_layers():
    model = create_model("rnn", spatial_dims=1, in_channels=1, classes=2).eval()
    whole = torch.nn.LSTM(32, 16, num_layers=3, batch_first=True)
    layers = [stage.lstm for stage in model.stages if isinstance(stage, Recurrence)]
    whole.load_state_dict(
        {
            key.replace("_l0", f"_l{index}"): value
            for index, layer in enumerate(layers)
            for key, value in layer.state_dict().items()
        }
    )
    output = model(torch.randn(2, 1, 90))
    torch.testing.assert_close(output.taps[-1], whole(output.taps[0].mT)[0].mT)


def test_a_recurrence_knows_the_order_and_the_mean_keeps_every_step():
    model = create_model("rnn", spatial_dims=1, in_channels=1, classes=2).eval()
    x = torch.randn(1, 1, 90, requires_grad=True)
    output = model(x)
    assert not torch.allclose(output.prediction, model(x.flip(2)).prediction)
    torch.testing.assert_close(output.penultimate, output.taps[-1].mean(2))

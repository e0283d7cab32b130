"""The slice mixers compared with slow loops and numpy."""

import math

import numpy as np
import pytest
import torch
from mixer_samples import DIM, HEADS, context_of, mixer_of, sample, without_projections

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer

SLICES = [
    ("slice-ascend", {}),
    ("slice-interleave", {}),
    ("slice-max", {}),
    ("slice-max", {"exchange": "hard"}),
    ("slice-released", {}),
    ("slice-released", {"order": "interleave"}),
]


def haar_columns(width, count):
    """Return the columns of a head that the released code sorts in descending order, from its rule: ``count`` blocks
    of width // count columns, of which every second one is reversed, and the columns after the last of these."""
    block = max(1, width // count)
    reversed_columns = []
    for pair in range(width // (2 * block)):
        reversed_columns += range((2 * pair + 1) * block, (2 * pair + 2) * block)
    if count > 1 and reversed_columns:
        reversed_columns += range(reversed_columns[-1] + block, width)
    return reversed_columns


def slow_slice(name, own, v, pv, layer, layers):
    """Compute the operation on the columns of one sample, without the projections."""
    result = np.zeros_like(v)
    for c in range(DIM):
        if name == "slice-ascend":
            result[:, c] = sorted(pv[:, c])
        elif name == "slice-interleave":
            descending = math.sin(2 ** (layers - layer) * math.pi * (c + 1) / DIM) < -1e-9
            result[:, c] = sorted(pv[:, c], reverse=descending)
        elif name == "slice-released":
            interleave = own.get("order") == "interleave"
            descending = interleave and c % (DIM // HEADS) in haar_columns(DIM // HEADS, 2 ** (layer - 1))
            result[:, c] = pv[:, c] + np.array(sorted(v[:, c], reverse=descending))
        elif own.get("exchange") == "hard":
            result[:, c] = pv[:, c]
            largest = int(np.argmax(pv[:, c]))
            result[[0, largest], c] = result[[largest, 0], c]
        elif name == "slice-max":
            first, *others = pv[:, c]
            gain = max(others, default=first) - first
            if gain > 0:
                shares = np.interp([(first + gain - v) / gain for v in others], [1e-3, 0.1], [1, 0])
                moved = shares / shares.sum() * (np.array(others) - first)
                first, others = first + moved.sum(), others - moved
            result[:, c] = [first, *others]
    return result


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
@pytest.mark.parametrize(("layer", "layers"), [(1, 1), (1, 6), (2, 4), (3, 12)])
@pytest.mark.parametrize(("name", "own"), SLICES)
def test_slices_match_their_formulas(name, own, layer, layers, graph):
    mixer, lengths, d = mixer_of(name, layer=layer, layers=layers, **own), [7, 4], DIM // HEADS
    x, bias = sample(7, seed=5, batch=2)
    output = mixer(x, context_of(lengths, 7, bias if graph else None)).detach().numpy()
    weights = {key: value.detach().numpy() for key, value in mixer.state_dict().items()}
    for b, n in enumerate(lengths):
        v = x[b, :n].numpy() @ weights["value.weight"].T + weights["value.bias"]
        pv = v.copy()
        for head in range(HEADS if graph else 0):
            scores = np.exp(bias[b, head, :n, :n].numpy())
            part = slice(head * d, (head + 1) * d)
            pv[:, part] = scores / scores.sum(axis=1, keepdims=True) @ v[:, part]
        expected = slow_slice(name, own, v, pv, layer, layers)
        np.testing.assert_allclose(
            output[b, :n], expected @ weights["output.weight"].T + weights["output.bias"], atol=1e-9
        )


@pytest.mark.parametrize("head_dim", [1, 5, 24, 36])
def test_released_orders_are_the_haar_columns_of_every_head(head_dim):
    for layer in range(1, 8):
        mixer = build_mixer("slice-released", 2 * head_dim, 2, order="interleave", layer=layer, layers=7)
        expected = [c % head_dim in haar_columns(head_dim, 2 ** (layer - 1)) for c in range(2 * head_dim)]
        assert mixer.descending.tolist() == expected


@pytest.mark.parametrize("keep_fraction", [0.0, 0.5, 1.0])
def test_maxima_of_aggregated_values_match_numpy(keep_fraction):
    mixer = without_projections(mixer_of("slice-quantile", keep_fraction=keep_fraction))
    x, weights = torch.randn(1, 6, 12, dtype=torch.float64), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    output = mixer(x, AttentionContext(torch.tensor([6]), 6, attn_weights=weights))[0].detach().numpy()
    aggregated = np.concatenate([(weights[0, h] @ x[0, :, 4 * h : 4 * h + 4]).numpy() for h in range(3)], axis=1)
    local = np.arange(12) % 4 < round(4 * keep_fraction)
    np.testing.assert_allclose(output, np.where(local, aggregated, aggregated.max(axis=0)), atol=1e-6)

"""The slice mixers compared with slow loops."""

import math

import numpy as np
import pytest
from mixer_samples import DIM, HEADS, context_of, mixer_of, sample

SLICES = ["slice-ascend", "slice-interleave", "slice-max", "slice-released"]


def slow_slice(name, v, pv, layer, layers):
    """Compute the operation on the columns of one sample, without the projections."""
    result = np.zeros_like(v)
    for c in range(DIM):
        if name == "slice-ascend":
            result[:, c] = sorted(pv[:, c])
        elif name == "slice-interleave":
            descending = math.sin(2 ** (layers - layer) * math.pi * (c + 1) / DIM) < -1e-9
            result[:, c] = sorted(pv[:, c], reverse=descending)
        elif name == "slice-released":
            result[:, c] = pv[:, c] + np.array(sorted(v[:, c]))
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
@pytest.mark.parametrize(("layer", "layers"), [(1, 1), (1, 2), (1, 6), (2, 4), (3, 12), (4, 4)])
@pytest.mark.parametrize("name", SLICES)
def test_slices_match_their_formulas(name, layer, layers, graph):
    mixer, lengths, d = mixer_of(name, layer=layer, layers=layers), [7, 4], DIM // HEADS
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
        expected = slow_slice(name, v, pv, layer, layers)
        np.testing.assert_allclose(
            output[b, :n], expected @ weights["output.weight"].T + weights["output.bias"], atol=1e-9
        )

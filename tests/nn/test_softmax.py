"""Softmax attention compared with a loop."""

import math

import numpy as np
import pytest
from mixer_samples import DIM, HEADS, context_of, mixer_of, sample


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
def test_softmax_attention_matches_formula(graph):
    mixer, (x, bias), lengths, d = mixer_of("softmax"), sample(6, batch=2), [6, 4], DIM // HEADS
    output = mixer(x, context_of(lengths, 6, bias if graph else None)).detach().numpy()
    weights = {name: value.detach().numpy() for name, value in mixer.state_dict().items()}
    for b, n in enumerate(lengths):
        q, k, v = (
            x[b, :n].numpy() @ weights[f"{p}.weight"].T + weights[f"{p}.bias"] for p in ("query", "key", "value")
        )
        mixed = np.zeros((n, DIM))
        for head in range(HEADS):
            part = slice(head * d, (head + 1) * d)
            for i in range(n):
                scores = [q[i, part] @ k[j, part] / math.sqrt(d) for j in range(n)]
                if graph:
                    scores = [s + bias[b, head, i, j].item() for j, s in enumerate(scores)]
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed[i, part] = sum(share * v[j, part] for j, share in enumerate(shares))
        np.testing.assert_allclose(
            output[b, :n], mixed @ weights["output.weight"].T + weights["output.bias"], atol=1e-9
        )

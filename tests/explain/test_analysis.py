"""Arrays inside the network."""

import numpy as np
import pytest
import torch

import graphslice as gs
from graphslice.data.batches import collate
from graphslice.explain.attribution import activations


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_activations_match_forward_pass(make_predictor, mixer):
    predictor = make_predictor(8.0, mixer=mixer, layers=3)
    graph = gs.smiles_to_graph("CC(=O)Nc1ccccc1")
    trace = activations(predictor, graph)
    rows, model = graph.num_atoms + 1, predictor.model
    assert trace.rows.shape == (4, rows, 16)
    assert trace.mixed.shape == (3, rows, 16)
    assert trace.attn_weights.shape == (2, rows, rows)
    np.testing.assert_allclose(trace.prediction, predictor.predict("CC(=O)Nc1ccccc1")[0], rtol=1e-4)
    np.testing.assert_allclose(trace.attn_weights.sum(-1), 1, rtol=1e-5)
    with torch.no_grad():
        batch = collate([graph], **predictor.config.collate_settings)
        np.testing.assert_allclose(trace.rows[0], model.atoms(batch)[0], rtol=1e-6)
        for block, before, mixed, after in zip(model.blocks, trace.rows, trace.mixed, trace.rows[1:], strict=False):
            x = torch.from_numpy(before) + block.mixer.output(torch.from_numpy(mixed))
            x = x + block.ffn(block.ffn_norm(x))
            np.testing.assert_allclose(after, x, rtol=1e-3, atol=1e-5)
    hooks = [hook for module in model.modules() for hook in (module._forward_hooks, module._forward_pre_hooks)]
    assert not any(hooks)

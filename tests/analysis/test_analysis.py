"""Spectra and activations."""

import numpy as np
import pytest
import torch

import graphslice as gs
from graphslice.analysis import activations, rank_one_residual, singular_spectrum
from graphslice.data.batch_loader import collate
from graphslice.nn.mixers import MIXERS

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "C1CC[C@H]2CCCC[C@@H]2C1"]


def test_rank_one_residual_matches_manual_computation():
    row = np.array([1.0, -2.0, 3.0])
    assert rank_one_residual(np.tile(row, (5, 1))) == 0 == rank_one_residual(np.zeros((4, 2)))
    assert rank_one_residual(np.zeros((0, 3))) == 0 == rank_one_residual(row[None])
    # Two rows [1, 0] and [-1, 0]: the median is 0, so nothing is subtracted.
    assert rank_one_residual(np.array([[1.0, 0], [-1, 0]])) == 1
    # [3 0; 1 0; 0 0], median [1 0]: column sum 3, row sum 2, against 4 and 3.
    assert rank_one_residual(np.array([[3.0, 0], [1, 0], [0, 0]])) == pytest.approx(np.sqrt(6 / 12))


def test_singular_spectrum_matches_eigenvalues_of_gram_matrix():
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    gram = np.linalg.eigvalsh(x.T.astype(float) @ x)[::-1]
    np.testing.assert_allclose(singular_spectrum(x) ** 2, gram, rtol=1e-5)


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_activations_match_forward_pass(make_predictor, mixer):
    predictor = make_predictor(8.0, mixer=mixer, layers=3)
    graph = gs.smiles_to_graph(SMILES[0])
    trace = activations(predictor, graph)
    rows, model = graph.num_atoms + 1, predictor.model
    assert trace.rows.shape == (4, rows, 16)
    assert trace.mixed.shape == (3, rows, 16)
    assert trace.attn_weights.shape == (2, rows, rows)
    np.testing.assert_allclose(trace.prediction, predictor.predict(SMILES[0])[0], rtol=1e-4)
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

"""Arrays inside the network."""

import numpy as np
import pytest
import torch

import graphslice as gs
from graphslice.data.batches import collate
from graphslice.errors import InputError
from graphslice.explain.attribution import activations, implicit_map
from graphslice.nn.mixers import MIXERS


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


def mixed_columns(predictor, graph, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V and P V of a layer, each ``[N + 1, C]``, and what its mixer makes of them."""
    inside, block = activations(predictor, graph), predictor.model.blocks[layer]
    with torch.no_grad():
        values = block.mixer.value(block.mixer_norm(torch.from_numpy(inside.rows[layer]))).numpy()
    width = values.shape[1] // len(inside.attn_weights)
    heads = [values[:, h * width : (h + 1) * width] for h in range(len(inside.attn_weights))]
    aggregated = np.concatenate([p @ v for p, v in zip(inside.attn_weights, heads, strict=True)], axis=1)
    return values, aggregated, inside.mixed[layer]


@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {"galerkin"}))
def test_implicit_map_times_the_column_is_the_output(make_predictor, mixer):
    predictor, graph = make_predictor(8.0, mixer=mixer, layers=2), gs.smiles_to_graph("CC(=O)Nc1ccccc1C")
    values, aggregated, mixed = mixed_columns(predictor, graph, 1)
    for channel in (0, 5, 15):
        whole = implicit_map(predictor, graph, 1, channel, from_values=True)
        np.testing.assert_allclose(whole @ values[:, channel], mixed[:, channel], atol=1e-4)
        if mixer != "slice-released":
            column = values if mixer in ("softmax", "galerkin") else aggregated
            found = implicit_map(predictor, graph, 1, channel)
            np.testing.assert_allclose(found @ column[:, channel], mixed[:, channel], atol=1e-4)


@pytest.mark.parametrize("mixer", ["slice-ascend", "slice-interleave", "csp", "slice-max"])
def test_implicit_map_of_a_sort_is_a_permutation(make_predictor, mixer):
    """Doubly stochastic, sparse and of full rank, until P is multiplied to it."""
    predictor, graph = make_predictor(8.0, mixer=mixer, layers=2), gs.smiles_to_graph("CC(=O)Nc1ccccc1C")
    _, aggregated, _ = mixed_columns(predictor, graph, 0)
    weights, rows = activations(predictor, graph).attn_weights, graph.num_atoms + 1
    for channel in range(16):
        found = implicit_map(predictor, graph, 0, channel)
        dense = found.toarray()
        np.testing.assert_allclose([dense.sum(0), dense.sum(1)], 1, atol=1e-6)
        assert (dense > -1e-6).all()
        whole = implicit_map(predictor, graph, 0, channel, from_values=True)
        np.testing.assert_allclose(whole.toarray(), dense @ weights[channel // 8], atol=1e-5)
        assert whole.nnz == rows**2
        if mixer == "slice-max":  # near ties share the exchange
            continue
        assert found.nnz == np.linalg.matrix_rank(dense) == rows
        descends = mixer == "slice-interleave" and np.sin(2 * np.pi * (channel + 1) / 16) < -1e-9
        order = np.argsort(-aggregated[:, channel] if descends else aggregated[:, channel])
        if mixer == "csp":
            order = order[np.argsort(np.argsort(aggregated[:, 0]))]
        np.testing.assert_array_equal(found.indices, order)


def test_map_that_is_no_matrix_is_an_error(make_predictor):
    graph = gs.smiles_to_graph("CCO")
    for mixer, known in (("galerkin", "galerkin"), ("slice-released", "from_values")):
        with pytest.raises(InputError, match=known):
            implicit_map(make_predictor(8.0, mixer=mixer), graph, 0, 3)
    with pytest.raises(InputError, match="layer"):
        implicit_map(make_predictor(8.0), graph, 9, 0)

"""Spectra, activations and the tables and figures of model internals."""

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

import graphslice as gs
from graphslice.analysis import activations, rank_one_residual, singular_spectrum
from graphslice.analysis.attribution import graph_of
from graphslice.analysis.internals import (
    MoleculeActivations,
    attention_by_bond,
    attention_by_distance,
    attention_from_centre,
    write_internals,
)
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


def activations_of(predictor, number: int, smiles: str) -> MoleculeActivations:
    graph, atom_rows = graph_of(predictor, smiles)
    return MoleculeActivations(number, smiles, atom_rows, activations(predictor, graph))


@pytest.fixture(scope="module")
def written(make_predictor, tmp_path_factory):
    predictor, out = make_predictor(10.0, layers=2), tmp_path_factory.mktemp("internals")
    molecules = [activations_of(predictor, number, smiles) for number, smiles in enumerate(SMILES, 1)]
    return molecules, list(write_internals(molecules, out)), out


def test_internals_write_tables_and_figures(written):
    _, files, out = written
    assert set(files) == set(out.iterdir())
    names = ["spectra", "residuals", "map_distances", *(f"map_atoms-{i}" for i in range(1, 6))]
    names += [f"map_bonds-{i}" for i in (1, 4, 5)]  # the others have no bonds
    assert {path.name for path in out.glob("*.*g")} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for path in out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in out.glob("*.svg"):
        assert "<svg" in path.read_text()[:600]


def test_attention_tables_match_activations(written):
    molecules, _, out = written
    for one in molecules:
        shares = attention_by_distance(one.activations)
        disconnected = (one.activations.distances >= 510).mean()
        assert (shares.sum(1) <= 1 + 1e-5).all() and (disconnected or np.allclose(shares.sum(1), 1, atol=1e-5))
        mol = Chem.MolFromSmiles(one.smiles)
        atoms, weights = attention_by_bond(one)
        assert len(atoms) == mol.GetNumBonds() and weights.shape == (2, len(atoms))
        for (a, b), weight in zip(atoms, weights.T, strict=True):
            i, j = 1 + one.atom_rows[a], 1 + one.atom_rows[b]
            assert one.activations.distances[i - 1, j - 1] == 1
            np.testing.assert_allclose(
                weight, (one.activations.attn_weights[:, i, j] + one.activations.attn_weights[:, j, i]) / 2
            )
        centre, away, weights_of_centre = attention_from_centre(one)
        lengths = Chem.GetDistanceMatrix(mol)
        eccentricity = np.where(lengths < 1e6, lengths, -1).max(1)
        assert centre == eccentricity.argmin() and (away[lengths[centre] < 1e6] == lengths[centre][away < 510]).all()
        np.testing.assert_array_equal(
            weights_of_centre, one.activations.attn_weights[:, 1 + one.atom_rows[centre]][:, 1 + one.atom_rows]
        )
    map_atoms = pd.read_csv(out / "map_atoms.csv")
    assert len(map_atoms) == 2 * sum(len(one.atom_rows) for one in molecules)
    assert map_atoms["distance"].isna().sum() == 2  # the chloride ion, from sodium, for each head
    distances = pd.read_csv(out / "map_distances.csv")
    assert set(distances["head"]) == {1, 2} and "token" in set(distances["distance"])
    spectra = pd.read_csv(out / "spectra.csv")
    first = spectra[(spectra["molecule"] == 1) & (spectra["layer"] == 2)]["singular_value"]
    np.testing.assert_allclose(
        first, np.linalg.svd(molecules[0].activations.mixed[1].astype(float))[1], rtol=1e-4, atol=1e-6
    )
    residuals = pd.read_csv(out / "residuals.csv")
    assert residuals["depth"].max() == 2 and residuals["residual"].between(0, 2).all()


def test_molecule_without_bonds_gives_empty_bond_table(make_predictor, tmp_path):
    list(write_internals([activations_of(make_predictor(), 1, "C")], tmp_path))
    table = pd.read_csv(tmp_path / "map_bonds.csv")
    assert len(table) == 0 and list(table.columns) == ["molecule", "smiles", "head", "atom_a", "atom_b", "weight"]

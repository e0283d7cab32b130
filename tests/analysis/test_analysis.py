from __future__ import annotations

from itertools import permutations
from math import factorial

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

import graphslice as gs
from graphslice.analysis import attribute, rank_one_residual, singular_spectrum, trace
from graphslice.analysis.inspection import by_bond, by_distance, from_centre, inspect
from graphslice.data.collate import collate
from graphslice.errors import InputError
from graphslice.nn.mixers import MIXERS

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "C1CC[C@H]2CCCC[C@@H]2C1"]


# --- spectra ------------------------------------------------------------------------------------


def test_rank_one_residual():
    row = np.array([1.0, -2.0, 3.0])
    assert rank_one_residual(np.tile(row, (5, 1))) == 0 == rank_one_residual(np.zeros((4, 2)))
    assert rank_one_residual(np.zeros((0, 3))) == 0 == rank_one_residual(row[None])
    # Two rows [1, 0] and [-1, 0]: the median is 0, so nothing is taken away.
    assert rank_one_residual(np.array([[1.0, 0], [-1, 0]])) == 1
    # [3 0; 1 0; 0 0], median [1 0]: column sum 3, row sum 2, against 4 and 3.
    assert rank_one_residual(np.array([[3.0, 0], [1, 0], [0, 0]])) == pytest.approx(np.sqrt(6 / 12))


def test_singular_spectrum():
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    gram = np.linalg.eigvalsh(x.T.astype(float) @ x)[::-1]
    np.testing.assert_allclose(singular_spectrum(x) ** 2, gram, rtol=1e-5)


# --- trace --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_trace_is_what_the_model_does(make_predictor, mixer):
    predictor = make_predictor(8.0, mixer=mixer, layers=3)
    graph = gs.smiles_to_graph(SMILES[0])
    found = trace(predictor, graph)
    rows, model = graph.num_atoms + 1, predictor.model
    assert found.rows.shape == (4, rows, 16)
    assert found.mixed.shape == (3, rows, 16)
    assert found.attn_weights.shape == (2, rows, rows)
    np.testing.assert_allclose(found.prediction, predictor.predict(SMILES[0])[0], rtol=1e-6)
    np.testing.assert_allclose(found.attn_weights.sum(-1), 1, rtol=1e-5)
    with torch.no_grad():
        batch = collate([graph], **predictor.config.collate_settings)
        np.testing.assert_allclose(found.rows[0], model.atoms(batch)[0], rtol=1e-6)
        for block, before, mixed, after in zip(model.blocks, found.rows, found.mixed, found.rows[1:], strict=False):
            x = torch.from_numpy(before) + block.mixer.output(torch.from_numpy(mixed))
            x = x + block.ffn(block.ffn_norm(x)[1])
            np.testing.assert_allclose(after, x, rtol=1e-3, atol=1e-5)
    hooks = [hook for module in model.modules() for hook in (module._forward_hooks, module._forward_pre_hooks)]
    assert not any(hooks)


# --- attribution --------------------------------------------------------------------------------


def exact_shapley(predictor, graph) -> np.ndarray:
    """By the definition: the mean over all orders, each prediction made by itself."""
    model, batch = predictor.model, collate([graph], **predictor.config.collate_settings)
    count = graph.num_atoms

    def value(shown: frozenset) -> np.ndarray:
        with torch.no_grad():
            x = model.atoms(batch)
            for atom in range(count):
                if atom not in shown:
                    x[:, 1 + atom] = 0
            structure = model.pairs(batch)
            normed = model._through_blocks(x, structure)
            found = model.head(model.read_out(normed, structure.mask))[0] * model.target_std + model.target_mean
        return found.double().numpy()

    cache: dict[frozenset, np.ndarray] = {}
    total = np.zeros((count, len(predictor.targets)))
    for order in permutations(range(count)):
        for k, atom in enumerate(order):
            for part in (frozenset(order[:k]), frozenset(order[: k + 1])):
                if part not in cache:
                    cache[part] = value(part)
            total[atom] += cache[frozenset(order[: k + 1])] - cache[frozenset(order[:k])]
    return total / factorial(count)


@pytest.mark.parametrize("mixer", ["slice-max", "slice-ascend", "softmax"])
def test_attribution_is_shapleys_value(make_predictor, mixer):
    predictor = make_predictor(10.0, targets=("a", "b"), mixer=mixer, layers=2)
    predictor.model.target_mean.copy_(torch.tensor([5.0, -1.0]))
    predictor.model.target_std.copy_(torch.tensor([2.0, 0.5]))
    graph = gs.smiles_to_graph("CC(=O)N")
    expected, found = exact_shapley(predictor, graph), attribute(predictor, graph)
    assert np.abs(expected).max() > 1e-3 and (found.errors == 0).all()
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


def test_sampled_orders_come_near_it(make_predictor):
    predictor, graph = make_predictor(10.0, mixer="slice-max"), gs.smiles_to_graph("CC(=O)NCCF")
    exact, found = attribute(predictor, graph, orders=1000), attribute(predictor, graph, orders=16)
    assert (exact.errors == 0).all() and (found.errors > 0).all()
    assert np.abs(found.values - exact.values).max() > 0 and np.abs(exact.values).max() > 1e-3
    assert (np.abs(found.values - exact.values) <= 6 * found.errors.max()).all()


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("smiles", SMILES)
def test_contributions_sum_to_the_prediction_minus_the_baseline(make_predictor, mixer, smiles):
    predictor = make_predictor(10.0, targets=("a", "b"), mixer=mixer)
    found = attribute(predictor, gs.smiles_to_graph(smiles), orders=6)
    np.testing.assert_allclose(found.prediction, predictor.predict(smiles)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.values.sum(0), found.prediction - found.baseline, rtol=1e-9, atol=1e-12)


def test_a_single_atom_gets_all(make_predictor):
    predictor = make_predictor(10.0)
    found = attribute(predictor, gs.smiles_to_graph("C"), orders=1)
    assert found.values[0, 0] == found.prediction[0] - found.baseline[0] != 0 and found.errors[0, 0] == 0


def test_atoms_alike_get_as_much(make_predictor):
    """The methyl groups of propane, for a mixer that does not ask for the numbering."""
    graph = gs.smiles_to_graph("CCC")
    found = attribute(make_predictor(10.0, mixer="slice-max"), graph)
    one, other = [atom for atom in range(3) if (graph.bonds == atom).sum() == 1]
    assert found.values[one, 0] == pytest.approx(found.values[other, 0], abs=1e-5)


# --- inspect ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inspected(make_predictor, tmp_path_factory):
    predictor = make_predictor(10.0, targets=("a", "b"), layers=2)
    out = tmp_path_factory.mktemp("inspect")
    found, _, files = inspect(predictor, SMILES, out, target="b", orders=4)
    return predictor, found, files, out


def test_files(inspected):
    *_, files, out = inspected
    assert set(files) == set(out.iterdir())
    names = [
        "spectra",
        "residuals",
        "map_distances",
        *(f"{k}-{i}" for k in ("atoms", "map_atoms") for i in range(1, 6)),
    ]
    names += [f"map_bonds-{i}" for i in (1, 4, 5)]  # the others have no bond
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in out.glob("*.*g")} == pictures
    for path in out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in out.glob("*.svg"):
        assert "<svg" in path.read_text()[:600]


def test_atoms_are_those_of_the_smiles(inspected):
    """Not of the canonical order: what the table says of an oxygen is what the model gave to an oxygen."""
    predictor, found, _, out = inspected
    table = pd.read_csv(out / "atoms.csv")
    for number, smiles in enumerate(SMILES, 1):
        mol, one = Chem.MolFromSmiles(smiles), found[number - 1]
        mine = table[(table["molecule"] == number) & (table["target"] == "b")]
        assert mine["element"].tolist() == [atom.GetSymbol() for atom in mol.GetAtoms()]
        numbers = [one.graph.atoms[place, 0] + 1 for place in one.places]
        assert numbers == [atom.GetAtomicNum() for atom in mol.GetAtoms()]
        ends = mine["prediction"].iloc[0] - mine["baseline"].iloc[0]
        assert mine["contribution"].sum() == pytest.approx(ends, abs=1e-9)
        assert mine["prediction"].iloc[0] == pytest.approx(predictor.predict(smiles)[0, 1], rel=1e-4, abs=1e-6)


def test_map_by_distance_and_bond(inspected):
    _, found, _, out = inspected
    for one in found:
        shares = by_distance(one.trace)
        apart = (one.trace.distances >= 510).mean()
        assert (shares.sum(1) <= 1 + 1e-5).all() and (apart or np.allclose(shares.sum(1), 1, atol=1e-5))
        mol = Chem.MolFromSmiles(one.smiles)
        atoms, weights = by_bond(one)
        assert len(atoms) == mol.GetNumBonds() and weights.shape == (2, len(atoms))
        for (a, b), weight in zip(atoms, weights.T, strict=True):
            i, j = 1 + one.places[a], 1 + one.places[b]
            assert one.trace.distances[i - 1, j - 1] == 1
            np.testing.assert_allclose(weight, (one.trace.attn_weights[:, i, j] + one.trace.attn_weights[:, j, i]) / 2)
        centre, away, reads = from_centre(one)
        lengths = Chem.GetDistanceMatrix(mol)
        eccentricity = np.where(lengths < 1e6, lengths, -1).max(1)
        assert centre == eccentricity.argmin() and (away[lengths[centre] < 1e6] == lengths[centre][away < 510]).all()
        np.testing.assert_array_equal(reads, one.trace.attn_weights[:, 1 + one.places[centre]][:, 1 + one.places])
    reads = pd.read_csv(out / "map_atoms.csv")
    assert len(reads) == 2 * sum(one.graph.num_atoms for one in found)
    assert reads["distance"].isna().sum() == 2  # the chloride of the sodium, for each head
    distances = pd.read_csv(out / "map_distances.csv")
    assert set(distances["head"]) == {1, 2} and "token" in set(distances["distance"])
    spectra = pd.read_csv(out / "spectra.csv")
    first = spectra[(spectra["molecule"] == 1) & (spectra["layer"] == 2)]["singular_value"]
    np.testing.assert_allclose(first, np.linalg.svd(found[0].trace.mixed[1].astype(float))[1], rtol=1e-4, atol=1e-6)
    residuals = pd.read_csv(out / "residuals.csv")
    assert residuals["depth"].max() == 2 and residuals["residual"].between(0, 2).all()


def test_nothing_is_written_for_what_is_no_molecule(make_predictor, tmp_path):
    for smiles, target, said in (
        (["C(", "C)"], None, r"cannot inspect .C\(.: not a valid SMILES"),
        (["C"], "gap", "no target 'gap': it has y"),
        ([], None, "at least one SMILES"),
    ):
        with pytest.raises(InputError, match=said):
            inspect(make_predictor(), smiles, tmp_path / "out", target=target)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write the folder"):
        inspect(make_predictor(), ["C"], tmp_path / "file" / "out", orders=2)
    assert not (tmp_path / "out").exists()


def test_a_molecule_without_bonds_has_an_empty_table_of_them(make_predictor, tmp_path):
    inspect(make_predictor(), ["C"], tmp_path, orders=2)
    table = pd.read_csv(tmp_path / "map_bonds.csv")
    assert len(table) == 0 and list(table.columns) == ["molecule", "smiles", "head", "atom_a", "atom_b", "weight"]


def test_command(cli, run_folder, tmp_path):
    code, out, _ = cli("inspect", run_folder, "--smiles", "CCO", "CC", "--orders", 4, "-o", tmp_path / "i")
    assert code == 0 and "gap_ev: " in out and "rank-1 residual by depth" in out
    assert f"24 files in {tmp_path / 'i'}" in out and len(list((tmp_path / "i").iterdir())) == 24
    code, _, err = cli("inspect", run_folder, "--smiles", "CCO", "--orders", 1)
    assert code == 2 and "--orders must be at least 2" in err
    code, out, err = cli("inspect", run_folder, "--smiles", "C(", "CO", "-o", tmp_path / "k")
    assert code == 0 and "left out 'C(': not a valid SMILES" in err and "CO\n" in out
    assert (tmp_path / "k" / "atoms-2.png").exists() and set(pd.read_csv(tmp_path / "k" / "atoms.csv").molecule) == {2}
    code, _, err = cli("inspect", run_folder, "--smiles", "C(", "-o", tmp_path / "j")
    assert code == 2 and "not a valid SMILES" in err and not (tmp_path / "j").exists()

"""Contributions of atoms: Shapley values, in the order of the SMILES, of one network or several."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphslice as gs
from graphslice.analysis import attribute, attribute_graph
from graphslice.checkpoint import Checkpoint
from graphslice.chem.molecule import smiles_to_graph
from graphslice.config import TrainerConfig
from graphslice.data.collate import collate
from graphslice.errors import InputError
from graphslice.inference.predictor import Predictor
from graphslice.nn.mixers import MIXERS
from graphslice.tasks import Task, regression_tasks
from graphslice.trees import Stacking
from graphslice.trees.stacking import fit_trees

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "C1CC[C@H]2CCCC[C@@H]2C1"]


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
            normed = model._apply_blocks(x, structure)
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


def test_deviations_that_a_network_learns_are_no_answers(make_predictor):
    """Of the loss gaussian: there are as many contributions as names."""
    checkpoint = make_predictor(4.0, ("y", "z", "deviation", "deviation")).checkpoints[0]
    config = replace(checkpoint.config, trainer=TrainerConfig(loss="gaussian"))
    learned = Predictor(replace(checkpoint, config=config, tasks=regression_tasks(["y", "z"])), "cpu")
    found = attribute(learned, "CCO")
    assert (found.values.shape, found.errors.shape, found.names) == ((3, 2), (3, 2), ["y", "z"])
    assert found.prediction.shape == found.baseline.shape == found.network_weight.shape == (2,)
    np.testing.assert_allclose(found.values.sum(0), found.prediction - found.baseline, rtol=1e-4, atol=1e-6)


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


# --- in the order of the SMILES -----------------------------------------------------------------


@pytest.mark.parametrize("smiles", ["CC(=O)Nc1ccc(O)cc1F", "[Na+].CC(=O)[O-]", "[H]OC([H])([H])C[C@H](F)Cl"])
def test_another_spelling_permutes_the_values(make_predictor, smiles):
    predictor = make_predictor(10.0, mixer="slice-quantile", targets=("a", "b"))
    mol = Chem.MolFromSmiles(smiles)
    found = attribute(predictor, smiles, orders=8)
    assert found.smiles == smiles and found.values.shape == found.errors.shape == (mol.GetNumAtoms(), 2)
    assert len({round(value, 9) for value in found.values[:, 0]}) > 2
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
        other = Chem.RenumberAtoms(mol, order)
        spelled = Chem.MolToSmiles(other, canonical=False)
        written = list(other.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])  # atoms of other, as written
        there = attribute(predictor, spelled, orders=8)
        # Symmetric atoms may change places in the canonical order: none of these molecules has any.
        np.testing.assert_allclose(there.values, found.values[np.array(order)[written]], rtol=1e-9)
        np.testing.assert_allclose(there.errors, found.errors[np.array(order)[written]], rtol=1e-9)
        np.testing.assert_allclose(there.baseline, found.baseline, rtol=1e-9)


def test_a_graph_keeps_its_order_and_many_give_a_list(make_predictor):
    predictor = make_predictor(10.0)
    smiles = "OCC(F)=O"
    graph = gs.smiles_to_graph(smiles)
    one, low = attribute(predictor, graph), attribute_graph(predictor, graph)
    np.testing.assert_array_equal(one.values, low.values)
    assert one.smiles is None
    written = attribute(predictor, smiles)
    by_element = {number: sorted(one.values[graph.atoms[:, 0] + 1 == number, 0]) for number in (6, 8, 9)}
    for number, values in by_element.items():
        mine = [atom.GetIdx() for atom in Chem.MolFromSmiles(smiles).GetAtoms() if atom.GetAtomicNum() == number]
        np.testing.assert_allclose(sorted(written.values[mine, 0]), values)
    several = attribute(predictor, [smiles, graph, "C"])
    assert [len(each.values) for each in several] == [5, 5, 1] and attribute(predictor, []) == []
    np.testing.assert_array_equal(several[0].values, written.values)


@pytest.mark.parametrize(
    "smiles, reason",
    [("C(", "cannot explain 'C\\(': not a valid SMILES"), ("", "empty SMILES"), ("C*", "wildcard"), ("c1cc1C", ".")],
)
def test_what_is_no_molecule(make_predictor, smiles, reason):
    with pytest.raises(InputError, match=reason):
        attribute(make_predictor(), smiles)
    with pytest.raises(InputError, match=reason):
        attribute(make_predictor(), ["CCO", smiles])


@pytest.mark.parametrize("given", [Chem.MolFromSmiles("CCO"), smiles_to_graph("CCO").to_pyg(), 3, ["CCO", None]])
def test_what_is_not_explained(make_predictor, given):
    with pytest.raises(InputError, match=r"cannot explain a \w+: give SMILES"):
        attribute(make_predictor(), given)


def test_no_orders(make_predictor):
    with pytest.raises(InputError, match="orders must be at least 1"):
        attribute(make_predictor(), "CCO", orders=0)


@pytest.mark.parametrize("smiles", ["CCCCCCCCCCCCCC", "Cc1cc(C)cc(C)c1CCCC", "FC(F)(F)CCCCCCCCCC(F)(F)F"])
def test_atoms_alike_get_as_much_within_the_error(make_predictor, smiles):
    found = attribute(make_predictor(10.0, mixer="slice-quantile"), smiles, orders=64)
    alike = list(Chem.CanonicalRankAtoms(Chem.MolFromSmiles(smiles), breakTies=False))
    assert (found.errors > 0).all() and len(set(alike)) < len(alike)
    for rank in set(alike):
        group = [i for i, mine in enumerate(alike) if mine == rank]
        for i in group[1:]:
            error = np.hypot(found.errors[i, 0], found.errors[group[0], 0])
            assert abs(found.values[i, 0] - found.values[group[0], 0]) < 5 * error


# --- several networks, and trees beside them ----------------------------------------------------


def several(make_predictor, count: int, **model) -> Predictor:
    """Networks that differ, as one."""
    checkpoints = []
    for number in range(count):
        (checkpoint,) = make_predictor(8.0 + number, **model).checkpoints
        checkpoint.weights["head.bias"] += number
        checkpoints.append(checkpoint)
    return Predictor(checkpoints, "cpu")


@pytest.mark.parametrize("smiles", ["CCO", "CC(=O)Nc1ccccc1CCF"], ids=["exact", "sampled"])
def test_of_several_networks_the_mean_is_explained(make_predictor, smiles):
    both = several(make_predictor, 2)
    each = [attribute(Predictor(checkpoint, "cpu"), smiles, orders=8) for checkpoint in both.checkpoints]
    found = attribute(both, smiles, orders=8)
    for name in ("values", "prediction", "baseline"):
        np.testing.assert_allclose(getattr(found, name), np.mean([getattr(e, name) for e in each], axis=0), rtol=1e-9)
    assert np.abs(each[0].values - each[1].values).max() > 1e-3
    assert found.prediction[0] == pytest.approx(both.predict(smiles)[0, 0], rel=1e-5)
    assert found.values.sum() == pytest.approx(found.prediction[0] - found.baseline[0], rel=1e-9)


def test_of_a_blend_the_network_is_explained(make_predictor):
    (plain,) = make_predictor(10.0, targets=("a", "b")).checkpoints
    smiles = ["C" * n for n in range(1, 21)]
    kinds = ("rdkit2d",)
    x = gs.chem.descriptors.compute_descriptors(smiles, kinds)["rdkit2d"]
    labels = np.stack([np.arange(20.0), np.arange(20.0)[::-1]], axis=1)
    trees = fit_trees(x, labels, plain.tasks, seed=0, threads=1)
    stacking = Stacking(kinds, trees, np.array([[0.3, 1.0], [0.5, 0.0], [0.2, 0.0]]))
    blended = Predictor(Checkpoint(plain.config, plain.tasks, plain.weights, stacking=stacking), "cpu")
    found, alone = attribute(blended, "CCO"), attribute(Predictor(plain, "cpu"), "CCO")
    np.testing.assert_array_equal(found.values, alone.values)
    assert found.network_weight.tolist() == [0.3, 1.0] and alone.network_weight.tolist() == [1, 1]
    answer = blended.predict("CCO")[0]
    assert answer[1] == pytest.approx(found.prediction[1], rel=1e-5)
    assert abs(answer[0] - found.prediction[0]) > 0.1
    # A graph has no descriptors for the trees, but the network reads none.
    np.testing.assert_array_equal(attribute(blended, gs.smiles_to_graph("C")).values, attribute(blended, "C").values)
    pair = Predictor([*blended.checkpoints, plain], "cpu")
    assert attribute(pair, "CCO").network_weight.tolist() == [0.65, 1.0]


def test_names_of_what_is_explained(make_predictor):
    tasks = [Task("t"), Task("c", transform="log"), Task("active", "binary", ("no", "yes"))]
    tasks.append(Task("kind", "multiclass", ("a", "b", "c")))
    (plain,) = make_predictor(targets=tuple("uvwxyz")).checkpoints
    found = attribute(Predictor(Checkpoint(plain.config, tasks, plain.weights), "cpu"), "CC")
    assert found.names[:3] == ["t", "log c", "active, logit of yes"] and len(found.names) == 6
    assert found.values.shape == (2, 6) and found.network_weight.shape == (6,)
    assert attribute(make_predictor(), "CC").names == [task.name for task in regression_tasks("y")]

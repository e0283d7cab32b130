"""Atom contributions: Shapley values, atom order, ensembles, base models and errors."""

from dataclasses import replace
from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from rdkit import Chem

from graphslice.config import TrainerConfig
from graphslice.data.batches import collate
from graphslice.data.featurize import graph_input_rows
from graphslice.errors import InputError
from graphslice.explain.attribution import attribute, graph_of
from graphslice.inference.predictor import Predictor
from graphslice.ops import read_out
from graphslice.runs.checkpoint import Checkpoint
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import fit_base_models
from graphslice.tasks import Task, regression_tasks

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "C1CC[C@H]2CCCC[C@@H]2C1"]


def exact_shapley(predictor, graph) -> np.ndarray:
    """Compute Shapley values by their definition, the mean over all permutations, with one prediction at a time."""
    model, batch = predictor.model, collate([graph], **predictor.config.collate_settings)
    count = graph.num_atoms

    def value(shown: frozenset) -> np.ndarray:
        with torch.no_grad():
            x = model.atoms(batch)
            for atom in range(count):
                if atom not in shown:
                    x[:, 1 + atom] = 0
            structure = model.pairs(batch)
            normed = model.run_blocks(x, structure.tensors())
            readouts = read_out(normed, structure.lengths, model.readouts)
            output = model.head(readouts)[0] * model.target_std + model.target_mean
        return output.double().numpy()

    cache: dict[frozenset, np.ndarray] = {}
    total = np.zeros((count, len(predictor.targets)))
    for order in permutations(range(count)):
        for k, atom in enumerate(order):
            for subset in (frozenset(order[:k]), frozenset(order[: k + 1])):
                if subset not in cache:
                    cache[subset] = value(subset)
            total[atom] += cache[frozenset(order[: k + 1])] - cache[frozenset(order[:k])]
    return total / factorial(count)


def test_predicted_standard_deviations_have_no_contributions(make_predictor):
    """The Gaussian loss adds outputs for standard deviations, which have no contributions."""
    checkpoint = make_predictor(4.0, ("y", "z", "deviation", "deviation")).checkpoints[0]
    config = replace(checkpoint.config, trainer=TrainerConfig(loss="gaussian"))
    predictor = Predictor(replace(checkpoint, config=config, tasks=regression_tasks(["y", "z"])), "cpu")
    attribution = attribute(predictor, "CCO")
    assert (attribution.values.shape, attribution.errors.shape, attribution.names) == ((3, 2), (3, 2), ["y", "z"])
    assert attribution.prediction.shape == attribution.baseline.shape == attribution.network_weight.shape == (2,)
    np.testing.assert_allclose(
        attribution.values.sum(0), attribution.prediction - attribution.baseline, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("mixer", ["slice-max", "slice-ascend", "softmax"])
def test_attribution_matches_definition_of_shapley_value(make_predictor, mixer):
    predictor = make_predictor(10.0, targets=("a", "b"), mixer=mixer, layers=2)
    predictor.model.target_mean.copy_(torch.tensor([5.0, -1.0]))
    predictor.model.target_std.copy_(torch.tensor([2.0, 0.5]))
    smiles = "CC(=O)N"
    graph, atom_rows = graph_of(predictor, smiles)
    expected, result = exact_shapley(predictor, graph)[atom_rows], attribute(predictor, smiles)
    assert np.abs(expected).max() > 1e-3 and (result.errors == 0).all()
    np.testing.assert_allclose(result.values, expected, atol=1e-5)


def test_sampled_values_approximate_exact_values(make_predictor):
    predictor, smiles = make_predictor(10.0, mixer="slice-max"), "CC(=O)NCCF"
    exact, result = attribute(predictor, smiles, orders=1000), attribute(predictor, smiles, orders=16)
    assert (exact.errors == 0).all() and (result.errors > 0).all()
    assert np.abs(result.values - exact.values).max() > 0 and np.abs(exact.values).max() > 1e-3
    assert (np.abs(result.values - exact.values) <= 6 * result.errors.max()).all()


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
@pytest.mark.parametrize("smiles", SMILES)
def test_contributions_sum_to_the_prediction_minus_the_baseline(make_predictor, mixer, smiles):
    predictor = make_predictor(10.0, targets=("a", "b"), mixer=mixer)
    result = attribute(predictor, smiles, orders=6)
    np.testing.assert_allclose(result.prediction, predictor.predict(smiles)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.values.sum(0), result.prediction - result.baseline, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("smiles", ["CC(=O)Nc1ccc(O)cc1F", "[Na+].CC(=O)[O-]", "[H]OC([H])([H])C[C@H](F)Cl"])
def test_other_smiles_of_the_molecule_permutes_the_values(make_predictor, smiles):
    predictor = make_predictor(10.0, mixer="slice-quantile", targets=("a", "b"))
    mol = Chem.MolFromSmiles(smiles)
    result = attribute(predictor, smiles, orders=8)
    assert result.values.shape == result.errors.shape == (mol.GetNumAtoms(), 2)
    assert len({round(value, 9) for value in result.values[:, 0]}) > 2
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
        other = Chem.RenumberAtoms(mol, order)
        other_smiles = Chem.MolToSmiles(other, canonical=False)
        written = list(other.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])  # atoms of other in SMILES order
        permuted = attribute(predictor, other_smiles, orders=8)
        # The canonical order of symmetric atoms is arbitrary; none of these molecules has any.
        np.testing.assert_allclose(permuted.values, result.values[np.array(order)[written]], rtol=1e-9)
        np.testing.assert_allclose(permuted.errors, result.errors[np.array(order)[written]], rtol=1e-9)
        np.testing.assert_allclose(permuted.baseline, result.baseline, rtol=1e-9)


def test_molecules_that_cannot_be_explained_raise(make_predictor):
    for smiles, reason in (
        ("C(", r"cannot explain 'C\(': not a valid SMILES"),
        ("", "empty SMILES"),
        ("C*", "wildcard"),
    ):
        with pytest.raises(InputError, match=reason):
            attribute(make_predictor(), smiles)
    with pytest.raises(InputError, match="orders must be at least 1"):
        attribute(make_predictor(), "CCO", orders=0)


@pytest.mark.parametrize("smiles", ["CCO", "CC(=O)Nc1ccccc1CCF"], ids=["exact", "sampled"])
def test_ensemble_attribution_is_the_mean_over_networks(make_predictor, smiles):
    checkpoints = [*make_predictor(8.0).checkpoints, *make_predictor(9.0).checkpoints]
    checkpoints[1].weights["head.bias"] += 1
    ensemble = Predictor(checkpoints, "cpu")
    single = [attribute(Predictor(checkpoint, "cpu"), smiles, orders=8) for checkpoint in ensemble.checkpoints]
    result = attribute(ensemble, smiles, orders=8)
    for name in ("values", "prediction", "baseline"):
        np.testing.assert_allclose(
            getattr(result, name), np.mean([getattr(attribution, name) for attribution in single], axis=0), rtol=1e-9
        )
    assert np.abs(single[0].values - single[1].values).max() > 1e-3
    assert result.prediction[0] == pytest.approx(ensemble.predict(smiles)[0, 0], rel=1e-5)
    assert result.values.sum() == pytest.approx(result.prediction[0] - result.baseline[0], rel=1e-9)


def test_stack_explains_the_network_only(make_predictor):
    (plain,) = make_predictor(10.0, targets=("a", "b")).checkpoints
    smiles = ["C" * n for n in range(1, 21)]
    x = graph_input_rows(Predictor(plain, "cpu").featurize_molecules(smiles), np.arange(20))
    labels = np.stack([np.arange(20.0), np.arange(20.0)[::-1]], axis=1)
    trees = fit_base_models(x, labels, plain.tasks, seed=0)
    stacking = Stacking(trees, np.array([[0.3, 1], [0.5, 0], [0.2, 0], [0, 0]]))
    stacked = Predictor(Checkpoint(plain.config, plain.tasks, plain.weights, stacking=stacking), "cpu")
    result, plain_result = attribute(stacked, "CCO"), attribute(Predictor(plain, "cpu"), "CCO")
    np.testing.assert_array_equal(result.values, plain_result.values)
    assert result.network_weight.tolist() == [0.3, 1.0] and plain_result.network_weight.tolist() == [1, 1]
    prediction = stacked.predict("CCO")[0]
    assert prediction[1] == pytest.approx(result.prediction[1], rel=1e-5)
    assert abs(prediction[0] - result.prediction[0]) > 0.1
    pair = Predictor([*stacked.checkpoints, plain], "cpu")
    assert attribute(pair, "CCO").network_weight.tolist() == [0.65, 1.0]


def test_classes_are_explained_by_their_log_odds(make_predictor):
    """The inputs of the softmax may be shifted, which changes no probability."""
    predictor = make_predictor(targets=tuple("abc"))
    (plain,) = predictor.checkpoints
    checkpoint = Checkpoint(plain.config, [Task("kind", "multiclass", ("a", "b", "c"))], plain.weights)
    shifted = {**plain.weights, "target_mean": plain.weights["target_mean"] + 7}
    results = [
        attribute(Predictor(replace(checkpoint, weights=weights), "cpu"), "CCO") for weights in (plain.weights, shifted)
    ]
    np.testing.assert_allclose(results[0].values, results[1].values, rtol=1e-4, atol=1e-5)
    p = Predictor(checkpoint, "cpu").predict("CCO")[0]
    np.testing.assert_allclose(results[0].prediction, np.log(p / (1 - p)), rtol=1e-4, atol=1e-5)


def test_output_names_of_all_task_kinds(make_predictor):
    tasks = [Task("t"), Task("c", transform="log"), Task("active", "binary", ("no", "yes"))]
    tasks.append(Task("kind", "multiclass", ("a", "b", "c")))
    (plain,) = make_predictor(targets=tuple("uvwxyz")).checkpoints
    result = attribute(Predictor(Checkpoint(plain.config, tasks, plain.weights), "cpu"), "CC")
    assert result.names[:3] == ["t", "log c", "active, logit of yes"] and len(result.names) == 6
    assert result.values.shape == (2, 6) and result.network_weight.shape == (6,)
    assert attribute(make_predictor(), "CC").names == [task.name for task in regression_tasks("y")]

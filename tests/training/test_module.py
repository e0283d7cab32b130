"""Losses of targets and of bounds, and auxiliary atom- and bond-level targets of molecule-level models."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from scipy.stats import norm
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from graphslice.chem import smiles_to_graph
from graphslice.chem.molecule import MolArrays
from graphslice.config import GraphConfig, ModelConfig, TrainerConfig
from graphslice.data.batches import collate_rows
from graphslice.data.labels import Labels, pointers
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.pretraining.corpus import build_corpus
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.tasks import Task, regression_tasks
from graphslice.training import resume, train
from graphslice.training.module import AuxiliaryHead, AuxiliaryHeads, Loss, balanced_weights, check_losses

ACTIVE, TOXIC = Task("active", "binary", ("no", "yes")), Task("toxic", "binary", ("no", "yes"))
KIND = Task("kind", "multiclass", ("a", "b", "c"))
TASKS = [Task("size"), KIND, ACTIVE, Task("mass"), TOXIC]  # outputs 0, 1-3, 4, 5, 6


def batch(rows: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(rows, 7, generator=generator, dtype=torch.float64)
    numbers = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    classes = [torch.randint(0, k, (rows,), generator=generator).double() for k in (3, 2, 2)]
    labels = torch.stack([numbers[:, 0], classes[0], classes[1], numbers[:, 1], classes[2]], dim=1)
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = torch.nan
    return outputs, labels


def loss_by_loop(outputs, labels, of_numbers, target_weights=(1, 1, 1, 1, 1), class_weights=None) -> torch.Tensor:
    """Reference implementation: a loop over labels."""
    total, count = 0.0, 0.0
    where = [slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 6), slice(6, 7)]
    for row in range(len(labels)):
        for t, task in enumerate(TASKS):
            label, output = labels[row, t], outputs[row, where[t]]
            if torch.isnan(label):
                continue
            weight = target_weights[t] * (class_weights[t][int(label)] if class_weights and task.classes else 1)
            if task.kind == "regression":
                loss = of_numbers(output[0], label)
            elif task.kind == "binary":
                loss = functional.binary_cross_entropy_with_logits(output[0], label)
            else:
                loss = functional.cross_entropy(output[None], label.long()[None])
            total, count = total + weight * loss, count + target_weights[t]
    return total / count


@pytest.mark.parametrize(
    ("name", "of_numbers"),
    [
        *((name, functional.l1_loss) for name in ("auto", "mae", "bce", "cross-entropy")),
        ("mse", functional.mse_loss),
        ("huber", functional.huber_loss),
    ],
)
def test_loss_matches_loop_over_labels(name, of_numbers):
    outputs, labels = batch()
    total, weights = Loss(TASKS, TrainerConfig(loss=name), labels.numpy())(outputs, labels)
    assert float(total / weights) == pytest.approx(float(loss_by_loop(outputs, labels, of_numbers)), rel=1e-6)
    assert weights == (~torch.isnan(labels)).sum()


def test_gaussian_loss_is_the_weighted_negative_log_likelihood():
    """Compared with PyTorch's normal distribution, label by label; the weight has no gradient."""
    tasks = [Task("size"), KIND, Task("mass")]  # predictions 0, 1-3, 4, and standard deviations 5, 6
    outputs = torch.randn(9, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    labels = torch.randn(9, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    labels[:, 1] = torch.arange(9) % 3
    labels[2, 0] = labels[4, 2] = torch.nan
    total, weight = Loss(tasks, TrainerConfig(loss="gaussian"), labels.numpy())(outputs, labels)
    expected = functional.cross_entropy(outputs[:, 1:4], labels[:, 1].long(), reduction="sum")
    for t, mean, log in ((0, 0, 5), (2, 4, 6)):
        for row in range(9):
            if not torch.isnan(labels[row, t]):
                std = outputs[row, log].exp()
                density = torch.distributions.Normal(outputs[row, mean], std).log_prob(labels[row, t])
                expected = expected - std.detach() * (density + 0.5 * np.log(2 * np.pi))
    assert total.item() == pytest.approx(expected.item()) and weight.item() == 9 + 16
    found, wanted = (torch.autograd.grad(value, outputs, retain_graph=True)[0] for value in (total, expected))
    torch.testing.assert_close(found, wanted)


def test_target_and_class_weights():
    outputs, labels = batch(40)
    config = TrainerConfig(target_weights="size=0.5,toxic=3", class_weights="balanced")
    total, weights = Loss(TASKS, config, labels.numpy())(outputs, labels)
    balanced = [
        balanced_weights(labels[:, t].numpy(), len(task.classes)) if task.classes else None
        for t, task in enumerate(TASKS)
    ]
    expected = loss_by_loop(outputs, labels, functional.l1_loss, (0.5, 1, 1, 1, 3), balanced)
    assert float(total / weights) == pytest.approx(float(expected), rel=1e-6)


def test_balanced_weights_match_scikit_learn():
    labels = np.array([0, 0, 0, 1, 2, 2, np.nan])
    known = labels[~np.isnan(labels)]
    np.testing.assert_allclose(
        balanced_weights(labels, 3), compute_class_weight("balanced", classes=np.arange(3), y=known)
    )
    assert balanced_weights(np.array([0.0, 2.0, 2.0]), 3).tolist() == [1.5, 0, 0.75]  # the second class is absent


@pytest.mark.parametrize(
    ("settings", "tasks", "reason"),
    [
        ({"class_weights": "balanced"}, regression_tasks(["y"]), "needs a target of classes"),
        ({"loss": "bce"}, regression_tasks(["y"]), "trainer.loss bce is for binary targets, but 'y' is regression"),
        ({"target_weights": "actve=2"}, [ACTIVE], "did you mean 'active'"),
        ({"target_weights": "active=-1"}, [ACTIVE], "at least 0"),
    ],
)
def test_unsuitable_losses_and_weights_are_rejected(settings, tasks, reason):
    with pytest.raises(InputError, match=reason):
        check_losses(TrainerConfig(**settings), tasks)


def censored_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions of two numbers and their log standard deviations; a third of the labels are bounds."""
    generator = torch.Generator().manual_seed(1)
    outputs, labels = (torch.randn(12, width, generator=generator, dtype=torch.float64) for width in (4, 2))
    bounds = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64).expand(12, 2, 2).clone()
    bounds[:3, 0, 0], bounds[3:5, 0, 1], bounds[5:7, 1] = 0.5, -0.2, torch.tensor([-0.3, 0.4], dtype=torch.float64)
    labels[torch.isfinite(bounds).any(dim=2)] = torch.nan
    labels[11, 0] = torch.nan
    outputs[:, 2:] /= 4
    return outputs, labels, bounds


@pytest.mark.parametrize(("name", "power"), [("mae", 1), ("mse", 2)])
def test_loss_of_a_bound_is_the_distance_from_it(name, power):
    outputs, labels, bounds = censored_batch()
    module = Loss(regression_tasks("ab"), TrainerConfig(loss=name), labels.numpy())
    total, weights = module(outputs[:, :2], labels, bounds)
    expected = []
    for row in range(12):
        for t in range(2):
            label, (low, high), output = float(labels[row, t]), bounds[row, t].tolist(), float(outputs[row, t])
            if label == label:
                expected.append(abs(output - label) ** power)
            elif (low, high) != (-np.inf, np.inf):
                expected.append(max(low - output, output - high, 0.0) ** power)
    assert len(expected) == 23 and float(weights) == 23
    assert float(total) == pytest.approx(sum(expected))


def test_gaussian_loss_of_a_bound_is_the_probability_beyond_it():
    outputs, labels, bounds = censored_batch()
    module = Loss(regression_tasks("ab"), TrainerConfig(loss="gaussian"), labels.numpy())
    only_bounds = torch.full_like(labels, torch.nan)
    total, weights = module(outputs, only_bounds, bounds)
    mean, std = outputs[:, :2].numpy(), outputs[:, 2:].exp().numpy()
    low, high = bounds[..., 0].numpy(), bounds[..., 1].numpy()
    losses = -std * np.log(norm.cdf(high, mean, std) - norm.cdf(low, mean, std))
    expected = losses[np.isfinite(bounds.numpy()).any(axis=2)].sum()
    assert float(weights) == 7 and float(total) == pytest.approx(float(expected))


def test_gaussian_loss_of_far_bounds_has_finite_gradients():
    outputs = torch.tensor([[1e4, -8.0], [-1e4, 8.0], [0.0, -8.0]], requires_grad=True)
    bounds = torch.tensor([[[-torch.inf, 0.0]], [[0.0, torch.inf]], [[50.0, 51.0]]])
    labels = torch.full((3, 1), torch.nan)
    total, _ = Loss([Task("a")], TrainerConfig(loss="gaussian"), labels.numpy())(outputs, labels, bounds)
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(outputs.grad).all()


def test_loss_with_weights_is_that_of_repeated_rows():
    outputs, labels = batch()
    counts = torch.arange(12) % 3
    module = Loss(TASKS, TrainerConfig(), labels.numpy())
    total, count = module(outputs, labels, None, counts.double())
    repeated, _ = module(outputs.repeat_interleave(counts, 0), labels.repeat_interleave(counts, 0))
    assert float(total) == pytest.approx(float(repeated)) and count == (~torch.isnan(labels)).sum()


@pytest.mark.parametrize("heavy", ["class", "row"])
def test_a_heavy_label_has_the_same_influence_in_every_batch(heavy):
    """The sum of the batches' gradients is then that of the documented weights."""
    labels = torch.zeros(32, 1)
    labels[0] = 1
    config = TrainerConfig(class_weights="balanced" if heavy == "class" else "none")
    module = Loss([ACTIVE], config, labels.numpy())
    weights = torch.ones(32)
    weights[0] = 31
    gradients = torch.zeros(32)
    for batch in torch.arange(32).split(4):
        outputs = torch.zeros(4, 1, requires_grad=True)
        total, count = module(outputs, labels[batch], None, None if heavy == "class" else weights[batch])
        (total / count).backward()
        gradients[batch] = outputs.grad[:, 0].abs()
    assert float(gradients[0] / gradients.sum()) == pytest.approx(0.5)


SMILES = ["CCO", "c1ccccc1O", "C", "CC(=O)N"]
NAN = float("nan")


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_arrays(MolArrays.from_graphs([smiles_to_graph(text) for text in SMILES]))


@pytest.fixture(scope="module")
def labels(store):
    """Labels of the atoms of the first, third and last molecule, and of the bonds of the last one."""
    generator = np.random.default_rng(0)
    atoms = generator.normal(size=(8, 2))
    atoms[1, 0] = NAN
    bonds = generator.normal(size=(3, 1))
    return {
        "atom": Labels("atom", atoms, pointers([3, 0, 1, 4]), ("charge", "spin")),
        "bond": Labels("bond", bonds, pointers([0, 0, 0, 3]), ("order",)),
    }


def test_batch_contains_labelled_atoms_and_bonds(store, labels):
    batch = collate_rows(store, np.array([3, 1, 2]), auxiliary=labels)
    assert batch.atom_index[:, :2].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [2, 0]]
    torch.testing.assert_close(batch.atom_targets, torch.tensor(labels["atom"].values[[4, 5, 6, 7, 3]]).float())
    graph = store[3]
    assert batch.bond_index[:, 0].tolist() == [0, 0, 0] and batch.bond_index[:, 1:3].tolist() == graph.bonds.tolist()
    plain = collate_rows(store, np.array([3, 1, 2]))
    assert plain.atom_index is None and plain.bond_targets is None
    nothing = collate_rows(store, np.array([1]), auxiliary=labels)
    assert nothing.atom_index.shape == (0, 4) and nothing.atom_targets.shape == (0, 2)


def test_errors_match_loop_over_labels(store, labels):
    torch.manual_seed(0)
    head = AuxiliaryHead(16, labels["atom"])
    batch = collate_rows(store, np.arange(4), auxiliary=labels)
    rows = torch.randn(4, 8, 16)
    values, found = labels["atom"].values, head(rows, batch)
    mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    sums, counts, at = np.zeros(2), np.zeros(2), 0
    for molecule, size in enumerate([3, 0, 1, 4]):
        for atom in range(size):
            predicted = head.head(rows[molecule, atom + 1]).detach().numpy()
            for t in range(2):
                if not np.isnan(values[at, t]):
                    sums[t] += abs(predicted[t] - (values[at, t] - mean[t]) / std[t])
                    counts[t] += 1
            at += 1
    np.testing.assert_allclose(found[0].sum(dim=0).detach().numpy(), sums, rtol=1e-5)
    assert found[1].sum(dim=0).tolist() == counts.tolist() == [7, 8]


def test_mean_errors_have_the_unit_of_the_targets(store, labels):
    heads = AuxiliaryHeads(16, labels, 0.5)
    rows = torch.randn(4, 8, 16)
    for some in (np.array([0, 1, 2]), np.array([3])):
        heads.validate(rows[some], collate_rows(store, some, auxiliary=labels))
    found = heads.mean_errors(1)
    head = heads["bond"]
    with torch.no_grad():
        errors, known = head(rows, collate_rows(store, np.arange(4), auxiliary=labels))
    assert list(found) == ["charge", "spin", "order"] and known.sum() == 3
    assert found["order"] == pytest.approx(float(errors.sum() / 3 * np.std(labels["bond"].values)), rel=1e-5)
    assert heads.mean_errors(1) == {}


@pytest.mark.parametrize("readout", ["mean+max", "token"])
def test_traced_rows_match_the_readout(store, readout):
    """The outputs of a traced program equal the readout of its rows, and so do the gradients."""
    torch.manual_seed(0)
    settings = {"mixer": "slice-quantile", "layers": 2, "dim": 32, "heads": 4, "ffn_dim": 32, "readout": readout}
    model = GraphTransformer(ModelConfig(**settings, dropout=0.0, input_dropout=0.0, attention_dropout=0.0))
    batch = collate_rows(store, np.arange(4))
    outputs, rows = model.standardised_with_rows(batch)
    assert rows.shape == (4, 8, 32)
    torch.testing.assert_close(outputs, model.standardised(batch), rtol=1e-4, atol=1e-5)
    parameters = [p for p in model.parameters() if p.requires_grad]
    one = torch.autograd.grad(outputs.square().sum(), parameters, allow_unused=True)
    other = torch.autograd.grad(model.standardised(batch).square().sum(), parameters, allow_unused=True)
    for a, b in zip(one, other, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def corpus(demo_smiles, tmp_path_factory):
    """A corpus with atom degrees and ring membership of bonds for three of four molecules."""
    folder = tmp_path_factory.mktemp("auxiliary")
    mols = [Chem.MolFromSmiles(text) for text in demo_smiles[:160]]
    degrees = [str([atom.GetDegree() for atom in mol.GetAtoms()]) for mol in mols]
    rings = [str([float(bond.IsInRing()) for bond in mol.GetBonds()]) for mol in mols]
    frame = pd.DataFrame({"smiles": demo_smiles[:160], "gap": range(160), "degree": degrees, "ring": rings})
    frame.loc[::4, ["degree", "ring"]] = None
    frame.to_csv(folder / "t.csv", index=False)
    return build_corpus(folder / "c.arrow", [folder / "t.csv"], GraphConfig(), labels=["gap", "degree", "ring"])


def test_auxiliary_targets_are_trained_and_resumed(corpus, tiny_config, tmp_path):
    model = {"mixer": "slice-quantile", "dim": 32, "heads": 4, "ffn_dim": 32, "layers": 2, "dropout": 0.0}
    config = tiny_config(
        corpus.store.name, model=model | {"init": "balanced"}, trainer={"max_epochs": 10}, optimizer={"peak_lr": 4e-3}
    )
    config = replace(config, data=replace(config.data, targets="gap,degree,ring"))
    made = train(config, tmp_path / "run")
    errors = json.loads((tmp_path / "run" / "training.json").read_text())["auxiliary_mae"]
    assert list(errors) == ["degree", "ring"] and errors["degree"] < 0.4 and errors["ring"] < 0.25, errors
    assert [task.name for task in read_checkpoint(tmp_path / "run").tasks] == ["gap"]
    assert resume(tmp_path / "run").metrics["test"] == made.metrics["test"]
    wrong = replace(config, data=replace(config.data, targets="degree"))
    with pytest.raises(ValueError, match="has the molecule-level targets 'gap'"):
        train(wrong, tmp_path / "wrong")

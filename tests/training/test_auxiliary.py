"""Auxiliary atom- and bond-level targets of molecule-level models."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

from graphslice.chem import smiles_to_graph
from graphslice.config import GraphConfig, ModelConfig
from graphslice.data.batches import collate_rows
from graphslice.data.labels import Labels, pointers
from graphslice.data.store import GraphStore
from graphslice.nn import GraphTransformer
from graphslice.pretraining.corpus import build_corpus
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import TRAINING, write_json
from graphslice.training import resume, train
from graphslice.training.module import AuxiliaryHead, AuxiliaryHeads
from graphslice.training.train_run import _training_totals

SMILES = ["CCO", "c1ccccc1O", "C", "CC(=O)N"]
NAN = float("nan")


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_graphs([smiles_to_graph(text) for text in SMILES])


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


@pytest.mark.parametrize("readout", ["mean+max", "token", "mean+quantiles"])
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
        corpus.store.name, model=model | {"init": "balanced"}, trainer={"max_epochs": 12}, optimizer={"peak_lr": 4e-3}
    )
    config = replace(config, data=replace(config.data, targets="gap,degree,ring"))
    made = train(config, tmp_path / "run")
    errors = json.loads((tmp_path / "run" / "training.json").read_text())["auxiliary_mae"]
    assert list(errors) == ["degree", "ring"] and errors["degree"] < 0.4 and errors["ring"] < 0.25, errors
    assert [task.name for task in read_checkpoint(tmp_path / "run").tasks] == ["gap"]
    again = resume(tmp_path / "run")
    assert again.metrics["test"] == made.metrics["test"]
    alone = train(replace(config, data=replace(config.data, targets="gap")), tmp_path / "alone")
    assert "auxiliary_mae" not in alone.training
    wrong = replace(config, data=replace(config.data, targets="degree"))
    with pytest.raises(ValueError, match="'degree' is not a molecule-level target"):
        train(wrong, tmp_path / "wrong")


def test_targets_without_validation_labels_in_a_member_are_not_averaged(tmp_path):
    """The error of a target is averaged only if every member has validation labels of it."""
    training = {"parameters": 1, "steps": 1, "seconds": 1.0, "molecules_per_second": 1.0, "peak_memory_bytes": 1}
    training |= {"device": "cpu", "devices": 1, "precision": "32-true", "compiled": False}
    for name, errors in (("a", {"charge": 1.0, "order": 2.0}), ("b", {"charge": 3.0})):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / TRAINING, training | {"auxiliary_mae": errors})
    assert _training_totals([tmp_path / "a", tmp_path / "b"])["auxiliary_mae"] == {"charge": 2.0}

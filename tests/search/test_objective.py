from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from graphslice.errors import InputError
from graphslice.search.tune import prepare
from graphslice.training import train

QUIET = Console(quiet=True)


def with_base_models(tiny_config, path, **sections):
    config = tiny_config(path, trainer={"baselines": "on", "max_epochs": 1, **sections.pop("trainer", {})}, **sections)
    return replace(config, init_from="none")


@pytest.fixture
def unsplit_csv(demo_rows, tmp_path):
    """A table without a validation set of its own, so that a run holds out folds."""
    demo_rows.drop(columns="split").to_csv(tmp_path / "unsplit.csv", index=False)
    return tmp_path / "unsplit.csv"


@pytest.mark.slow
def test_score_is_the_held_out_score_of_a_run(unsplit_csv, tiny_config, tmp_path):
    """Of the default pipeline: network, base models and weights of the stack."""
    config = with_base_models(tiny_config, unsplit_csv, data={"transform": "none"})
    setup = prepare(config, (), QUIET)
    metrics = train(config, tmp_path / "run", console=QUIET).metrics
    assert setup.objective.metric == "mae"
    assert setup.objective.score(setup.trial_config) == pytest.approx(metrics["valid"]["mae"], rel=1e-5)


@pytest.mark.slow
def test_test_rows_do_not_change_the_score(demo_rows, tiny_config, tmp_path):
    table = demo_rows.assign(split=["test" if row % 5 == 0 else "train" for row in range(len(demo_rows))])
    spoilt = table.copy()
    spoilt.loc[spoilt["split"] == "test", "gap_ev"] = 1e6 * np.arange(1, 1 + (table["split"] == "test").sum())
    scores = []
    for name, frame in (("a", table), ("b", spoilt)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        setup = prepare(with_base_models(tiny_config, tmp_path / f"{name}.csv"), (), QUIET)
        assert "test" not in setup.objective.data.splits
        scores.append([setup.objective.score(setup.trial_config, seed) for seed in (0, 1)])
    assert scores[0] == scores[1]


def test_seeds_hold_out_other_folds_of_the_training_rows(demo_csv, tiny_config, monkeypatch):
    monkeypatch.setattr("graphslice.search.objective.num_held_out", lambda data: 2)
    objective = prepare(tiny_config(demo_csv), (), QUIET).objective
    assert len(objective.data.splits["valid"]) > 0
    assert np.isin(np.concatenate(objective.folds), objective.data.splits["train"]).all()
    assert [objective._held_out(seed) for seed in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_reports_are_scores_of_the_network_after_each_fifth(demo_csv, tiny_config, monkeypatch):
    monkeypatch.setattr("graphslice.search.objective.num_held_out", lambda data: 2)
    setup = prepare(tiny_config(demo_csv, trainer={"max_epochs": 10}), (), QUIET)
    reports = []
    setup.objective.score(setup.trial_config, 0, lambda value, number: reports.append((value, number)))
    assert len(reports) == 2 * 10
    assert [number for value, number in reports if np.isfinite(value)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_metric_is_the_loss_where_a_fold_lacks_a_class(demo_rows, tiny_config, tmp_path, monkeypatch):
    rare = demo_rows.assign(y=[int(row in (3, 4)) for row in range(len(demo_rows))])[["smiles", "y"]]
    rare = rare.assign(split="train")
    rare.loc[50:, "split"] = "test"
    rare.to_csv(tmp_path / "rare.csv", index=False)
    config = tiny_config(tmp_path / "rare.csv", data={"targets": "y"}, trainer={"refit": "on", "baselines": "on"})
    config = replace(config, init_from="none")
    assert prepare(config, (), QUIET).objective.metric == "auroc"  # all folds are held out, which have both classes
    monkeypatch.setattr("graphslice.search.objective.num_held_out", lambda data: 1)
    objective = prepare(config, (), QUIET).objective
    assert objective.metric == "loss"


def test_rows_of_one_family_raise(tiny_config, tmp_path):
    table = pd.DataFrame({"smiles": ["CCO"] * 9 + ["CCN", "CCC"], "y": range(11)})
    table["split"] = ["train"] * 9 + ["valid", "test"]
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="no fold can be held out: tuning needs more molecules"):
        prepare(tiny_config(tmp_path / "t.csv", data={"targets": "y"}), (), QUIET)


def test_atom_targets_are_scored(demo_rows, tiny_config, tmp_path):
    from rdkit import Chem

    smiles = demo_rows["smiles"][:30]
    labels = [str([atom.GetDegree() for atom in Chem.MolFromSmiles(text).GetAtoms()]) for text in smiles]
    pd.DataFrame({"smiles": smiles, "degree": labels}).to_csv(tmp_path / "atoms.csv", index=False)
    setup = prepare(tiny_config(tmp_path / "atoms.csv", data={"targets": "degree", "level": "atom"}), (), QUIET)
    assert 0 < setup.objective.score(setup.trial_config) < 4

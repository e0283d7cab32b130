"""Runs with splits from files, folds or the training set, and with duplicate molecules."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from graphslice.config import read_yaml
from graphslice.errors import InputError
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import read_splits
from graphslice.training import resume, train


def test_split_files_with_duplicates(cli, demo_rows, tiny_flags, tmp_path):
    """Forty training rows, the first of them three times; ten test rows, two of which are in training too."""
    first = demo_rows[:1]
    again = pd.concat([demo_rows[:40], first, first.assign(gap_ev=first["gap_ev"] + 3)])
    again.drop(columns="split").to_csv(tmp_path / "train.csv", index=False)
    demo_rows[38:48].to_csv(tmp_path / "test.csv", index=False)
    folder = tmp_path / "run"
    flags = ["--dataset", tmp_path / "train.csv", "--test-file", tmp_path / "test.csv", "--targets", "gap_ev"]
    code, _, err = cli("train", *flags, "--out", folder, *tiny_flags)
    assert code == 0, err
    splits = read_splits(folder)
    shared = len({38, 39} & set(splits["train"].tolist()))  # the validation set is taken from these rows
    assert (
        "1 of them with conflicting labels (other classes, or numbers further apart than a tenth of the standard "
        f"deviation): rows 1, 41, 42; possible leakage: {shared} test row{'s' * (shared > 1)} with a molecule of the "
        "training set, or a salt, tautomer or stereoisomer of one"
    ) in err
    assert splits["test"].tolist() == list(range(42, 52)) and len(splits["valid"]) == 5
    labels = again["gap_ev"].to_numpy()
    mean = read_checkpoint(folder).weights["target_mean"]
    assert mean.item() == pytest.approx(labels[splits["train"]].mean(), rel=1e-6)
    metrics = json.loads((folder / "metrics.json").read_text())
    for split in ("valid", "test"):
        code, out, err = cli("evaluate", folder, "--split", split, "--device", "cpu")
        assert code == 0 and float(out.split("MAE ")[1].split(",")[0]) == pytest.approx(metrics[split]["mae"], abs=1e-5)
    demo_rows[37:47].to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(InputError, match="has changed since the run was started"):
        resume(folder)


def test_resumed_run_keeps_its_saved_split(demo_csv, tiny_config, tmp_path):
    """The test set is never trained on."""
    train(tiny_config(demo_csv, data={"split": "random"}), tmp_path / "run")
    for name in ("last.ckpt", "model.safetensors", "metrics.json"):
        (tmp_path / "run" / name).unlink()
    table = pd.read_csv(tmp_path / "run" / "split.csv")
    table["split"] = np.roll(table["split"].to_numpy(), 7)
    table.to_csv(tmp_path / "run" / "split.csv", index=False)
    resume(tmp_path / "run")
    labels = pd.read_csv(demo_csv)["gap_ev"].to_numpy()
    mean = read_checkpoint(tmp_path / "run").weights["target_mean"]
    assert mean.item() == pytest.approx(labels[table["split"] == "train"].mean(), rel=1e-6)


def test_single_fold_of_a_cross_validation(cli, demo_csv, tiny_config, tiny_flags, tmp_path):
    """Three runs test every row once, and evaluate uses the fold of each."""
    tested = []
    for fold in range(3):
        folder = tmp_path / str(fold)
        data = {"targets": "gap_ev", "split": "scaffold", "folds": "3", "fold": fold}
        train(tiny_config(demo_csv, data=data, trainer={"max_epochs": 1}), folder)
        tested += read_splits(folder)["test"].tolist()
    assert sorted(tested) == list(range(60))
    assert read_yaml(tmp_path / "2" / "config.yaml")["data"]["folds"] == "3"
    code, _, err = cli("train", "--dataset", demo_csv, "--folds", "3", "--out", tmp_path / "own", *tiny_flags)
    assert code == 2 and "has its own split: leave out data.folds" in err and not (tmp_path / "own").exists()


@pytest.mark.parametrize("refit", ["on", "off"])
def test_run_without_a_test_set(refit, cli, demo_rows, tiny_flags, tmp_path):
    table, folder = tmp_path / "table.csv", tmp_path / "run"
    demo_rows.drop(columns="split").to_csv(table, index=False)
    baselines = ["--baselines", "on"] if refit == "on" else []
    words = ["--dataset", table, "--split-sizes", "0.9,0.1,0", "--refit", refit, *tiny_flags, *baselines]
    code, _, err = cli("train", *words, "--out", folder)
    assert code == 0 and "test" not in json.loads((folder / "metrics.json").read_text()), err
    splits = {name: len(rows) for name, rows in read_splits(folder).items() if len(rows)}
    assert splits == ({"train": 60} if refit == "on" else {"train": 54, "valid": 6})
    assert (folder / "report.html").is_file()
    code, out, err = cli("predict", folder, "CCO")
    assert code == 0 and "CCO" in out, err
    code, _, err = cli("evaluate", folder, "--split", "test")
    assert code == 2 and f"table.csv has no split 'test': give split {', '.join(splits)} or all" in err

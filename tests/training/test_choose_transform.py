"""Choice of the scale of regression targets by inner validation."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import graphslice as gs
from graphslice.config import read_yaml
from graphslice.data.loaders import load_dataset
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import read_config
from graphslice.training import resume, train
from graphslice.training.choose_transform import _is_better
from graphslice.training.loop import TrainingLoop

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def molecules():
    """Four hundred molecules of the demo dataset and a property that their graph determines."""
    table = pd.read_csv(Path(__file__).parents[2] / "data" / "demo.csv").head(400).drop(columns="split")
    size = np.array([gs.smiles_to_graph(smiles).num_atoms for smiles in table["smiles"]])
    hetero = np.array([(gs.smiles_to_graph(smiles).atoms[:, 0] != 5).sum() for smiles in table["smiles"]])
    return table[["smiles"]], (size - size.mean()) / size.std() + 0.7 * (hetero - hetero.mean()) / hetero.std()


@pytest.fixture
def configured(tiny_config, tmp_path, molecules):
    def make(labels: np.ndarray, data: dict | None = None, **trainer):
        molecules[0].assign(y=labels).to_csv(tmp_path / "t.csv", index=False)
        settings = {"baselines": "off", "max_epochs": 1, **trainer}
        return tiny_config(tmp_path / "t.csv", data={"targets": "y", **(data or {})}, trainer=settings)

    return make


def transform_of(folder) -> str:
    return read_yaml(folder / "config.yaml")["data"]["transform"]


def test_a_skewed_positive_target_is_trained_on_its_logarithm(configured, molecules, tmp_path):
    output = io.StringIO()
    train(configured(np.exp(2 * molecules[1].clip(-2, 2))), tmp_path / "run", console=Console(file=output, width=300))
    assert transform_of(tmp_path / "run") == "y=log"
    assert "y: trained on its logarithm (inner validation MAE " in output.getvalue()
    assert read_checkpoint(tmp_path / "run").tasks[0].transform == "log"


def test_a_symmetric_target_is_not_transformed(configured, molecules, tmp_path):
    train(configured(molecules[1]), tmp_path / "run", console=QUIET)
    assert transform_of(tmp_path / "run") == "none"


def test_transform_none_keeps_it_off(configured, molecules, tmp_path):
    train(configured(np.exp(2 * molecules[1].clip(-2, 2)), {"transform": "none"}), tmp_path / "run", console=QUIET)
    assert read_checkpoint(tmp_path / "run").tasks[0].transform == "none"


def test_a_run_on_a_logarithm_continues_exactly(configured, molecules, tmp_path, monkeypatch):
    config = configured(np.exp(molecules[1]), {"transform": "log"}, max_epochs=3)
    train(config, tmp_path / "whole", console=QUIET)
    step = TrainingLoop._step

    def stop(loop, batch):
        if loop.state.step == 30:
            raise KeyboardInterrupt
        return step(loop, batch)

    monkeypatch.setattr(TrainingLoop, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", console=QUIET)
    monkeypatch.setattr(TrainingLoop, "_step", step)
    resume(tmp_path / "run", console=QUIET)
    whole, run = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "run"))
    assert run == whole
    assert read_checkpoint(tmp_path / "run").tasks == read_checkpoint(tmp_path / "whole").tasks


@pytest.mark.usefixtures("in_this_process")
def test_members_of_an_ensemble_have_one_scale(configured, molecules, tmp_path):
    config = configured(np.exp(2 * molecules[1].clip(-2, 2)), ensemble=2)
    train(config, tmp_path / "run", console=QUIET)
    assert transform_of(tmp_path / "run") == transform_of(tmp_path / "run" / "member-2") == "y=log"


def test_a_model_that_is_trained_further_keeps_its_scale(configured, molecules, tmp_path):
    labels = np.exp(0.1 * molecules[1])  # for which nothing would be chosen
    train(configured(labels, {"transform": "log"}), tmp_path / "first", console=QUIET)
    output = io.StringIO()
    config = replace(configured(labels), init_from=str(tmp_path / "first"))
    train(config, tmp_path / "second", console=Console(file=output, width=300))
    assert read_checkpoint(tmp_path / "second").tasks[0].transform == "log"
    assert "including the output head" in output.getvalue()


@pytest.mark.usefixtures("in_this_process")
def test_models_of_a_cross_validation_choose_no_scale(configured, molecules, tmp_path):
    config = configured(np.exp(2 * molecules[1].clip(-2, 2)), {"folds": "2"})
    train(config, tmp_path / "run", console=QUIET)
    for folder in sorted((tmp_path / "run").glob("member-*")):
        assert transform_of(folder) == "none"
    low = gs.load(tmp_path / "run", "cpu").predict(["CCO"], interval=90).interval.low
    assert np.isfinite(low).all()


@pytest.mark.parametrize(
    ("none", "log", "higher", "better"),
    [
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], False, True),
        ([0.5, 0.5, 0.5], [0.6, 0.7, 0.6], True, True),
        ([0.5, 0.5, 0.5], [0.4, 0.4, 0.4], True, False),
        ([2.0, 2.1, 2.2], [1.0, 3.1, 2.1], False, False),
        ([2.0, 2.1], [np.nan, 1.0], False, False),
        ([2.0, 2.0, 2.0], [1.97, 1.97, 1.97], False, False),
    ],
)
def test_none_wins_unless_the_logarithm_is_clearly_better(none, log, higher, better):
    assert _is_better(np.array(none), np.array(log), higher) == better


def test_a_logarithm_is_not_chosen_if_a_bound_has_none(tiny_config, molecules, tmp_path):
    labels = [f"{label:.6f}" for label in np.exp(2 * molecules[1].clip(-2, 2))]
    labels[0] = "<0"
    molecules[0].assign(y=labels).to_csv(tmp_path / "t.csv", index=False)
    trainer = {"baselines": "off", "max_epochs": 1}
    train(tiny_config(tmp_path / "t.csv", data={"targets": "y"}, trainer=trainer), tmp_path / "run", console=QUIET)
    assert transform_of(tmp_path / "run") != "y=log"


def test_a_label_of_zero_anywhere_keeps_the_logarithm_off(molecules, tiny_config, tmp_path):
    """In a test row, or in a model to fine-tune that was trained on the logarithm; both runs can be read again."""
    labels = np.exp(2 * molecules[1].clip(-2, 2))
    table = molecules[0].assign(y=labels, split=["train"] * 300 + ["valid"] * 50 + ["test"] * 50)
    settings = {"data": {"targets": "y"}, "trainer": {"baselines": "off", "max_epochs": 1}}
    table.to_csv(tmp_path / "positive.csv", index=False)
    train(tiny_config(tmp_path / "positive.csv", **settings), tmp_path / "first", console=QUIET)
    assert transform_of(tmp_path / "first") == "y=log"
    table.loc[399, "y"] = 0.0
    table.to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(tmp_path / "t.csv", **settings)
    for name, origin in (("new", None), ("tuned", str(tmp_path / "first"))):
        train(replace(config, init_from=origin), tmp_path / name, console=QUIET)
        assert "log" not in transform_of(tmp_path / name)
        assert load_dataset(read_config(tmp_path / name).data).targets[399, 0] == 0


def test_a_transform_of_one_target_leaves_the_choice_for_the_others(configured, molecules, tmp_path):
    labels = np.exp(2 * molecules[1].clip(-2, 2))
    config = configured(labels, {"targets": "y,z", "transform": "z=none"})
    pd.read_csv(tmp_path / "t.csv").assign(z=labels).to_csv(tmp_path / "t.csv", index=False)
    train(config, tmp_path / "run", console=QUIET)
    assert [task.transform for task in read_checkpoint(tmp_path / "run").tasks] == ["log", "none"]

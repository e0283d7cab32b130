"""Ensembles whose run directory was changed after training or saving."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TINY

import graphslice as gs
from graphslice.calibration import CONSTANT, ApplicabilityDomain, Calibration, NonconformityScores, TargetCalibration
from graphslice.config import DataConfig, ModelConfig, RunConfig, TrainerConfig
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint, write_run_directory
from graphslice.runs.checkpoint import save_ensemble_calibration as save_calibration
from graphslice.runs.ensemble import read_calibration, read_checkpoints
from graphslice.tasks import regression_tasks
from graphslice.training.complete_config import member_configs

CALIBRATION = Calibration(
    (TargetCalibration((NonconformityScores(np.arange(3.0), np.ones(3, np.int64)),), {CONSTANT: 1.0}),),
    ApplicabilityDomain(np.zeros((1, 16), np.uint64), np.zeros(1, np.int64), 0.5),
)


def checkpoint_of(config: RunConfig) -> Checkpoint:
    torch.manual_seed(config.trainer.seed)
    model = GraphTransformer(config.model)
    return Checkpoint(config, regression_tasks(["y"]), model.state_dict(), calibration=CALIBRATION)


def write_ensemble(folder: Path, config: RunConfig) -> Path:
    for name, own in member_configs(config).items():
        write_run_directory(checkpoint_of(own), folder / name)
    (folder / "config.yaml").write_text(config.to_yaml())
    save_calibration(CALIBRATION, folder)
    for home in (folder, *folder.glob("member-*")):
        for name in ("start.json", "metrics.json"):
            (home / name).write_text("{}")
    return folder


def config_of(seed: int = 5, fingerprint: str = "abc", **model) -> RunConfig:
    data = DataConfig(dataset="t.csv", fingerprint=fingerprint)
    model = ModelConfig(**{**TINY, "num_path_positions": 5, **model})
    return RunConfig(data=data, model=model, trainer=TrainerConfig(ensemble=3, seed=seed), init_from="none")


@pytest.fixture
def ensemble(tmp_path):
    return write_ensemble(tmp_path / "run", config_of())


def test_complete_ensembles_are_read(ensemble):
    found = read_checkpoints(ensemble)
    assert len(found) == 3 and read_calibration(ensemble, found) is not None
    assert gs.load(ensemble, "cpu").predict("CCO").shape == (1, 1)


def other_data(run: Path) -> None:
    other = write_ensemble(run.parent / "other", config_of(fingerprint="def"))
    shutil.rmtree(run / "member-2")
    shutil.copytree(other / "member-2", run / "member-2")


DAMAGE = {
    "no folder": (lambda run: shutil.rmtree(run / "member-2"), "an ensemble of 3 models, of which 2 are there"),
    "no checkpoint": (lambda run: (run / "member-2" / "model.safetensors").unlink(), "of which 2 are there"),
    "too many": (lambda run: shutil.copytree(run / "member-1", run / "member-4"), "of which 4 are there"),
    "other data": (other_data, "member-2 and .*member-1 were trained on other data"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_ensembles_are_rejected(damage, ensemble, cli):
    damaged, reason = DAMAGE[damage]
    damaged(ensemble)
    with pytest.raises(InputError, match=reason):
        read_checkpoints(ensemble)
    code, out, err = cli("predict", ensemble, "CCO")
    assert (code, out) == (2, "") and err.count("\n") <= 1


def test_trained_ensemble_is_saved_and_read(ensemble, tmp_path):
    model = gs.load(ensemble, "cpu")
    model.save(tmp_path / "saved")
    again = gs.load(tmp_path / "saved", "cpu")
    assert len(again.models) == 3 and again.predict("CCO") == model.predict("CCO")
    shutil.rmtree(tmp_path / "saved" / "member-1")
    with pytest.raises(InputError, match="of which 2 are there"):
        gs.load(tmp_path / "saved", "cpu")


def test_folds_are_counted_with_their_repeats(tmp_path):
    config = config_of()
    config = replace(config, data=replace(config.data, folds="2x2"), trainer=replace(config.trainer, ensemble=1))
    write_ensemble(tmp_path / "run", config)
    assert len(read_checkpoints(tmp_path / "run")) == 4
    shutil.rmtree(tmp_path / "run" / "member-4")
    with pytest.raises(InputError, match="of which 3 are there"):
        read_checkpoints(tmp_path / "run")

"""Ensembles whose run directory was changed after training or saving."""

import shutil
from pathlib import Path

import numpy as np
import pytest
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
from graphslice.training.resolve import member_configs

CALIBRATION = Calibration(
    (TargetCalibration((NonconformityScores(np.arange(3.0), np.ones(3)),), {CONSTANT: 1.0}),),
    ApplicabilityDomain(np.zeros((1, 16), np.uint64), np.zeros(1, np.int64), 0.5),
)


def write_ensemble(folder: Path, fingerprint: str = "abc", folds: str | None = None) -> Path:
    data = DataConfig(dataset="t.csv", fingerprint=fingerprint, folds=folds)
    model, trainer = ModelConfig(**TINY | {"num_path_positions": 5}), TrainerConfig(ensemble=1 if folds else 3, seed=5)
    config = RunConfig(data=data, model=model, trainer=trainer, init_from="none")
    for name, own in member_configs(config).items():
        weights = GraphTransformer(own.model).state_dict()
        write_run_directory(Checkpoint(own, regression_tasks(["y"]), weights, calibration=CALIBRATION), folder / name)
    (folder / "config.yaml").write_text(config.to_yaml())
    save_calibration(CALIBRATION, folder)
    for home in (folder, *folder.glob("member-*")):
        for name in ("start.json", "metrics.json"):
            (home / name).write_text("{}")
    return folder


@pytest.fixture
def ensemble(tmp_path):
    return write_ensemble(tmp_path / "run")


def test_complete_ensembles_are_read_and_saved(ensemble, tmp_path):
    found, model = read_checkpoints(ensemble), gs.load(ensemble, "cpu")
    assert len(found) == 3 and read_calibration(ensemble, found) is not None
    model.save(tmp_path / "saved")
    again = gs.load(tmp_path / "saved", "cpu")
    assert len(again.models) == 3 and again.predict("CCO") == model.predict("CCO")
    shutil.rmtree(tmp_path / "saved" / "member-1")
    with pytest.raises(InputError, match="of which 2 are there"):
        gs.load(tmp_path / "saved", "cpu")


@pytest.mark.parametrize(("added", "reason"), [(False, "of which 2 are there"), (True, "of which 4 are there")])
def test_ensembles_of_another_number_of_models_are_rejected(added, reason, ensemble, cli):
    if added:
        shutil.copytree(ensemble / "member-1", ensemble / "member-4")
    else:
        shutil.rmtree(ensemble / "member-2")
    code, out, err = cli("predict", ensemble, "CCO")
    assert (code, out) == (2, "") and reason in err and err.count("\n") == 1


def test_members_of_other_data_are_rejected(ensemble, tmp_path):
    shutil.rmtree(ensemble / "member-2")
    shutil.copytree(write_ensemble(tmp_path / "other", "def") / "member-2", ensemble / "member-2")
    with pytest.raises(InputError, match=r"member-2 and .*member-1 differ in data"):
        read_checkpoints(ensemble)

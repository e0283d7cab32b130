"""Ensembles whose run directory was changed after training or saving."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TINY

import graphslice as gs
from graphslice.api.model import Model
from graphslice.calibration import CONSTANT, ApplicabilityDomain, Calibration, NonconformityScores, TargetCalibration
from graphslice.checkpoint import Checkpoint, read_checkpoint, save_checkpoint, write_run_directory
from graphslice.checkpoint import save_ensemble_calibration as save_calibration
from graphslice.config import DataConfig, ModelConfig, RunConfig, TrainerConfig
from graphslice.ensemble_check import read_calibration, read_checkpoints
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
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


def changed(path: Path, **settings) -> None:
    """Replace the configuration of a member and keep its weights."""
    checkpoint = read_checkpoint(path)
    config = checkpoint.config
    config = replace(config, **{name: replace(getattr(config, name), **part) for name, part in settings.items()})
    save_checkpoint(replace(checkpoint, config=config), path / "model.safetensors")


def other_run(folder: Path, **settings) -> None:
    """Replace member 2 by that of another run."""
    other = write_ensemble(folder.parent / "other", config_of(**settings))
    shutil.rmtree(folder / "member-2")
    shutil.copytree(other / "member-2", folder / "member-2")


def test_complete_ensembles_are_read(ensemble):
    found = read_checkpoints(ensemble)
    assert len(found) == 3 and read_calibration(ensemble, found) is not None
    assert gs.load(ensemble, "cpu").predict("CCO").shape == (1, 1)


def remove_members(run: Path) -> None:
    for path in run.glob("member-*"):
        shutil.rmtree(path)


def keep_one_elsewhere(run: Path) -> None:
    shutil.move(run / "member-1" / "model.safetensors", run)
    remove_members(run)


OTHER_RUN = "member-2 does not belong to the same run as .*member-1"
DAMAGE = {
    "no folder": (lambda run: shutil.rmtree(run / "member-2"), "an ensemble of 3 models, and member-2 is missing"),
    "the last": (lambda run: shutil.rmtree(run / "member-3"), "an ensemble of 3 models, and member-3 is missing"),
    "all": (remove_members, "and member-1 is missing"),
    "no checkpoint": (lambda run: (run / "member-2" / "model.safetensors").unlink(), "and member-2 is not finished"),
    "in training": (lambda run: (run / "member-2" / "metrics.json").unlink(), "and member-2 is not finished"),
    "not scored": (lambda run: (run / "metrics.json").unlink(), "an ensemble that is not finished"),
    "renamed": (lambda run: (run / "member-2").rename(run / "member-7"), "member-7 does not .* run in .* 3 members"),
    "arabic": (lambda run: (run / "member-2").rename(run / "member-\u0662"), "and member-2 is missing"),
    "superscript": (lambda run: (run / "member-2").rename(run / "member-\u00b2"), "and member-2 is missing"),
    "too many": (lambda run: shutil.copytree(run / "member-1", run / "member-4"), "member-4 does not belong to the"),
    "twice": (lambda run: shutil.copy(run / "member-1" / "model.safetensors", run / "member-2"), OTHER_RUN),
    "stray": (
        lambda run: shutil.copy(run / "member-1" / "model.safetensors", run),
        "model.safetensors does not belong to the run in",
    ),
    "stray alone": (keep_one_elsewhere, "model.safetensors does not belong to the run in .* 3 members"),
    "no settings": (lambda run: (run / "config.yaml").unlink(), "lacks config.yaml"),
    "no calibration": (lambda run: (run / "calibration.safetensors").unlink(), "lacks calibration.safetensors"),
    "other data": (lambda run: other_run(run, fingerprint="def"), OTHER_RUN),
    "other seed": (lambda run: other_run(run, seed=6), OTHER_RUN),
    "other width": (lambda run: other_run(run, dim=32), OTHER_RUN),
    "max_path": (lambda run: changed(run / "member-2", model={"max_path": 2}), r"member-2 .*\(max_path\)"),
    "max_path of 1": (lambda run: changed(run / "member-1", model={"max_path": 2}), r"member-2 .*\(max_path\)"),
    "level": (lambda run: changed(run / "member-2", model={"level": "atom"}), r"member-2 .*\(level\)"),
    "bonds": (lambda run: changed(run / "member-2", model={"bond_messages": True}), r"member-2 .*\(bonds\)"),
    "order": (lambda run: changed(run / "member-2", graph={"atom_order": "input"}), r"member-2 .*\(atom_order\)"),
    "features": (lambda run: changed(run / "member-2", data={"features": "id"}), r"member-2 .*\(descriptors\)"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_incomplete_ensembles_are_rejected(damage, ensemble, cli):
    damaged, reason = DAMAGE[damage]
    damaged(ensemble)
    with pytest.raises(InputError, match=reason):
        read_calibration(ensemble, read_checkpoints(ensemble))
    code, out, err = cli("predict", ensemble, "CCO")
    assert (code, out) == (2, "") and err.count("\n") <= 1


@pytest.mark.parametrize("command", ["predict", "inspect", "evaluate", "fingerprint", "report", "export"])
@pytest.mark.parametrize("damage", ["no folder", "stray", "too many"])
def test_every_command_rejects_incomplete_ensembles(command, damage, ensemble, cli, tmp_path):
    DAMAGE[damage][0](ensemble)
    (tmp_path / "in.csv").write_text("smiles,y\nCCO,1\n")
    arguments = {
        "predict": [tmp_path / "in.csv", "-o", tmp_path / "out"],
        "inspect": ["CCO", "-o", tmp_path / "out"],
        "evaluate": ["--dataset", tmp_path / "in.csv"],
        "fingerprint": [tmp_path / "in.csv", "-o", tmp_path / "out"],
        "export": ["--out", tmp_path / "out"],
    }
    code, _, err = cli(command, ensemble, *arguments.get(command, []))
    assert code == 2 and err.startswith("graphslice: ") and "member" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["member-01", "member-\u0662", "member-\u00b2"])
def test_folders_with_other_names_are_not_members(name, ensemble):
    expected = gs.load(ensemble, "cpu").predict("CCO")
    shutil.copytree(ensemble / "member-1", ensemble / name)
    assert gs.load(ensemble, "cpu").predict("CCO") == expected


def test_ensemble_of_separate_models_is_saved_and_read(tmp_path):
    """With other data, seeds and sizes; but not such as read molecules in another way."""
    parts = [checkpoint_of(config_of(seed, str(seed), dim=dim)) for seed, dim in ((1, 8), (1, 8), (9, 16))]
    Model(parts, "cpu").save(tmp_path / "run")
    assert len(gs.load(tmp_path / "run", "cpu").models) == 3
    changed(tmp_path / "run" / "member-3", model={"max_path": 1})
    with pytest.raises(InputError, match=r"member-3 .*\(max_path\)"):
        gs.load(tmp_path / "run", "cpu")


def test_trained_ensemble_is_saved_and_read(ensemble, tmp_path):
    model = gs.load(ensemble, "cpu")
    model.save(tmp_path / "saved")
    again = gs.load(tmp_path / "saved", "cpu")
    assert len(again.models) == 3 and again.predict("CCO") == model.predict("CCO")
    shutil.rmtree(tmp_path / "saved" / "member-1")
    with pytest.raises(InputError, match="member-1 is missing"):
        gs.load(tmp_path / "saved", "cpu")


def test_folds_are_counted_with_their_repeats(tmp_path):
    config = config_of()
    config = replace(config, data=replace(config.data, folds="2x2"), trainer=replace(config.trainer, ensemble=1))
    write_ensemble(tmp_path / "run", config)
    assert len(read_checkpoints(tmp_path / "run")) == 4
    shutil.rmtree(tmp_path / "run" / "member-4")
    with pytest.raises(InputError, match="an ensemble of 4 models, and member-4 is missing"):
        read_checkpoints(tmp_path / "run")

"""Run directories and configurations of version 0.1, with their former names, can still be read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graphslice.checkpoint import read_checkpoint
from graphslice.compat import migrate_config, migrate_training_state, migrate_weight_name
from graphslice.config import RunConfig, read_yaml
from graphslice.errors import InputError
from graphslice.inference import load
from graphslice.training import resume

OLD_RUN = Path(__file__).parent / "fixtures" / "run_0.1"
EXPECTED = json.loads((OLD_RUN / "expected.json").read_text())


def test_old_run_reproduces_its_predictions():
    found = load(OLD_RUN, "cpu").predict(EXPECTED["smiles"])
    np.testing.assert_allclose(found, EXPECTED["best"], rtol=0, atol=1e-5)


def test_old_configuration_is_read_under_current_names():
    for config in (read_checkpoint(OLD_RUN).config, RunConfig.from_dict(read_yaml(OLD_RUN / "config.yaml"))):
        model = config.model
        assert (model.num_degrees, model.num_distances, model.num_path_positions) == (8, 16, 3)
        assert model.embedding_layout == "ogb"
        settings = {"keep_fraction": 0.25, "statistic": "learnable", "source": "values", "split_by_head": True}
        assert model.mixer_settings == settings


def test_resumed_old_run_reproduces_the_expected_result_and_includes_its_earlier_time(tmp_path):
    before = torch.load(OLD_RUN / "last.ckpt", weights_only=True)["callbacks"]["Clock"]["seconds"]
    folder = tmp_path / "run"
    shutil.copytree(OLD_RUN, folder)
    assert resume(folder).training["seconds"] > before
    found = load(folder / "last.ckpt", "cpu").predict(EXPECTED["smiles"])
    # Three more steps at a learning rate of 0.01: sums of gradients differ in their last bits.
    np.testing.assert_allclose(found, EXPECTED["resumed"], rtol=0, atol=1e-3)


def test_old_values_of_settings_are_migrated():
    model = {"mixer": "slice-quantile", "mixer_settings": {"told": "map", "share": 0.5}}  # codespell:ignore told
    found = migrate_config({"model": model})["model"]["mixer_settings"]
    assert found == {"source": "aggregated", "keep_fraction": 0.5}


def test_old_and_new_name_together_are_rejected():
    with pytest.raises(InputError, match="'path_rows' is the former name of 'num_path_positions'"):
        migrate_config({"model": {"path_rows": 3, "num_path_positions": 3}})


def test_current_names_are_unchanged():
    config = RunConfig.preset("small").to_dict()
    assert migrate_config(config) == config
    for name in ("blocks.0.ffn.expand.weight", "blocks.0.mixer.q_logits", "atoms.atom.weight"):
        assert migrate_weight_name(name) == name


def test_training_state_of_lightning_is_migrated():
    """``last.ckpt`` of Lightning, after 12 of some steps in float16."""
    callbacks = {"Clock": {"seconds": 2.5}, "EarlyStopping{'monitor': 'val_mae', 'mode': 'min'}": {"wait_count": 3}}
    before = {"global_step": 12, "callbacks": callbacks, "MixedPrecision": {"scale": 1024.0}}
    found = migrate_training_state(before)
    assert found["training"] == {"step": 12, "seconds": 2.5, "validated": 12, "waited": 3}
    assert found["precision"] == {"scale": 1024.0} and migrate_training_state(found) is found

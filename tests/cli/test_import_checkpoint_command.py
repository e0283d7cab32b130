"""``graphslice import-checkpoint``."""

import numpy as np
import pandas as pd
import pytest
import torch
from original_models import original

from graphslice import InputError
from graphslice.originals import import_checkpoint
from graphslice.runs.checkpoint import write_run_directory


def test_import_checkpoint(cli, tmp_path):
    """What the original predicts, from a Lightning file of its weights."""
    state, smiles, expected = original("reference_checkpoint", "sliceformer_ascend")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "original.pt")
    flags = ["--mixer", "slice-ascend", "--target", "gap"]
    code, out, _ = cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run", *flags)
    assert code == 0 and "slice-ascend, 2 layers, 32 channels, 4 heads" in out
    pd.DataFrame({"smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli("predict", tmp_path / "run", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert (code, err) == (0, "")
    found = pd.read_csv(tmp_path / "out.csv")["gap_pred"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run")[0] == 2  # not over a model
    code, _, err = cli("evaluate", tmp_path / "run")
    assert code == 2 and "is not there: give labelled molecules with data.dataset" in err


@pytest.fixture
def original_file(tmp_path):
    theirs = {"multi_hop_max_dist": 20, "dropout_rate": 0.2, "intput_dropout_rate": 0.0, "attention_dropout_rate": 0.3}
    torch.save({"state_dict": original()[0], "hyper_parameters": theirs}, tmp_path / "original.pt")
    return tmp_path / "original.pt"


def test_hyperparameters_of_graphormer_v1_are_read(original_file):
    found = import_checkpoint(original_file).config.model
    rates = (found.dropout, found.input_dropout, found.attention_dropout)
    assert (found.max_path, rates) == (20, (0.2, 0.0, 0.3))


def test_full_disk_leaves_no_files(original_file, tmp_path, full_disk):
    checkpoint = import_checkpoint(original_file)
    with full_disk(), pytest.raises(InputError, match=r"cannot write .*File too large"):
        write_run_directory(checkpoint, tmp_path / "run")
    assert not [*(tmp_path / "run").iterdir()]

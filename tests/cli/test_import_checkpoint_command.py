"""``graphslice import-checkpoint``."""

import numpy as np
import pandas as pd
import pytest
import torch
from original_models import ORIGINALS, original


@pytest.mark.parametrize("name", ORIGINALS)
def test_import_checkpoint(name, cli, tmp_path):
    """What the original predicts, from a Lightning file of its weights."""
    (state, smiles, expected), mixer = original("reference_checkpoint", name), ORIGINALS[name]
    flags = ["--mixer", mixer] if mixer == "slice-ascend" else []
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "original.pt")
    code, out, _ = cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run", *flags, "--target", "gap")
    assert code == 0 and f"{mixer}, 2 layers, 32 channels, 4 heads" in out
    pd.DataFrame({"smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli("predict", tmp_path / "run", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert (code, err) == (0, "")
    found = pd.read_csv(tmp_path / "out.csv")["gap_pred"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run")[0] == 2  # not over a model

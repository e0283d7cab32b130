"""``graphslice import-checkpoint``."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize(
    ("name", "mixer", "flags"),
    [
        ("graphormer", "softmax", []),
        ("sliceformer_released", "slice-released", []),
        ("sliceformer_ascend", "slice-ascend", ["--mixer", "slice-ascend"]),
    ],
)
@pytest.mark.parametrize("reference", ["reference_small", "reference_checkpoint"])
def test_import_checkpoint(reference, name, mixer, flags, cli, tmp_path):
    """What the original predicts, from a Lightning file of its weights."""
    with np.load(FIXTURES / f"{reference}.npz") as file:
        state = {}  # what the systems share is kept once, with graphormer
        for key in sorted(file.files, key=lambda key: key.startswith(name)):
            part, _, weight = key.partition("/state/")
            if part == name or (part == "graphormer" and weight and "linear_" not in weight):
                state[weight] = torch.from_numpy(file[key])
        state.pop("", None)
        smiles, expected = file["smiles"].tolist(), file[f"{name}/output"]
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "original.pt")
    code, out, _ = cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run", *flags, "--target", "gap")
    assert code == 0 and f"{mixer}, 2 layers, 32 channels, 4 heads" in out
    pd.DataFrame({"smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli("predict", tmp_path / "run", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert (code, err) == (0, "")
    found = pd.read_csv(tmp_path / "out.csv")["gap_pred"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run")[0] == 2  # not over a model

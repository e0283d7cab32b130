"""Outputs of the original code, and the weights that gave them."""

import re
from pathlib import Path

import numpy as np
import torch

FIXTURES = Path(__file__).parent / "fixtures"
#: Names of the original models in the fixtures, and the corresponding mixers.
ORIGINALS = {"graphormer": "softmax", "sliceformer_ascend": "slice-ascend", "sliceformer_released": "slice-released"}


def original(fixture: str = "reference_small", model: str = "graphormer"):
    """Return the state dict, the SMILES and the outputs of an original model; what models share is kept once."""
    arrays = np.load(FIXTURES / f"{fixture}.npz")
    state = {}
    for source in ("graphormer", model):
        head = f"{source}/state/"
        state |= {k.removeprefix(head): torch.from_numpy(arrays[k]) for k in arrays.files if k.startswith(head)}
    if model != "graphormer":
        state = {name: value for name, value in state.items() if not re.search(r"linear_[qk]", name)}
    return state, arrays["smiles"].tolist(), arrays[f"{model}/output"]

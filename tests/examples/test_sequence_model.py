"""``examples/sequence_model.py`` and ``experiment.py``: padding, positions, and what a run is asked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import digits
import experiment
from graphslice.config import ModelConfig
from sequence_model import SequenceModel, sines


def model_of(mixer: str, per_row: bool = False) -> SequenceModel:
    torch.manual_seed(0)
    config = ModelConfig(mixer=mixer, layers=2, dim=16, heads=2, ffn_dim=32)
    return SequenceModel(config, nn.Embedding(7, 16), outputs=3, per_row=per_row).double().eval()


@pytest.mark.parametrize("per_row", [False, True], ids=["sample", "rows"])
@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_padding_does_not_change_outputs(mixer, per_row, generator):
    model, lengths = model_of(mixer, per_row), torch.tensor([9, 4, 1])
    tokens = torch.randint(7, (3, 14), generator=generator)
    with torch.no_grad():
        found = model(tokens, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(tokens[row : row + 1, :length], lengths[row : row + 1])
            outputs = found[row : row + 1, :length] if per_row else found[row : row + 1]
            torch.testing.assert_close(outputs, alone, rtol=0, atol=1e-9)


def test_positions_are_told_apart(generator):
    table = sines(50, 16)
    assert table.shape == (50, 16) and sines(3, 15).shape == (3, 15)
    assert torch.pdist(table).min() > 0.1
    model, tokens = model_of("softmax"), torch.arange(7)[None]
    with torch.no_grad():
        assert not torch.allclose(model(tokens, torch.tensor([7])), model(tokens.flip(1), torch.tensor([7])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mixer", "softmax", "sofmax"], "unknown mixer 'sofmax'"),
        (["--settings", '{"a": 1}'], "no setting 'a'"),
        (["--steps", "0"], "'0' is not a number of at least 1"),
        (["--train", "5000"], "--train 5000 is too large: there are 1,437 images"),
    ],
)
def test_invalid_options_are_reported(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        experiment.run_main(lambda: digits.main(arguments))
    out, err = capsys.readouterr()
    assert stopped.value.code == 2 and message in err and out == ""


def test_the_same_seed_gives_the_same_row(capsys):
    asked = ["--mixer", "csp", "softmax", "--seed", "0", "1", "0", "--steps", "3", "--dim", "8", "--device", "cpu"]
    rows = digits.main([*asked, "--settings", "{}"])
    assert [(row["mixer"], row["seed"]) for row in rows] == [(m, s) for m in ("csp", "softmax") for s in (0, 1, 0)]
    assert rows[0]["accuracy"] == rows[2]["accuracy"]


def test_the_examples_load_neither_rdkit_nor_lightning(child_environment):
    code = "import sys, listops, text, digits, burgers, darcy\n"
    code += "print([name for name in ('rdkit', 'pytorch_lightning', 'torch_geometric') if name in sys.modules])"
    folder = Path(experiment.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=child_environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"

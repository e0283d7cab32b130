"""``examples/learnable_sort.py``: compared with loops and with the sort, trained without and with molecules."""

from pathlib import Path

import numpy as np
import pytest
import torch

import digits
import learnable_sort
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import MIXERS, build_mixer, check_user_mixer
from graphslice.nn.mixers.user_mixers import VARIABLE, import_user_mixers

NAME = "learnable-sort"
del MIXERS[NAME]  # the tests of all mixers are about those of the package


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MIXERS, NAME, learnable_sort.LearnableSort)


def test_output_matches_the_loop_of_softsort():
    check_user_mixer(NAME, 16, 4)
    torch.manual_seed(0)
    mixer, x = build_mixer(NAME, 4, 2, temperature=0.3).double(), torch.randn(1, 5, 4, dtype=torch.float64)
    weights = torch.rand(1, 2, 5, 5, dtype=torch.float64).softmax(dim=3)
    output = mixer.mix(x, AttentionContext(torch.tensor([5]), 5, attn_weights=weights))[0].detach().numpy()
    for c in range(4):
        p = weights[0, c // 2].numpy()
        key, column = (p @ linear(x)[0, :, c].detach().numpy() for linear in (mixer.key, mixer.value))
        for i, place in enumerate(sorted(key)):
            shares = np.exp([-abs(place - k) / 0.3 for k in key])
            assert output[i, c] == pytest.approx(shares @ column / shares.sum())


def test_limit_is_the_sort():
    sort, mixer = build_mixer("slice-ascend", 16, 4), build_mixer(NAME, 16, 4, temperature=1e-6)
    for linear in (mixer.key, mixer.value):
        linear.load_state_dict(sort.value.state_dict())
    mixer.output.load_state_dict(sort.output.state_dict())
    x, bias, lengths = torch.randn(3, 9, 16), torch.randn(3, 4, 9, 9), torch.tensor([9, 4, 1])
    context = AttentionContext.from_bias(lengths, bias)
    torch.testing.assert_close(mixer(x, context)[context.mask], sort(x, context)[context.mask], rtol=1e-4, atol=1e-4)


def test_order_is_learned_from_another_channel():
    """The target is the first channel in the order of the second."""
    torch.manual_seed(0)
    mixer, x = build_mixer(NAME, 2, 1), torch.randn(256, 6, 2)
    target = x[:, :, 0].gather(1, x[:, :, 1].argsort(dim=1))
    context = AttentionContext(torch.full((256,), 6), 6)
    optimizer = torch.optim.Adam(mixer.parameters(), lr=0.05)
    for _ in range(200):
        loss = (mixer(x, context)[:, :, 0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2 < 0.8 < target.var()


def test_it_trains_without_molecules(learned):
    accuracy, _ = learned(digits, NAME, "--steps", 60, "--layers", 1)
    assert accuracy > 0.15  # by chance 0.10, with a standard deviation of 0.016


def test_file_trains_and_predicts_molecules(cli, tiny_config, demo_csv, monkeypatch, tmp_path):
    del MIXERS[NAME]
    monkeypatch.setenv(VARIABLE, str(Path(learnable_sort.__file__)))
    import_user_mixers()
    config = tiny_config(demo_csv, model={"mixer": NAME, "mixer_settings": {"temperature": 0.5}})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    run = str(tmp_path / "run")
    assert cli("train", "--config", str(tmp_path / "c.yaml"), "--out", run)[0] == 0
    assert cli("predict", run, "CCO")[0] == 0

"""AdamW and gradient clipping in one pass, compared with torch."""

import copy

import pytest
import torch
from torch import nn

from graphslice.training.adamw import AdamW, clip_gradients

SHAPES = [(3, 5), (16,), (40, 33), (1,), (128, 64)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def groups(tensors):
    return [{"params": tensors[:2], "weight_decay": 0.0, "lr": 0.03}, {"params": tensors[2:], "weight_decay": 0.1}]


def set_gradients(step, *all_parameters, scale=1.0):
    generator = torch.Generator().manual_seed(step)
    for shape, *each in zip(SHAPES, *all_parameters, strict=True):
        gradient = scale * torch.randn(shape, generator=generator)
        for parameter in each:
            parameter.grad = gradient.clone().to(parameter.dtype)


def test_steps_match_torch():
    ours, theirs = parameters(), parameters(torch.float64)
    mine, other = AdamW(groups(ours), lr=1e-2), torch.optim.AdamW(groups(theirs), lr=1e-2)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in (mine, other)]
    for step in range(12):
        set_gradients(step, ours, theirs)
        mine.step()
        other.step()
        for schedule in schedules:
            schedule.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-6)
    for one, two in zip(mine.state_dict()["state"].values(), other.state_dict()["state"].values(), strict=True):
        assert one.keys() == two.keys() and one["step"] == two["step"] == 12
        torch.testing.assert_close(one["exp_avg_sq"].double(), two["exp_avg_sq"], rtol=1e-5, atol=1e-9)


def test_optimiser_states_are_exchangeable_with_torch():
    ours, theirs = parameters(), parameters()
    mine, other = AdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2)
    for step in range(8):
        set_gradients(step, ours, theirs)
        mine.step()
        other.step()
        if step == 3:
            states = copy.deepcopy((mine.state_dict(), other.state_dict()))
            mine.load_state_dict(states[1])
            other.load_state_dict(states[0])
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_parameters_without_gradient_are_unchanged():
    ours, theirs = parameters(), parameters()
    mine, other = AdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2)
    for step in range(5):
        set_gradients(step, ours, theirs)
        ours[1].grad = theirs[1].grad = None
        if step == 2:  # a parameter without gradient in one step is one step behind
            ours[3].grad = theirs[3].grad = None
        mine.step()
        other.step()
    assert torch.equal(ours[1], parameters()[1])
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_closure_and_other_dtypes_fall_back_to_torch():
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    mine, other = AdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2)
    for step in range(3):
        set_gradients(step, ours, theirs)
        assert mine.step(lambda: torch.tensor(3.0)) == 3
        other.step()
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_clipping_matches_torch(scale):
    ours, theirs = parameters(), parameters()
    set_gradients(0, ours, theirs, scale=scale)
    clip_gradients(ours, 5.0)
    torch.nn.utils.clip_grad_norm_(theirs, 5.0)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=0)


def test_clipping_of_non_finite_gradients_and_other_dtypes():
    ours, doubles = parameters(), parameters(torch.float64)
    set_gradients(0, ours, doubles)
    ours[0].grad[0, 0] = torch.nan
    clip_gradients(ours, 5.0)
    assert all(parameter.grad.isnan().all() for parameter in ours)
    clip_gradients(doubles, 5.0)
    assert torch.stack([p.grad.square().sum() for p in doubles]).sum().sqrt().item() == pytest.approx(5, rel=1e-5)
    clip_gradients([nn.Parameter(torch.ones(3))], 5.0)

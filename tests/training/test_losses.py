from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from graphslice.config import TrainerConfig
from graphslice.errors import InputError
from graphslice.tasks import Task, regression_tasks
from graphslice.training.module import Loss, balanced_weights

ACTIVE, TOXIC = Task("active", "binary", ("no", "yes")), Task("toxic", "binary", ("no", "yes"))
KIND = Task("kind", "multiclass", ("a", "b", "c"))
TASKS = [Task("size"), KIND, ACTIVE, Task("mass"), TOXIC]  # outputs 0, 1-3, 4, 5, 6


def batch(rows: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(rows, 7, generator=generator, dtype=torch.float64)
    numbers = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    classes = [torch.randint(0, k, (rows,), generator=generator).double() for k in (3, 2, 2)]
    labels = torch.stack([numbers[:, 0], classes[0], classes[1], numbers[:, 1], classes[2]], dim=1)
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = torch.nan
    return outputs, labels


def loss_by_loop(outputs, labels, of_numbers, target_weights=(1, 1, 1, 1, 1), class_weights=None) -> torch.Tensor:
    """Reference implementation: a loop over labels."""
    total, count = 0.0, 0.0
    where = [slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 6), slice(6, 7)]
    for row in range(len(labels)):
        for t, task in enumerate(TASKS):
            label, output = labels[row, t], outputs[row, where[t]]
            if torch.isnan(label):
                continue
            weight = target_weights[t] * (class_weights[t][int(label)] if class_weights and task.classes else 1)
            if task.kind == "regression":
                loss = of_numbers(output[0], label)
            elif task.kind == "binary":
                loss = functional.binary_cross_entropy_with_logits(output[0], label)
            else:
                loss = functional.cross_entropy(output[None], label.long()[None])
            total, count = total + weight * loss, count + target_weights[t]
    return total / count


@pytest.mark.parametrize(
    ("name", "of_numbers"),
    [
        *((name, functional.l1_loss) for name in ("auto", "mae", "bce", "cross-entropy")),
        ("mse", functional.mse_loss),
        ("huber", functional.huber_loss),
    ],
)
def test_loss_matches_loop_over_labels(name, of_numbers):
    outputs, labels = batch()
    total, weights = Loss(TASKS, TrainerConfig(loss=name), labels.numpy())(outputs, labels)
    assert float(total / weights) == pytest.approx(float(loss_by_loop(outputs, labels, of_numbers)), rel=1e-6)
    assert weights == (~torch.isnan(labels)).sum()


def test_gaussian_loss_is_the_weighted_negative_log_likelihood():
    """Compared with PyTorch's normal distribution, label by label; the weight has no gradient."""
    tasks = [Task("size"), KIND, Task("mass")]  # predictions 0, 1-3, 4, and standard deviations 5, 6
    outputs = torch.randn(9, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    labels = torch.randn(9, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    labels[:, 1] = torch.arange(9) % 3
    labels[2, 0] = labels[4, 2] = torch.nan
    total, weight = Loss(tasks, TrainerConfig(loss="gaussian"), labels.numpy())(outputs, labels)
    expected = functional.cross_entropy(outputs[:, 1:4], labels[:, 1].long(), reduction="sum")
    for t, mean, log in ((0, 0, 5), (2, 4, 6)):
        for row in range(9):
            if not torch.isnan(labels[row, t]):
                std = outputs[row, log].exp()
                density = torch.distributions.Normal(outputs[row, mean], std).log_prob(labels[row, t])
                expected = expected - std.detach() * (density + 0.5 * np.log(2 * np.pi))
    assert total.item() == pytest.approx(expected.item()) and weight.item() == 9 + 16
    found, wanted = (torch.autograd.grad(value, outputs, retain_graph=True)[0] for value in (total, expected))
    torch.testing.assert_close(found, wanted)


def test_target_and_class_weights():
    outputs, labels = batch(40)
    config = TrainerConfig(target_weights="size=0.5,toxic=3", class_weights="balanced")
    total, weights = Loss(TASKS, config, labels.numpy())(outputs, labels)
    balanced = [
        balanced_weights(labels[:, t].numpy(), len(task.classes)) if task.classes else None
        for t, task in enumerate(TASKS)
    ]
    expected = loss_by_loop(outputs, labels, functional.l1_loss, (0.5, 1, 1, 1, 3), balanced)
    assert float(total / weights) == pytest.approx(float(expected), rel=1e-6)


def test_balanced_weights_match_scikit_learn():
    labels = np.array([0, 0, 0, 1, 2, 2, np.nan])
    known = labels[~np.isnan(labels)]
    np.testing.assert_allclose(
        balanced_weights(labels, 3), compute_class_weight("balanced", classes=np.arange(3), y=known)
    )
    assert balanced_weights(np.array([0.0, 2.0, 2.0]), 3).tolist() == [1.5, 0, 0.75]  # the second class is absent


def test_missing_labels_have_no_gradient():
    outputs, labels = batch()
    outputs.requires_grad_()
    labels[:3] = torch.nan
    total, weights = Loss(TASKS, TrainerConfig(), labels.numpy())(outputs, labels)
    (total / weights).backward()
    assert not outputs.grad[:3].any() and outputs.grad[3:].any() and outputs.grad.isfinite().all()


def test_batch_without_labels_has_zero_loss():
    total, weights = Loss(TASKS, TrainerConfig(), np.zeros((2, 5)))(torch.randn(4, 7), torch.full((4, 5), torch.nan))
    assert total == weights == 0


def test_thousands_of_targets_form_one_group():
    loss = Loss(regression_tasks(f"t{t}" for t in range(2000)), TrainerConfig(), np.zeros((2, 2000)))
    total, weights = loss(torch.ones(3, 2000), torch.zeros(3, 2000))
    assert total / weights == 1 and len(loss._groups) == 1


@pytest.mark.parametrize(
    ("settings", "tasks", "reason"),
    [
        ({"class_weights": "balanced"}, regression_tasks(["y"]), "needs a target of classes"),
        ({"loss": "bce"}, regression_tasks(["y"]), "trainer.loss bce is for binary targets, but 'y' is regression"),
        ({"target_weights": "actve=2"}, [ACTIVE], "did you mean 'active'"),
        ({"target_weights": "active=-1"}, [ACTIVE], "non-negative weight"),
    ],
)
def test_unsuitable_losses_and_weights_are_rejected(settings, tasks, reason):
    with pytest.raises(InputError, match=reason):
        Loss(tasks, TrainerConfig(**settings), np.zeros((2, len(tasks))))


@pytest.mark.parametrize("settings", [{"loss": "l1"}, {"class_weights": "balance"}])
def test_unknown_settings_are_rejected(settings):
    with pytest.raises(InputError, match="trainer"):
        TrainerConfig(**settings)


def test_weight_of_a_target_with_a_comma_in_its_name():
    tasks = regression_tasks(["IC50, nM", "logp"])
    outputs, labels = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)
    total, weights = Loss(tasks, TrainerConfig(target_weights='"IC50, nM"=3'), labels.numpy())(outputs, labels)
    assert float(total / weights) == pytest.approx((3 * 1 + 2) / 4)


def censored_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions of two numbers and their log standard deviations; a third of the labels are bounds."""
    generator = torch.Generator().manual_seed(1)
    outputs, labels = (torch.randn(12, width, generator=generator, dtype=torch.float64) for width in (4, 2))
    bounds = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64).expand(12, 2, 2).clone()
    bounds[:3, 0, 0], bounds[3:5, 0, 1], bounds[5:7, 1] = 0.5, -0.2, torch.tensor([-0.3, 0.4], dtype=torch.float64)
    labels[torch.isfinite(bounds).any(dim=2)] = torch.nan
    labels[11, 0] = torch.nan
    outputs[:, 2:] /= 4
    return outputs, labels, bounds


@pytest.mark.parametrize(("name", "power"), [("mae", 1), ("mse", 2)])
def test_loss_of_a_bound_is_the_distance_from_it(name, power):
    outputs, labels, bounds = censored_batch()
    module = Loss(regression_tasks("ab"), TrainerConfig(loss=name), labels.numpy())
    total, weights = module(outputs[:, :2], labels, bounds)
    expected = []
    for row in range(12):
        for t in range(2):
            label, (low, high), output = float(labels[row, t]), bounds[row, t].tolist(), float(outputs[row, t])
            if label == label:
                expected.append(abs(output - label) ** power)
            elif (low, high) != (-np.inf, np.inf):
                expected.append(max(low - output, output - high, 0.0) ** power)
    assert len(expected) == 23 and float(weights) == 23
    assert float(total) == pytest.approx(sum(expected))


def test_loss_of_a_bound_pulls_predictions_to_its_side_alone():
    outputs, labels, bounds = censored_batch()
    outputs = outputs[:, :2].clone().requires_grad_()
    total, _ = Loss(regression_tasks("ab"), TrainerConfig(loss="mae"), labels.numpy())(outputs, labels, bounds)
    (gradient,) = torch.autograd.grad(total, outputs)
    for row in range(3):
        assert gradient[row, 0] == (-1 if outputs[row, 0] < 0.5 else 0)


def test_gaussian_loss_of_a_bound_is_the_probability_beyond_it():
    outputs, labels, bounds = censored_batch()
    module = Loss(regression_tasks("ab"), TrainerConfig(loss="gaussian"), labels.numpy())
    only_bounds = torch.full_like(labels, torch.nan)
    total, weights = module(outputs, only_bounds, bounds)
    mean, std = outputs[:, :2].numpy(), outputs[:, 2:].exp().numpy()
    low, high = bounds[..., 0].numpy(), bounds[..., 1].numpy()
    losses = -std * np.log(norm.cdf(high, mean, std) - norm.cdf(low, mean, std))
    expected = losses[np.isfinite(bounds.numpy()).any(axis=2)].sum()
    assert float(weights) == 7 and float(total) == pytest.approx(float(expected))


def test_gaussian_loss_of_far_bounds_has_finite_gradients():
    outputs = torch.tensor([[1e4, -8.0], [-1e4, 8.0], [0.0, -8.0]], requires_grad=True)
    bounds = torch.tensor([[[-torch.inf, 0.0]], [[0.0, torch.inf]], [[50.0, 51.0]]])
    labels = torch.full((3, 1), torch.nan)
    total, _ = Loss([Task("a")], TrainerConfig(loss="gaussian"), labels.numpy())(outputs, labels, bounds)
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(outputs.grad).all()


def test_loss_with_weights_is_that_of_repeated_rows():
    outputs, labels = batch()
    counts = torch.arange(12) % 3
    module = Loss(TASKS, TrainerConfig(), labels.numpy())
    total, count = module(outputs, labels, None, counts.double())
    repeated, _ = module(outputs.repeat_interleave(counts, 0), labels.repeat_interleave(counts, 0))
    assert float(total) == pytest.approx(float(repeated)) and count == (~torch.isnan(labels)).sum()


@pytest.mark.parametrize("heavy", ["class", "row"])
def test_a_heavy_label_has_the_same_influence_in_every_batch(heavy):
    """The sum of the batches' gradients is then that of the documented weights."""
    labels = torch.zeros(32, 1)
    labels[0] = 1
    config = TrainerConfig(class_weights="balanced" if heavy == "class" else "none")
    module = Loss([ACTIVE], config, labels.numpy())
    weights = torch.ones(32)
    weights[0] = 31
    gradients = torch.zeros(32)
    for batch in torch.arange(32).split(4):
        outputs = torch.zeros(4, 1, requires_grad=True)
        total, count = module(outputs, labels[batch], None, None if heavy == "class" else weights[batch])
        (total / count).backward()
        gradients[batch] = outputs.grad[:, 0].abs()
    assert float(gradients[0] / gradients.sum()) == pytest.approx(0.5)

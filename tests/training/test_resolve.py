from __future__ import annotations

import pytest

from graphslice.config import RunConfig, TrainerConfig
from graphslice.data.loaders import load_dataset
from graphslice.tasks import BINARY, Task, regression_tasks
from graphslice.training.resolve import default_epochs, fit_to_dataset, run_steps


def test_dataset_name_takes_precedence_over_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    config = RunConfig()
    assert fit_to_dataset(config, load_dataset(config.data), tmp_path).data.dataset == "demo"


@pytest.mark.parametrize(
    ("molecules", "batch_size", "epochs"), [(3, 32, 100), (4_000, 32, 30), (40_000, 32, 15), (10**8, 32, 5)]
)
def test_default_epochs_depend_on_the_number_of_molecules(molecules, batch_size, epochs):
    assert default_epochs(molecules, -(-molecules // batch_size)) == epochs


@pytest.mark.parametrize("molecules", [1, 10, 1_000, 9_999, 10_001, 10**6])
def test_more_molecules_never_give_fewer_steps(molecules):
    steps = [default_epochs(rows, -(-rows // 32)) * -(-rows // 32) for rows in (molecules, 2 * molecules)]
    assert steps[0] <= steps[1]


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({}, 30 * 7),
        ({"max_epochs": 2}, 14),
        ({"max_steps": 5}, 5),
        ({"max_steps": 500}, 500),
        ({"max_epochs": 2, "max_steps": 500}, 14),
        ({"max_minutes": 1.0}, 7_000_000),
        ({"max_minutes": 1.0, "max_steps": 500}, 500),
    ],
)
def test_run_ends_at_the_first_limit(limits, steps):
    assert run_steps(RunConfig(trainer=TrainerConfig(batch_size=32, **limits)), regression_tasks(["y"]), 200) == steps


@pytest.mark.parametrize(
    ("init_from", "limits", "continued", "epochs"),
    [
        ("small", {}, False, 20),
        ("small", {}, True, 12),
        ("none", {}, False, 30),
        ("none", {}, True, 18),
        ("small", {"max_epochs": 5}, True, 5),
    ],
)
def test_trainings_of_a_refitted_run_are_shorter(init_from, limits, continued, epochs):
    config = RunConfig(trainer=TrainerConfig(refit="on", batch_size=32, **limits), init_from=init_from)
    assert run_steps(config, regression_tasks(["y"]), 200, continued=continued) == epochs * 7


def test_classes_alone_are_fine_tuned_for_fewer_epochs():
    config = RunConfig(trainer=TrainerConfig(refit="on", batch_size=10), init_from="small")
    active, mass = Task("active", BINARY, ("no", "yes")), Task("mass")
    assert [run_steps(config, [active], 200, continued=continued) for continued in (False, True)] == [200, 120]
    assert run_steps(config, [active, mass], 200) == 400

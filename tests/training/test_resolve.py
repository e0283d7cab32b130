"""What is decided before a run starts: its length, and the scale of regression targets by inner validation."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import graphslice as gs
from graphslice.config import RunConfig, TrainerConfig
from graphslice.data.loaders import load_dataset
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from graphslice.tasks import BINARY, Task, regression_tasks, to_predictions
from graphslice.training import choose_transform, train
from graphslice.training.choose_transform import _is_better
from graphslice.training.resolve import default_epochs, resolve, run_steps


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


QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def molecules():
    """Four hundred molecules of the demo dataset and a property that their graph determines."""
    table = pd.read_csv(Path(__file__).parents[2] / "data" / "demo.csv").head(400).drop(columns="split")
    size = np.array([gs.smiles_to_graph(smiles).num_atoms for smiles in table["smiles"]])
    hetero = np.array([(gs.smiles_to_graph(smiles).atoms[:, 0] != 5).sum() for smiles in table["smiles"]])
    return table[["smiles"]], (size - size.mean()) / size.std() + 0.7 * (hetero - hetero.mean()) / hetero.std()


@pytest.fixture(scope="module")
def skewed(molecules) -> np.ndarray:
    """Positive labels for which the logarithm is chosen."""
    return np.exp(2 * molecules[1].clip(-2, 2))


@pytest.fixture
def configured(tiny_config, tmp_path, molecules):
    def make(data: dict | None = None, trainer: dict | None = None, **columns) -> RunConfig:
        molecules[0].assign(**columns).to_csv(tmp_path / "t.csv", index=False)
        settings = {"baselines": "off", "max_epochs": 1, **(trainer or {})}
        return tiny_config(tmp_path / "t.csv", data={"targets": ",".join(columns), **(data or {})}, trainer=settings)

    return make


def chosen(config: RunConfig, console: Console = QUIET) -> tuple[str, list[str], list[str]]:
    """Return the setting, and the transforms of the targets and of the members of an ensemble."""
    complete, data = resolve(config, load_dataset(config.data), Path(), console)
    members = [member.data.transform for member in complete.members.values()]
    return complete.config.data.transform, [task.transform for task in data.dataset.tasks], members


def test_a_skewed_positive_target_is_trained_on_its_logarithm(configured, skewed, tmp_path):
    output = io.StringIO()
    train(configured(y=skewed), tmp_path / "run", console=Console(file=output, width=300))
    checkpoint = read_checkpoint(tmp_path / "run")
    assert (checkpoint.config.data.transform, checkpoint.tasks[0].transform) == ("y=log", "log")
    assert "y: trained on its logarithm (its labels span a factor of 100; " in output.getvalue()
    assert "; --transform none turns this off" in output.getvalue()


def test_a_symmetric_target_is_not_transformed(configured, molecules):
    assert chosen(configured(y=molecules[1])) == ("none", ["none"], [])


def test_a_transform_of_one_target_leaves_the_choice_for_the_others(configured, skewed):
    assert chosen(configured({"transform": "none"}, y=skewed)) == ("none", ["none"], [])
    assert chosen(configured({"transform": "z=none"}, y=skewed, z=skewed)) == ("y=log,z=none", ["log", "none"], [])
    classes = np.resize(["a", "b"], len(skewed))
    assert chosen(configured({"transform": "log"}, y=skewed, c=classes)) == ("log", ["log", "none"], [])


def test_members_of_an_ensemble_have_one_scale(configured, skewed):
    config = configured(trainer={"ensemble": 2}, y=skewed, z=skewed - 1)
    assert chosen(config) == ("y=log", ["log", "none"], ["y=log"] * 2)
    narrow = configured({"folds": "2"}, y=skewed.clip(1))
    assert chosen(narrow) == ("none", ["none"], ["none"] * 2)
    assert chosen(configured({"folds": "2"}, y=skewed)) == ("y=log", ["log"], ["y=log"] * 2)


def concentrations(molecules, least: str, slope: float = 0.2) -> list[str]:
    """Labels that depend on the molecule and on chance, those below 7 and above 19 as bounds or placeholders."""
    numbers = 10 * np.exp(slope * molecules[1] + 0.3 * np.random.default_rng(0).normal(size=400))
    return [least if number < 7 else ">19" if number > 19 else f"{number:.3f}" for number in numbers]


@pytest.mark.parametrize(
    ("least", "slope", "transform"),
    [
        ("<1", 0.2, "log"),  # up to 190 times as much
        ("<2", 0.2, "none"),
        ("6", 0.2, "none"),
        ("0.1", 0.2, "log"),
        ("0.1", 0.4, "none"),  # clearly better
        ("<-1", 0.2, "none"),
        ("0", 0.2, "none"),
    ],
)
def test_labels_of_a_wide_range_are_trained_on_their_logarithm(least, slope, transform, configured, molecules):
    assert chosen(configured(y=concentrations(molecules, least, slope)))[1] == [transform]


def test_scales_are_compared_on_bounds_too(configured, molecules, monkeypatch):
    """Below ``<1`` a prediction has no error down to 0."""
    pairs = []
    monkeypatch.setattr(choose_transform, "score", lambda *args: pairs.append(np.hstack(args[-2:])) or 1.0)
    cells = concentrations(molecules, "<1")
    chosen(configured(y=cells))
    true, predicted = np.concatenate(pairs).T
    assert len(true) == 2 * 360  # without the test set
    assert (true >= 0).all() and (true < 5).sum() > 0.7 * 2 * cells.count("<1") and (true[true < 5] <= 1).all()
    below = (true < 5) & (predicted < 1)
    np.testing.assert_allclose(true[below], predicted[below].clip(0))


@pytest.mark.parametrize("shift", [0, 1])
def test_predictions_and_intervals_of_positive_targets_are_not_negative(shift, configured, skewed, molecules, tmp_path):
    config = configured({"transform": "none"}, {"baselines": "on"}, y=skewed - shift)
    run = train(config, tmp_path / "run", console=QUIET)
    found = gs.load(run.folder, "cpu").predict(molecules[0]["smiles"], interval=95).interval.low.min()
    assert found == 0 if shift == 0 else found < 0
    tasks = [Task("y", positive=True)]
    assert to_predictions(np.array([[-3.0], [2.0]]), tasks).tolist() == [[0], [2]]


def test_nothing_is_chosen_again_for_a_run_that_is_continued(configured, skewed, tmp_path):
    config = configured({"transform": "z=log"}, y=skewed, z=skewed)
    complete, _ = resolve(config, load_dataset(config.data), tmp_path, QUIET, chosen=True)
    assert complete.config == config


@pytest.mark.parametrize("least", [0.0, 1e-9])
def test_a_model_that_is_trained_further_keeps_its_scale(least, configured, molecules, tmp_path):
    """Unless a label has no logarithm, in the test set too."""
    labels = np.exp(0.1 * molecules[1])  # for which nothing would be chosen
    labels[399] = least
    config = configured({"split": "split"}, y=labels)
    table = pd.read_csv(tmp_path / "t.csv").assign(split=["train"] * 300 + ["valid"] * 50 + ["test"] * 50)
    table.to_csv(tmp_path / "t.csv", index=False)
    save_checkpoint(Checkpoint(RunConfig(), [Task("y", transform="log")], {}), tmp_path / "origin.safetensors")
    found = chosen(replace(config, init_from=str(tmp_path / "origin.safetensors")))
    assert found == (("none", ["none"], []) if least == 0 else ("y=log", ["log"], []))


def test_a_logarithm_is_not_chosen_if_a_bound_has_none(configured, skewed):
    assert chosen(configured(y=["<0", *(f"{label:.6f}" for label in skewed[1:])])) == ("none", ["none"], [])


@pytest.mark.parametrize(
    ("none", "log", "higher", "better"),
    [
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], False, True),
        ([0.5, 0.5, 0.5], [0.6, 0.7, 0.6], True, True),
        ([0.5, 0.5, 0.5], [0.4, 0.4, 0.4], True, False),
        ([2.0, 2.1, 2.2], [1.0, 3.1, 2.1], False, False),
        ([2.0, 2.1], [np.nan, 1.0], False, False),
        ([2.0, 2.0, 2.0], [1.97, 1.97, 1.97], False, False),
    ],
)
def test_none_wins_unless_the_logarithm_is_clearly_better(none, log, higher, better):
    assert _is_better(np.array(none), np.array(log), higher) == better

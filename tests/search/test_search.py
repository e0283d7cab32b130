"""The search with an objective that is a formula in place of trainings."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from graphslice.errors import InputError
from graphslice.search.study import LogRange, Record, open_study, prepare_trials, records
from graphslice.search.tune import (
    FINALISTS,
    Limits,
    _search_end,
    choose,
    finalists,
    prepare,
    repeat,
    run_stages,
    search,
)
from graphslice.training.loop import Interrupted

QUIET = Console(quiet=True)
DEFAULTS = {"optimizer.peak_lr": 1e-3}


def error(config, seed=0, report=None):
    """Smallest at a learning rate of 3e-3; further seeds shift all errors alike."""
    return abs(np.log(config.optimizer.peak_lr / 3e-3)) + 0.1 * seed


@pytest.fixture
def make_setup(tiny_config):
    def make(score=error, metric="mae"):
        objective = SimpleNamespace(metric=metric, score=score)
        space = {"optimizer.peak_lr": LogRange(1e-4, 1e-2)}
        config = tiny_config(optimizer={"peak_lr": 1e-3})
        return SimpleNamespace(config=config, trial_config=config, objective=objective, space=space, defaults=DEFAULTS)

    return make


def limits(trials=None, seconds=None, seeds=2, processes=1) -> Limits:
    end = float("inf") if seconds is None else time.time() + seconds
    return Limits(trials, seconds, end, seeds, processes)


def run(setup, folder, limit) -> list[Record]:
    folder.mkdir(exist_ok=True)
    study = open_study(folder, setup.objective.metric == "auroc")
    run_stages(study, setup, folder, limit, (), QUIET)
    return records(study)


def test_search_is_better_than_the_defaults(make_setup, tmp_path):
    setup = make_setup()
    trials = run(setup, tmp_path, limits(16))
    assert len(trials) == 16 and trials[0].params == DEFAULTS
    choice = choose(trials, setup, 2)
    assert choice.seeds == [1, 2] and choice.score < choice.default_score
    assert choice.default_score == pytest.approx(np.log(3) + 0.15)
    best = sorted((trial for trial in trials[1:] if trial.value is not None), key=lambda trial: trial.value)
    finalists = {0, *(trial.number for trial in best[:FINALISTS])}
    assert {trial.number: set(trial.seeds) for trial in trials if trial.seeds} == {key: {1, 2} for key in finalists}


def test_processes_start_each_trial_once(make_setup, tmp_path):
    """Of threads with a study each, which ask for the waiting defaults at the same time."""
    setup = make_setup()
    prepare_trials(open_study(tmp_path, False), DEFAULTS)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda index: search(setup, tmp_path, limits(6, processes=4), index, QUIET), range(4)))
    trials = records(open_study(tmp_path))
    assert [trial.state for trial in trials] == ["complete"] * 6
    assert len({str(trial.params) for trial in trials}) == 6 and trials[0].params == DEFAULTS


def test_processes_share_the_seeds(make_setup, tmp_path):
    setup = make_setup()
    study = open_study(tmp_path, False)
    prepare_trials(study, DEFAULTS)
    search(setup, tmp_path, limits(6), 0, QUIET)
    repeat(setup, tmp_path, limits(6, processes=2), 0, QUIET)
    first = sum(len(trial.seeds) for trial in records(study))
    repeat(setup, tmp_path, limits(6, processes=2), 1, QUIET)
    assert (first, sum(len(trial.seeds) for trial in records(study))) == (4, 8)


def test_trial_beyond_the_time_is_stopped(make_setup, tmp_path, monkeypatch):
    """Each training takes seconds; the defaults are finished although they need more than the time."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("graphslice.search.tune.time", SimpleNamespace(time=lambda: clock.now))

    def slow(config, seed, report):
        for _ in range(3 if config.optimizer.peak_lr == 1e-3 else 1_000):
            clock.now += 10
            report(float("nan"), 1)
        return 0.0

    trials = run(make_setup(slow), tmp_path, Limits(None, 100.0, 100.0, 0, 1))
    assert [(trial.state, trial.reason) for trial in trials] == [("complete", ""), ("failed", "stopped")]
    clock.now = 0.0
    trials = run(make_setup(slow), tmp_path / "short", Limits(None, 15.0, 15.0, 0, 1))
    assert [trial.state for trial in trials] == ["complete"]


@pytest.mark.parametrize(("duration", "end"), [(1.0, 992.0), (1_000.0, 600.0)])
def test_reserve_is_what_the_seeds_need_but_at_most_two_fifths(duration, end):
    trial = Record(0, "complete", 1.0, duration, DEFAULTS, "")
    assert _search_end([trial], Limits(None, 1_000.0, 1_000.0, 2, 1)) == end


def test_clearly_worse_trials_are_pruned(make_setup, tmp_path):
    def reported(config, seed, report):
        value = error(config)
        for number in range(1, 5):
            report(value, number)
        return value

    trials = run(make_setup(reported), tmp_path, limits(16))
    pruned = [trial for trial in trials if trial.state == "pruned"]
    complete = [trial.value for trial in trials if trial.state == "complete"]
    assert len(pruned) > 2 and all(trial.value is None for trial in pruned)
    worst = max(abs(np.log(trial.params["optimizer.peak_lr"] / 3e-3)) for trial in pruned)
    assert worst > np.median(complete)


def test_defaults_are_not_pruned(make_setup, tmp_path):
    """Repeated in a study of better trials, as after a process that was killed during the defaults."""

    def reported(config, seed, report):
        value = 10.0 if config.optimizer.peak_lr == 1e-3 else 0.0
        for number in range(1, 5):
            report(value, number)
        return value

    setup = make_setup(reported)
    open_study(tmp_path, False)
    search(setup, tmp_path, limits(8), 0, QUIET)
    trials = run(setup, tmp_path, limits(8, seeds=0))
    assert len(trials) == 9 and (trials[-1].params, trials[-1].value) == (DEFAULTS, 10.0)


def test_failed_trials_have_a_reason_and_do_not_end_the_search(make_setup, tmp_path):
    def fails(config, seed=0, report=None):
        rate = config.optimizer.peak_lr
        if rate > 1e-3 or (seed and rate < 1e-3):
            raise MemoryError("no memory")
        return float("nan") if rate < 3e-4 else 1.0

    trials = run(make_setup(fails), tmp_path, limits(10))
    assert {trial.reason for trial in trials} == {"", "no memory", "MAE is undefined"}
    assert choose(trials, make_setup(fails), 2).trial.params == DEFAULTS


def test_interrupted_search_equals_an_uninterrupted_one(make_setup, tmp_path):
    """Beyond the first random trials; the interrupted trial has another number."""
    calls = []

    def interrupted(config, seed=0, report=None):
        calls.append(config)
        if len(calls) in (4, 11):
            raise KeyboardInterrupt
        return error(config, seed, report)

    for _ in range(2):
        with pytest.raises(Interrupted):
            run(make_setup(interrupted), tmp_path / "a", limits(14))
    continued = [trial for trial in run(make_setup(interrupted), tmp_path / "a", limits(14)) if trial.counts]
    whole = run(make_setup(), tmp_path / "b", limits(14))
    assert [(trial.params, trial.value, trial.seeds) for trial in continued] == [
        (trial.params, trial.value, trial.seeds) for trial in whole
    ]


def record(number, value, rate, seeds=()) -> Record:
    return Record(number, "complete", value, 1.0, {"optimizer.peak_lr": rate}, "", dict(seeds))


CHOICES = {
    "the defaults win a tie": ([record(0, 1.0, 2e-3, {1: 2.0}), record(1, 1.0, 1e-3, {1: 2.0})], 1, [1], 2.0),
    "only seeds of all finalists are averaged": (
        [record(0, 1.0, 1e-3, {1: 1.0, 2: 0.0}), record(1, 2.0, 2e-3, {1: 0.5})], 1, [1], 0.5
    ),
    "finalists without a further seed are left out, as where the time ended in the first round": (
        [record(0, 1.0, 1e-3, {1: 1.0}), record(1, 0.9, 2e-3, {1: 1.1}), record(2, 0.8, 3e-3)], 0, [1], 1.0
    ),
    "the first score decides without further seeds": (
        [record(0, 1.0, 1e-3), record(1, 0.5, 2e-3, {1: 9.0})], 1, [], 0.5
    ),
    "divergence with a further seed loses": (
        [record(0, 1.0, 1e-3, {1: 1.0}), record(1, 0.5, 2e-3, {1: float("nan")})], 0, [1], 1.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", CHOICES)
def test_choice(rule, make_setup):
    trials, number, seeds, score = CHOICES[rule]
    choice = choose(trials, make_setup(), 2)
    assert (choice.trial.number, choice.seeds, choice.score) == (number, seeds, score)
    assert set(choice.means) == ({trial.number for trial in trials if 1 in trial.seeds} if seeds else set())


def test_mean_over_seeds_decides_against_the_first_score(make_setup):
    trials = [record(0, 0.7, 1e-3, {1: 0.7, 2: 0.7}), record(1, 0.9, 2e-3, {1: 0.6, 2: 0.7})]
    choice = choose(trials, make_setup(metric="auroc"), 2)
    assert (choice.trial.number, choice.score, choice.default_score) == (0, 0.7, 0.7)
    assert choose([Record(0, "failed", None, 1.0, DEFAULTS, "x")], make_setup(), 1) is None


def test_same_values_are_one_finalist(make_setup):
    trials = [record(0, 1.0, 1e-3), *(record(number, 0.5, 2e-3) for number in range(1, 9))]
    assert [trial.number for trial in finalists(trials, make_setup())] == [0, 1]


def test_unusable_configuration_raises(demo_csv, tiny_config):
    for sections, mixers, message in (
        ({"data": {"folds": "5"}}, (), "leave out trainer.ensemble and data.folds"),
        ({"trainer": {"devices": "2"}}, (), "leave out trainer.devices"),
        ({}, ("slice-maxx",), "unknown mixer 'slice-maxx'"),
    ):
        with pytest.raises(InputError, match=message):
            prepare(tiny_config(demo_csv, **sections), mixers, QUIET)

import pytest

from graphslice.search.study import LogRange, open_study, prepare_trials, records, run_trial, set_seed_score

SPACE = {"optimizer.peak_lr": LogRange(1e-4, 1e-2), "trainer.max_epochs": (None, 5)}


@pytest.fixture
def study(tmp_path):
    return open_study(tmp_path, higher_is_better=False)


def run_one(study, error=None, seed=0) -> dict:
    """Run the next trial, with a score of 0.5 or an error, and return its values."""

    def score(trial):
        if error is not None:
            raise error
        return 0.5

    number = run_trial(study, SPACE, seed, score)
    return records(study)[number].params


def test_trials_are_kept_in_the_file(study, tmp_path):
    params = run_one(study)
    run_one(study, MemoryError("no memory\nat all"))
    set_seed_score(study, 0, 2, 0.25)
    first, second = records(open_study(tmp_path))
    assert (first.state, first.value, first.params, first.seeds) == ("complete", 0.5, params, {2: 0.25})
    assert (second.state, second.value, second.reason) == ("failed", None, "no memory")
    prepare_trials(study, params)
    assert len(records(study)) == 2, "a trial that failed by itself is not repeated"


class Killed(BaseException):
    """Leaves a trial as the end of its process does."""


def test_a_trial_that_kills_its_process_is_repeated_once(study, tmp_path):
    defaults = run_one(study)
    for _ in range(2):
        with pytest.raises(Killed):
            run_one(open_study(tmp_path), Killed())
        assert records(study)[-1].state == "running"
        prepare_trials(study, defaults)
    trials = records(study)
    assert [(trial.state, trial.reason) for trial in trials[1:]] == [("failed", "its process was killed")] * 2
    assert trials[1].params == trials[2].params and [trial.counts for trial in trials] == [True, False, True]

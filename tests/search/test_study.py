import pytest

from graphslice.errors import InputError
from graphslice.search.study import (
    STUDY,
    LogRange,
    ask,
    check_identity,
    fail,
    open_study,
    prepare_trials,
    records,
    set_seed_score,
    stop,
)

SPACE = {"optimizer.peak_lr": LogRange(1e-4, 1e-2), "trainer.max_epochs": (None, 5)}
DEFAULTS = {"optimizer.peak_lr": 1e-3, "trainer.max_epochs": None}
CONFIG = {"data": {"dataset": "a.csv", "targets": "y", "fingerprint": "1"}, "init_from": "none"}
IDENTITY = {"config": CONFIG, "space": repr(SPACE)}


@pytest.fixture
def study(tmp_path):
    return open_study(tmp_path, higher_is_better=False)


def start(study, seed=0):
    return ask(study, SPACE, seed)


def test_first_trial_has_the_defaults(study):
    prepare_trials(study, DEFAULTS)
    assert start(study).params == DEFAULTS
    assert start(study).params != DEFAULTS


def test_trials_are_kept_in_the_file(study, tmp_path):
    trial = start(study)
    study.tell(trial, 0.5)
    fail(study, start(study).number, "no memory")
    set_seed_score(study, trial.number, 2, 0.25)
    first, second = records(open_study(tmp_path))
    assert (first.state, first.value, first.params, first.seeds) == ("complete", 0.5, trial.params, {2: 0.25})
    assert (second.state, second.value, second.reason) == ("failed", None, "no memory")


def test_trials_of_a_killed_process_are_stopped_and_the_defaults_repeated(study, tmp_path):
    prepare_trials(study, DEFAULTS)
    start(study)
    again = open_study(tmp_path)
    prepare_trials(again, DEFAULTS)
    first, second = records(again)
    assert (first.state, first.reason, second.state) == ("failed", "its process was killed", "waiting")
    assert start(again).params == DEFAULTS


def test_a_trial_that_kills_its_process_is_repeated_once(study, tmp_path):
    study.tell(start(study), 0.5)
    params = start(study).params
    for _ in range(2):
        prepare_trials(open_study(tmp_path), study.trials[0].params)
        if any(trial.state == "waiting" for trial in records(study)):
            assert start(open_study(tmp_path)).params == params
    assert [trial.state for trial in records(study)] == ["complete", "failed", "failed"]
    assert [trial.counts for trial in records(study)] == [True, False, True]


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_any_name_of_a_folder_is_that_of_its_study(name, tmp_path):
    (tmp_path / name).mkdir()
    open_study(tmp_path / name, higher_is_better=False)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["study.sqlite3"]
    assert records(open_study(tmp_path / name)) == []


def test_stopped_trial_is_repeated_once_with_its_values(study, tmp_path):
    study.tell(start(study), 0.5)
    trial = start(study)
    stopped = trial.params
    stop(study, trial.number, "stopped")
    for _ in range(2):
        prepare_trials(open_study(tmp_path), study.trials[0].params)
    assert [trial.state for trial in records(study)] == ["complete", "failed", "waiting"]
    assert [trial.counts for trial in records(study)] == [True, False, False]
    assert records(study)[2].params == stopped == start(study, seed=5).params


def other_data(**changes) -> dict:
    return CONFIG | {"data": CONFIG["data"] | changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": other_data(fingerprint="2")}, "the data of the search in .* has changed"),
        ({"config": other_data(fingerprint="2", dataset="b.csv")}, "data.dataset a.csv, not b.csv"),
        ({"space": "{}"}, "holds a search over other values"),
    ],
)
def test_study_of_another_search_raises(study, tmp_path, change, message):
    check_identity(study, IDENTITY, tmp_path)
    check_identity(open_study(tmp_path), IDENTITY, tmp_path)
    with pytest.raises(InputError, match=message):
        check_identity(study, IDENTITY | change, tmp_path)


def test_damaged_files_raise(tmp_path):
    (tmp_path / STUDY).write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="cannot read"):
        open_study(tmp_path, higher_is_better=True)

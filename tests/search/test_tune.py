"""Whole searches with tiny models, in this process."""

import csv
import shutil
import signal

import pytest
from filelock import FileLock
from json_documents import document_of
from rich.console import Console

from graphslice.config import RunConfig, read_yaml
from graphslice.errors import InputError
from graphslice.inference import load
from graphslice.runs.run_files import read_metrics
from graphslice.search.objective import Objective
from graphslice.search.tune import resume, tune

QUIET = Console(quiet=True)


@pytest.fixture(scope="module", autouse=True)
def one_fold():
    """Hold out one fold, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphslice.search.objective.num_held_out", lambda data: 1)
        yield


@pytest.fixture(scope="module")
def tuned(demo_csv, tiny_config, tmp_path_factory):
    """Folder of a finished search of three trials. Copy it to change it."""
    out = tmp_path_factory.mktemp("tuned") / "t"
    tune(tiny_config(demo_csv), out, trials=3, seeds=1, console=QUIET)
    return out


@pytest.fixture
def copied(tuned, tmp_path):
    shutil.copytree(tuned, tmp_path / "t")
    return tmp_path / "t"


def read_trials(folder) -> list[dict[str, str]]:
    with open(folder / "trials.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_folder_holds_the_files_of_a_search(tuned):
    assert {path.name for path in tuned.iterdir()} == {"study.journal", "best.yaml", "trials.csv", "run"}
    rows = read_trials(tuned)
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    assert rows[0]["optimizer.peak_lr"] == "0.001" and rows[0]["model.layers"] == "1"


def test_final_run_has_the_best_configuration(tuned):
    best, run = read_yaml(tuned / "best.yaml"), read_yaml(tuned / "run" / "config.yaml")
    (chosen,) = [row for row in read_trials(tuned) if row["chosen"]]
    assert best["optimizer"] == run["optimizer"] and best["trainer"]["loss"] == run["trainer"]["loss"]
    assert best["optimizer"]["peak_lr"] == float(chosen["optimizer.peak_lr"])
    assert run["trainer"]["devices"] == "1"  # Lightning would start the search again for each further device
    assert load(tuned / "run", "cpu").predict(["CCO"]).shape == (1, 1)
    assert {"valid", "test"} <= set(read_metrics(tuned / "run"))


def test_best_configuration_trains_the_same_model(tuned, tmp_path, cli, weights_of):
    code, _, err = cli("train", "--config", tuned / "best.yaml", "--out", tmp_path / "again")
    assert code == 0, err
    first, again = weights_of(tuned / "run"), weights_of(tmp_path / "again")
    assert all(first[name].equal(again[name]) for name in first)


def test_finished_search_is_not_repeated(copied, demo_csv, tiny_config, monkeypatch):
    monkeypatch.setattr(Objective, "score", lambda *arguments: pytest.fail("trained again"))
    before = (copied / "run" / "metrics.json").stat().st_mtime_ns
    tune(tiny_config(demo_csv), copied, trials=3, seeds=1, console=QUIET)
    resume(copied, console=QUIET)
    assert (copied / "run" / "metrics.json").stat().st_mtime_ns == before


def test_interrupted_final_run_is_continued_and_a_larger_budget_extends_the_search(copied, demo_csv, tiny_config):
    before = read_trials(copied)
    (copied / "run" / "metrics.json").unlink()
    for trials in (3, 4):
        tune(tiny_config(demo_csv), copied, trials=trials, seeds=1, console=QUIET)
        after = read_trials(copied)
        assert len(after) == trials and (copied / "run" / "metrics.json").exists()
        assert [row["value"] for row in after[:3]] == [row["value"] for row in before]


def test_other_settings_raise(copied, demo_csv, tiny_config):
    with pytest.raises(InputError, match=r"holds a search with model\.dim 16, not 32"):
        tune(tiny_config(demo_csv, model={"dim": 32}), copied, trials=3, console=QUIET)
    with pytest.raises(InputError, match=r"holds a search with mixers \[\], not \['csp'\]"):
        tune(tiny_config(demo_csv), copied, trials=3, mixers=["csp"], console=QUIET)


def test_signal_keeps_the_best_and_the_search_continues(tuned, demo_csv, tiny_config, tmp_path, monkeypatch, cli):
    score, calls, out = Objective.score, [], tmp_path / "t"
    (tmp_path / "c.yaml").write_text(tiny_config(demo_csv).to_yaml())

    def interrupted(self, config, seed=0, report=None):
        calls.append(seed)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return score(self, config, seed, report)

    with monkeypatch.context() as patch:
        patch.setattr(Objective, "score", interrupted)
        words = ["--config", tmp_path / "c.yaml", "--trials", 3, "--seeds", 1]
        code, _, err = cli("tune", *words, "--out", out)
    assert code == 130 and f"graphslice tune --resume {out}" in err
    assert RunConfig.from_dict(read_yaml(out / "best.yaml")).model.mixer == "slice-max"
    assert [row["state"] for row in read_trials(out)] == ["complete", "complete", "failed"] and not (
        out / "run"
    ).exists()
    code, text, err = cli("tune", "--resume", out, "--json")
    assert code == 0 and document_of("tune", text)["search"] == str(out), err
    rows = read_trials(out)
    assert [row["state"] for row in rows] == ["complete", "complete", "failed", "complete"]
    options = [name for name in rows[0] if "." in name]
    assert [rows[2][name] for name in options] == [rows[3][name] for name in options]
    assert [row["value"] for row in rows if row["value"]] == [row["value"] for row in read_trials(tuned)]
    assert (out / "run" / "report.html").exists()


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.slow
def test_final_run_of_an_ensemble_has_all_members(demo_csv, tiny_config, tmp_path):
    config, metrics = tiny_config(demo_csv, trainer={"ensemble": 2}), tmp_path / "t" / "run" / "metrics.json"
    tune(config, tmp_path / "t", trials=1, seeds=0, console=QUIET)
    assert (tmp_path / "t" / "run" / "member-2" / "model.safetensors").exists()
    before = metrics.stat().st_mtime_ns
    tune(config, tmp_path / "t", trials=1, seeds=0, console=QUIET)
    assert metrics.stat().st_mtime_ns == before


def test_all_trials_failed_raises(demo_csv, tiny_config, tmp_path):
    config = tiny_config(demo_csv, optimizer={"peak_lr": 1e30})
    with pytest.raises(InputError, match="no trial could be finished; the last one: the training diverged"):
        tune(config, tmp_path / "t", trials=1, console=QUIET)


def test_unusable_input_leaves_no_folder(demo_csv, tiny_config, run_directory, tmp_path):
    config = tiny_config(demo_csv)
    with pytest.raises(InputError, match="minutes must be more than 0"):
        tune(config, tmp_path / "none", minutes=float("nan"), console=QUIET)
    with pytest.raises(InputError, match="holds a run, not a search"):
        tune(config, run_directory, console=QUIET)
    with FileLock(tmp_path / ".lock"), pytest.raises(InputError, match="another process is using"):
        tune(config, tmp_path, console=QUIET)
    with pytest.raises(InputError, match="missing"):
        tune(tiny_config(tmp_path / "missing.csv"), tmp_path / "none", console=QUIET)
    with pytest.raises(InputError, match="holds no search to continue"):
        resume(tmp_path / "none", console=QUIET)
    assert not (tmp_path / "none").exists()


def test_resume_takes_no_other_option(cli, tuned):
    code, _, err = cli("tune", "--resume", tuned, "--minutes", 3)
    assert code == 2 and "leave out --minutes" in err


@pytest.mark.slow
def test_processes_share_the_trials(cli, demo_csv, tiny_flags, tmp_path):
    out = tmp_path / "t"
    budget = ["--trials", 2, "--seeds", 0, "--processes", 2]
    code, printed, err = cli("tune", "--dataset", demo_csv, *budget, "--out", out, *tiny_flags)
    assert code == 0 and f"configuration: {out / 'best.yaml'}" in printed, err
    assert [row["state"] for row in read_trials(out)] == ["complete"] * 2


def test_a_run_that_no_search_wrote_is_kept(run_directory, demo_csv, tiny_config, tmp_path):
    shutil.copytree(run_directory, tmp_path / "t" / "run")
    before = (tmp_path / "t" / "run" / "start.json").read_text()
    with pytest.raises(InputError, match="holds a run already"):
        tune(tiny_config(demo_csv), tmp_path / "t", trials=1, seeds=0, console=QUIET)
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["run"]
    assert (tmp_path / "t" / "run" / "start.json").read_text() == before

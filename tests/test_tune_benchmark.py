"""Comparison of ``graphslice tune`` with the defaults: results and table."""

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from benchmarks import tune
from benchmarks.table_methods import Commands
from graphslice.cli.main import main


def line(method: str, seed: int, test: float, **more) -> dict:
    return {"task": "herg", "method": method, "seed": seed, "metric": "AUROC", "test": test, **more}


def tuned(seed: int, test: float, minutes: float = 5.0) -> dict:
    return line(tune.TUNED, seed, test, minutes=minutes, trials=10 + seed)


def test_table_compares_the_same_seeds():
    lines = [line(tune.DEFAULTS, 0, 0.8), line(tune.DEFAULTS, 1, 0.5), tuned(0, 0.7), tuned(2, 0.1)]
    assert tune.tuning_table(lines).splitlines()[2:] == ["| herg | AUROC ↑ | 5 | 1 | 10 | 0.8000 | 0.7000 | -0.1000 |"]


def test_interval_needs_three_seeds():
    lines = [line(tune.DEFAULTS, seed, 0.5) for seed in range(3)]
    lines += [tuned(seed, 0.5 + 0.01 * seed) for seed in range(3)]
    (row,) = tune.tuning_table(lines).splitlines()[2:]
    # Student's t with two degrees of freedom: 4.303 * 0.01 / sqrt(3) = 0.0248
    assert row.endswith("| +0.0100 (95% interval -0.0148 to +0.0348) |")


def test_other_seeds_train_with_the_values_that_were_found():
    values = {"optimizer.peak_lr": "0.002", "trainer.max_epochs": "", "trainer.loss": "mse"}
    found = {"trials": 3, "held_out": [0.1, 0.2], "values": values}
    options = tune.Found(found | {"chosen": 2}, ["--metric", "mae"]).options
    assert options == ["--metric", "mae", "--optimizer.peak_lr=0.002", "--trainer.loss=mse"]
    assert tune.Found(found | {"chosen": 0}, ["--metric", "mae"]).options == ["--metric", "mae"]


def test_a_table_is_searched_once(tmp_path, monkeypatch):
    """With trainings that are not done; every seed has its own pair of lines."""
    methods = []

    def run_and_evaluate(task, seed, method, data, threads):
        methods.append(type(method).__name__)
        if isinstance(method, tune.Search):
            method.found = {"trials": 5, "chosen": 3, "held_out": [0.5, 0.4], "values": {"model.dropout": "0.1"}}
        return [line(method.name, seed, 0.5) | {"task": task.name}]

    monkeypatch.setattr(tune, "run_and_evaluate", run_and_evaluate)
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    words = ["--data", "x", "--tasks", "herg", "--seeds", "0", "1", "2", "--results", str(tmp_path / "r.jsonl")]
    tune.run(parser.parse_args(words))
    assert methods == ["GraphSlice", "Search", "GraphSlice", "Found", "GraphSlice", "Found"]
    lines = tune.read_results(tmp_path / "r.jsonl")
    assert [one["seed"] for one in lines if one.get("trials") == 5] == [0, 1, 2]


def test_budgets_are_separate_rows():
    lines = [line(tune.DEFAULTS, 0, 0.5), tuned(0, 0.6), tuned(0, 0.7, minutes=30.0)]
    assert [row.split(" | ")[2] for row in tune.tuning_table(lines).splitlines()[2:]] == ["5", "30"]


@pytest.mark.slow
def test_results_are_kept_and_not_repeated(tmp_path, monkeypatch, tiny_flags):
    """With tiny models on a table of 30 molecules, in this process."""
    (tmp_path / "tdc_admet").mkdir()
    rows = "".join(f"{'C' * i},{i},test\n" for i in range(1, 6))
    rows += "".join(f"C1{'C' * (i - 1)}1,{i},train\n" for i in range(6, 31))
    (tmp_path / "tdc_admet" / "caco2_wang.csv").write_text("smiles,y,split\n" + rows)
    commands = []

    def run(self, *words):
        command, *options = words[words.index("graphslice") + 1 :]
        commands.append(command)
        tiny = ["--init-from", "none", *tiny_flags] if command in ("train", "tune") else []
        budget = ["--trials", "2", "--seeds", "0"] if command == "tune" else []
        assert not main([str(word) for word in (command, *options, *tiny, *budget)])

    monkeypatch.setattr(Commands, "run", run)
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    results = tmp_path / "tune.jsonl"
    words = ["--data", str(tmp_path), "--tasks", "caco2_wang", "--seeds", "0", "--results", str(results)]
    for _ in range(2):
        tune.run(parser.parse_args(words))
    assert commands == ["train", "predict", "tune", "predict"]
    defaults, tuned_line = map(json.loads, results.read_text().splitlines())
    assert (defaults["method"], tuned_line["method"], tuned_line["trials"]) == ("defaults", "tuned", 2)
    assert "optimizer.peak_lr" in tuned_line["values"]
    assert "| caco2_wang | MAE ↓ | 30 | 1 | 2 |" in tune.tuning_table(tune.read_results(results))

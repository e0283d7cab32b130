"""Comparisons whose runs are trained in this process; tests/test_processes.py tests the child processes."""

import json
import shutil

import pandas as pd
import pytest
import torch
from filelock import FileLock

from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.nn.mixers import mixer_class
from graphslice.search.compare import compare
from graphslice.search.plan import parse_variants
from graphslice.system.machine import visible_gpus


@pytest.fixture(scope="module", autouse=True)
def _in_this_process(without_child_processes):
    with without_child_processes():
        yield


@pytest.fixture(scope="module")
def compared(demo_csv, tiny_config, tmp_path_factory):
    """Folder and result of a comparison of two mixers with one seed. Shared between tests: copy it to change it."""
    out = tmp_path_factory.mktemp("comparison") / "c"
    return out, compare(tiny_config(demo_csv), parse_variants("slice-max,map-only"), 1, "2epochs", out)


def test_unusable_settings_are_rejected(tmp_path, tiny_config, demo_csv):
    for mixers, trainer, options, reason in (
        ("csp:grups=2", {}, {}, "grups"),
        ("csp:groups=-1", {}, {}, "must be at least 0, not -1"),
        ("csp", {"metric": "foo"}, {}, "trainer.metric must be"),
        ("csp", {"class_weights": "balanced"}, {}, "needs a target of classes"),
        ("csp", {"devices": "2"}, {}, "one device"),  # Lightning would start the command again for each device
        ("csp", {}, {"jobs": 0}, "at least 1, not 0"),
    ):
        config = tiny_config(demo_csv, trainer=trainer)
        with pytest.raises(InputError, match=reason):
            compare(config, parse_variants(mixers), 1, "1epochs", tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


def test_visible_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for accelerator, visible, expected in (
        ("auto", None, ["0", "1"]),
        ("cuda", "3, 5", ["3", "5"]),
        ("auto", "GPU-1b,7,0", ["GPU-1b", "7"]),  # a name that no GPU has ends the list
        ("cpu", None, []),
    ):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_gpus(accelerator) == expected


def test_default_number_of_jobs_is_that_of_gpus(tmp_path, tiny_config, demo_csv, monkeypatch):
    called = []

    def in_processes(function, tasks, jobs, gpus):
        called.append((jobs, gpus))
        return ((folder, "not trained") for folder in tasks)

    monkeypatch.setattr("graphslice.search.compare.visible_gpus", lambda accelerator: ["0", "1"])
    monkeypatch.setattr("graphslice.search.compare.in_processes", in_processes)
    for jobs in (None, 1, 4):
        with pytest.raises(InputError, match="not trained"):
            compare(tiny_config(demo_csv), parse_variants("csp"), 1, "1epochs", tmp_path / "c", jobs=jobs)
    assert [jobs for jobs, _ in called] == [2, 1, 4] and called[0][1] == ["0", "1"]


def test_folder_of_a_running_comparison_is_rejected(tmp_path, tiny_config, demo_csv):
    with FileLock(tmp_path / ".lock"), pytest.raises(InputError, match="another process is using"):
        compare(tiny_config(demo_csv), parse_variants("csp"), 1, "1epochs", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_folder_of_another_comparison_is_rejected(compared, tiny_config, demo_csv):
    for data, budget, reason in (
        ({"split": "random"}, "2epochs", r"data\.split .*, not random"),
        ({}, "3epochs", "trainer.max_epochs 2, not 3"),
    ):
        with pytest.raises(InputError, match=f"holds a run with {reason}"):
            compare(tiny_config(demo_csv, data=data), parse_variants("slice-max"), 1, budget, compared[0])


def test_folder_with_the_same_settings_is_continued_unless_labels_changed(tmp_path, tiny_config, demo_rows):
    """With feature columns, and the learning rate of the preset."""
    demo_rows.to_csv(tmp_path / "my.csv", index=False)
    rate = RunConfig.preset("small").optimizer.peak_lr
    config = tiny_config(tmp_path / "my.csv", data={"features": "morgan"}, optimizer={"peak_lr": rate})
    first, again = (compare(config, parse_variants("map-only"), 1, "1steps", tmp_path / "c") for _ in range(2))
    assert first["runs"] == again["runs"]
    demo_rows.assign(gap_ev=demo_rows["gap_ev"] + 1).to_csv(tmp_path / "my.csv", index=False)
    with pytest.raises(InputError, match=r"the data of the run in .* has changed"):
        compare(config, parse_variants("map-only"), 1, "1steps", tmp_path / "c")


def test_comparison_writes_its_files(compared):
    out, result = compared
    assert {path.name for path in out.iterdir()} == {"comparison.json", "comparison.md", "slice-max", "map-only"}
    assert json.loads((out / "comparison.json").read_text()) == result
    assert [run["variant"] for run in result["runs"]] == ["slice-max", "map-only"]


def test_records_match_the_run_directories(compared):
    out, result = compared
    run, variant = result["runs"][1], "map-only"
    folder = out / variant / "seed-0"
    errors = json.loads((folder / "metrics.json").read_text())
    log = pd.read_csv(folder / "logs" / "version_0" / "metrics.csv")["val_mae"].dropna()
    assert (run["variant"], run["seed"], run["steps"]) == (variant, 0, 6) and run["parameters"] > 1000
    assert (run["valid"], run["test"]) == (errors["valid"]["mae"], errors["test"]["mae"])
    assert [(steps, error) for _, steps, error in run["curve"]] == [
        (steps, pytest.approx(error, abs=1e-5)) for steps, error in zip([3, 6], log, strict=True)
    ]


def test_comparison_is_continued_and_extended(compared, tiny_config, demo_csv, tmp_path):
    """With one finished, one interrupted and one new run."""
    out = tmp_path / "c"
    shutil.copytree(compared[0], out)
    (out / "slice-max" / "seed-0" / "metrics.json").unlink()
    kept = (out / "map-only" / "seed-0" / "metrics.json").stat().st_mtime_ns
    again = compare(tiny_config(demo_csv), parse_variants("slice-max,map-only,softmax"), 1, "2epochs", out)
    assert [run["variant"] for run in again["runs"]] == ["slice-max", "map-only", "softmax"]
    assert again["runs"][0]["test"] == compared[1]["runs"][0]["test"]
    assert (out / "map-only" / "seed-0" / "metrics.json").stat().st_mtime_ns == kept


def test_failed_run_is_continued_after_its_mixer_is_fixed(tiny_config, demo_csv, tmp_path, monkeypatch):
    def broken(self, x, structure):
        raise ZeroDivisionError("a mixer that is being written")

    variants = parse_variants("csp,map-only")
    with monkeypatch.context() as patch:
        patch.setattr(mixer_class("csp"), "mix", broken)
        bad, good = compare(tiny_config(demo_csv), variants, 1, "1epochs", tmp_path / "c")["runs"]
    assert bad["error"] == "ZeroDivisionError: a mixer that is being written" and good["test"] > 0
    fixed, same = compare(tiny_config(demo_csv), variants, 1, "1epochs", tmp_path / "c")["runs"]
    assert fixed["test"] > 0 and same == good


def test_diverged_run_is_an_error_only_if_no_run_is_finished(tiny_config, demo_csv, tmp_path):
    def compare_rates(rates: str, out: str) -> dict:
        variants = parse_variants("map-only", [f"optimizer.peak_lr={rates}"])
        return compare(tiny_config(demo_csv), variants, 1, "1epochs", tmp_path / out)

    bad, good = compare_rates("1e30,1e-3", "a")["runs"]
    assert "diverged" in bad["error"] and good["test"] > 0
    table = (tmp_path / "a" / "comparison.md").read_text()
    assert "peak_lr=1e30, seed 0: the training diverged" in table and table.count("| `map-only") == 1
    with pytest.raises(InputError, match="all runs failed; the first with: the training diverged"):
        compare_rates("1e30", "b")

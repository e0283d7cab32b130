"""Comparisons whose runs are trained in this process; tests/test_processes.py tests the child processes."""

from __future__ import annotations

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
from graphslice.system.processes import error_of_call


@pytest.fixture(scope="module", autouse=True)
def _in_this_process(without_child_processes):
    with without_child_processes():
        yield


@pytest.fixture(scope="module")
def compared(demo_csv, tiny_config, tmp_path_factory):
    """Folder and result of a comparison of two mixers with one seed. Shared between tests: copy it to change it."""
    out = tmp_path_factory.mktemp("comparison") / "c"
    return out, compare(tiny_config(demo_csv), parse_variants("slice-max,map-only"), 1, "2epochs", out)


# --- before anything is trained -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mixers", "trainer", "options", "reason"),
    [
        ("csp:grups=2", {}, {}, "grups"),
        ("csp:groups=0", {}, {}, "must be at least 1, not 0"),
        ("csp", {"metric": "foo"}, {}, "unknown metric"),
        ("csp", {"class_weights": "balanced"}, {}, "needs a target of classes"),
        ("csp", {"devices": "2"}, {}, "uses one device"),  # Lightning would start the command again for each device
        ("csp", {}, {"jobs": 0}, "at least 1, not 0"),
    ],
)
def test_unusable_settings_are_rejected(mixers, trainer, options, reason, tmp_path, tiny_config, demo_csv):
    with pytest.raises(InputError, match=reason):
        compare(tiny_config(demo_csv, trainer=trainer), parse_variants(mixers), 1, "1epochs", tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("accelerator", "visible", "count", "expected"),
    [
        ("auto", None, 2, ["0", "1"]),
        ("cuda", "3, 5", 2, ["3", "5"]),
        ("auto", "GPU-1b,7,0", 2, ["GPU-1b", "7"]),  # a name that no GPU has ends the list
        ("cpu", None, 2, []),
    ],
)
def test_visible_gpus(accelerator, visible, count, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert visible_gpus(accelerator) == expected


@pytest.mark.parametrize(("jobs_option", "jobs"), [(None, 2), (1, 1), (4, 4)])
def test_default_number_of_jobs_is_that_of_gpus(jobs_option, jobs, tmp_path, tiny_config, demo_csv, monkeypatch):
    called = []

    def in_processes(function, tasks, jobs, gpus):
        called.append((jobs, gpus))
        for key, arguments in tasks.items():
            yield key, error_of_call(function, *arguments)

    monkeypatch.setattr("graphslice.search.compare.visible_gpus", lambda accelerator: ["0", "1"])
    monkeypatch.setattr("graphslice.search.compare.in_processes", in_processes)
    compare(tiny_config(demo_csv), parse_variants("csp"), 1, "1epochs", tmp_path / "c", jobs=jobs_option)
    assert called == [(jobs, ["0", "1"])]


def test_folder_of_a_running_comparison_is_rejected(tmp_path, tiny_config, demo_csv):
    with FileLock(tmp_path / ".lock"), pytest.raises(InputError, match="another process is using"):
        compare(tiny_config(demo_csv), parse_variants("csp"), 1, "1epochs", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("data", "budget", "reason"),
    [({"split": "random"}, "2epochs", r"data\.split .*, not random"), ({}, "3epochs", "trainer.max_epochs 2, not 3")],
)
def test_folder_of_another_comparison_is_rejected(data, budget, reason, compared, tiny_config, demo_csv):
    with pytest.raises(InputError, match=f"holds a run with {reason}"):
        compare(tiny_config(demo_csv, data=data), parse_variants("slice-max"), 1, budget, compared[0])


def test_folder_with_the_same_features_is_continued(tmp_path, tiny_config, demo_csv):
    config = tiny_config(demo_csv, data={"features": "morgan"})
    first, again = (compare(config, parse_variants("csp"), 1, "1steps", tmp_path / "c") for _ in range(2))
    assert first["runs"] == again["runs"]


def test_folder_with_changed_labels_is_rejected(tmp_path, demo_rows, tiny_config):
    demo_rows.to_csv(tmp_path / "my.csv", index=False)
    compare(tiny_config(tmp_path / "my.csv"), parse_variants("map-only"), 1, "1steps", tmp_path / "c")
    demo_rows.assign(gap_ev=demo_rows["gap_ev"] + 1).to_csv(tmp_path / "my.csv", index=False)
    with pytest.raises(InputError, match=r"the data of the run in .* has changed"):
        compare(tiny_config(tmp_path / "my.csv"), parse_variants("map-only"), 1, "1steps", tmp_path / "c")


# --- results ------------------------------------------------------------------------------------


def test_comparison_writes_its_files(compared):
    out, result = compared
    assert {path.name for path in out.iterdir()} == {"comparison.json", "comparison.md", "slice-max", "map-only"}
    assert json.loads((out / "comparison.json").read_text()) == result


@pytest.mark.parametrize("number", [0, 1])
def test_records_match_the_run_directories(compared, number):
    out, result = compared
    run, variant = result["runs"][number], ("slice-max", "map-only")[number]
    folder = out / variant / "seed-0"
    errors = json.loads((folder / "metrics.json").read_text())
    log = pd.read_csv(folder / "logs" / "version_0" / "metrics.csv")["val_mae"].dropna()
    assert (run["variant"], run["seed"], run["steps"]) == (variant, 0, 6) and run["parameters"] > 1000
    assert (run["valid"], run["test"]) == (errors["valid"]["mae"], errors["test"]["mae"])
    assert [(steps, error) for _, steps, error in run["curve"]] == [
        (steps, pytest.approx(error, abs=1e-5)) for steps, error in zip([3, 6], log, strict=True)
    ]


def test_finished_comparison_is_not_trained_again(compared, tiny_config, demo_csv):
    out, result = compared
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-0/*")}
    again = compare(tiny_config(demo_csv), parse_variants("slice-max,map-only"), 1, "2epochs", out)
    assert again["runs"] == result["runs"]
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/seed-0/*")} == before


def test_comparison_with_the_learning_rate_of_the_preset_is_continued(tiny_config, demo_csv, tmp_path):
    config = tiny_config(demo_csv, optimizer={"peak_lr": RunConfig.preset("small").optimizer.peak_lr})
    first, again = (compare(config, parse_variants("map-only"), 1, "1steps", tmp_path / "c") for _ in range(2))
    assert first["runs"] == again["runs"]


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


# --- runs that fail -----------------------------------------------------------------------------


def test_failed_run_does_not_stop_the_others(tiny_config, demo_csv, tmp_path):
    variants = parse_variants("map-only", ["optimizer.peak_lr=1e30,1e-3"])
    bad, good = compare(tiny_config(demo_csv), variants, 1, "1epochs", tmp_path / "c")["runs"]
    assert "diverged" in bad["error"] and good["test"] > 0
    table = (tmp_path / "c" / "comparison.md").read_text()
    assert "peak_lr=1e30, seed 0: the training diverged" in table and table.count("| `map-only") == 1


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


def test_error_if_all_runs_fail(tiny_config, demo_csv, tmp_path):
    variants = parse_variants("map-only", ["optimizer.peak_lr=1e30"])
    with pytest.raises(InputError, match="all runs failed; the first with: the training diverged"):
        compare(tiny_config(demo_csv), variants, 1, "1epochs", tmp_path / "c")

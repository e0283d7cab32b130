from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphslice.search.compare import group_by_variant, read_run, table
from graphslice.search.plan import parse_variants, plan_runs


def record(variant: str, seed: int, valid: float | None, test: float | None, **other) -> dict:
    """Return the record of a finished run as in ``comparison.json``."""
    return {
        "variant": variant,
        "seed": seed,
        "valid": valid,
        "test": test,
        "parameters": 1234,
        "steps": 1500,
        "molecules_per_second": 100.0,
        "peak_memory_bytes": 2**30,
        "curve": [[1.0, 5, (valid or 0.5) + 0.1], [2.0, 10, valid or 0.5]],
        **other,
    }


@pytest.fixture
def result() -> dict:
    """Two seeds of ``a`` and ``b``, and ``c``, which failed."""
    runs = [
        record("a", 0, 0.4, 0.31),
        record("a", 1, 0.4, 0.35),
        record("b", 0, 0.2, 0.5),
        record("b", 1, 0.3, 0.5),
        {"variant": "c", "seed": 0, "error": "no"},
    ]
    return {"budget": "10m", "runs": runs}


def test_smallest_validation_error_comes_first(result):
    assert list(group_by_variant(result)) == ["b", "a"]


def test_row_has_mean_and_standard_deviation_over_seeds(result):
    b, a = table(result).splitlines()[2:4]
    assert b == "| `b` | 0.5000 ± 0.0000 | 0.2500 ± 0.0707 | 1,234 | 1,500 | 100 | 1.00 GiB | 2 |"
    assert a.startswith(f"| `a` | 0.3300 ± {np.std([0.31, 0.35], ddof=1):.4f} | 0.4000 ± 0.0000 |")


def test_table_ends_with_failed_runs(result):
    assert table(result).splitlines()[4:] == ["", "c, seed 0: no"]


def test_undefined_metrics_are_sorted_last(result):
    """Such as the AUROC of a split with a single class, which is null in the file."""
    result["runs"] += [record("d", 0, None, None), record("d", 1, 0.1, None), record("e", 0, 0.9, None)]
    assert list(group_by_variant(result)) == ["b", "a", "e", "d"]
    lines = table(result).splitlines()
    assert lines[4].startswith("| `e` |  | 0.9000 |") and lines[5].startswith("| `d` |  | 0.1000 |")


def test_logs_are_sorted_by_number_of_resumption(tiny_config, tmp_path):
    (run,) = plan_runs(parse_variants("csp"), [0], tiny_config(), tmp_path)
    write_run(run.folder, [[f"3,{number}.0,0.{number}"] for number in range(12)])
    assert read_run(run, None)["curve"] == [[11.0, 4, 0.11]]


def test_curve_covers_all_resumptions(tiny_config, tmp_path):
    """The log of a resumption continues the previous one; lines without a validation are ignored."""
    (run,) = plan_runs(parse_variants("csp"), [0], tiny_config(), tmp_path)
    write_run(run.folder, [["3,1.25,0.5", "4,,"], ["7,2.5,0.25"]])
    assert read_run(run, None)["curve"] == [[1.25, 4, 0.5], [2.5, 8, 0.25]]


def test_finished_run_has_scores_and_training_figures(tiny_config, tmp_path):
    """It has the metric by split and the figures of the training."""
    (run,) = plan_runs(parse_variants("csp"), [3], tiny_config(), tmp_path)
    write_run(run.folder, [])
    expected = {"variant": "csp", "seed": 3, "valid": 0.25, "test": 0.5, "steps": 8, "metric": "mae", "curve": []}
    assert read_run(run, None) == expected


def test_failed_run_has_its_error_message_and_an_unfinished_one_no_record(tiny_config, tmp_path):
    (run,) = plan_runs(parse_variants("csp"), [0], tiny_config(), tmp_path)
    assert read_run(run, "it diverged") == {"variant": "csp", "seed": 0, "error": "it diverged"}
    assert read_run(run, None) is None


def write_run(folder: Path, logs: list[list[str]]) -> None:
    """Write those files of a run directory that a comparison reads."""
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"metric": "mae", "valid": {"mae": 0.25}, "test": {"mae": 0.5}}))
    (folder / "training.json").write_text(json.dumps({"steps": 8}))
    for version, lines in enumerate(logs):
        (folder / "logs" / f"version_{version}").mkdir(parents=True)
        text = "\n".join(["step,seconds,val_mae", *lines])
        (folder / "logs" / f"version_{version}" / "metrics.csv").write_text(text + "\n")


def test_higher_is_better_for_some_metrics():
    """The variant with the highest AUROC is first in the table."""
    runs = [record("a", 0, 0.7, 0.6), record("b", 0, 0.9, 0.8)]
    result = {"budget": "10m", "runs": [run | {"metric": "auroc"} for run in runs]}
    lines = table(result).splitlines()
    assert lines[0].startswith("| mixer | test AUROC | validation AUROC |") and lines[2].startswith("| `b` |")
    assert list(group_by_variant(result)) == ["b", "a"]

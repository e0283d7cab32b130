"""Benchmark of bounds and joint models: rows of each way and document."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from benchmarks import labels
from benchmarks.results import read_results, run_missing
from benchmarks.table_methods import CommandError


def test_labels_above_the_percentile_are_censored(tmp_path):
    rows = pd.DataFrame({"smiles": ["C" * n for n in range(1, 11)], "y": np.arange(10.0), "split": "train"})
    written = {}
    for way, write in labels.COMPARISONS["bounds: caco2_wang"].ways.items():
        assert write(rows, rows["smiles"], tmp_path, tmp_path) == []
        written[way] = pd.read_csv(tmp_path / "fit.csv", dtype=str)["y"].tolist()
    assert [float(label) for label in written["true labels"]] == list(range(10))
    assert [float(label) for label in written["left out"]] == list(range(8))
    assert written["bounds"][:8] == [str(n) for n in range(8)]
    assert written["bounds"][8:] == [">7.2"] * 2 and written["as value"][8:] == ["7.2"] * 2


def test_document_has_paired_differences_with_their_intervals():
    scores = {"alone": [0.5, 0.6, 0.55], "joint": [0.53, 0.61, 0.6]}
    lines = [
        {
            "comparison": "joint: clearance_microsome_az",
            "way": way,
            "seed": seed,
            "scores": {"Spearman": value, "MAE": value},
        }
        | {"cpu_seconds": 30.0, "version": "v", "machine": "m"}
        for way, values in scores.items()
        for seed, value in enumerate(values)
    ]
    text = labels.label_sections(lines)
    interval = ttest_rel(*list(scores.values())[::-1]).confidence_interval()
    assert "| alone | 0.550 ± 0.050 (3) | 0.550 ± 0.050 (3) |  | 30 |" in text
    assert f"+0.030 ({interval.low:+.3f} to {interval.high:+.3f})" in text


def test_results_are_added_once_and_failures_are_left_out(tmp_path, capsys):
    path, key = tmp_path / "new" / "r.jsonl", {"way": "alone", "seed": 0}

    def fails() -> list[dict]:
        raise CommandError("exit code 2")

    other = {"way": "joint", "seed": 0}
    with pytest.raises(SystemExit, match="1 of 2 failed; the first: alone, 0"):
        run_missing(path, [(key, fails), (other, lambda: [{"score": 0.1}])])
    assert "exit code 2" in capsys.readouterr().err and read_results(path) == [other | {"score": 0.1}]
    run_missing(path, [(other, fails), (key, lambda: [{"score": 0.5}])])  # the first is not computed again
    assert read_results(path)[1:] == [key | {"score": 0.5}]

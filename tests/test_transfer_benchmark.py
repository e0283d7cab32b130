"""``scripts/benchmark.py transfer``: rows, folds and scores of the linear probe."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from benchmarks.table_tasks import Task
from benchmarks.transfer import probe, training_rows
from result_tables import start_table

RINGS = ("C1CC1", "C1CCC1", "C1CCCC1", "C1CCCCC1", "c1ccccc1", "c1ccncc1", "c1ccoc1", "c1ccsc1", "C1CCNCC1", "C1CCOC1")
MOLECULES = ["C" * chain + ring for chain in range(1, 11) for ring in RINGS]


def write(folder, labels, test_label):
    rows = pd.DataFrame({"smiles": [*MOLECULES, "CCBr"], "y": [*labels, test_label]})
    rows.assign(split=["train"] * len(MOLECULES) + ["test"]).to_csv(folder / "table.csv", index=False)
    return Task("table", "table.csv", ("MAE",), True)


@pytest.mark.parametrize("test_label", [0.0, 1e9])
def test_probe_learns_length_of_chains_without_test_rows(tmp_path, test_label):
    labels = np.repeat(np.arange(1.0, 11), len(RINGS))
    task = write(tmp_path, labels, test_label)
    (line,) = probe("small", task, tmp_path, 0)
    assert line["metric"] == "MAE"
    assert line["score"] < 0.5 * np.abs(labels - np.median(labels)).mean()


def test_labels_of_half_lives_are_logarithms(tmp_path):
    write(tmp_path, np.repeat([1.0, 10], 50), 5)
    rows, labels = training_rows(Task("half_life_obach", "table.csv", ("Spearman",), True), tmp_path)
    assert len(rows) == len(MOLECULES)
    np.testing.assert_allclose(labels, np.repeat([0.0, 1], 50))


def test_table_has_mean_of_pretrainings():
    scores = [("a", 0.5), ("a", 0.7), ("b", 11.0)]
    cells = {"measure": "probe", "table": "x", "metric": "MAE"}
    text = start_table([{"start": start, **cells, "score": score} for start, score in scores])
    assert text.splitlines()[0] == "|  | a | b |"
    assert text.splitlines()[2] == "| probe: x, MAE | 0.600 ± 0.141 | 11.00 |"

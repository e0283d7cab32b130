"""Smoke tests of the scripts that measure and draw: each can be imported, scores are right."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODULES = sorted(
    ".".join(path.relative_to(SCRIPTS).with_suffix("").parts).removesuffix(".__init__")
    for path in SCRIPTS.rglob("*.py")
)
sys.path.insert(0, str(SCRIPTS))


@pytest.mark.parametrize("name", MODULES)
def test_script_can_be_imported(name):
    assert importlib.import_module(name).__doc__


def test_scores_of_tables_match_slow_implementations():
    from benchmarks.table_tasks import score

    random = np.random.default_rng(0)
    labels, predictions = random.integers(0, 2, 40), random.integers(0, 20, 40) / 20  # with ties
    pairs = [(a > b) + 0.5 * (a == b) for a in predictions[labels == 1] for b in predictions[labels == 0]]
    assert score("AUROC", labels[:, None].astype(float), predictions[:, None]) == pytest.approx(np.mean(pairs))
    assert np.isnan(score("AUROC", np.ones((3, 1)), predictions[:3, None]))


def test_methods_are_scored_on_the_same_rows_of_a_table(tmp_path):
    from benchmarks.table_tasks import TASKS, read_table

    rows = ["mol,Class", "CC,1", "not one,0", "CCC,", *("C" * i + "c1ccccc1,0" for i in range(30))]
    (tmp_path / "bace.csv").write_text("\n".join(rows))
    table = read_table(TASKS["bace"], tmp_path, 0)
    assert len(table.smiles) == 32 and table.smiles[:2].tolist() == ["CC", "CCC"]
    assert table.labels[0] == 1 and np.isnan(table.labels[1]) and table.targets == ["y"]

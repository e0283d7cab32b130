"""Smoke tests of the scripts that measure and draw: each can be imported, scores are right."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as t_distribution

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


def test_methods_are_compared_by_welchs_test_and_holms_correction():
    from benchmarks.tables import compare, holm

    ours, theirs = dict(enumerate([1.0, 2, 3, 4, 5])), dict(enumerate([4.0, 6, 8]))
    errors = 2.5 / 5, 4 / 3  # variance of each mean
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 4 + errors[1] ** 2 / 2)
    p = 2 * t_distribution.sf(3 / np.sqrt(sum(errors)), freedom)
    assert compare(ours, theirs, True) == ("not significant", pytest.approx(p))
    larger = {seed: value + 3 for seed, value in theirs.items()}
    assert [compare(ours, larger, higher)[0] for higher in (True, False)] == ["worse", "better"]
    assert compare(larger, ours, True)[0] == "better"
    assert compare(ours, {0: 99.0, 1: 99.5}, True)[0] == "too few seeds"
    assert holm([0.01, 0.04, 0.03, 0.005]) == 2 and holm([0.04]) == 1 and holm([]) == 0  # 0.03 > 0.05 / 2


def test_public_tables_have_six_columns_at_most_and_count_their_tasks():
    from benchmarks.table_tasks import TDC
    from benchmarks.tables import benchmark_tables, recorded

    tables = benchmark_tables(*recorded())
    assert max(line.count(" |") for text in tables.values() for line in text.splitlines()) == 6
    verdicts = [line.split(" | ")[4] for line in tables["tdc"].splitlines() if line[2:].split(" | ")[0] in TDC]
    assert f"better than `chemprop` on {verdicts.count('better')} of {len(TDC)} tasks" in tables["tdc"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "commands"), [("speed", 4), ("train", 3)])
def test_check_of_a_gpu_runs_dry(part, commands, tmp_path, child_environment, monkeypatch, cli, capsys):
    """What it measures on a GPU cannot be tested here, but no command may fail for another reason.

    The script starts a program that writes down its arguments; with them the commands run in this process, faster.
    """
    import benchmark

    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $* >>{tmp_path}/commands\n")
    python.chmod(0o755)
    environment = {**child_environment, "PYTHON": str(python), "TMPDIR": str(tmp_path)}
    script = [SCRIPTS / "gpu_check.sh", "--dry", part, tmp_path / "record"]
    subprocess.run(script, check=True, env=environment, stdout=subprocess.DEVNULL)
    written = (tmp_path / "commands").read_text().splitlines()
    assert len(written) == commands
    monkeypatch.chdir(SCRIPTS.parent)
    for line in written:
        match line.split():
            case ["-m", "graphslice", *arguments]:
                assert cli(*arguments)[0] == 0
            case ["-m", "pytest", *arguments]:
                assert all(Path(name).exists() for name in arguments if name.endswith(".py"))
            case ["scripts/benchmark.py", *arguments]:
                monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
                benchmark.main()
                figures = json.loads(capsys.readouterr().out)["figures"]
                assert figures and not [figure for figure in figures if "failed" in figure["measurement"]]


def test_floors_of_a_step_match_a_count_by_hand():
    from benchmarks.gpu import step_floors
    from graphslice.chem import smiles_to_graph
    from graphslice.config import ModelConfig
    from graphslice.data.batches import collate

    batch = collate([smiles_to_graph("CCO")] * 5)  # 4 rows with the graph token
    config = ModelConfig(mixer="slice-ascend", layers=2, dim=16, heads=2, ffn_dim=16)
    floors = step_floors(config, batch, 1000, {"rate": 1e6, "bandwidth": 1e6})
    linear, mixing = 5 * 4 * 16 * 16 * 4, 5 * 4 * 4 * 16  # multiplications of a layer
    assert floors["products"] == 3 * 2 * 2 * (linear + mixing)
    assert floors["sort"] == 2 * 2 * 5 * (5 * 4 * 16) and floors["optimiser and clipping"] == 40 * 1000

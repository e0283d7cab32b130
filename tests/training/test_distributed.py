from __future__ import annotations

import json

import numpy as np
import pytest

from graphslice.training import train

pytestmark = pytest.mark.slow


def train_on_two(start, wait_for_exit, config, tmp_path) -> None:
    """Train with two processes on the CPU of this machine."""
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    process = start("train", "--config", tmp_path / "c.yaml", "--trainer.devices", 2, "--out", tmp_path / "two")
    code, _, err = wait_for_exit(process)
    assert code == 0, err
    assert err.count("validation MAE") <= config.trainer.max_epochs  # one process reports
    assert err.count("test MAE") == 1


def test_two_processes_match_one(start, wait_for_exit, demo_rows, tiny_config, weights_of, tmp_path):
    """47 training molecules in batches of 8, 7 for validation, labels with gaps: nothing divides evenly."""
    table = demo_rows.assign(length=demo_rows["smiles"].str.len().astype(float))
    table.loc[::3, "gap_ev"] = np.nan
    table.loc[1::4, "length"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(
        tmp_path / "t.csv",
        data={"targets": "gap_ev,length"},
        model={"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0},
        trainer={"batch_size": 8, "max_epochs": 2, "metric": "mae"},
    )
    train_on_two(start, wait_for_exit, config, tmp_path)
    train(config, tmp_path / "one")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-4, err_msg=name)
    metrics = [json.loads((tmp_path / run / "metrics.json").read_text()) for run in ("one", "two")]
    for part in ("valid", "test"):
        assert metrics[1][part]["mae"] == pytest.approx(metrics[0][part]["mae"], rel=1e-4)
        for target, score in metrics[0][part]["targets"].items():
            other = metrics[1][part]["targets"][target]
            assert other.pop("kind") == score.pop("kind") == "regression"
            # Both are nan in the same places: with so few molecules, intervals are unbounded.
            known = {name for name, value in score.items() if value is not None}
            assert known == {name for name, value in other.items() if value is not None}
            for name in known:
                assert other[name] == pytest.approx(score[name], rel=1e-3, abs=1e-4)


def test_sigterm_to_one_process_stops_all(start, wait_for, wait_for_exit, cli, demo_csv, tiny_config, tmp_path):
    """Only the first of two processes gets the signal; both stop between two steps, and the run can be resumed."""
    config = tiny_config(demo_csv, trainer={"max_epochs": 10**5, "batch_size": 8})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    process = start("train", "--config", tmp_path / "c.yaml", "--trainer.devices", 2, "--out", tmp_path / "run")
    wait_for(process, tmp_path / "run" / "last.ckpt")
    process.terminate()
    code, _, err = wait_for_exit(process)
    assert code == 130 and "Error" not in err and err.count("stopped; continue with") == 1, err

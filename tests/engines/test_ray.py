"""Ray against the plain path. Slow: Ray takes seconds to start."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from graphslice.config import DataConfig, GraphConfig
from graphslice.data.featurize import featurize_dataset
from graphslice.errors import InputError
from graphslice.inference.files import predict_file

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(demo_smiles, tmp_path_factory) -> Path:
    """Three Parquet shards with bad rows among the good."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(3):
        smiles = [*demo_smiles[500 * number : 500 * number + 500], "oops", "", "C1CC"]
        table = pd.DataFrame({"id": [f"{number}-{i}" for i in range(len(smiles))], "smiles": smiles})
        table["y"] = np.arange(len(smiles), dtype=float)
        table.to_parquet(folder / f"{number}.parquet")
    return folder


def test_predictions_are_the_same(cluster, folder, predictor, tmp_path):
    for engine in ("local", "ray"):
        report = predict_file(predictor, folder, tmp_path / f"{engine}.csv", engine=engine, workers=2)
        assert (report.rows, report.failed) == (1509, 9)
    local, other = (pd.read_csv(tmp_path / f"{engine}.csv") for engine in ("local", "ray"))
    pd.testing.assert_frame_equal(local, other, rtol=1e-5)
    assert local["id"].tolist() == [f"{n}-{i}" for n in range(3) for i in range(503)]


def test_stores_are_the_same(cluster, folder, tmp_path):
    for engine in ("local", "ray"):
        data = DataConfig(str(folder), targets="y")
        report = featurize_dataset(data, GraphConfig(), tmp_path / f"{engine}.arrow", engine=engine, workers=2)
        assert (len(report.store), report.failed) == (1509, 9)
    assert (tmp_path / "local.arrow").read_bytes() == (tmp_path / "ray.arrow").read_bytes()


def test_a_worker_that_is_killed_loses_nothing(cluster, predictor, demo_smiles, tmp_path):
    smiles = [*demo_smiles, "oops"] * 5
    (tmp_path / "in.smi").write_text("\n".join(smiles) + "\n")
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    title = (process / "cmdline").read_text()
                except OSError:
                    continue
                if "MapWorker(MapBatches(_Predict))" in title:
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
                    return
            time.sleep(0.05)

    first = threading.Thread(target=kill)
    first.start()
    report = predict_file(predictor, tmp_path / "in.smi", tmp_path / "out.csv", engine="ray", workers=2)
    first.join()
    assert killed, "no worker was found to be killed"
    assert (report.rows, report.failed) == (len(smiles), 5)
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert found["smiles"].tolist() == smiles


def test_what_is_wrong_with_a_file_is_said(cluster, predictor, tmp_path):
    (tmp_path / "in.csv").write_text("smiles,x\n" + "C,1\n" * 3 + "C,1,2,3\n")
    with pytest.raises(InputError, match="line 5: 4 fields"):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv", engine="ray", workers=1)
    assert not (tmp_path / "out.csv").exists()

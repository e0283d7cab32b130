"""The Ray engine compared with the local one. Slow, because Ray takes seconds to start."""

import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from graphslice.config import DataConfig, GraphConfig
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError
from graphslice.inference.shards import predict_shards

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # 15 by default: workers would wait for other tests on a busy machine
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)  # Ray leaves a handler of its own


@pytest.fixture(scope="module")
def folder(demo_smiles, tmp_path_factory) -> Path:
    """Write three CSV files with valid and invalid rows; one has several chunks and malformed lines."""
    folder = tmp_path_factory.mktemp("tables")
    for number in range(3):
        smiles = [*demo_smiles[500 * number : 500 * number + 500], "oops", "", "C1CC"]
        table = pd.DataFrame({"id": [f"{number}-{i}" for i in range(len(smiles))], "smiles": smiles})
        table["y"] = np.arange(len(smiles), dtype=float)
        table.to_csv(folder / f"{number}.csv", index=False)
    with (folder / "0.csv").open("a") as file:
        file.writelines(f"0-{i},CCO,1\n" for i in range(503, 5000))
        file.write("0-5000,C,1,2\n0-5001,N\n0-5002,O,2\n")
    return folder


def test_predictions_match_the_local_engine(cluster, folder, predictor, tmp_path):
    for engine in ("local", "ray"):
        report = predict_shards(predictor, folder, tmp_path / engine, engine=engine, workers=2)
        assert (report.rows, report.failed) == (6009, 11)
    local, distributed = (
        {path.name: path.read_bytes() for path in (tmp_path / engine).iterdir()} for engine in ("local", "ray")
    )
    assert local == distributed and len(local) == 4
    first = pd.read_parquet(tmp_path / "ray" / "000000.parquet")
    assert first["id"].tolist() == [f"0-{i}" for i in range(5003)]
    assert "line 5002" in first["error"][5_000] and "line 5003" in first["error"][5_001]


def test_preprocessed_datasets_match_the_local_engine(cluster, folder, tmp_path):
    for engine in ("local", "ray"):
        data = DataConfig(str(folder), targets="y")
        store = featurize_dataset(data, GraphConfig(), tmp_path / f"{engine}.arrow", engine=engine, workers=1)
        assert (len(store), len(store.errors)) == (6009, 11)
    assert (tmp_path / "local.arrow").read_bytes() == (tmp_path / "ray.arrow").read_bytes()


def test_error_of_an_unreadable_file_is_raised(cluster, predictor, tmp_path):
    (tmp_path / "in.csv").write_bytes("smiles,x\nC,1\n".encode("utf-16")[:-1])
    with pytest.raises(InputError, match=r"^cannot read .*in\.csv: 'utf-16.*$"):
        predict_shards(predictor, tmp_path / "in.csv", tmp_path / "out", engine="ray", workers=1)

"""Building of store files: interruptions, damaged shards and concurrent processes."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels
from graphslice.data.preprocess import build_store, build_store_from_tables, to_record_batch
from graphslice.data.store import GraphStore, StoreInfo

SMILES = ["CCO", "oops", "c1ccccc1O", "", "C", "[Na+].[Cl-]", "C" * 30, "N", "O", "CC(=O)O"]
INFO = StoreInfo("some data", "", ("y",))


def rows(smiles: list[str], first: float = 0.0) -> LabelledDataset:
    labels = Labels.of_molecules(first + np.arange(float(len(smiles)))[:, None])
    return LabelledDataset("", smiles, labels, [], split=np.zeros(len(smiles), np.int8))


def chunks(stop: int | None = None):
    """Yield the rows in chunks of two; raise KeyboardInterrupt before chunk ``stop``."""
    for begin in range(0, len(SMILES), 2):
        if begin // 2 == stop:
            raise KeyboardInterrupt
        yield rows(SMILES[begin : begin + 2], begin)


@pytest.fixture
def complete_store(tmp_path, shards_of_four) -> bytes:
    build_store(tmp_path / "whole" / "s.arrow", chunks(), INFO, workers=1)
    return (tmp_path / "whole" / "s.arrow").read_bytes()


def interrupted(path: Path, stop: int) -> Path:
    """Interrupt a build before chunk ``stop`` and return its folder of shards."""
    with pytest.raises(KeyboardInterrupt):
        build_store(path, chunks(stop), INFO, workers=1)
    return path.with_name(f".{path.name}.parts")


@pytest.mark.parametrize(("stop", "again"), [(0, 0), (2, 4), (4, 8)])
def test_interrupted_build_resumes(stop, again, complete_store, tmp_path, parsed, names):
    interrupted(tmp_path / "s.arrow", stop)
    (tmp_path / "s.arrow").write_bytes(b"the old file")
    interrupted(tmp_path / "s.arrow", stop)
    assert names(tmp_path) == ["s.arrow", "whole"] and (tmp_path / "s.arrow").read_bytes() == b"the old file"
    parsed.clear()
    done: list[int] = []
    build_store(tmp_path / "s.arrow", chunks(), INFO, workers=1, progress=done.append)
    assert parsed == SMILES[again:] and sum(done) == len(SMILES)
    assert (tmp_path / "s.arrow").read_bytes() == complete_store
    assert names(tmp_path) == ["s.arrow", "whole"]


@pytest.mark.parametrize("change", ["smiles", "label", "split", "order"])
def test_shard_of_other_rows_or_settings_is_rebuilt(change, tmp_path, shards_of_four, parsed):
    interrupted(tmp_path / "s.arrow", 2)
    changed, info = rows(SMILES), INFO
    if change == "smiles":
        changed.smiles = ["OCC", *SMILES[1:]]
    elif change == "label":
        changed.targets[2] = np.nan
    elif change == "split":
        changed.split[3] = 2
    else:
        info = replace(INFO, atom_order="input")
    parsed.clear()
    build_store(tmp_path / "s.arrow", [changed], info, workers=1)
    assert parsed == changed.smiles
    fingerprint = GraphStore.open(tmp_path / "s.arrow").info.fingerprint
    assert build_store(tmp_path / "o.arrow", [rows(SMILES)], INFO, workers=1).info.fingerprint != fingerprint
    build_store(tmp_path / "fresh.arrow", [changed], info, workers=1)
    assert (tmp_path / "s.arrow").read_bytes() == (tmp_path / "fresh.arrow").read_bytes()


def test_damaged_shard_is_rebuilt(complete_store, tmp_path, parsed):
    first, _ = sorted(interrupted(tmp_path / "s.arrow", 4).glob("*.arrow"))
    first.write_bytes(first.read_bytes()[:-100])
    parsed.clear()
    build_store(tmp_path / "s.arrow", chunks(), INFO, workers=1)
    assert parsed == SMILES[:4] + SMILES[8:] and (tmp_path / "s.arrow").read_bytes() == complete_store


def test_file_does_not_depend_on_chunks_and_workers(complete_store, tmp_path):
    build_store(tmp_path / "s.arrow", [rows(SMILES)], INFO, workers=2)
    assert (tmp_path / "s.arrow").read_bytes() == complete_store


def _slowly():
    for begin in range(0, 24, 2):
        time.sleep(0.02)
        yield rows(["C" * (begin + 1), "oops"], begin)


def _sizes(path: Path) -> list[int]:
    return build_store(path, _slowly(), INFO, workers=1).sizes.tolist()


def test_concurrent_builds_write_one_file(tmp_path, shards_of_four, names):
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        sizes = [size for begin in range(0, 24, 2) for size in (begin + 1, 0)]
        assert list(pool.map(_sizes, [tmp_path / "s.arrow"] * 2)) == [sizes] * 2
    assert names(tmp_path) == ["s.arrow"] and not [path for path in tmp_path.iterdir() if path.is_dir()]
    build_store(tmp_path / "alone.arrow", _slowly(), INFO, workers=1)
    assert (tmp_path / "s.arrow").read_bytes() == (tmp_path / "alone.arrow").read_bytes()


@pytest.mark.parametrize("size", [3, 10])
def test_build_from_tables_matches_build_from_rows(size, complete_store, tmp_path):
    """A cluster delivers tables of any size."""
    everything = pa.Table.from_batches([to_record_batch(rows(SMILES), INFO)]).replace_schema_metadata(None)
    tables = (everything.slice(begin, size) for begin in range(0, len(SMILES), size))
    done: list[int] = []
    store = build_store_from_tables(tmp_path / "s.arrow", tables, INFO, done.append)
    assert [batch.num_rows for batch in store.batches] == [4, 4, 2] and sum(done) == len(SMILES)
    assert store.info == GraphStore.open(tmp_path / "whole" / "s.arrow").info
    assert (tmp_path / "s.arrow").read_bytes() == complete_store

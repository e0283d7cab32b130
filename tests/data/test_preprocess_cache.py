"""Cache of featurized datasets."""

import numpy as np
import pytest
import torch

from graphslice import smiles_to_graph
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.loaders import dataset_from_pyg, load_dataset
from graphslice.data.preprocess import cached_store, featurize_dataset
from graphslice.errors import InputError
from graphslice.system.machine import default_cache


@pytest.fixture
def source(demo_csv):
    return load_dataset(DataConfig(dataset=str(demo_csv)))


def test_cached_store_is_reused_without_parsing(source, tmp_path, no_parsing, names):
    first = cached_store(source, GraphConfig(), tmp_path)
    no_parsing()
    again = cached_store(source, GraphConfig(), tmp_path)
    np.testing.assert_array_equal(again.data, first.data)
    assert len(names(tmp_path)) == 1 and names(tmp_path)[0].startswith("demo60.csv-")
    assert first.name == str(tmp_path / names(tmp_path)[0]) and len(first) == 60
    assert first.sizes.tolist() == [smiles_to_graph(smiles).num_atoms for smiles in source.smiles]


def test_cache_depends_on_settings_except_path_ties(source, tmp_path, names):
    for settings, files in [({}, 1), ({"path_ties": "floyd-warshall"}, 1), ({"atom_order": "input"}, 2)]:
        cached_store(source, GraphConfig(**settings), tmp_path)
        assert len(names(tmp_path)) == files
    assert cached_store(source, GraphConfig(max_atoms=10), tmp_path).sizes.max() <= 10 and len(names(tmp_path)) == 3


def test_damaged_file_is_recreated(source, tmp_path, names):
    content = cached_store(source, GraphConfig(), tmp_path).data.tobytes()
    (path,) = (tmp_path / name for name in names(tmp_path))
    path.write_bytes(content[:-9])
    assert len(cached_store(source, GraphConfig(), tmp_path)) == 60 and path.read_bytes() == content


def test_cache_directory_follows_environment_variables(source, tmp_path, monkeypatch, names):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path / "named"))
    cached_store(source, GraphConfig())
    assert default_cache() == tmp_path / "named" and len(names(tmp_path / "named")) == 1
    cached_store(source, GraphConfig(), tmp_path / "given")
    assert len(names(tmp_path / "given")) == 1
    monkeypatch.delenv("GRAPHSLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "graphslice" and default_cache().is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache() == tmp_path / "home" / ".cache" / "graphslice"


def test_unwritable_home_falls_back_to_temporary_files(tmp_path, monkeypatch):
    """For example in a container."""
    (tmp_path / "file").touch()
    monkeypatch.delenv("GRAPHSLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert default_cache().parent == tmp_path and default_cache().name.startswith("graphslice-cache-")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert default_cache().name.startswith("graphslice-cache-")


def test_unwritable_cache_raises(source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path / "file"))
    for cache in (None, tmp_path / "file" / "deeper"):
        with pytest.raises(InputError, match="cannot write"):
            cached_store(source, GraphConfig(), cache)


@pytest.fixture
def store_as_source(demo_csv, tmp_path):
    featurize_dataset(DataConfig(str(demo_csv), targets="gap_ev"), GraphConfig(), tmp_path / "s.arrow", workers=1)
    return load_dataset(DataConfig(str(tmp_path / "s.arrow")))


def test_stores_and_graphs_are_not_cached(store_as_source, tmp_path):
    assert cached_store(store_as_source, GraphConfig(), tmp_path / "no") is store_as_source.store
    data = smiles_to_graph("CCO").to_pyg()
    data.y = torch.tensor([1.0])
    assert cached_store(dataset_from_pyg([data], DataConfig()), GraphConfig(), tmp_path / "no").sizes.tolist() == [3]
    assert not (tmp_path / "no").exists()
    with pytest.raises(InputError, match="other settings than the model: featurize with --graph"):
        cached_store(store_as_source, GraphConfig(standardize="parent"))

import contextlib
import io
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from exploit import Exploit

from graphslice.config import DataConfig, GraphConfig
from graphslice.data import ogb as ogb_lsc
from graphslice.data.loaders import load_dataset
from graphslice.data.ogb import OGB_FOLDERS, load_pcqm4m
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError

SPLITS = {"pcqm4m": ["train", "valid", "test"], "pcqm4mv2": ["train", "valid", "test-dev", "test-challenge"]}
both_versions = pytest.mark.parametrize("name", OGB_FOLDERS)


def _with_old_numpy_names(data: bytes) -> bytes:
    """Rename modules in a pickle to those of NumPy 1, as in OGB's files."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for entry in source.namelist():
            file.writestr(entry, source.read(entry).replace(b"numpy._core", b"numpy.core"))
    return out.getvalue()


@both_versions
def test_ogb_folder_is_loaded(name, make_ogb, tmp_path, offline, capsys):
    folder = make_ogb(tmp_path, name)
    table = pd.read_csv(folder / "raw" / "data.csv.gz")
    smiles, gaps, split = load_pcqm4m(name, tmp_path)
    assert smiles == table["smiles"].tolist() and gaps.dtype == np.float64
    np.testing.assert_array_equal(gaps, table["homolumogap"])
    assert list(split) == SPLITS[name] and all(rows.dtype == np.int64 for rows in split.values())
    written = torch.load(folder / "split_dict.pt", weights_only=False)  # written by make_ogb
    assert all(np.array_equal(split[part], written[part]) for part in written)
    assert capsys.readouterr().out == ""
    assert sorted(p.name for p in folder.iterdir()) == ["RELEASE_v1.txt", "raw", "split_dict.pt"]


@both_versions
def test_ogb_dataset_is_loaded(name, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path, name) / "raw" / "data.csv.gz"
    table = pd.read_csv(file)
    table.loc[3, "smiles"] = None
    table.to_csv(file, index=False)
    dataset = load_dataset(DataConfig(dataset=name, root=str(tmp_path)))
    assert dataset.is_pcqm4m and dataset.name == name and dataset.target_names == ["homolumogap"]
    assert dataset.targets.shape == (40, 1) and list(dataset.splits) == SPLITS[name] and dataset.smiles[3] == ""
    known = np.concatenate([dataset.splits["train"], dataset.splits["valid"]])
    assert np.isfinite(dataset.targets[known]).all() and len(dataset.fingerprint()) == 16
    assert np.isnan(np.delete(dataset.targets, known)).all() and not dataset.rejected
    with pytest.raises(InputError, match=r"data.targets must be homolumogap, not 'gap'"):
        load_dataset(DataConfig(dataset=name, root=str(tmp_path), targets="gap"))


@both_versions
def test_only_the_first_version_has_a_note_that_its_leaderboard_is_closed(name, make_ogb, tmp_path):
    make_ogb(tmp_path, name)
    data, out = DataConfig(dataset=name, root=str(tmp_path)), tmp_path / "preprocessed.arrow"
    featurize_dataset(data, GraphConfig(), out)
    for dataset in (load_dataset(data), load_dataset(DataConfig(dataset=str(out)))):
        assert ["that of pcqm4mv2 is open" in note for note in dataset.notes] == [True] * (name == "pcqm4m")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_split_files_of_numpy_1_are_read(zipped, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    split = torch.load(file, weights_only=False)
    torch.save(split, file, _use_new_zipfile_serialization=zipped)
    data = file.read_bytes()
    file.write_bytes(_with_old_numpy_names(data) if zipped else data.replace(b"numpy._core", b"numpy.core"))
    splits = load_pcqm4m("pcqm4m", tmp_path)[2]
    assert all(np.array_equal(splits[part], split[part]) for part in split)


@both_versions
def test_missing_folder_without_network_raises(name, tmp_path, offline):
    with pytest.raises(InputError, match=r"cannot be downloaded .*: connect to the network") as error:
        load_pcqm4m(name, tmp_path / "data")
    message = str(error.value)
    assert message.startswith(f"{name} is not in {tmp_path / 'data' / OGB_FOLDERS[name]}") and "\n" not in message


@both_versions
def test_several_processes_download_once_without_a_prompt(name, make_ogb, tmp_path, offline, monkeypatch):
    """OGB's own download code with a replaced network call."""
    make_ogb(tmp_path / "archive", name)
    lsc = ogb_lsc.import_ogb_lsc()
    module = sys.modules[{"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name].__module__]
    urls = []

    def download_url(url: str, folder: str) -> str:
        urls.append(url)
        return shutil.make_archive(f"{folder}/{OGB_FOLDERS[name]}", "zip", tmp_path / "archive")

    monkeypatch.setattr(module, "decide_download", lambda url: True)  # it looks up the size
    monkeypatch.setattr(module, "download_url", download_url)
    monkeypatch.setattr(ogb_lsc.contextlib, "redirect_stdout", contextlib.nullcontext)  # threads share the output
    root = tmp_path / "new" / "root"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ogb_lsc._download(name, root / OGB_FOLDERS[name]), range(3)))
    assert len(load_pcqm4m(name, root)[0]) == 40
    assert len(urls) == 1 and [path.name for path in root.glob("[!.]*")] == [OGB_FOLDERS[name]]


@pytest.mark.parametrize("file", ["raw/data.csv.gz", "split_dict.pt", "RELEASE_v1.txt"])
def test_missing_and_damaged_files_raise(file, make_ogb, tmp_path, offline):
    path = make_ogb(tmp_path) / file
    contents = [None] if path.suffix == ".txt" else [b"no such file", path.read_bytes()[:-200], None]
    for content in contents:
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match=r"is damaged .*: move the folder away") as error:
            load_pcqm4m("pcqm4m", tmp_path)
        assert "\n" not in str(error.value)


def test_split_that_runs_code_is_rejected(make_ogb, tmp_path, offline):
    file, mark = make_ogb(tmp_path) / "split_dict.pt", tmp_path / "code was run"
    torch.save({"train": np.arange(3), "valid": Exploit(mark)}, file)
    with pytest.raises(InputError, match="is damaged"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists()


def test_import_does_not_use_network(monkeypatch, offline):
    for name in [name for name in sys.modules if name.split(".")[0] in ("ogb", "outdated")]:
        monkeypatch.delitem(sys.modules, name)
    assert hasattr(ogb_lsc.import_ogb_lsc(), "PCQM4Mv2Evaluator")
    assert sys.modules["ogb.version"].check_outdated is None and "outdated" not in sys.modules

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import shutil
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from graphslice.config import DataConfig
from graphslice.data import ogb_lsc
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.ogb_lsc import OGB_FOLDERS, load_pcqm4m
from graphslice.errors import InputError

SPLITS = {"pcqm4m": ["train", "valid", "test"], "pcqm4mv2": ["train", "valid", "test-dev", "test-challenge"]}
both = pytest.mark.parametrize("name", OGB_FOLDERS)


def _with_old_numpy_names(data: bytes) -> bytes:
    """The pickle as numpy 1 wrote it, and OGB's files were."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for entry in source.namelist():
            file.writestr(entry, source.read(entry).replace(b"numpy._core", b"numpy.core"))
    return out.getvalue()


@both
def test_ogbs_folder(name, make_ogb, tmp_path, offline, capsys):
    folder = make_ogb(tmp_path, name)
    table = pd.read_csv(folder / "raw" / "data.csv.gz")
    smiles, gaps, split = load_pcqm4m(name, tmp_path)
    assert smiles == table["smiles"].tolist() and gaps.dtype == np.float64
    np.testing.assert_array_equal(gaps, table["homolumogap"])
    assert list(split) == SPLITS[name] and all(rows.dtype == np.int64 for rows in split.values())
    written = torch.load(folder / "split_dict.pt", weights_only=False)  # ours, of a line above
    assert all(np.array_equal(split[part], written[part]) for part in written)
    assert capsys.readouterr().out == ""
    assert sorted(p.name for p in folder.iterdir()) == ["RELEASE_v1.txt", "raw", "split_dict.pt"]


@both
def test_as_a_source(name, make_ogb, tmp_path, offline):
    make_ogb(tmp_path, name)
    source = load_dataset(DataConfig(dataset=name, root=str(tmp_path)))
    assert source.is_pcqm4m and source.name == name and source.target_names == ["homolumogap"]
    assert source.targets.shape == (40, 1) and list(source.splits) == SPLITS[name]
    known = np.concatenate([source.splits["train"], source.splits["valid"]])
    assert np.isfinite(source.targets[known]).all()
    assert np.isnan(np.delete(source.targets, known)).all() and not source.rejected
    with pytest.raises(InputError, match=f"{name} has the single target homolumogap, not 'gap'"):
        load_dataset(DataConfig(dataset=name, root=str(tmp_path), targets="gap"))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("old_numpy", [True, False], ids=["numpy1", "numpy2"])
def test_split_files_of_every_age(zipped, old_numpy, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    split = torch.load(file, weights_only=False)
    torch.save(split, file, _use_new_zipfile_serialization=zipped)
    if old_numpy:
        data = file.read_bytes()
        data = _with_old_numpy_names(data) if zipped else data.replace(b"numpy._core", b"numpy.core")
        assert b"numpy._core" not in data and b"numpy.core" in data
        file.write_bytes(data)
    found = load_pcqm4m("pcqm4m", tmp_path)[2]
    assert all(np.array_equal(found[part], split[part]) for part in split)


@both
def test_absent_and_no_network(name, tmp_path, offline):
    with pytest.raises(InputError) as error:
        load_pcqm4m(name, tmp_path / "data")
    message = str(error.value)
    assert message.startswith(f"{name} is not in {tmp_path / 'data' / OGB_FOLDERS[name]}")
    assert "--root" in message and "cannot be downloaded" in message and "connect to the network" in message
    assert "\n" not in message


def test_nothing_is_left_without_network(tmp_path, offline):
    with pytest.raises(InputError):
        load_pcqm4m("pcqm4m", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@both
def test_download_asks_nothing(name, make_ogb, tmp_path, offline, monkeypatch):
    """OGB's own download, but for the network."""
    make_ogb(tmp_path / "there", name)
    lsc = ogb_lsc.import_ogb_lsc()
    module = sys.modules[{"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name].__module__]
    wanted = []

    def download_url(url: str, folder: str) -> str:
        wanted.append(url)
        return shutil.make_archive(f"{folder}/{OGB_FOLDERS[name]}", "zip", tmp_path / "there")

    monkeypatch.setattr(module, "download_url", download_url)
    root = tmp_path / "new" / "root"
    assert len(load_pcqm4m(name, root)[0]) == 40
    assert len(wanted) == 1 and [path.name for path in root.iterdir()] == [OGB_FOLDERS[name]]
    assert len(load_pcqm4m(name, root)[0]) == 40 and len(wanted) == 1  # not again


def test_a_damaged_download_is_removed(tmp_path, offline):
    (tmp_path / "pcqm4m_kddcup2021.zip").write_bytes(b"half of a zip")  # OGB takes what lies there
    with pytest.raises(InputError, match="archive of pcqm4m was damaged and is removed: try again"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert list(tmp_path.iterdir()) == []


@both
def test_no_release_file(name, make_ogb, tmp_path, offline):
    folder = make_ogb(tmp_path, name)
    (folder / "RELEASE_v1.txt").unlink()
    with pytest.raises(InputError, match=r"lacks OGB's RELEASE_v1\.txt.*move it away"):
        load_pcqm4m(name, tmp_path)
    assert (folder / "raw" / "data.csv.gz").exists()


def _csv(text: str) -> bytes:
    return gzip.compress(text.encode())


def _broken_deflate(data: bytes) -> bytes:
    """With a reserved block type where the stream begins."""
    data = gzip.compress(gzip.decompress(data))
    return data[:10] + bytes([data[10] | 0b110]) + data[11:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: gzip.decompress(data),
        lambda data: data[:-100],
        lambda data: data[:-8] + b"\0" * 8,
        _broken_deflate,
        lambda data: _csv(""),
        lambda data: _csv("idx,smiles,gap\n0,C,1.0\n"),
        lambda data: _csv('idx,smiles,homolumogap\n0,"C,1.0\n'),
        lambda data: _csv("idx,smiles,homolumogap\n" + "0,C,wide\n" * 40),
        lambda data: _csv("idx,smiles,homolumogap\n" + "0,C,1.0\n" * 3),
        lambda data: gzip.compress(b"idx,smiles,homolumogap\n0,\xff\xfe,1.0\n"),
    ],
    ids=["empty", "no-gzip", "truncated", "checksum", "deflate", "no-text", "column", "quote", "text", "rows", "bytes"],
)
def test_damaged_data(damage, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "raw" / "data.csv.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match="is damaged") as error:
        load_pcqm4m("pcqm4m", tmp_path)
    assert "\n" not in str(error.value) and "network" not in str(error.value)


def test_a_row_without_smiles_is_a_bad_row(make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "raw" / "data.csv.gz"
    table = pd.read_csv(file)
    table.loc[3, "smiles"] = None
    table.to_csv(file, index=False)
    source = load_dataset(DataConfig(dataset="pcqm4m", root=str(tmp_path)))
    assert source.smiles[3] == "" and len(source.fingerprint()) == 16


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no torch file",
        {"train": "everything"},
        [1, 2],
        {"train": np.array([40]), "valid": np.array([1])},
        {"train": np.array([-1]), "valid": np.array([1])},
        {"valid": np.array([1])},
        {"train": np.array([0]), "valid": np.array([1]), "best": np.array([2])},
        {"train": np.array([0, 1]), "valid": np.array([1])},
        {"train": np.array([[0]]), "valid": np.array([[1]])},
    ],
    ids=["empty", "text", "words", "list", "beyond", "negative", "no-train", "unknown", "twice", "square"],
)
def test_damaged_split(content, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(InputError, match="is damaged: its split") as error:
        load_pcqm4m("pcqm4m", tmp_path)
    assert "\n" not in str(error.value)


def test_truncated_and_missing_split(make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    file.unlink()
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)


class _Malicious:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("way", ["zip", "legacy", "pickle"])
def test_a_split_that_runs_code_is_refused(way, make_ogb, tmp_path, offline):
    file, mark = make_ogb(tmp_path) / "split_dict.pt", tmp_path / "code was run"
    split = {"train": np.arange(3), "valid": _Malicious(mark), "test": np.arange(3, 5)}
    if way == "pickle":
        file.write_bytes(pickle.dumps(split))
    else:
        torch.save(split, file, _use_new_zipfile_serialization=way == "zip")
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert not mark.exists()
    with contextlib.suppress(RuntimeError):  # no torch file, it says when the code was run
        torch.load(file, weights_only=False)
    assert mark.exists()


class Dressed:
    """Pickles as an array whose type says more of itself than integers do."""

    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return np.dtype, ("i8", False, True), self.state


class Array:
    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), self.state


ROWS = np.arange(20)
FIELDS = {"a": (np.dtype("O"), 0)}


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.astype(float),
        ROWS.astype(object),
        ROWS.astype("S2"),
        ROWS.astype(bool),
        ROWS.view("V8"),
        ROWS.view([("a", "i4"), ("b", "i4")]),
        ROWS[:, None],
        Array(1, (40,), np.dtype("i8"), False, bytes(160)),
        Array(1, (20,), np.dtype("i8"), False, ["x"] * 20),
        Array(1, (20,), np.dtype("O"), False, bytes(160)),
        Array(1, (20,), Dressed(4, "<", (np.dtype("i8"), (9,)), None, None, 8, 8, 0), False, bytes(159)),
        Array(1, (2**62,), Dressed(3, "<", None, ("a",), FIELDS, -1, -1, 0), False, bytes(160)),
        torch.zeros(1, dtype=torch.int64).expand(2**40),
        torch.arange(20.0),
        [1, 2],
        "rows",
    ],
    ids=range(16),
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_split_of_other_things_than_rows_is_refused(rows, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    torch.save({"train": rows, "valid": np.arange(20, 25)}, file)
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)


def test_no_setting_of_the_environment_lets_a_split_run_code(make_ogb, tmp_path, offline, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    file = make_ogb(tmp_path) / "split_dict.pt"
    torch.save({"train": Runs(tmp_path / "mark")}, file)
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert not (tmp_path / "mark").exists()


class Runs:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return self.mark.touch, ()


def test_the_allow_list_ends_with_the_call(make_ogb, tmp_path, offline):
    folder = make_ogb(tmp_path)
    load_pcqm4m("pcqm4m", tmp_path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(folder / "split_dict.pt")


def test_import_looks_at_no_network(monkeypatch, offline):
    for name in [name for name in sys.modules if name.split(".")[0] in ("ogb", "outdated")]:
        monkeypatch.delitem(sys.modules, name)
    assert hasattr(ogb_lsc.import_ogb_lsc(), "PCQM4Mv2Evaluator")
    assert "outdated" not in sys.modules

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import shutil
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from exploit import Exploit

from graphslice.config import DataConfig
from graphslice.data import ogb_lsc
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.ogb_lsc import OGB_FOLDERS, load_pcqm4m
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
    make_ogb(tmp_path, name)
    dataset = load_dataset(DataConfig(dataset=name, root=str(tmp_path)))
    assert dataset.is_pcqm4m and dataset.name == name and dataset.target_names == ["homolumogap"]
    assert dataset.targets.shape == (40, 1) and list(dataset.splits) == SPLITS[name]
    known = np.concatenate([dataset.splits["train"], dataset.splits["valid"]])
    assert np.isfinite(dataset.targets[known]).all()
    assert np.isnan(np.delete(dataset.targets, known)).all() and not dataset.rejected
    with pytest.raises(InputError, match=f"{name} has the single target homolumogap, not 'gap'"):
        load_dataset(DataConfig(dataset=name, root=str(tmp_path), targets="gap"))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("old_numpy", [True, False], ids=["numpy1", "numpy2"])
def test_split_files_of_all_versions_are_read(zipped, old_numpy, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    split = torch.load(file, weights_only=False)
    torch.save(split, file, _use_new_zipfile_serialization=zipped)
    if old_numpy:
        data = file.read_bytes()
        data = _with_old_numpy_names(data) if zipped else data.replace(b"numpy._core", b"numpy.core")
        assert b"numpy._core" not in data and b"numpy.core" in data
        file.write_bytes(data)
    splits = load_pcqm4m("pcqm4m", tmp_path)[2]
    assert all(np.array_equal(splits[part], split[part]) for part in split)


@both_versions
def test_missing_folder_without_network_raises(name, tmp_path, offline):
    with pytest.raises(InputError) as error:
        load_pcqm4m(name, tmp_path / "data")
    message = str(error.value)
    assert message.startswith(f"{name} is not in {tmp_path / 'data' / OGB_FOLDERS[name]}")
    assert "--root" in message and "cannot be downloaded" in message and "connect to the network" in message
    assert "\n" not in message


@both_versions
def test_download_does_not_prompt(name, make_ogb, tmp_path, offline, monkeypatch):
    """OGB's own download code with a replaced network call."""
    make_ogb(tmp_path / "archive", name)
    lsc = ogb_lsc.import_ogb_lsc()
    module = sys.modules[{"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name].__module__]
    urls = []

    def download_url(url: str, folder: str) -> str:
        urls.append(url)
        return shutil.make_archive(f"{folder}/{OGB_FOLDERS[name]}", "zip", tmp_path / "archive")

    monkeypatch.setattr(module, "download_url", download_url)
    root = tmp_path / "new" / "root"
    assert len(load_pcqm4m(name, root)[0]) == 40
    assert len(urls) == 1 and [path.name for path in root.glob("[!.]*")] == [OGB_FOLDERS[name]]
    assert len(load_pcqm4m(name, root)[0]) == 40 and len(urls) == 1  # not downloaded again


def test_damaged_download_is_removed(tmp_path, offline):
    (tmp_path / "pcqm4m_kddcup2021.zip").write_bytes(b"half of a zip")  # OGB uses an existing archive
    with pytest.raises(InputError, match="archive of pcqm4m was damaged and is removed: try again"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert list(tmp_path.glob("*.zip")) == list(tmp_path.glob("*partial")) == []


def _replace_download(monkeypatch, download_url):
    module = sys.modules[ogb_lsc.import_ogb_lsc().PCQM4Mv2Dataset.__module__]
    monkeypatch.setattr(module, "download_url", download_url)


def test_processes_that_need_the_dataset_at_once_download_it_once(make_ogb, tmp_path, offline, monkeypatch):
    make_ogb(tmp_path / "archive", "pcqm4mv2")
    urls = []

    def download_url(url: str, folder: str) -> str:
        urls.append(url)
        file = Path(shutil.make_archive(f"{folder}/whole", "zip", tmp_path / "archive"))
        content, half = file.read_bytes(), file.stat().st_size // 2
        file.write_bytes(content[:half])
        time.sleep(1)
        file.write_bytes(content)
        return str(file)

    _replace_download(monkeypatch, download_url)
    monkeypatch.setattr(ogb_lsc.contextlib, "redirect_stdout", contextlib.nullcontext)  # threads share the output
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ogb_lsc._download("pcqm4mv2", tmp_path / "root" / "pcqm4m-v2"), range(3)))
    assert len(urls) == 1 and len(load_pcqm4m("pcqm4mv2", tmp_path / "root")[0]) == 40


@pytest.mark.parametrize("reason", [KeyboardInterrupt(), OSError(28, "No space left")], ids=["Ctrl-C", "full"])
def test_archive_of_the_user_is_kept_until_it_is_unpacked(reason, make_ogb, tmp_path, offline, monkeypatch):
    make_ogb(tmp_path / "archive", "pcqm4mv2")
    shutil.make_archive(str(tmp_path / "pcqm4m-v2"), "zip", tmp_path / "archive")

    def broken(*_):
        raise reason

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", broken)
        interrupted = isinstance(reason, KeyboardInterrupt)
        message = None if interrupted else r"pcqm4m-v2\.zip cannot be unpacked .*No space left"
        with pytest.raises(KeyboardInterrupt if interrupted else InputError, match=message):
            load_pcqm4m("pcqm4mv2", tmp_path)
    assert (tmp_path / "pcqm4m-v2.zip").exists() and not (tmp_path / "pcqm4m-v2").exists()
    assert len(load_pcqm4m("pcqm4mv2", tmp_path)[0]) == 40 and not (tmp_path / "pcqm4m-v2.zip").exists()


def test_folder_appears_when_it_is_complete(make_ogb, tmp_path, offline, monkeypatch):
    make_ogb(tmp_path / "archive", "pcqm4mv2")
    _replace_download(monkeypatch, lambda _, folder: shutil.make_archive(f"{folder}/x", "zip", tmp_path / "archive"))
    unpack = zipfile.ZipFile.extractall

    def interrupted(archive, folder):
        unpack(archive, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(zipfile.ZipFile, "extractall", interrupted)
        load_pcqm4m("pcqm4mv2", tmp_path / "root")
    assert not (tmp_path / "root" / "pcqm4m-v2").exists()
    (tmp_path / "root" / ".pcqm4m-v2.partial" / "pcqm4m-v2").mkdir(parents=True)  # of a process that was killed
    assert len(load_pcqm4m("pcqm4mv2", tmp_path / "root")[0]) == 40


@pytest.mark.parametrize(
    "reason", [KeyboardInterrupt(), ConnectionResetError("reset by peer")], ids=["Ctrl-C", "reset"]
)
def test_reason_of_a_broken_download_is_named(reason, tmp_path, offline, monkeypatch):
    def download_url(url: str, folder: str) -> str:
        try:
            raise reason
        except BaseException:  # as in OGB
            raise RuntimeError("Stopped downloading due to interruption.")  # noqa: B904

    _replace_download(monkeypatch, download_url)
    interrupted = isinstance(reason, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if interrupted else InputError, match=str(reason) or None):
        load_pcqm4m("pcqm4mv2", tmp_path)


@both_versions
def test_folder_of_the_dataset_is_no_root(name, make_ogb, tmp_path, offline):
    folder = make_ogb(tmp_path, name)
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=f"is the folder of {name} itself: give the folder that holds it"):
        load_pcqm4m(name, folder)
    assert sorted(folder.rglob("*")) == before


@both_versions
def test_missing_release_file_raises(name, make_ogb, tmp_path, offline):
    folder = make_ogb(tmp_path, name)
    (folder / "RELEASE_v1.txt").unlink()
    with pytest.raises(InputError, match=r"lacks OGB's RELEASE_v1\.txt.*move it away"):
        load_pcqm4m(name, tmp_path)
    (folder / "RELEASE_v1.txt").touch()
    (folder / "raw" / "data.csv.gz").unlink()
    with pytest.raises(InputError, match=r"lacks OGB's raw/data\.csv\.gz.*move it away"):
        load_pcqm4m(name, tmp_path)


def _csv(text: str) -> bytes:
    return gzip.compress(text.encode())


def _broken_deflate(data: bytes) -> bytes:
    """Set a reserved block type at the begin of the stream."""
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
        lambda data: _csv("idx,smiles,homolumogap\n" + "0,C,inf\n" * 40),
    ],
    ids=[
        "empty",
        "no-gzip",
        "truncated",
        "checksum",
        "deflate",
        "no-text",
        "column",
        "quote",
        "text",
        "rows",
        "bytes",
        "infinite",
    ],
)
def test_damaged_data_raises(damage, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "raw" / "data.csv.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match="is damaged") as error:
        load_pcqm4m("pcqm4m", tmp_path)
    assert "\n" not in str(error.value) and "network" not in str(error.value)


def test_missing_smiles_becomes_empty_text(make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "raw" / "data.csv.gz"
    table = pd.read_csv(file)
    table.loc[3, "smiles"] = None
    table.to_csv(file, index=False)
    dataset = load_dataset(DataConfig(dataset="pcqm4m", root=str(tmp_path)))
    assert dataset.smiles[3] == "" and len(dataset.fingerprint()) == 16


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
        {"train": np.array([0]), "valid": np.array([1]), "test-dev": np.array([2])},
        {"train": np.array([0, 1]), "valid": np.array([1])},
        {"train": np.array([[0]]), "valid": np.array([[1]])},
    ],
    ids=["empty", "text", "words", "list", "beyond", "negative", "no-train", "unknown", "v2", "twice", "square"],
)
def test_damaged_split_raises(content, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(InputError, match="is damaged: its split") as error:
        load_pcqm4m("pcqm4m", tmp_path)
    assert "\n" not in str(error.value)


def test_truncated_and_missing_split_raise(make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    file.unlink()
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)


@pytest.mark.parametrize("format", ["zip", "legacy", "pickle"])
def test_split_that_runs_code_is_rejected(format, make_ogb, tmp_path, offline):
    file, mark = make_ogb(tmp_path) / "split_dict.pt", tmp_path / "code was run"
    split = {"train": np.arange(3), "valid": Exploit(mark), "test": np.arange(3, 5)}
    if format == "pickle":
        file.write_bytes(pickle.dumps(split))
    else:
        torch.save(split, file, _use_new_zipfile_serialization=format == "zip")
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert not mark.exists()
    with contextlib.suppress(RuntimeError):  # raised after the code has run: not a torch file
        torch.load(file, weights_only=False)
    assert mark.exists()


class ExtendedDtype:
    """Dtype whose pickle has more state than that of integers."""

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
        Array(1, (20,), ExtendedDtype(4, "<", (np.dtype("i8"), (9,)), None, None, 8, 8, 0), False, bytes(159)),
        Array(1, (2**62,), ExtendedDtype(3, "<", None, ("a",), FIELDS, -1, -1, 0), False, bytes(160)),
        torch.zeros(1, dtype=torch.int64).expand(2**40),
        torch.arange(20.0),
        [1, 2],
        "rows",
    ],
    ids=range(16),
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_split_of_other_types_is_rejected(rows, make_ogb, tmp_path, offline):
    file = make_ogb(tmp_path) / "split_dict.pt"
    torch.save({"train": rows, "valid": np.arange(20, 25)}, file)
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)


def test_environment_cannot_let_split_run_code(make_ogb, tmp_path, offline, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    file = make_ogb(tmp_path) / "split_dict.pt"
    torch.save({"train": Exploit(tmp_path / "mark")}, file)
    with pytest.raises(InputError, match=r"split_dict\.pt cannot be read"):
        load_pcqm4m("pcqm4m", tmp_path)
    assert not (tmp_path / "mark").exists()


def test_safe_globals_are_removed_after_loading(make_ogb, tmp_path, offline):
    folder = make_ogb(tmp_path)
    load_pcqm4m("pcqm4m", tmp_path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(folder / "split_dict.pt")


def test_import_does_not_use_network(monkeypatch, offline):
    for name in [name for name in sys.modules if name.split(".")[0] in ("ogb", "outdated")]:
        monkeypatch.delitem(sys.modules, name)
    assert hasattr(ogb_lsc.import_ogb_lsc(), "PCQM4Mv2Evaluator")
    assert "outdated" not in sys.modules

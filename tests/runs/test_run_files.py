"""Names of the files of a run, and functions that find and read them."""

import numpy as np
import pytest

from graphslice.errors import InputError
from graphslice.runs.run_files import (
    check_folder,
    find_checkpoint,
    find_members,
    read_metric_logs,
    read_splits,
    read_training_smiles,
    remove_run,
    run_directory_of,
    write_splits,
)
from graphslice.system.machine import MODELS


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("model.safetensors", "last.ckpt"):
        (folder / name).touch()
    return folder


def test_model_of_a_run_is_found(run):
    assert find_checkpoint(run) == find_checkpoint(run / "model.safetensors") == run / "model.safetensors"


def test_members_are_sorted_by_number(tmp_path):
    for name in ("member-10", "member-2", "member-3", "member-x", "members", "member-01"):
        (tmp_path / name).mkdir()
        if name != "member-3":  # this one holds no run
            (tmp_path / name / "config.yaml").touch()
    assert find_members(tmp_path) == [tmp_path / "member-2", tmp_path / "member-10"]
    with pytest.raises(InputError, match=r"is an ensemble of 2: give one of its members, such as .*member-2"):
        find_checkpoint(tmp_path)


def test_paths_without_a_model_are_rejected(tmp_path):
    with pytest.raises(InputError, match="is not a run directory"):
        find_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"no model at .*none.*, or a packaged model \(adme, gap, small\)"):
        find_checkpoint(tmp_path / "none")


def test_existing_folder_is_preferred_to_a_packaged_model(run, monkeypatch):
    assert find_checkpoint("gap") == MODELS["gap"]
    assert run_directory_of("gap") is None
    assert run_directory_of(run) == run_directory_of(run / "model.safetensors") == run
    monkeypatch.chdir(run.parent)
    run.rename(run.parent / "gap")
    assert find_checkpoint("gap").parent == run_directory_of("gap") != MODELS["gap"].parent


def test_splits_and_smiles_are_read_back(tmp_path):
    assert read_training_smiles(None) == read_training_smiles(tmp_path) == {} and read_splits(tmp_path) is None
    write_splits(tmp_path, {"train": np.array([4, 0]), "test": np.array([2])}, ["CC,O", "", "C", "", 'N"\udcff'])
    assert (tmp_path / "split.csv").read_text(errors="surrogateescape").startswith("row,split,smiles\n1,train,")
    assert read_training_smiles(tmp_path) == {0: "CC,O", 2: "C", 4: 'N"\udcff'}
    splits = read_splits(tmp_path)
    assert {name: rows.tolist() for name, rows in splits.items()} == {"train": [0, 4], "test": [2]}
    write_splits(tmp_path, splits, [])
    assert read_training_smiles(tmp_path) == {}


def test_smiles_of_a_member_are_read(tmp_path, run):
    member = tmp_path / "folds" / "member-1"
    member.mkdir(parents=True)
    (member / "model.safetensors").touch()
    write_splits(member, {"train": np.array([0])}, ["CCC"])
    assert read_training_smiles(tmp_path / "folds") == {0: "CCC"}


def test_damaged_splits_and_smiles_are_rejected(tmp_path):
    for column, read in (("smiles", read_training_smiles), ("split", read_splits)):
        (tmp_path / "split.csv").write_text(f"row,{column}\nx,CC\n")
        with pytest.raises(InputError, match="damaged"):
            read(tmp_path)


def test_a_run_starts_in_an_empty_folder_or_replaces_a_run(run, tmp_path):
    for overwrite in (False, True):
        check_folder(tmp_path / "none", overwrite=overwrite)
        with pytest.raises(InputError, match="is not empty, and holds no run"):
            check_folder(run, overwrite=overwrite)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".lock").touch()  # as of a process that was killed at its start
    check_folder(tmp_path / "new", overwrite=False)
    (run / "start.json").touch()
    with pytest.raises(InputError, match="holds a run already"):
        check_folder(run, overwrite=False)
    check_folder(run, [tmp_path / "in.csv", None, run / "molecules.parquet"], overwrite=True)
    for name in ("in.csv", "model.safetensors", "member-1/model.safetensors"):
        with pytest.raises(InputError, match="would overwrite its input"):
            check_folder(run, [run / name], overwrite=True)


def test_only_files_of_a_run_are_removed_with_it(run):
    for name in ("held-out-1", "member-1", "logs", "mine"):
        (run / name).mkdir()
    for name in ("start.json", "notes.txt", "molecules.parquet"):
        (run / name).touch()
    remove_run(run, keep=str(run / "molecules.parquet"))
    assert {path.name for path in run.iterdir()} == {"mine", "notes.txt", "molecules.parquet"}


def test_logs_that_no_run_wrote_are_not_read(run):
    for name, loss in (("version_10", 2), ("version_9", 1), ("version_old", 0)):
        (run / "logs" / name).mkdir(parents=True)
        (run / "logs" / name / "metrics.csv").write_text(f"loss\n{loss}\n")
    assert list(read_metric_logs(run)) == [{"loss": "1"}, {"loss": "2"}]

"""Runs on preprocessed PCQM4M, whose source has its own split and labels that are not published."""

import re

import numpy as np
import pandas as pd
import pytest

from graphslice.cli.options import _usual_preset
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.ogb import load_pcqm4m
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError
from graphslice.report.write import write_report
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import read_splits
from graphslice.training import train

TRAINER = {"max_epochs": 1, "baselines": "off"}


@pytest.fixture
def store(make_ogb, tmp_path):
    make_ogb(tmp_path, "pcqm4mv2")
    out = tmp_path / "v2.arrow"
    featurize_dataset(DataConfig(dataset="pcqm4mv2", root=str(tmp_path)), GraphConfig(), out)
    return out


def test_a_split_of_ones_own_has_labelled_rows_only_and_is_saved(store, tmp_path, tiny_config, cli):
    known = np.flatnonzero(pd.read_csv(tmp_path / "pcqm4m-v2" / "raw" / "data.csv.gz")["homolumogap"].notna())
    config = tiny_config(str(store), data={"split": "random"}, trainer=TRAINER)
    result = train(config, tmp_path / "run")
    splits = read_splits(tmp_path / "run")
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), known) and len(known) == 30
    assert result.metrics["test"]["molecules"] == len(splits["test"])
    code, out, _ = cli("evaluate", tmp_path / "run", "--device", "cpu")
    assert code == 0 and f"on {len(splits['test'])} molecules" in out
    assert float(re.search(r" test: MAE ([\d.]+)", out)[1]) == pytest.approx(result.metrics["test"]["mae"], abs=2e-6)


@pytest.mark.parametrize(("preprocessed", "limit"), [(False, {"max_minutes": 0.001}), (True, {"max_epochs": 1})])
def test_train_and_valid_are_trained_on_together(preprocessed, limit, store, tmp_path, tiny_config, cli):
    dataset = str(store) if preprocessed else "pcqm4mv2"
    data = {"root": str(tmp_path), "split": "train+valid"}
    result = train(tiny_config(dataset, data=data, trainer=TRAINER | {"max_epochs": None} | limit), tmp_path / "run")
    gaps = pd.read_csv(tmp_path / "pcqm4m-v2" / "raw" / "data.csv.gz")["homolumogap"]  # nan in the test sets
    assert len(result.data.splits["train"]) == gaps.notna().sum() == 30 and not len(result.data.splits["valid"])
    weights = read_checkpoint(tmp_path / "run").weights
    assert weights["target_mean"] == pytest.approx(gaps.mean(), rel=1e-5)
    assert list(result.metrics) == ["metric"]
    write_report(tmp_path / "run")
    for named in ([], ["--dataset", dataset]):
        code, out, err = cli("evaluate", tmp_path / "run", *named, "--split", "valid")
        assert (code, out) == (2, "")
        assert re.search(r"split of \S+ must be train, .* or all, not 'valid'", err)


def test_train_and_valid_need_a_fixed_split(demo_csv, tmp_path, tiny_config, make_ogb):
    with pytest.raises(InputError, match=r"train\+valid"):
        train(tiny_config(demo_csv, data={"split": "train+valid"}), tmp_path / "run")
    make_ogb(tmp_path)
    config = tiny_config("pcqm4m", data={"root": str(tmp_path), "split": "train+valid"}, trainer={"patience": 2})
    with pytest.raises(InputError, match=r"trainer\.patience needs a validation set"):
        train(config, tmp_path / "run")


def test_cross_validation_needs_a_split_of_ones_own(store, tmp_path, tiny_config):
    config = tiny_config(str(store), data={"folds": 3}, trainer=TRAINER)
    with pytest.raises(InputError, match=r"has its own split: leave out data\.folds"):
        train(config, tmp_path / "run")


@pytest.mark.usefixtures("in_this_process")
def test_an_ensemble_leaves_out_molecules_that_cannot_be_read(make_ogb, tmp_path, tiny_config):
    folder = make_ogb(tmp_path)
    table = pd.read_csv(folder / "raw" / "data.csv.gz")
    row = load_pcqm4m("pcqm4m", tmp_path)[2]["valid"][0]
    table.loc[row, "smiles"] = "not a molecule"
    table.to_csv(folder / "raw" / "data.csv.gz", index=False)
    config = tiny_config("pcqm4m", data={"root": str(tmp_path)}, trainer=TRAINER | {"ensemble": 2})
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["valid"]["molecules"] == 9 and "test" not in metrics


def test_preset_of_a_preprocessed_dataset_is_that_of_its_source(store, tmp_path):
    (tmp_path / "other.arrow").write_bytes(b"no store")
    names = {"pcqm4m": "pcqm4m-slice", "pcqm4mv2": "pcqm4mv2-slice"}
    names |= {str(store): "pcqm4mv2-slice", str(tmp_path / "other.arrow"): "small"}
    assert {name: _usual_preset(name) for name in names} == names
    assert _usual_preset(str(tmp_path / "missing.arrow")) == "small"

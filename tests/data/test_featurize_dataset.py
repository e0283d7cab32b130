"""Preprocessing of datasets, as by ``graphslice featurize``."""

import numpy as np
import pytest

from graphslice import smiles_to_graph
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError


def test_split_methods_and_existing_output_are_rejected(demo_csv, tmp_path):
    with pytest.raises(InputError, match="no column 'random'"):
        featurize_dataset(DataConfig(str(demo_csv), split="random"), GraphConfig(), tmp_path / "s.arrow")
    (tmp_path / "s.arrow").write_text("mine")
    with pytest.raises(InputError, match=r"s\.arrow exists already: choose another name"):
        featurize_dataset(DataConfig(str(demo_csv)), GraphConfig(), tmp_path / "s.arrow")
    assert (tmp_path / "s.arrow").read_text() == "mine"


def test_report_counts_failed_rows(tmp_path, demo_csv, demo_rows):
    config = DataConfig(str(demo_csv), targets="gap_ev")
    store = featurize_dataset(config, GraphConfig(max_atoms=20), tmp_path / "s.arrow", workers=1)
    large = [row for row, smiles in enumerate(demo_rows["smiles"]) if smiles_to_graph(smiles).num_atoms > 20]
    assert list(store.errors) == large and large
    assert store.info.max_atoms == 20 and store.info.targets == ("gap_ev",)
    np.testing.assert_array_equal(store.targets[:, 0], demo_rows["gap_ev"])
    assert (store.split == demo_rows["split"].map({"train": 0, "valid": 1, "test": 2})).all()

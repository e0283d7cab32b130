"""Tables with a row for each measurement."""

import numpy as np
import pandas as pd
import pytest

from graphslice.config import DataConfig
from graphslice.data.loaders import dataset_from_frame, load_dataset
from graphslice.errors import InputError


@pytest.fixture
def long(demo_rows):
    """900 measurements of 300 molecules by four assays, some of them repeated, in random order."""
    random = np.random.default_rng(0)
    smiles, assays = demo_rows["smiles"].to_numpy()[:300], np.array(["A", "B", "C, d", "E"])
    table = {
        "smiles": random.choice(smiles, 900),
        "assay": random.choice(assays, 900),
        "value": random.normal(size=900),
    }
    return pd.DataFrame(table).round(3)


def write(table, folder, **settings) -> DataConfig:
    table.to_csv(folder / "long.csv", index=False)
    return DataConfig(dataset=str(folder / "long.csv"), **{"long": "assay,value", **settings})


def test_measurements_become_a_row_for_each_molecule_and_repetition(long, tmp_path):
    dataset = load_dataset(write(long, tmp_path))
    repetition = long.groupby(["smiles", "assay"]).cumcount()
    wide = long.assign(repetition=repetition).pivot(index=["smiles", "repetition"], columns="assay", values="value")
    assert dataset.target_names == long["assay"].value_counts().index.tolist()
    found = pd.DataFrame(dataset.targets, columns=dataset.target_names)[wide.columns].assign(smiles=dataset.smiles)
    order = ["smiles", *wide.columns]
    found, expected = (frame[order].sort_values(order, ignore_index=True) for frame in (found, wide.reset_index()))
    pd.testing.assert_frame_equal(found, expected, check_names=False)
    first_seen = list(dict.fromkeys(long["smiles"]))
    assert list(dict.fromkeys(dataset.smiles)) == first_seen and dataset.notes == ()


def test_a_frame_and_its_saved_copy_are_read_like_the_file(long, tmp_path):
    config = write(long.assign(other="x"), tmp_path, targets='B,"C, d"')
    dataset = load_dataset(config)
    from_frame = dataset_from_frame(long, config)
    again = dataset_from_frame(from_frame.table.to_pandas(), config)
    assert dataset.target_names == from_frame.target_names == ["B", "C, d"]
    assert dataset.fingerprint() == from_frame.fingerprint() == again.fingerprint()


def test_relations_are_bounds_and_cells_without_a_value_are_no_labels(tmp_path):
    rows = [("C", "A", "5", "'='"), ("CC", "A", "6", ">"), ("CCC", "A", "7", ""), ("CCCC", "A", "8", "~")]
    rows += [("N", "", "1", "="), ("O", "A", "n.d.", ">"), ("S", "A", "9 nM", "="), ("CC", "A", "6.5", "<=")]
    table = pd.DataFrame(rows, columns=["smiles", "assay", "value", "relation"])
    dataset = load_dataset(write(table, tmp_path, long="assay,value,relation", targets="A", rejected="any"))
    assert dataset.smiles == ["C", "CC", "CCC", "CCCC", "N", "O", "S", "CC"]
    nan, none = np.nan, (-np.inf, np.inf)
    np.testing.assert_array_equal(dataset.targets[:, 0], [5, nan, 7, nan, nan, nan, nan, nan])
    bounds = [none, (6, np.inf), *[none] * 5, (-np.inf, 6.5)]
    np.testing.assert_array_equal(dataset.bounds(np.arange(8))[:, 0], bounds)
    assert dataset.unreadable() == {6: "target 'A' is not a finite number: '9 nM'"}


def test_rows_with_another_split_or_weight_stay_apart_and_identifiers_are_of_the_first(tmp_path):
    table = pd.DataFrame(
        {"smiles": ["C"] * 4, "assay": list("ABAB"), "value": ["1,5", "2", "3", "4"], "id": list("wxyz")}
    )
    table = table.assign(split=["train", "train", "test", "train"], w=["0,5", "0,5", "0,5", "2"])
    settings = {"decimal": "comma", "targets": "A,B", "weight_column": "w", "id_column": "id"}
    dataset = load_dataset(write(table, tmp_path, **settings))
    np.testing.assert_array_equal(dataset.targets, [[1.5, 2], [3, np.nan], [np.nan, 4]])
    assert dataset.identifiers == {"id": ["w", "y", "z"]} and dataset.weights(np.arange(3)).tolist() == [0.5, 0.5, 2]
    assert {name: rows.tolist() for name, rows in dataset.splits.items()} == {"train": [0, 2], "test": [1]}


def test_malformed_rows_keep_their_reasons(long, tmp_path):
    config = write(long, tmp_path)
    with open(config.dataset, "a", encoding="utf-8") as file:
        file.write("CC,A\n")
    dataset, row = load_dataset(config), len(load_dataset(write(long, tmp_path / "..")))
    assert dataset.unreadable() == {row: "2 fields where the header has 3 (line 902 of long.csv)"}


def test_targets_with_few_or_equal_values_are_left_out_unless_they_are_named(long, tmp_path):
    few = pd.DataFrame({"smiles": ["C"] * 9 + ["N"] * 20, "assay": ["few"] * 9 + ["one"] * 20, "value": 1.0})
    table = pd.concat([long, few])
    dataset = load_dataset(write(table, tmp_path))
    assert sorted(dataset.target_names) == ["A", "B", "C, d", "E"]
    problem = "2 targets with fewer than 10 values, or equal ones, left out, unless data.targets names them"
    assert dataset.notes == (f"{problem}: one (20), few (9)",)
    named = load_dataset(write(table, tmp_path, targets="A,few"))
    assert named.target_names == ["A", "few"] and len(named) == len(dataset) and not named.notes
    with pytest.raises(InputError, match="no target has 10 values that differ"):
        load_dataset(write(few, tmp_path))


def test_the_targets_of_a_long_table_share_their_task(tmp_path, long):
    dataset = load_dataset(write(long.assign(value=np.where(long["value"] > 0, "active", "inactive")), tmp_path))
    assert {task.kind for task in dataset.tasks} == {"binary"} and dataset.tasks[0].classes == ("inactive", "active")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"long": "value"}, r"data.long names two or three columns \(target, value, relation\), not 'value'"),
        ({"long": "assays,value"}, r"has no column 'assays' \(did you mean 'assay'\?\)"),
        ({"long": "assay,value", "id_column": "assay"}, "'assay' cannot be in data.long and an identifier"),
        ({"long": "assay,value", "targets": "X"}, "the target 'X' is empty in every row with a SMILES"),
    ],
)
def test_unusable_settings_are_rejected(settings, message, long, tmp_path):
    with pytest.raises(InputError, match=message):
        load_dataset(write(long, tmp_path, **settings))

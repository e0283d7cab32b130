import pandas as pd
import pytest

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError


@pytest.fixture
def config(tmp_path):
    table = {"smiles": ["C", "CC"], "y": [1.0, 2.5], "cmpd_id": ["007", ""], "row": ["r1", "r2"], "a,b": ["1,5", "x"]}
    pd.DataFrame(table).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame(table).iloc[:1].assign(cmpd_id="c").to_csv(tmp_path / "b.csv", index=False)
    return lambda **settings: DataConfig(dataset=str(tmp_path / "a.csv"), targets="y", **settings)


def test_named_columns_are_read_as_they_are_written(config):
    assert load_dataset(config()).identifiers == {}
    assert load_dataset(config(id_column="a,b", decimal="comma")).identifiers == {"a,b": ["1,5", "x"]}
    found = load_dataset(config(id_column='cmpd_id,"a,b"')).identifiers
    assert found == {"cmpd_id": ["007", ""], "a,b": ["1,5", "x"]}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("cmpd", r"has no column 'cmpd' \(did you mean 'cmpd_id'\?\)"),
        ("y", "'y' cannot be a target and an identifier"),
        ("row", "data.id_column cannot name 'row'"),
    ],
)
def test_unusable_columns_are_rejected(config, column, message):
    with pytest.raises(InputError, match=message):
        load_dataset(config(id_column=column))

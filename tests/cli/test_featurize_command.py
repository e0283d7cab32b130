"""``graphslice featurize``, and stores in place of tables."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from graphslice.cli.main import main
from graphslice.data.store import GraphStore


@pytest.fixture(scope="module")
def demo_store(demo_csv, tmp_path_factory) -> Path:
    """The sixty rows of ``demo_csv``, featurized on the command line. Read only."""
    path = tmp_path_factory.mktemp("store") / "demo60.arrow"
    assert main(["featurize", str(demo_csv), "--targets", "gap_ev", "-o", str(path), "--workers", "1"]) == 0
    return path


def test_featurize_a_file(demo_store, demo_rows, cli, demo_csv, tmp_path):
    code, out, err = cli("featurize", demo_csv, "--targets", "gap_ev", "-o", tmp_path / "new" / "s.arrow")
    assert (code, err) == (0, "") and re.fullmatch(r".*s\.arrow: 60 rows, \d+ bytes each\n", out)
    assert [path.name for path in (tmp_path / "new").glob("[!.]*")] == ["s.arrow"]
    assert (tmp_path / "new" / "s.arrow").read_bytes() == demo_store.read_bytes()
    table = pd.read_feather(demo_store)
    assert table["split"].tolist() == demo_rows["split"].tolist() and table["error"].isna().all()
    assert [row[0] for row in table["targets"]] == demo_rows["gap_ev"].tolist()


def test_featurize_bad_rows(cli, tmp_path):
    (tmp_path / "t.csv").write_bytes("smiles,y,t\nCCO,1,5 °C\noops,2,\nCCN,high,\nCCC,,\nCCO,1\n".encode("cp1252"))
    code, out, err = cli("featurize", tmp_path / "t.csv", "--targets=y", "--features=t", "-o", tmp_path / "s.arrow")
    assert code == 0 and "5 rows" in out
    encoding, feature, unusable = err.splitlines()
    assert "is read as Windows-1252" in encoding and "not numbers, the first is '5 °C' in row 1" in feature
    assert unusable == "warning: 3 of 5 rows are not usable: see the reasons in column 'error'"
    errors = pd.read_feather(tmp_path / "s.arrow")["error"]
    assert errors.notna().tolist() == [False, True, True, False, True] and "'high'" in errors[2]
    assert errors[4] == "2 fields where the header has 3 (line 6 of t.csv)"


def test_featurize_replaces_nothing_unasked(cli, demo_csv, tmp_path):
    (tmp_path / "precious.arrow").write_text("my notes")
    code, _, err = cli("featurize", demo_csv, "-o", tmp_path / "precious.arrow")
    assert code == 2 and "exists already" in err and (tmp_path / "precious.arrow").read_text() == "my notes"
    assert cli("featurize", demo_csv, "-o", tmp_path / "precious.arrow", "--overwrite")[0] == 0
    assert len(GraphStore.open(tmp_path / "precious.arrow")) == 60


@pytest.fixture(scope="module")
def store_run(demo_store, tiny_flags, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "store"
    assert main(["train", "--dataset", str(demo_store), *tiny_flags, "-o", str(folder)]) == 0
    return folder


def test_a_store_trains_as_its_table(store_run, demo_csv, tiny_flags, cli, tmp_path, weights_of):
    assert cli("train", "--dataset", demo_csv, *tiny_flags, "-o", tmp_path / "run")[0] == 0
    for name in ("metrics.json", "split.csv", "rejected.csv"):
        assert (tmp_path / "run" / name).read_text() == (store_run / name).read_text()
    ours, theirs = weights_of(store_run), weights_of(tmp_path / "run")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("part", [None, "valid", "all"])
def test_a_store_is_judged_as_its_table(part, store_run, demo_store, demo_csv, cli):
    split = [] if part is None else ["--split", part]
    own, store, table = (
        cli("evaluate", store_run, *data, *split) for data in ([], ["--dataset", demo_store], ["--dataset", demo_csv])
    )
    # Only without --dataset the molecules are known to be those of the run.
    notes = [line for line in own[2].splitlines() if "the coverage is no test" not in line]
    assert own[:2] == store[:2] and own[0] == table[0] == 0 and notes == store[2].splitlines() == table[2].splitlines()
    assert ("Morgan fingerprint of a training molecule" in own[2]) == (part == "all") and len(notes) <= 1
    assert own[1].removeprefix(str(demo_store)) == table[1].removeprefix(str(demo_csv))

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from graphslice.data.ogb import import_ogb_lsc
from graphslice.errors import InputError
from graphslice.evaluation import submission
from graphslice.evaluation.submission import submit
from graphslice.inference.predictor import load
from graphslice.runs.checkpoint import read_checkpoint, save_checkpoint
from graphslice.runs.run_files import read_training
from graphslice.training import train


def contents(path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def root(make_ogb, tmp_path_factory):
    root = tmp_path_factory.mktemp("ogb")
    for name in ("pcqm4m", "pcqm4mv2"):
        make_ogb(root, name)
    return root


@pytest.fixture(scope="module")
def ogb_run(root, tiny_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "ogb"
    console = Console(file=io.StringIO(), width=200)
    result = train(tiny_config("pcqm4m", data={"root": str(root)}), folder, console=console)
    assert list(result.metrics) == ["metric", "valid"]  # the test labels are hidden
    assert "note: the leaderboard of pcqm4m is closed; that of pcqm4mv2 is open\n" in console.file.getvalue()
    return folder


@pytest.mark.parametrize("dataset", ["pcqm4m", "pcqm4mv2"])
def test_evaluate_prints_the_manually_computed_mae(cli, offline, ogb_run, root, dataset):
    folder = root / {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}[dataset]
    table = pd.read_csv(folder / "raw" / "data.csv.gz")
    valid = table.iloc[torch.load(folder / "split_dict.pt", weights_only=False)["valid"]]
    predicted = load(ogb_run, "cpu").predict(valid["smiles"])[:, 0]
    expected = np.abs(predicted - valid["homolumogap"]).mean()
    code, out, _ = cli("evaluate", ogb_run, "--dataset", dataset, "--root", root, "--split", "valid")
    assert code == 0
    assert float(re.search(r"MAE ([\d.]+), .* on 10 molecules", out)[1]) == pytest.approx(expected, abs=2e-6)
    assert cli("evaluate", ogb_run, "--dataset", dataset, "--root", root)[1] == out  # the default split


def test_submit_requires_all_molecules_of_ogb(cli, offline, ogb_run, root, tmp_path):
    out_folder = tmp_path / "submission"
    code, out, err = cli("submit", ogb_run, "--dataset", "pcqm4mv2", "--root", root, "-o", out_folder)
    assert code == 2 and out == "" and not out_folder.exists()
    assert err.endswith(f"test-dev of pcqm4mv2 in {root} has 5 molecules, but a submission needs OGB's 147,037\n")


def test_submission_matches_that_of_ogb(cli, offline, ogb_run, root, tmp_path, monkeypatch):
    monkeypatch.setitem(submission.TEST_SPLIT_SIZES, "pcqm4m", {"test": 10})
    code, out, err = cli("submit", ogb_run, "--dataset", "pcqm4m", "--root", root, "-o", tmp_path / "new" / "folder")
    assert code == 0 and "the leaderboard of pcqm4m is closed; that of pcqm4mv2 is open" in err
    file = tmp_path / "new" / "folder" / "y_pred_pcqm4m.npz"
    assert out.strip() == str(file) and list(file.parent.iterdir()) == [file]
    assert cli("submit", ogb_run, "--dataset", "pcqm4m", "--root", root, "-o", file.parent)[0] == 2  # it exists

    table = pd.read_csv(root / "pcqm4m_kddcup2021" / "raw" / "data.csv.gz")
    rows = torch.load(root / "pcqm4m_kddcup2021" / "split_dict.pt", weights_only=False)["test"]
    assert (np.diff(rows) < 0).any()
    predicted = load(ogb_run, "cpu").predict(table["smiles"][rows])[:, 0]
    np.testing.assert_allclose(contents(file)["y_pred"], predicted, rtol=1e-5)
    assert contents(file)["y_pred"].dtype == np.float32 and list(contents(file)) == ["y_pred"]


def test_submission_of_several_runs_is_the_mean_of_their_submissions(
    cli, offline, ogb_run, root, tiny_config, tmp_path, monkeypatch
):
    """The runs have other architectures, losses with other outputs, and labels normalised otherwise."""
    monkeypatch.setitem(submission.TEST_SPLIT_SIZES, "pcqm4m", {"test": 10})
    runs = [ogb_run]
    for name, model, loss in (
        ("softmax", {"mixer": "softmax", "dim": 32}, "auto"),
        ("csp", {"mixer": "csp"}, "gaussian"),
    ):
        config = tiny_config("pcqm4m", data={"root": str(root)}, model=model, trainer={"loss": loss, "seed": 3})
        train(config, tmp_path / name)
        checkpoint = read_checkpoint(tmp_path / name)
        checkpoint.weights["target_mean"] = checkpoint.weights["target_mean"] + 2
        checkpoint.weights["target_std"] = checkpoint.weights["target_std"] * 3
        save_checkpoint(checkpoint, tmp_path / name / "model.safetensors")
        runs.append(tmp_path / name)
    single = []
    for number, models in enumerate([*([run] for run in runs), runs]):
        code, out, err = cli("submit", *models, "--dataset", "pcqm4m", "--root", root, "-o", tmp_path / str(number))
        assert code == 0
        single.append(contents(out.strip())["y_pred"])
    *single, together = single
    assert np.ptp([values.mean() for values in single]) > 1
    np.testing.assert_allclose(together, np.mean(single, axis=0, dtype=np.float64), rtol=1e-5)
    records = {str(run): read_training(run) for run in runs}
    for run, record in records.items():
        assert f"{run}: {record['parameters']:,} parameters, trained in 0:0" in err
        assert f"on {record['device']}\n" in err
    assert f"in all: {sum(record['parameters'] for record in records.values()):,} parameters\n" in err
    assert "10 molecules predicted in 0:0" in err
    (runs[0] / "training.json").rename(tmp_path / "moved.json")
    try:
        arguments = ("submit", *runs, "--dataset", "pcqm4m", "--root", root, "-o", tmp_path / "json", "--json")
        assert json.loads(cli(*arguments)[1])["runs"] == records | {str(runs[0]): {}}
    finally:
        (tmp_path / "moved.json").rename(runs[0] / "training.json")


def test_runs_on_other_data_are_not_averaged(cli, offline, ogb_run, root, tiny_config, tmp_path):
    train(tiny_config("pcqm4mv2", data={"root": str(root)}), tmp_path / "v2")
    code, out, err = cli(
        "submit", ogb_run, tmp_path / "v2", "--dataset", "pcqm4m", "--root", root, "-o", tmp_path / "o"
    )
    assert (code, out) == (2, "") and f"{tmp_path / 'v2'} and {ogb_run} differ in data, targets" in err
    assert err.count("\n") == 1 and not (tmp_path / "o").exists()
    code, _, err = cli("evaluate", ogb_run, tmp_path / "v2", "--root", root)
    assert code == 2 and "differ in data, targets" in err


def test_v2_has_a_file_for_each_test_split(offline, ogb_run, root, tmp_path, monkeypatch):
    """OGB's evaluator takes the whole splits only."""
    monkeypatch.setitem(submission.TEST_SPLIT_SIZES, "pcqm4mv2", {"test-dev": 5, "test-challenge": 5})
    saved = {}

    def save(evaluator, contents, folder, split):
        saved[split] = len(contents["y_pred"])

    monkeypatch.setattr(import_ogb_lsc().PCQM4Mv2Evaluator, "save_test_submission", save)
    files = submit(load(ogb_run, "cpu"), "pcqm4mv2", root, tmp_path)
    assert saved == {"test-dev": 5, "test-challenge": 5}
    assert [file.name for file in files] == [f"y_pred_pcqm4m-v2_{split}.npz" for split in saved]


def test_submit_rejects_molecules_without_prediction(offline, ogb_run, make_ogb, tmp_path, monkeypatch):
    folder = make_ogb(tmp_path)
    table = pd.read_csv(folder / "raw" / "data.csv.gz")
    row = int(torch.load(folder / "split_dict.pt", weights_only=False)["test"][4])
    table.loc[row, "smiles"] = "oops"
    table.to_csv(folder / "raw" / "data.csv.gz", index=False)
    monkeypatch.setitem(submission.TEST_SPLIT_SIZES, "pcqm4m", {"test": 10})
    with pytest.raises(InputError, match=f"no prediction of 1 molecule of pcqm4m test; the first, row {row + 1}: "):
        submit(load(ogb_run, "cpu"), "pcqm4m", tmp_path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_submit_rejects_other_datasets_and_targets(cli, offline, run_directory, root, tmp_path):
    for dataset, reason in (("demo", "not 'demo'"), ("pcqm4m", "predicts gap_ev, but pcqm4m requires homolumogap")):
        code, _, err = cli("submit", run_directory, "--dataset", dataset, "--root", root, "-o", tmp_path / "out")
        assert code == 2 and reason in err and not (tmp_path / "out").exists()

import io
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

import graphslice as gs
from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import load_evaluation_data
from graphslice.runs.run_files import read_config, read_splits
from graphslice.system.console import WorkProgress
from graphslice.training import resume, train
from graphslice.training.resolve import fit_to_dataset, member_configs
from graphslice.training.train_run import _describe_members, train_member


@pytest.fixture(scope="module")
def table(demo_rows, tmp_path_factory):
    """The rows of the demo set without a split column."""
    path = tmp_path_factory.mktemp("table") / "t.csv"
    demo_rows[["smiles", "gap_ev"]].to_csv(path, index=False)
    return path


# The members of the module's ensemble, which is made before any fixture of a test, are trained in child processes.
pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def ensemble_and_reports(table, tiny_config, tmp_path_factory):
    folder, reports = tmp_path_factory.mktemp("ensemble") / "run", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkProgress, "update", lambda self, *report: reports.append(report))
        train(tiny_config(table, trainer={"max_epochs": 1, "ensemble": 2}), folder)
    return folder, reports


@pytest.fixture(scope="module")
def ensemble(ensemble_and_reports):
    return ensemble_and_reports[0]


def test_progress_of_the_members_is_that_of_the_whole_work(ensemble_and_reports):
    fractions = [done for done, status in ensemble_and_reports[1] if status == "2 models"]
    half = 0.02 + 0.98 * 0.95 / 2  # with one of two members trained
    assert fractions == sorted(fractions) and fractions[0] < half and fractions[-1] == pytest.approx(2 * half - 0.02)


def test_ensemble_directory_predicts_the_mean(ensemble):
    smiles = ["CCO", "c1ccccc1O", "not a molecule"]
    members = [gs.load(ensemble / f"member-{number}", "cpu").predict(smiles) for number in (1, 2)]
    found = gs.load(ensemble, "cpu").predict(smiles, details=True)
    np.testing.assert_allclose(found.values, np.mean(members, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.std, np.std(members, axis=0, ddof=1), rtol=1e-4)
    assert "not a valid SMILES" in found.errors[2] and np.isnan([found.values[2], found.std[2]]).all()
    assert (members[0] != members[1])[:2].all()
    assert gs.load(ensemble / "member-1", "cpu").predict("CCO", details=True).std is None


def test_members_share_the_test_set_but_not_the_validation_set(ensemble):
    splits = [read_splits(ensemble / f"member-{number}") for number in (1, 2)]
    np.testing.assert_array_equal(splits[0]["test"], splits[1]["test"])
    np.testing.assert_array_equal(splits[0]["test"], read_splits(ensemble)["test"])
    assert set(splits[0]["valid"]) != set(splits[1]["valid"])
    assert not set(splits[0]["test"]) & set(splits[1]["valid"])


def test_ensemble_scores_match_manual_computation(ensemble, table):
    metrics = json.loads((ensemble / "metrics.json").read_text())
    rows, splits = pd.read_csv(table), read_splits(ensemble)
    predictions = gs.load(ensemble, "cpu").predict(rows["smiles"][splits["test"]])[:, 0]
    expected = np.abs(predictions - rows["gap_ev"][splits["test"]]).mean()
    assert metrics["test"]["mae"] == pytest.approx(expected, rel=1e-5)
    # Each validation molecule is predicted by the members that held it out.
    total: dict[int, list[float]] = {}
    for number in (1, 2):
        member = ensemble / f"member-{number}"
        valid = read_splits(member)["valid"]
        for row, value in zip(valid, gs.load(member, "cpu").predict(rows["smiles"][valid])[:, 0], strict=True):
            total.setdefault(int(row), []).append(value)
    expected = np.mean([abs(np.mean(values) - rows["gap_ev"][row]) for row, values in total.items()])
    assert metrics["valid"]["mae"] == pytest.approx(expected, rel=1e-5)
    each = [
        json.loads((ensemble / name / "metrics.json").read_text())["test"]["mae"] for name in ("member-1", "member-2")
    ]
    assert [found["test"] for found in metrics["members"].values()] == pytest.approx(each)


def test_validation_split_is_rejected_if_other_members_trained_on_it(ensemble, cli, table):
    assert cli("evaluate", ensemble, "--split", "test")[0] == 0
    for split in ("valid", "train"):
        code, _, err = cli("evaluate", ensemble, "--split", split)
        assert code == 2 and f"must be test or all, not '{split}'" in " ".join(err.split())
    assert cli("evaluate", ensemble / "member-1", "--split", "valid")[0] == 0


def test_stopped_ensemble_is_resumed(ensemble, tmp_path, monkeypatch):
    """An available GPU that was not selected is not used for the evaluation."""
    monkeypatch.setattr("graphslice.inference.predictor.default_device", lambda: "cuda")
    folder = tmp_path / "run"
    shutil.copytree(ensemble, folder)
    shutil.rmtree(folder / "member-2")
    before = (folder / "member-1" / "model.safetensors").stat().st_mtime_ns
    (folder / "metrics.json").unlink()
    again = resume(folder)
    assert (folder / "member-1" / "model.safetensors").stat().st_mtime_ns == before
    expected = json.loads((ensemble / "metrics.json").read_text())
    assert again.metrics["test"]["mae"] == pytest.approx(expected["test"]["mae"], rel=1e-6)


def test_resuming_a_finished_ensemble_changes_nothing(ensemble, tmp_path):
    shutil.copytree(ensemble, tmp_path / "run")
    before = (tmp_path / "run" / "calibration.safetensors").stat().st_mtime_ns
    again = resume(tmp_path / "run")
    assert (tmp_path / "run" / "calibration.safetensors").stat().st_mtime_ns == before
    assert again.metrics == json.loads((ensemble / "metrics.json").read_text())


def test_baselines_with_different_metrics_are_not_averaged(ensemble, tmp_path):
    """This occurs if the validation set of one member has a single class, for which AUROC is undefined."""
    for other in ("mae", "loss"):
        folders = [shutil.copytree(ensemble / name, tmp_path / other / name) for name in ("member-1", "member-2")]
        for folder, metric in zip(folders, ("mae", other), strict=True):
            found = json.loads((folder / "metrics.json").read_text())
            found |= {"metric": metric, "baselines": {"test": {"network": 0.5, "forest": 0.7, "stack": 0.6}}}
            (folder / "metrics.json").write_text(json.dumps(found))
        screen = io.StringIO()
        _describe_members(folders, {"a": {"test": 0.5}, "b": {"test": 0.5}}, "mae", 0, Console(file=screen, width=500))
        assert ("network 0.5000 ± 0.0000, random forest" in screen.getvalue()) == (other == "mae")


def test_saved_configurations_of_members_are_those_of_the_ensemble(ensemble):
    for name, config in member_configs(read_config(ensemble)).items():
        assert read_config(ensemble / name) == config
        assert (config.init_from, config.data.transform, config.optimizer.peak_lr) == ("none", "none", 1e-3)


def test_cross_validation_tests_each_molecule_once(table, tiny_config, tmp_path):
    result = train(tiny_config(table, data={"folds": "3"}, trainer={"max_epochs": 1}), tmp_path / "run")
    tests = [read_splits(tmp_path / "run" / f"member-{number}")["test"] for number in (1, 2, 3)]
    assert sorted(np.concatenate(tests).tolist()) == list(range(60))
    assert result.metrics["test"]["molecules"] == 60 and len(result.metrics["members"]) == 3
    assert read_splits(tmp_path / "run") is None  # every molecule is in the training set of some member
    found = pd.read_csv(tmp_path / "run" / "out_of_fold.csv")
    assert (
        found["row"].tolist() == list(range(1, 61))
        and found["smiles"].tolist() == pd.read_csv(table)["smiles"].tolist()
    )
    expected = np.abs(found["gap_ev_pred"] - pd.read_csv(table)["gap_ev"]).mean()
    assert result.metrics["test"]["mae"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(gs.InputError, match="all molecules of"):
        load_evaluation_data(gs.load(tmp_path / "run", "cpu"), tmp_path / "run", {})
    first = gs.load(tmp_path / "run" / "member-1", "cpu").predict(found["smiles"][tests[0]])[:, 0]
    np.testing.assert_allclose(found["gap_ev_pred"][tests[0]], first, rtol=1e-5)


def test_cross_validation_with_an_untrainable_fold_is_not_started(demo_rows, tiny_config, tmp_path):
    """The only label of a target is in the test set of one fold, whose training set then has none."""
    labels = [1.5, *[None] * 59]
    demo_rows[["smiles", "gap_ev"]].assign(other=labels).to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(tmp_path / "t.csv", data={"targets": "gap_ev,other", "folds": "3"})
    with pytest.raises(InputError, match=r"no training row has a value.* of the target 'other': leave it out"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_iterator_of_graphs_reaches_every_member(demo_rows, tiny_config, tmp_path):
    def graphs():
        for smiles, gap in zip(demo_rows["smiles"][:30], demo_rows["gap_ev"][:30], strict=True):
            graph = gs.smiles_to_graph(smiles).to_pyg()
            graph.y = torch.tensor([gap])
            yield graph

    config = tiny_config("pyg", data={"targets": "gap_ev"}, trainer={"max_epochs": 1, "ensemble": 2})
    result = train(config, tmp_path / "run", data=graphs())
    assert len(result.metrics["members"]) == 2 and result.metrics["test"]["molecules"] == 3


def test_member_configurations(tiny_config):
    assert member_configs(tiny_config()) == {}
    found = member_configs(tiny_config(trainer={"ensemble": 3}))
    assert [config.trainer.seed for config in found.values()] == [0, 1, 2]
    found = member_configs(tiny_config(trainer={"ensemble": 3, "seed": 5}))
    assert [config.trainer.seed for config in found.values()] == [15, 16, 17], "no ensemble of another seed has these"
    found = member_configs(tiny_config(trainer={"ensemble": 3, "seed": 2**32 - 1}))
    assert all(0 <= config.trainer.seed < 2**32 for config in found.values())
    assert [config.data.carve for config in found.values()] == [0, 1, 2]
    assert all(config.trainer.ensemble == 1 for config in found.values())
    folds = member_configs(tiny_config(data={"folds": "2x3"}))
    assert [config.data.fold for config in folds.values()] == [0, 1, 2, 3, 4, 5]
    assert all(member_configs(config) == {} for config in [*found.values(), *folds.values()])
    assert isinstance(folds["member-1"].data, DataConfig)


def test_ensembles_of_cross_validations_are_rejected(tiny_config):
    with pytest.raises(InputError, match=r"leave out trainer.ensemble"):
        member_configs(tiny_config(data={"folds": "2"}, trainer={"ensemble": 2}))


def test_a_member_is_not_trained_on_a_table_that_has_changed(demo_rows, tiny_config, tmp_path):
    """Members load the table themselves, hours after the run was started."""
    demo_rows.to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(tmp_path / "t.csv")
    config = fit_to_dataset(config, load_dataset(config.data), tmp_path)
    demo_rows[::-1].to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"t\.csv has changed since the run was started"):
        train_member(config, tmp_path / "member-1", None)
    assert not (tmp_path / "member-1" / "config.yaml").exists()

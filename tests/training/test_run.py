"""Run directories, what they reject, their splits, and the printed summary of the data."""

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from filelock import FileLock
from json_documents import parse
from rich.console import Console

import graphslice as gs
from graphslice.config import RunConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError
from graphslice.pretraining.run import pretrain
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import BEST, read_splits
from graphslice.system.machine import DEMO_CSV
from graphslice.tasks import regression_tasks
from graphslice.training import resume, train
from graphslice.training.data_summary import data_warnings, outlier_notes, outliers, print_data_summary
from graphslice.training.resolve import resolve

FILES = {"model.safetensors", "last.ckpt", "config.yaml", "metrics.json", "training.json", "split.csv", "rejected.csv"}
FILES |= {"start.json", "test_predictions.csv", "valid_predictions.csv", "logs"}
NO_DROPOUT = {"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0}


def read_rows(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def logged(folder, column: str) -> list[float]:
    (log,) = folder.glob("logs/version_*/metrics.csv")
    return pd.read_csv(log)[column].dropna().tolist()


@pytest.fixture
def pyg_data(demo_rows):
    data = []
    for smiles, gap in zip(demo_rows["smiles"], demo_rows["gap_ev"], strict=True):
        data.append(gs.smiles_to_graph(smiles).to_pyg())
        data[-1].y = torch.tensor([[gap, 2 * gap if len(smiles) % 2 else float("nan")]])
    return data


# --- the run directory --------------------------------------------------------------------------


def test_contents_of_the_run_directory(run_directory, demo_rows, demo_csv):
    assert {path.name for path in run_directory.iterdir()} == FILES
    config = RunConfig.from_dict(yaml.safe_load((run_directory / "config.yaml").read_text()))
    assert config.data.dataset == str(demo_csv) and config.data.targets == "gap_ev" and config.model.dim == 16
    metrics = parse((run_directory / "metrics.json").read_text())
    assert metrics.pop("metric") == "mae"
    assert {part: metrics[part]["molecules"] for part in metrics} == {"valid": 7, "test": 6}
    assert metrics["test"]["mae"] == metrics["test"]["targets"]["gap_ev"]["mae"] > 0
    training = parse((run_directory / "training.json").read_text())
    assert training["parameters"] == gs.load(run_directory, "cpu").model.num_parameters and training["steps"] == 6
    assert 2 * 47 / training["molecules_per_second"] == pytest.approx(training["seconds"], rel=2e-4, abs=6e-4)
    assert training["total_seconds"] > training["seconds"]
    assert 50e6 < training["peak_memory_bytes"] < 50e9
    assert training["device"] and {key: training[key] for key in ("devices", "precision", "compiled")} == {
        "devices": 1,
        "precision": "32-true",
        "compiled": False,
    }
    checkpoint = read_checkpoint(run_directory / "model.safetensors")
    assert (checkpoint.config, checkpoint.targets, checkpoint.extra["version"]) == (config, ["gap_ev"], gs.__version__)
    labels = demo_rows["gap_ev"][demo_rows["split"] == "train"]
    assert checkpoint.weights["target_mean"].item() == pytest.approx(labels.mean(), rel=1e-6)
    assert checkpoint.weights["target_std"].item() == pytest.approx(labels.std(ddof=0), rel=1e-6)
    rows = read_rows(run_directory / "split.csv")
    assert [int(row["row"]) for row in rows] == list(range(1, 61))
    assert [(row["split"], row["smiles"]) for row in rows] == list(
        demo_rows[["split", "smiles"]].itertuples(index=False, name=None)
    )
    assert (run_directory / "rejected.csv").read_text() == "row,smiles,reason\n"


def test_best_epoch_is_chosen_by_the_mean_over_five_epochs(tmp_path, demo_csv, tiny_config):
    """With a small validation set, a single epoch may be good by chance."""
    train(tiny_config(demo_csv, trainer={"max_epochs": 8, "batch_size": 32}), tmp_path / "run")
    errors, choices = (logged(tmp_path / "run", name) for name in ("val_mae", "val_choice"))
    assert choices == pytest.approx([np.mean(errors[max(0, i - 4) : i + 1]) for i in range(8)], rel=1e-5)
    best = parse((tmp_path / "run" / "metrics.json").read_text())["valid"]["mae"]
    assert best == pytest.approx(errors[int(np.argmin(choices))], rel=1e-5)


# --- rejected runs ------------------------------------------------------------------------------


def test_existing_files_are_not_overwritten(run_copy, tmp_path, demo_csv, tiny_config):
    with pytest.raises(InputError, match="holds a run already"):
        train(tiny_config(demo_csv), run_copy)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("mine")
    with pytest.raises(InputError, match="holds no run"):
        train(tiny_config(demo_csv), tmp_path / "mine", overwrite=True)
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]


def test_overwrite_removes_the_old_run(run_copy, demo_csv, tiny_config, weights_of):
    folder = run_copy
    (folder / "logs" / "version_7").mkdir()
    train(tiny_config(demo_csv, model={"dim": 8}, trainer={"max_epochs": 1}), folder, overwrite=True)
    assert {path.name for path in folder.iterdir()} == FILES and not (folder / "logs" / "version_7").exists()
    assert weights_of(folder)["head.weight"].shape == (1, 8) and len(logged(folder, "val_mae")) == 1


def test_input_files_are_not_overwritten(run_copy, tmp_path, demo_rows, tiny_config):
    for path in (tmp_path / "t.csv", run_copy / "split.csv"):
        demo_rows[["smiles", "gap_ev"]].to_csv(path, index=False)
    for dataset, settings in ((run_copy / "split.csv", {}), (tmp_path / "t.csv", {"test_file": str(path)})):
        with pytest.raises(InputError, match=r"would overwrite its input .*split\.csv"):
            train(tiny_config(dataset, data=settings), run_copy, overwrite=True)
    with pytest.raises(InputError, match="would overwrite its input"):
        train(replace(tiny_config(tmp_path / "t.csv"), init_from=str(run_copy / BEST)), run_copy, overwrite=True)
    assert {path.name for path in run_copy.iterdir()} == FILES and len(pd.read_csv(run_copy / "split.csv")) == 60


@pytest.fixture
def locked_run(run_copy):
    """A copy of a finished run that another process has locked; it is unchanged at the end."""

    def files() -> dict:
        return {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}

    before = files()
    with FileLock(run_copy / ".lock"):
        yield run_copy
    (run_copy / ".lock").unlink()
    assert files() == before


def test_second_training_in_a_locked_directory_is_rejected(locked_run, tiny_config, demo_csv):
    message, config = f"another process is using {locked_run}", tiny_config(demo_csv)
    with pytest.raises(InputError, match=message):
        train(config, locked_run, overwrite=True)
    with pytest.raises(InputError, match=message):
        pretrain([demo_csv], config, locked_run, overwrite=True)
    with pytest.raises(InputError, match=message):
        resume(locked_run)


def test_only_the_first_process_of_a_distributed_run_locks(locked_run, tiny_config, demo_csv, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(InputError, match="none-such"):  # found after the lock
        train(tiny_config(demo_csv, model={"mixer": "none-such"}), locked_run)


def test_late_process_does_not_resume_the_old_run(run_copy, demo_csv, tiny_config, weights_of, monkeypatch):
    """The first process removes the old run; until then, the others see its last checkpoint."""
    monkeypatch.setattr("graphslice.training.train_run.is_first_process", lambda: False)
    result = train(tiny_config(demo_csv, model={"dim": 8}, trainer={"max_epochs": 1}), run_copy, overwrite=True)
    assert result.training["steps"] == 3 and weights_of(run_copy)["head.weight"].shape == (1, 8)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"data": {"targets": "gap"}}, "no column 'gap'"),
        ({"graph": {"max_atoms": 1}}, "no row can be used"),
        ({"trainer": {"accelerator": "abacus"}}, "this machine cannot train with these settings"),
        ({"trainer": {"metric": "auroc"}}, "auroc"),
        ({"trainer": {"ensemble": 2, "devices": "2"}}, "each member .* uses one device"),
    ],
)
def test_invalid_settings_write_and_remove_nothing(tmp_path, run_copy, demo_csv, tiny_config, sections, reason):
    before = {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}
    for folder, overwrite in ((tmp_path / "new", False), (run_copy, True)):
        with pytest.raises(InputError, match=reason):
            train(tiny_config(demo_csv, **sections), folder, overwrite=overwrite)
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()} == before


# --- datasets -----------------------------------------------------------------------------------


def test_rejected_rows_and_invalid_labels_are_listed_with_reasons(tmp_path, demo_rows, tiny_config):
    table = demo_rows[["smiles", "gap_ev"]].astype({"gap_ev": object}).assign(other=demo_rows["gap_ev"].astype(object))
    table.loc[3, "smiles"], table.loc[10, "smiles"] = "oops", None
    table.loc[[20, 30], ["gap_ev", "other"]] = None
    table.loc[[5, 20], "other"] = "low"  # row 6 is used with its other label
    (tmp_path / "t.csv").write_text(table.to_csv(index=False) + "CCO,1,2,3\n")
    output = io.StringIO()
    config = tiny_config(tmp_path / "t.csv", data={"targets": "gap_ev,other"}, trainer={"max_epochs": 1})
    train(config, tmp_path / "run", console=Console(file=output, width=60))
    assert "warning: 4 rows are rejected (see rejected.csv); the first, row 4: not a valid " in output.getvalue()
    assert "\nnote: 1 row has no value of any target and is not used\n" in output.getvalue()
    invalid = "target 'other' is not a finite number: 'low'"
    assert (
        f"1 row is used without an invalid label (see rejected.csv); the first, row 6: {invalid}" in output.getvalue()
    )
    rejected = {int(row["row"]): row["reason"] for row in read_rows(tmp_path / "run" / "rejected.csv")}
    assert set(rejected) == {4, 6, 11, 21, 31, 61} and rejected[11] == "empty SMILES" and rejected[21] == invalid
    assert rejected[6] == f"{invalid}; used without this label"
    assert rejected[61] == "4 fields where the header has 3 (line 62 of t.csv)"
    split = [int(row["row"]) for row in read_rows(tmp_path / "run" / "split.csv")]
    assert split == [row for row in range(1, 61) if row == 6 or row not in rejected]


@pytest.mark.parametrize(
    ("rows", "data", "expected"),
    [(54, {}, "only 49 molecules for training"), (60, {}, None), (54, {"folds": "2"}, "only 27 molecules")],
)
def test_warning_about_few_molecules(rows, data, expected, tmp_path, demo_rows, tiny_config):
    demo_rows[["smiles", "gap_ev"]].head(rows).to_csv(tmp_path / "t.csv", index=False)
    config, console = tiny_config(tmp_path / "t.csv", data=data), Console(file=io.StringIO(), width=60)
    print_data_summary(console, resolve(config, load_dataset(config.data), tmp_path, console)[1])
    warnings = [line for line in console.file.getvalue().splitlines() if line.startswith("warning")]
    assert len(warnings) == (expected is not None)
    if expected is not None:
        assert expected in warnings[0] and ("data.folds 5" in warnings[0]) == (not data)


@pytest.mark.parametrize(
    ("rows", "data", "message"),
    [
        (3, {}, "2 molecules for training and validation, but at least 10 are needed: add labelled .*smaller test set"),
        (12, {"rejected": "any"}, r"8 molecules .* needed \(3 rows are rejected; the first, row 1: not a valid"),
        (12, {"folds": "3"}, "8 molecules .* needed: add labelled molecules"),
    ],
)
def test_too_few_molecules_are_rejected_before_anything_is_written(rows, data, message, tmp_path, tiny_config):
    smiles = ["C" * (1 + row) for row in range(rows)]
    if "rejected" in data:
        smiles[:3] = ["oops"] * 3
    pd.DataFrame({"smiles": smiles, "y": np.arange(float(rows))}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=message):
        train(tiny_config(tmp_path / "t.csv", data=data), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_training_on_pyg_data(tmp_path, tiny_config, pyg_data):
    result = gs.train(tiny_config(data={"targets": "gap,double"}), tmp_path / "run", data=pyg_data)
    assert set(result.metrics["test"]["targets"]) == {"gap", "double"}
    model = gs.load(tmp_path / "run", "cpu")
    assert model.targets == ["gap", "double"] and model.config.data.dataset == "pyg"
    assert np.isfinite(model.predict(pyg_data[:3])).all()
    with pytest.raises(InputError, match=r"was trained on PyG data.*resume\(folder, data=...\)"):
        resume(tmp_path / "run")
    again = resume(tmp_path / "run", data=pyg_data)
    assert str(again.metrics) == str(result.metrics) and gs.load(tmp_path / "run", "cpu").targets == ["gap", "double"]


# --- training -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_compiled_run_matches_eager_run(tmp_path, tiny_config, weights_of, monkeypatch):
    """The weights are close to those of the eager run, which does not load torch's compiler; the two batches of the
    epoch differ in size.

    All molecules have as many atoms, since each number of rows would be compiled for seconds.
    """
    marks: list[str] = []
    table = pd.read_csv(DEMO_CSV).head(1000).drop(columns="split")
    sizes = np.array([gs.smiles_to_graph(smiles).num_atoms for smiles in table["smiles"]])
    table[sizes == 12].head(60).to_csv(tmp_path / "t.csv", index=False)
    output = io.StringIO()
    for name in ("off", "on"):
        settings = {"max_epochs": 1, "batch_size": 32, "compile": name}
        config = tiny_config(tmp_path / "t.csv", model=NO_DROPOUT, trainer=settings)
        monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda name=name: marks.append(name))
        result = train(config, tmp_path / name, console=Console(file=output))
        assert result.training["compiled"] == (name == "on"), output.getvalue()
    assert set(marks) == {"on"}
    found, expected = weights_of(tmp_path / "on"), weights_of(tmp_path / "off")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)


def test_early_stopping(tmp_path, demo_csv, tiny_config):
    """With a learning rate so small that nothing changes, no epoch is better than the first."""
    config = tiny_config(
        demo_csv, optimizer={"peak_lr": 1e-30, "end_lr": 0.0}, trainer={"max_epochs": 30, "patience": 3}
    )
    train(config, tmp_path / "run")
    assert len(logged(tmp_path / "run", "val_mae")) == 4
    metrics = (tmp_path / "run" / "metrics.json").read_text()
    (tmp_path / "run" / "metrics.json").unlink()
    assert resume(tmp_path / "run").training["steps"] == 12, "its patience was over when it was stopped"
    assert (tmp_path / "run" / "metrics.json").read_text() == metrics


def test_last_steps_are_validated(tmp_path, demo_csv, tiny_config):
    """Also in an incomplete epoch, so that model.safetensors may be the model at the end of the schedule."""
    result = train(tiny_config(demo_csv, trainer={"max_steps": 5}), tmp_path / "run")  # an epoch has 3
    log = pd.read_csv(tmp_path / "run" / "logs" / "version_0" / "metrics.csv")["val_mae"].dropna()
    assert len(log) == 2 and result.training["steps"] == 5
    assert result.metrics["valid"]["mae"] == pytest.approx(log.min(), abs=1e-5)


def test_worker_processes_do_not_change_the_weights(tmp_path, demo_csv, tiny_config, run_directory, weights_of):
    train(tiny_config(demo_csv, trainer={"workers": 1}), tmp_path / "run")
    found, expected = weights_of(tmp_path / "run"), weights_of(run_directory)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_targets_with_conflicting_prediction_columns_are_rejected(tmp_path, tiny_config):
    """The class ``low`` of cls and the lower bound of cls_prob would have the same column name."""
    rows = {"smiles": ["C" * n for n in range(1, 31)], "cls": ["low", "mid", "high"] * 10, "cls_prob": range(30)}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"two prediction columns would be called 'cls_prob_(low|high)': rename"):
        train(tiny_config(tmp_path / "t.csv", data={"targets": "cls,cls_prob"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_split_files_with_duplicates(cli, demo_rows, tiny_flags, tmp_path):
    """Forty training rows, the first of them three times; ten test rows, two of which are in training too."""
    first = demo_rows[:1]
    again = pd.concat([demo_rows[:40], first, first.assign(gap_ev=first["gap_ev"] + 3)])
    again.drop(columns="split").to_csv(tmp_path / "train.csv", index=False)
    demo_rows[38:48].to_csv(tmp_path / "test.csv", index=False)
    folder = tmp_path / "run"
    flags = ["--dataset", tmp_path / "train.csv", "--test-file", tmp_path / "test.csv", "--targets", "gap_ev"]
    code, _, err = cli("train", *flags, "--out", folder, *tiny_flags)
    assert code == 0, err
    splits = read_splits(folder)
    shared = len({38, 39} & set(splits["train"].tolist()))  # the validation set is taken from these rows
    assert (
        "1 molecule with conflicting labels (other classes, or numbers further apart than a tenth of the standard "
        f"deviation): rows 1, 41, 42; possible leakage: {shared} test row{'s' * (shared > 1)} with a molecule of the "
        "training set, or a salt, tautomer or stereoisomer of one"
    ) in err
    assert splits["test"].tolist() == list(range(42, 52)) and len(splits["valid"]) == 5
    labels = again["gap_ev"].to_numpy()
    mean = read_checkpoint(folder).weights["target_mean"]
    assert mean.item() == pytest.approx(labels[splits["train"]].mean(), rel=1e-6)
    metrics = json.loads((folder / "metrics.json").read_text())
    for split in ("valid", "test"):
        code, out, err = cli("evaluate", folder, "--split", split, "--device", "cpu")
        assert code == 0 and float(out.split("MAE ")[1].split(",")[0]) == pytest.approx(metrics[split]["mae"], abs=1e-5)
    demo_rows[37:47].to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(InputError, match="has changed since the run was started"):
        resume(folder)


def test_resumed_run_keeps_its_saved_split(demo_csv, tiny_config, tmp_path):
    """The test set is never trained on."""
    train(tiny_config(demo_csv, data={"split": "random"}), tmp_path / "run")
    for name in ("last.ckpt", "model.safetensors", "metrics.json"):
        (tmp_path / "run" / name).unlink()
    table = pd.read_csv(tmp_path / "run" / "split.csv")
    table["split"] = np.roll(table["split"].to_numpy(), 7)
    table.to_csv(tmp_path / "run" / "split.csv", index=False)
    resume(tmp_path / "run")
    labels = pd.read_csv(demo_csv)["gap_ev"].to_numpy()
    mean = read_checkpoint(tmp_path / "run").weights["target_mean"]
    assert mean.item() == pytest.approx(labels[table["split"] == "train"].mean(), rel=1e-6)


def test_run_without_a_test_set(cli, demo_rows, tiny_flags, tmp_path):
    table, folder = tmp_path / "table.csv", tmp_path / "run"
    demo_rows.drop(columns="split").to_csv(table, index=False)
    words = ["--dataset", table, "--split-sizes", "0.9,0.1,0", *tiny_flags]
    code, _, err = cli("train", *words, "--out", folder)
    assert code == 0 and "test" not in json.loads((folder / "metrics.json").read_text()), err
    splits = {name: len(rows) for name, rows in read_splits(folder).items() if len(rows)}
    assert splits == {"train": 54, "valid": 6}
    code, _, err = cli("evaluate", folder, "--split", "test")
    assert code == 2 and f"table.csv must be {', '.join(splits)} or all, not 'test'" in err


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RANDOM.normal(size=100), None),
        (-RANDOM.lognormal(0, 1.5, 100), None),
        (np.full(20, 3.5), "nothing to learn"),
        (RANDOM.integers(0, 3, 100).astype(float), "has 3 distinct values"),
        (np.array([np.nan, 1.0, 2.0]), None),
    ],
)
def test_warnings_about_suspicious_values(values, expected):
    found = data_warnings(regression_tasks(["y"]), values[:, None])
    assert found == [] if expected is None else (len(found) == 1 and expected in found[0])


NUMBERS = RANDOM.uniform(1, 10, 100)


@pytest.mark.parametrize(
    ("numbers", "others"),
    [
        (NUMBERS, [-999, 9999]),
        (RANDOM.normal(-3, 2, 100), [-999, 999]),
        (NUMBERS, [3e-6, 8e-6, 2e-5]),  # molar among micromolar
        (10 ** RANDOM.normal(0, 0.7, 100), [1e-7, 1e8]),
        (10 ** RANDOM.normal(0, 2, 1000), []),
        (100 - RANDOM.lognormal(1.5, 1, 1000).clip(0, 95), []),
        (np.where(NUMBERS < 9, 0, NUMBERS), []),  # no quartile but 0
        (RANDOM.normal(0, 1, 1000), []),
    ],
)
def test_outliers_are_numbers_far_from_the_others(numbers, others):
    assert np.flatnonzero(outliers(np.array([*others, *numbers]))).tolist() == [*range(len(others))]


def test_rows_of_outliers_are_listed_and_the_run_goes_on(demo_rows, tiny_config, tmp_path):
    labels = demo_rows["gap_ev"].to_numpy().copy()
    labels[[3, 40]] = -999, 9999
    demo_rows.assign(gap_ev=labels).to_csv(tmp_path / "t.csv", index=False)
    output = io.StringIO()
    train(tiny_config(tmp_path / "t.csv"), tmp_path / "run", console=Console(file=output, width=300))
    assert "note: gap_ev: 2 numbers are far from the others: -999 (row 4), 9999 (row 41); is " in output.getvalue()
    labels = np.array([[np.nan, 2e5, *np.linspace(1, 2, 20)]]).T
    assert (
        "1 number is far from the others: 200000 (row 12);"
        in outlier_notes(regression_tasks("y"), labels, np.arange(10, 32))[0]
    )

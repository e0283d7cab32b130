"""``scripts/benchmark.py tables``: splits, scores, commands and tables, without training."""

import argparse
import io
import itertools
import json
import stat
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from benchmarks import table_forest, table_methods, table_report, table_tasks, tables
from benchmarks.results import read_results
from benchmarks.table_tasks import TASKS, Table
from graphslice.chem.descriptors import compute_descriptors

CLASSES = TASKS["tox21"]
NUMBERS = TASKS["caco2_wang"]


def auroc(true, predicted):
    pairs = [(a > b) + 0.5 * (a == b) for a in predicted[true == 1] for b in predicted[true == 0]]
    return np.mean(pairs)


def auprc(true, predicted):
    return np.mean([true[predicted >= threshold].mean() for threshold in predicted[true == 1]])


def spearman(true, predicted):
    ranks = [[(v < x).sum() + ((v == x).sum() - 1) / 2 for x in v] for v in (true, predicted)]
    return np.corrcoef(*ranks)[0, 1]


SLOW = {
    "AUROC": auroc,
    "AUPRC": auprc,
    "Spearman": spearman,
    "MAE": lambda true, predicted: sum(map(abs, true - predicted)) / len(true),
    "RMSE": lambda true, predicted: np.linalg.norm(true - predicted) / len(true) ** 0.5,
}


@pytest.mark.parametrize("metric", table_tasks.METRICS)
def test_scores_match_slow_implementations(metric):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2 if metric in ("AUROC", "AUPRC") else 9, (40, 3)).astype(float)
    predictions = random.integers(0, 20, (40, 3)) / 20  # with ties
    labels[random.random((40, 3)) < 0.3] = np.nan
    known = [~np.isnan(column) for column in labels.T]
    slow = np.mean([SLOW[metric](labels[k, t], predictions[k, t]) for t, k in enumerate(known)])
    assert table_tasks.score(metric, labels, predictions) == pytest.approx(slow)


def test_targets_with_one_class_or_no_labels_are_ignored():
    labels = np.array([[0, 1, np.nan], [1, 1, np.nan], [0, 1, np.nan]])
    predictions = np.array([[0.1, 0.2, 0.3], [0.9, 0.5, 0.1], [0.2, 0.1, 0.2]])
    assert table_tasks.score("AUROC", labels, predictions) == 1
    assert np.isnan(table_tasks.score("AUROC", labels[:, 1:], predictions[:, 1:]))


RINGS = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCNCC1", "c1ccsc1", "c1ccoc1", "c1cc[nH]c1"]
RINGS += ["C1CC1", "C1CCC1", "C1CCCC1"]
# One ring of 60 molecules, more than half a test split; the others of 1 to 10.
MOLECULES = [f"{'C' * i}O" for i in range(60)] + [
    "C" * i + a + b for n, (a, b) in enumerate(itertools.permutations(RINGS, 2)) for i in range(n % 10 + 1)
]


@pytest.mark.parametrize("seed", range(3))
def test_validation_split_is_an_eighth_by_scaffold(seed):
    before = np.where(np.arange(len(MOLECULES)) % 5 == 0, "test", "train").astype(object)
    smiles = np.array(MOLECULES, dtype=object)
    after = table_tasks.split_off_validation(before, smiles, seed)
    train = before == "train"
    assert (after[~train] == "test").all() and set(after[train]) == {"train", "valid"} and (before != "valid").all()
    assert (after == "valid").sum() / train.sum() == pytest.approx(1 / 8, abs=0.02)
    scaffolds = [
        {MurckoScaffold.MurckoScaffoldSmiles(text) for text in smiles[after == name]} for name in ("train", "valid")
    ]
    assert not scaffolds[0] & scaffolds[1]
    assert (after == table_tasks.split_off_validation(before, smiles, seed)).all()
    assert (after != table_tasks.split_off_validation(before, smiles, seed + 1)).any()


def test_scaffolds_are_in_one_split_and_large_ones_in_training():
    found = [table_tasks.balanced_scaffold_split(MOLECULES, seed) for seed in range(3)]
    for split in found:
        at = defaultdict(set)
        for smiles, name in zip(MOLECULES, split, strict=True):
            scaffold = MurckoScaffold.GetScaffoldForMol(Chem.MolFromSmiles(smiles))
            at[Chem.MolToSmiles(scaffold)].add(name)
        assert all(len(names) == 1 for names in at.values()) and at[""] == {"train"} and len(at) > 50
        shares = [(split == name).mean() for name in ("train", "valid", "test")]
        assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert (found[0] != found[1]).any() and (found[1] != found[2]).any()
    assert (found[0] == table_tasks.balanced_scaffold_split(MOLECULES, 0)).all()


def test_invalid_rows_are_dropped_and_columns_found(tmp_path):
    rows = ["mol,Class", "CC,1", "not one,0", "CCC,", *("C" * i + "c1ccccc1,0" for i in range(30))]
    (tmp_path / "bace.csv").write_text("\n".join(rows))
    table = table_tasks.read_table(TASKS["bace"], tmp_path, 0)
    assert len(table.smiles) == 32 and table.smiles[:2].tolist() == ["CC", "CCC"]
    assert table.labels[0] == 1 and np.isnan(table.labels[1]) and table.targets == ["y"]


def test_labels_are_written_unchanged_and_classes_as_integers(tmp_path):
    split = np.array(["train", "valid", "test"], dtype=object)
    labels = np.array([[1, np.nan], [0, 1], [1, 1]])
    table = Table(CLASSES, np.array(["C", "CC", "CCC"], dtype=object), labels, split)
    assert table.frame("train", "valid").to_csv(index=False) == "smiles,y0,y1,split\nC,1,,train\nCC,0,1,valid\n"
    assert table.frame("valid", "test", labels=False).to_csv(index=False) == "smiles\nCC\nCCC\n"
    numbers = Table(NUMBERS, table.smiles, np.array([[0.1], [np.nan], [3]]), split)
    assert numbers.frame("train", "test").to_csv(index=False) == "smiles,y,split\nC,0.1,train\nCCC,3.0,test\n"


def test_every_task_has_its_own_file_and_known_metrics():
    assert len(table_tasks.TDC) == 22 and len(table_tasks.MOLECULE_NET) == 9
    assert len({task.file for task in TASKS.values()}) == 31
    assert all(set(task.metrics) <= set(table_tasks.METRICS) and name == task.name for name, task in TASKS.items())


# Replaces chemprop: stores its input and predicts the number of carbons; "CCCC" has no prediction.
FAKE = """#!{python}
import csv, pathlib, sys
words = sys.argv[1:]
here = pathlib.Path({here!r})
if words == ["--version"]:
    print("fake 1.0")
    sys.exit()
with (here / "calls").open("a") as calls:
    calls.write(" ".join(words) + chr(10))
if words[0] == "train":
    text = pathlib.Path(words[words.index("--data-path") + 1]).read_text()
    (here / "fit.csv").write_text(text)
    if "[Xe]" in text:
        sys.exit("no xenon")
else:
    asked = list(csv.DictReader(open(words[words.index("--test-path") + 1])))
    assert list(asked[0]) == ["smiles"]
    with open(words[words.index("--output") + 1], "w") as out:
        print("smiles,y", file=out)
        for row in asked:
            print(row["smiles"], "" if row["smiles"] == "CCCC" else row["smiles"].count("C"), sep=",", file=out)
"""


@pytest.fixture
def chemprop(tmp_path):
    """Create the command and the tables of two tasks; the second makes the command fail."""
    command = tmp_path / "chemprop"
    command.write_text(FAKE.format(python=sys.executable, here=str(tmp_path)))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "tdc_admet").mkdir()
    for name, more in (("caco2_wang", ""), ("ppbr_az", "[Xe],1,train\n" * 30)):
        rows = "".join(f"{'C' * i},{i + (i % 3 == 0)},test\n" for i in range(1, 6))
        rows += "".join(f"C1{'C' * (i - 1)}1,{i + (i % 3 == 0)},train\n" for i in range(6, 31))  # a scaffold each
        (tmp_path / "tdc_admet" / f"{name}.csv").write_text("smiles,y,split\n" + rows + more)
    return command


def options(tmp_path, chemprop, *words):
    parser = argparse.ArgumentParser()
    tables.add_arguments(parser)
    results = tmp_path / "out" / "results.jsonl"
    shared = map(str, ["--data", tmp_path, "--chemprop", chemprop, "--results", results])
    return parser.parse_args([*shared, "--methods", "chemprop", *words])


def test_finished_results_are_not_computed_again(tmp_path, chemprop):
    begun = options(tmp_path, chemprop, "--tasks", "caco2_wang", "--seeds", "0", "1")
    tables.run(begun)
    lines = read_results(begun.results)
    first = lines[0]
    # The predictions of test rows 1 to 5 are correct except 3, whose label is 4, and 4, which gets the training mean.
    fit = pd.read_csv(tmp_path / "fit.csv")
    assert set(fit["split"]) == {"train", "val"} and not set(fit["smiles"]) & {"C" * i for i in range(1, 6)}
    assert [line["seed"] for line in lines] == [0, 1] and first["version"] == "fake 1.0" and first["unanswered"] == 1
    assert (first["n_train"], first["n_valid"], first["n_test"]) == (21, 4, 5)
    table = table_tasks.read_table(NUMBERS, tmp_path, 0)
    mean = table.labels[table.split == "train"].mean()
    assert first["test"] == pytest.approx((1 + abs(mean - 4)) / 5, abs=1e-5)
    assert first["seconds"] > 0 and first["cpu_seconds"] > 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 4 and "--pytorch-seed 1" in calls[2] and "--task-type regression" in calls[0]

    tables.run(options(tmp_path, chemprop, "--tasks", "caco2_wang", "--seeds", "0", "1"))
    assert len((tmp_path / "calls").read_text().splitlines()) == 4
    begun.results.write_text("".join(json.dumps(line) + "\n" for line in lines[1:]))  # a result was deleted
    tables.run(begun)
    assert [line["seed"] for line in read_results(begun.results)] == [1, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="others adopt no orphans")
def test_cpu_time_of_orphaned_processes_is_counted(tmp_path):
    """Such as the training processes of ensemble members."""
    worker = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    leaver = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {worker!r}])"
    commands = table_methods.Commands(tmp_path, 1)
    commands.run(sys.executable, "-c", leaver)
    assert 0.4 < commands.cpu_seconds < 5


def test_failed_command_is_reported_and_the_others_continue(tmp_path, chemprop, capsys):
    begun = options(tmp_path, chemprop, "--tasks", "ppbr_az", "caco2_wang", "--seeds", "0", "--jobs", "2")
    with pytest.raises(SystemExit, match="1 of 2 failed; the first: ppbr_az, chemprop, 0"):
        tables.run(begun)
    assert "no xenon" in capsys.readouterr().err
    assert [line["task"] for line in read_results(begun.results)] == ["caco2_wang"]


@pytest.mark.parametrize(("task", "ending"), [(CLASSES, "prob_1"), (NUMBERS, "pred")])
def test_graphslice_is_run_by_its_commands(task, ending, tmp_path, monkeypatch):
    commands = []

    def run(self, *words):
        commands.append([str(word) for word in words])
        if "predict" in words:
            ask = pd.read_csv(words[words.index("predict") + 2])
            columns = {f"y{i}_{ending}" if task is CLASSES else f"y_{ending}": [0.25 + i, np.nan] for i in (0, 1)}
            (ask.assign(**columns, y0_prob_0=9.0)).to_csv(words[-1], index=False)

    monkeypatch.setattr(table_methods.Commands, "run", run)
    labels = np.ones((3, 2 if task is CLASSES else 1))
    table = Table(task, np.array(["C", "CC", "CCC"], dtype=object), labels, np.array(["train", "valid", "test"]))
    molecules = table.frame("valid", "test", labels=False)
    method = table_methods.GraphSlice("graphslice-ensemble")
    (found,) = method.predict(table, molecules, 3, table_methods.Commands(tmp_path, 1)).values()
    expected = [[0.25, 1.25], [np.nan] * 2] if task is CLASSES else [[1.25], [np.nan]]
    np.testing.assert_array_equal(found, expected)
    train, predict = commands
    assert train[train.index("--targets") + 1] == ",".join(table.targets) and "--trainer.seed 3" in " ".join(train)
    assert train[-len(method.options) :] == method.options and predict[-1].endswith("predictions.csv")
    assert "CCC" not in (tmp_path / "fit.csv").read_text()


@pytest.mark.slow
def test_graphslice_predicts_regression_targets(tmp_path, monkeypatch):
    monkeypatch.setitem(table_methods.GRAPHSLICE, "graphslice", ["--trainer.max_epochs", "1"])
    smiles = np.array(["C" * i for i in range(1, 25)], dtype=object)
    split = np.array(["train"] * 18 + ["valid"] * 3 + ["test"] * 3, dtype=object)
    table = Table(NUMBERS, smiles, 100 + np.arange(24.0)[:, None], split)
    commands = table_methods.Commands(tmp_path, 1)
    molecules = table.frame("valid", "test", labels=False)
    found = table_methods.GraphSlice("graphslice").predict(table, molecules, 0, commands)
    assert set(found) == {"graphslice", *table_methods.COMPONENTS_OF["graphslice"]}
    for values in found.values():
        assert values.shape == (6, 1) and (abs(values - 108.5) < 40).all()  # the training labels have mean 108.5


def test_forest_is_trained_on_training_rows_only():
    smiles = ["C" * i for i in range(1, 13)] + ["c1ccccc1" + "O" * (i % 2) + "C" * i for i in range(12)]
    fit = pd.DataFrame({"smiles": smiles, "y0": [0] * 12 + [1] * 12, "y1": 0, "split": "train"})
    wrong = fit.assign(y0=1 - fit["y0"], split="valid")
    fit.loc[::5, "y0"] = np.nan
    ask = pd.DataFrame({"smiles": ["CCCCCCCCCCCCCCC", "c1ccccc1CC"]})
    both = pd.concat([fit, wrong])

    def predict(fit: pd.DataFrame, classes: bool) -> pd.DataFrame:
        known, asked = (compute_descriptors(table["smiles"].tolist(), ["morgan"])["morgan"] for table in (fit, ask))
        return table_forest.predict(fit, ask, known, asked, classes=classes, seed=0, threads=1)

    found = predict(both, True)
    assert found["y0"][0] < 0.1 and found["y0"][1] > 0.9 and (found["y1"] == 0).all()
    pd.testing.assert_frame_equal(found, predict(fit, True))
    numbers = predict(both, False)
    assert numbers["y0"][0] < 0.2 and numbers["y0"][1] > 0.8


def test_forest_reads_embeddings(tmp_path, monkeypatch):
    """A row each; of the rows for training alone."""
    fit = pd.DataFrame({"smiles": ["C"] * 24, "y": [0.0, 1.0] * 12, "split": ["train"] * 18 + ["valid"] * 6})
    fit.loc[18:, "y"] = 7.0
    ask = pd.DataFrame({"smiles": ["CC", "CCC"]})
    read = np.stack([fit["y"] % 2, np.zeros(24)], axis=1), np.array([[0.0, 0.0], [1.0, 0.0]])
    for name, table, rows in zip(("fit", "ask"), (fit, ask), read, strict=True):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        np.save(tmp_path / f"{name}.npy", rows)
    files = [str(tmp_path / name) for name in ("fit.csv", "ask.csv", "out.csv")]
    monkeypatch.setattr(sys, "argv", ["table_forest", *files])
    table_forest.main()
    np.testing.assert_allclose(pd.read_csv(files[2])["y"], [0.0, 1.0], atol=0.01)


def line(task, method, seed, test, **more):
    kept = {"metric": TASKS[task].metrics[0], "cpu_seconds": 10.0 * (seed + 1), "machine": "m", "threads": 1}
    return {"task": task, "method": method, "seed": seed, "test": test, "version": "1", **kept, **more}


def test_tables_have_means_standard_deviations_and_wins():
    published = io.StringIO(
        "task,metric,chemprop,chemprop_rdkit,minimol,maplight,maplight_gnn,rdkit2d_mlp,attentivefp,gcn,best\n"
        "caco2_wang,MAE,0.344,0.33,0.35,0.276,0.287,0.335,0.401,,0.256\n"
        "herg,AUROC,0.721,0.84,0.846,0.871,0.88,,,,0.88\ndili,AUROC,0.899,0.887,,,,,,,0.956\n"
    )
    results = [line("caco2_wang", "small-forest", seed, value) for seed, value in enumerate([0.5, 0.3, 0.34])]
    results += [line("caco2_wang", "small-forest", 0, 0.32)]  # the later counts
    results += [line("caco2_wang", "graphslice", 0, 0.335), line("herg", "small-forest", 0, 0.8)]
    results += [line("herg", "graphslice", 0, 0.85), line("dili", "graphslice", 0, 0.5)]
    results += [line("bioavailability_ma", "graphslice", seed, 0.6) for seed in range(5)]
    made = table_report.benchmark_tables(results, pd.read_csv(published, index_col="task"))

    def rows_of(part: str) -> dict[str, list[str]]:
        cells = [list(map(str.strip, row.split("|"))) for row in part.splitlines()]
        return {row[1]: row[2:] for row in cells if len(row) > 5}

    shown, rows = rows_of(made["tdc"]), rows_of(made["tdc-methods"]) | rows_of(made["wins"])
    assert shown["caco2_wang"][:8] == ["MAE ↓", "0.335 (1)", "0.344", "0.330", "0.350", "0.276", "0.287", "0.256"]
    assert shown["dili"][:5] == ["AUROC ↑", "0.500 (1)", "0.899", "0.887", ""]
    assert rows["caco2_wang"][:3] == ["MAE ↓", "0.320 ± 0.020 (3)", "0.335 (1)"]
    assert rows["dili"][:3] == ["AUROC ↑", "", "0.500 (1)"]
    assert rows["bioavailability_ma"][2] == "0.600 ± 0.000"
    others = ["published: Chemprop", "published: Chemprop-RDKit", "published: best", "`small-forest`", "`graphslice`"]
    assert rows["better than"][:5] == others
    assert rows["`small-forest`"][:5] == ["2 of 2", "1 of 2", "0 of 2", "", "1 of 2"]
    assert rows["`graphslice`"][:5] == ["2 of 3", "1 of 3", "0 of 3", "1 of 2", ""]
    # graphslice is fourth on caco2_wang, level with rdkit2d_mlp, third on herg and third on dili.
    ranks = made["ranks"]
    assert "| `small-forest` | 2 | 4.0 | 6.0 | 4.0 | 5.0 | 1.5 | 1.5 | 5.0 | 8.0 |  |" in ranks
    assert "| `graphslice` | 3 | 3.5 | 4.3 | 3.3 | 5.5 | 1.5 | 1.5 | 4.5 | 8.0 |  |" in ranks
    sentence = "the mean rank of MapLight + GNN minus that of `graphslice` is -2.25 (95%"
    assert sentence in ranks and "The two are level" not in ranks
    assert "| caco2_wang | 20 | 10 |" in made["times"]  # the median of 10, 20, 30 seconds


def test_difference_of_mean_ranks_has_an_interval_over_tasks():
    ranks = pd.DataFrame({"a": [1.0, 1, 2, 1], "b": [2.0, 3, 3, np.nan], "c": [1.0, 2, 1, 1]})
    count, mean, low, high = table_report.rank_difference(ranks, "a", "b")
    assert count == 3 and mean == pytest.approx(4 / 3) and (low, high) == (1, 2)
    _, mean, low, high = table_report.rank_difference(ranks, "a", "c")
    assert mean == 0 and low < 0 < high


def test_split_of_a_task_is_checked_for_overlap(tmp_path, capsys):
    (tmp_path / "tdc_admet").mkdir()
    rows = "".join(f"{'C' * i}c1ccccc1,1,train\n" for i in range(1, 20)) + "c1ccccc1C,1,test\n"
    (tmp_path / "tdc_admet" / "caco2_wang.csv").write_text("smiles,y,split\n" + rows)
    table_tasks.read_table(NUMBERS, tmp_path, 0)
    line = "caco2_wang, seed 0: on several sides of the split: canonical SMILES 1, families 1; test rows"
    assert capsys.readouterr().err.startswith(line)


def test_missing_options_of_a_method_are_reported():
    method = table_methods.make_method(table_methods.UNSEEN, None, "runs/other")
    assert method.options[:2] == ["--init-from", "runs/other"]
    for name, option in (("chemprop", "--chemprop"), (table_methods.UNSEEN, "--unseen")):
        with pytest.raises(SystemExit, match=option):
            table_methods.make_method(name, None, None)


def test_published_figures_are_taken_from_the_leaderboard(tmp_path):
    (tmp_path / "tdc_admet").mkdir()
    board = (
        "task,metric,best_model,best,minimol,maplight,gcn,chemprop,chemprop_rdkit,other,maplight_gnn,rdkit2d_mlp,"
        "attentivefp\nx,MAE,A,0.256,,0.27,9,0.3440,0.33,1,2,3,4\n"
    )
    (tmp_path / "tdc_admet" / "leaderboard.csv").write_text(board)
    table_report.keep_published(tmp_path, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[1] == "x,MAE,0.3440,0.33,,0.27,2,3,4,9,0.256"

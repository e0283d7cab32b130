from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.checkpoint import read_checkpoint
from graphslice.cli.main import main
from graphslice.data.store import GraphStore

COMMANDS = ["train", "predict", "evaluate", "submit", "featurize", "import-checkpoint"]
FIXTURES = Path(__file__).parent / "fixtures"


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def listing(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, *COMMANDS])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(command, option, cli):
    code, out, err = cli(*filter(None, [command, option]))
    assert (code, err) == (0, "") and out.startswith("usage: graphslice")
    expected = (
        COMMANDS if command is None else ["--model.mixer", "--preset", "--resume"] if command == "train" else ["-o"]
    )
    assert all(name in out for name in expected) or command == "evaluate"


def test_version(cli):
    assert cli("--version") == (0, f"graphslice {gs.__version__}\n", "")


# --- what works ---------------------------------------------------------------------------------


def test_smiles_to_stdout(cli, run_folder, predictor):
    code, out, err = cli("predict", run_folder, "CCO", "oops", "c1ccccc1", "--device", "cpu")
    lines = [line.split(",", 2) for line in out.splitlines()]
    assert code == 0 and lines[0] == ["smiles", "gap_ev_pred", "error"]
    assert [line[0] for line in lines[1:]] == ["CCO", "oops", "c1ccccc1"]
    values = predictor.predict(["CCO", "c1ccccc1"])[:, 0]
    assert [float(lines[1][1]), float(lines[3][1])] == pytest.approx(values.tolist(), rel=1e-6)
    assert lines[2][1] == "" and lines[2][2].startswith("not a possible") and lines[1][2] == ""
    assert err == "1 of 3 rows have no prediction: the column 'error' says why\n"


@pytest.mark.parametrize("out_name", ["out.csv", "out.tsv", "out.parquet", "new/folder/out.csv.gz", None])
@pytest.mark.parametrize("model", ["", "best.ckpt", "last.ckpt"])
def test_predict_a_file(out_name, model, cli, run_folder, demo_csv, demo_rows, tmp_path):
    flags = [] if out_name is None else ["-o", tmp_path / out_name]
    code, out, err = cli("predict", run_folder / model, demo_csv, *flags)
    assert (code, err) == (0, "")
    if out_name is None:
        (tmp_path / "stdout.csv").write_text(out)
    path = tmp_path / (out_name or "stdout.csv")
    found = (
        pd.read_parquet(path)
        if path.suffix == ".parquet"
        else pd.read_csv(path, sep="\t" if "tsv" in path.name else ",")
    )
    assert list(found) == ["smiles", "gap_ev", "split", "gap_ev_pred", "error"]
    assert found["smiles"].tolist() == demo_rows["smiles"].tolist() and found["error"].isna().all()
    expected = gs.load(run_folder / model, "cpu").predict(demo_rows["smiles"])[:, 0]
    np.testing.assert_allclose(found["gap_ev_pred"], expected, rtol=1e-5)


def test_smiles_to_a_file(cli, run_folder, tmp_path):
    assert cli("predict", run_folder, "CCO", "-o", tmp_path / "out.parquet")[0] == 0
    assert list(pd.read_parquet(tmp_path / "out.parquet")) == ["smiles", "gap_ev_pred", "error"]


def test_bytes_of_another_encoding_to_stdout(cli, run_folder, tmp_path):
    (tmp_path / "in.csv").write_bytes(b"smiles,name\nCCO,caf\xe9\n")
    code, out, err = cli("predict", run_folder, tmp_path / "in.csv")
    assert code in (0, 2) and "Traceback" not in err
    assert out.startswith("smiles,name,gap_ev_pred,error\nCCO,caf") if code == 0 else len(err.splitlines()) == 1


def test_a_reader_that_has_seen_enough(cli, run_folder, tmp_path, monkeypatch):
    """``graphslice predict run molecules.csv | head``, with more output than a pipe's buffer."""
    (tmp_path / "in.csv").write_text("smiles,note\n" + f"C,{'x' * 100}\n" * 500)
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, os.fdopen(writer, "w") as stdout:
        patch.setattr(sys, "stdout", stdout)
        code, _, err = cli("predict", run_folder, tmp_path / "in.csv")
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_train_predict_evaluate_in_a_terminal(start, end_of, cli, tiny_flags, demo_csv, tmp_path):
    """The installed entry point in its own process, and nothing on stdout but the answers."""
    process = start("train", "--dataset", demo_csv, *tiny_flags, "-o", tmp_path / "run")
    code, out, err = end_of(process)
    assert (code, out) == (0, "") and "test MAE" in err and "Warning" not in err
    assert cli("predict", tmp_path / "run", "CCO")[0] == 0
    assert re.search(r"test: MAE [\d.]+ on 6 molecules", cli("evaluate", tmp_path / "run")[1])


def test_train_flags_beat_the_file_which_beats_the_preset(cli, demo_csv, tmp_path):
    (tmp_path / "c.yaml").write_text(
        f"data:\n  dataset: {demo_csv}\n  seed: 5\nmodel:\n  layers: 1\n  dim: 16\n  heads: 2\n  ffn_dim: 24\n"
        "trainer:\n  max_epochs: 1\n  accelerator: cpu\n"
    )
    flags = ["--preset=pcqm4m-slice", "--config", tmp_path / "c.yaml", "--model.ffn_dim", 8, "--optimizer.peak_lr=1e-4"]
    code, out, err = cli("train", *flags, "-o", tmp_path / "run")
    assert code == 0 and out == "" and "Traceback" not in err
    config, preset = read_checkpoint(tmp_path / "run").config, gs.RunConfig.preset("pcqm4m-slice")
    assert (config.model.layers, config.model.dim, config.model.ffn_dim) == (1, 16, 8)
    assert config.data.dataset == str(demo_csv) and config.data.seed == 5 and config.optimizer.peak_lr == 1e-4
    assert config.model.mixer == preset.model.mixer and config.model.dropout == preset.model.dropout
    assert config.optimizer.weight_decay == preset.optimizer.weight_decay and config.model.tasks == 1


def test_run_folder_has_the_name_of_the_data(cli, demo_csv, tiny_flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, _ = cli("train", "--dataset", demo_csv, *tiny_flags)
    assert code == 0 and (tmp_path / "runs" / "demo60" / "best.ckpt").exists()
    code, _, err = cli("train", "--dataset", demo_csv, *tiny_flags)
    assert code == 2 and "holds a run already" in err and "--overwrite" in err
    assert cli("train", "--dataset", demo_csv, *tiny_flags, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("name", "mixer", "flags"),
    [
        ("graphormer", "softmax", []),
        ("sliceformer_released", "slice-released", []),
        ("sliceformer_ascend", "slice-ascend", ["--mixer", "slice-ascend"]),
    ],
)
@pytest.mark.parametrize("reference", ["reference_small", "reference_checkpoint"])
def test_import_checkpoint(reference, name, mixer, flags, cli, tmp_path):
    """What the original predicts, from a Lightning file of its weights."""
    with np.load(FIXTURES / f"{reference}.npz") as file:
        state = {}  # what the systems share is kept once, with graphormer
        for key in sorted(file.files, key=lambda key: key.startswith(name)):
            part, _, weight = key.partition("/state/")
            if part == name or (part == "graphormer" and weight and "linear_" not in weight):
                state[weight] = torch.from_numpy(file[key])
        state.pop("", None)
        smiles, expected = file["smiles"].tolist(), file[f"{name}/output"]
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "original.pt")
    code, out, _ = cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run", *flags, "--target", "gap")
    assert code == 0 and f"{mixer}, 2 layers, 32 channels, 4 heads" in out
    pd.DataFrame({"smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli("predict", tmp_path / "run", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert (code, err) == (0, "")
    found = pd.read_csv(tmp_path / "out.csv")["gap_pred"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert cli("import-checkpoint", tmp_path / "original.pt", "-o", tmp_path / "run")[0] == 2  # not over a model


# --- featurize ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_store(demo_csv, tmp_path_factory) -> Path:
    """The sixty rows of ``demo_csv``, featurized on the command line. Read only."""
    path = tmp_path_factory.mktemp("store") / "demo60.arrow"
    assert main(["featurize", str(demo_csv), "--targets", "gap_ev", "-o", str(path), "--workers", "1"]) == 0
    return path


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_featurize_a_file(demo_store, demo_rows, cli, demo_csv, tmp_path):
    code, out, err = cli("featurize", demo_csv, "--targets", "gap_ev", "-o", tmp_path / "new" / "s.arrow")
    assert (code, err) == (0, "") and re.fullmatch(r".*s\.arrow: 60 rows, \d+ bytes each\n", out)
    assert visible(tmp_path / "new") == ["s.arrow"]
    assert (tmp_path / "new" / "s.arrow").read_bytes() == demo_store.read_bytes()
    table = pd.read_feather(demo_store)
    assert table["split"].tolist() == demo_rows["split"].tolist() and table["error"].isna().all()
    assert [row[0] for row in table["targets"]] == demo_rows["gap_ev"].tolist()


def test_featurize_the_demo_set(cli, tmp_path, demo_smiles):
    code, out, err = cli("featurize", "demo", "-o", tmp_path / "demo.arrow", "--workers", "1")
    assert (code, err) == (0, "") and "demo.arrow: 4,573 rows" in out
    found = GraphStore.open(tmp_path / "demo.arrow")
    assert found.info.targets == ("gap_ev",) and found.errors == {}
    assert found.sizes[::400].tolist() == [gs.smiles_to_graph(smiles).num_atoms for smiles in demo_smiles[::400]]


def test_featurize_a_folder(cli, tmp_path, demo_rows):
    """With settings of the graphs, which the store keeps."""
    (tmp_path / "shards").mkdir()
    demo_rows[:25].to_parquet(tmp_path / "shards" / "part-0.parquet")
    demo_rows[25:].to_parquet(tmp_path / "shards" / "part-1.parquet")
    (tmp_path / "shards" / "_SUCCESS").touch()
    flags = ["--targets", "gap_ev", "--graph.atom_order", "input", "--graph.max_atoms", "100"]
    code, out, err = cli("featurize", tmp_path / "shards", *flags, "-o", tmp_path / "s.arrow")
    assert (code, err) == (0, "") and "60 rows" in out
    found = GraphStore.open(tmp_path / "s.arrow")
    assert (found.info.atom_order, found.info.max_atoms) == ("input", 100)
    for row in (0, 24, 25, 59):
        expected = gs.smiles_to_graph(demo_rows["smiles"][row], atom_order="input")
        np.testing.assert_array_equal(found[row].atoms, expected.atoms)


def test_featurize_bad_rows(cli, tmp_path):
    (tmp_path / "t.csv").write_text("smiles,y\nCCO,1\noops,2\nCCN,high\nCCC,\n")
    code, out, err = cli("featurize", tmp_path / "t.csv", "--targets", "y", "-o", tmp_path / "s.arrow")
    assert code == 0 and "4 rows" in out
    assert err == "2 of 4 rows cannot be used: the column 'error' says why\n"
    errors = pd.read_feather(tmp_path / "s.arrow")["error"]
    assert errors.notna().tolist() == [False, True, True, False] and "'high'" in errors[2]


def test_featurize_nothing_but_bad_rows(cli, tmp_path):
    (tmp_path / "t.csv").write_text("smiles\noops\n*\n")
    code, _, err = cli("featurize", tmp_path / "t.csv", "-o", tmp_path / "s.arrow")
    assert code == 2 and len(err.splitlines()) == 1
    assert "none of the 2 rows can be used; the first: not a possible molecule" in err


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
    assert own == store and own[0] == table[0] == 0 and own[2] == table[2] == ""
    assert own[1].removeprefix(str(demo_store)) == table[1].removeprefix(str(demo_csv))


@pytest.mark.parametrize("split", ["random", None])
def test_a_random_split_of_a_store_is_that_of_its_table(split, cli, demo_rows, tiny_flags, tmp_path):
    """Also beside rows that are left out."""
    table = demo_rows[["smiles", "gap_ev"]].astype({"gap_ev": object})
    table.loc[3, "smiles"], table.loc[8, "gap_ev"], table.loc[9, "gap_ev"] = "oops", "high", None
    table.to_csv(tmp_path / "t.csv", index=False)
    assert cli("featurize", tmp_path / "t.csv", "--targets", "gap_ev", "-o", tmp_path / "t.arrow")[0] == 0
    flags = [*tiny_flags, "--seed", "5", "--trainer.max_epochs=1", *(["--split", split] if split else [])]
    for suffix in ("csv", "arrow"):
        data = ["--dataset", tmp_path / f"t.{suffix}", "--targets", "gap_ev"]
        assert cli("train", *data, *flags, "-o", tmp_path / suffix)[0] == 0
    for name in ("metrics.json", "split.csv"):
        assert (tmp_path / "csv" / name).read_text() == (tmp_path / "arrow" / name).read_text()
    ours, theirs = (pd.read_csv(tmp_path / suffix / "rejected.csv") for suffix in ("arrow", "csv"))
    assert ours[["row", "reason"]].equals(theirs[["row", "reason"]]) and ours["row"].tolist() == [4, 9, 10]


def test_a_store_of_other_graphs(store_run, demo_csv, tiny_flags, cli, tmp_path):
    flags = ["--targets", "gap_ev", "--graph.atom_order", "input"]
    assert cli("featurize", demo_csv, *flags, "-o", tmp_path / "s.arrow")[0] == 0
    for command in (
        ["train", "--dataset", tmp_path / "s.arrow", *tiny_flags, "-o", tmp_path / "run"],
        ["evaluate", store_run, "--dataset", tmp_path / "s.arrow"],
    ):
        code, out, err = cli(*command)
        assert code == 2 and out == "" and "featurize with --graph.atom_order canonical" in err
    assert not (tmp_path / "run").exists()


# --- what is refused ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_inputs(run_folder, tmp_path_factory):
    """A folder of things that do not work."""
    folder = tmp_path_factory.mktemp("bad inputs")
    files = {
        "good.csv": "smiles,y\nCCO,1\nCCN,2\nCCC,3\n",
        "bad.csv": "smiles,y\noops,1\n,2\nC[,3\n",
        "no-column.csv": "molecule_name,y\nCCO,1\n",
        "text.csv": "smiles,y\nCCO,high\nCCN,low\n",
        "inf.csv": "smiles,y\nCCO,inf\nCCN,\n",
        "fold.csv": "smiles,y,split\nCCO,1,train\nCCN,2,somewhere\n",
        "empty.csv": "",
        "header.csv": "smiles,y\n",
        "ragged.csv": "smiles,y\nCCO,1,2,3\n",
        "broken.parquet": "PAR1",
        "broken.csv.gz": "no gzip",
        "table.xlsx": "PK",
        "key.yaml": "model:\n  mixr: softmax\n",
        "section.yaml": "modle:\n  mixer: softmax\n",
        "type.yaml": "trainer:\n  max_epochs: many\n",
        "scalar.yaml": "model: 3\n",
        "list.yaml": "- 1\n",
        "no.yaml": "a: [1\n",
        "text.ckpt": "no checkpoint",
        "empty.ckpt": "",
        "text.arrow": "no store",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    best = (run_folder / "best.ckpt").read_bytes()
    (folder / "truncated.ckpt").write_bytes(best[: len(best) // 2])
    torch.save({"state_dict": {"layer.weight": torch.ones(3)}}, folder / "foreign.ckpt")
    torch.save([1, 2], folder / "list.ckpt")
    contents = torch.load(run_folder / "best.ckpt", weights_only=True)
    torch.save({**contents, "callbacks": Malicious(folder / "code was run")}, folder / "malicious.ckpt")
    contents["graphslice"]["config"]["model"]["dim"] = 32
    torch.save(contents, folder / "unfit.ckpt")
    contents["graphslice"]["config"]["model"]["magic"] = 1
    torch.save(contents, folder / "newer.ckpt")
    del contents["graphslice"]["config"]
    torch.save(contents, folder / "partial.ckpt")
    (folder / "folder").mkdir()
    return folder


def train_on(file: str, *flags: str) -> list[str]:
    return ["train", "--dataset", f"{{bad}}/{file}", "-o", "{tmp}/new", *flags]


def featurize_of(file: str, *flags: str) -> list[str]:
    return ["featurize", f"{{bad}}/{file}", "-o", "{tmp}/new.arrow", *flags]


def predict_of(file: str, *flags: str) -> list[str]:
    return ["predict", "{run}", f"{{bad}}/{file}", "-o", "{tmp}/new.csv", *flags]


REFUSED = {
    "train-missing-file": (train_on("absent.csv"), "no file at"),
    "train-unknown-dataset": (["train", "--dataset", "pcqm4", "-o", "{tmp}/new"], "did you mean 'pcqm4m'"),
    "train-missing-column": (train_on("no-column.csv"), "--smiles-column"),
    "train-given-column": (train_on("good.csv", "--smiles-column", "smile"), "did you mean 'smiles'"),
    "train-missing-target": (train_on("good.csv", "--targets", "yy"), "did you mean 'y'"),
    "train-text-target": (train_on("text.csv"), "not numeric"),
    "train-inf-target": (train_on("inf.csv", "--targets", "y"), "not numeric"),
    "train-all-rows-bad": (train_on("bad.csv"), "none of its 3 rows can be used; row 1: not a possible"),
    "train-split-word": (train_on("fold.csv"), "row 2: 'split' is 'somewhere'"),
    "train-unknown-split": (train_on("good.csv", "--split", "scafold"), "did you mean 'scaffold'"),
    "train-too-few": (train_on("good.csv", "--graph.max_atoms", "2"), "none of its 3 rows"),
    "train-empty": (train_on("empty.csv"), "is empty"),
    "train-header-only": (train_on("header.csv"), "has no rows"),
    "train-ragged": (train_on("ragged.csv"), "cannot read|fields"),
    "train-parquet": (train_on("broken.parquet"), "cannot read"),
    "train-gzip": (train_on("broken.csv.gz"), "cannot read"),
    "train-suffix": (train_on("table.xlsx"), "GraphSlice reads labelled molecules from .csv"),
    "train-preset": (train_on("good.csv", "--preset", "pcqm4m-slise"), "did you mean 'pcqm4m-slice'"),
    "train-mixer": (train_on("good.csv", "--model.mixer", "slice-mx"), "did you mean 'slice-max'"),
    "train-readout": (train_on("good.csv", "--model.readout", "tokn"), "did you mean 'token'"),
    "train-option": (train_on("good.csv", "--tragets", "y"), "did you mean '--targets'"),
    "train-nested-option": (train_on("good.csv", "--model.mixr", "csp"), "did you mean '--model.mixer'"),
    "train-wrong-type": (train_on("good.csv", "--trainer.max_epochs", "many"), "trainer.max_epochs"),
    "train-wrong-float": (train_on("good.csv", "--model.dropout", "lots"), "model.dropout"),
    "train-wrong-bool": (train_on("good.csv", "--model.distance_start", "perhaps"), "model.distance_start"),
    "train-out-of-range": (train_on("good.csv", "--model.dropout", "1.5"), "model.dropout"),
    "train-heads": (train_on("good.csv", "--model.dim", "10", "--model.heads", "3"), "must divide"),
    "train-zero-epochs": (train_on("good.csv", "--trainer.max_epochs", "0"), "at least 1"),
    "train-zero-lr": (train_on("good.csv", "--optimizer.peak_lr", "0"), "peak_lr"),
    "train-accelerator": (train_on("good.csv", "--trainer.accelerator", "abacus"), "cannot train so"),
    "train-devices": (train_on("good.csv", "--trainer.devices", "0"), "cannot train so|trainer.devices"),
    "train-config-key": (train_on("good.csv", "--config", "{bad}/key.yaml"), "'model.mixr' .did you mean 'mixer'"),
    "train-config-section": (train_on("good.csv", "--config", "{bad}/section.yaml"), "did you mean 'model'"),
    "train-config-type": (train_on("good.csv", "--config", "{bad}/type.yaml"), "trainer.max_epochs must be int"),
    "train-config-scalar": (train_on("good.csv", "--config", "{bad}/scalar.yaml"), "'model' must hold keys"),
    "train-config-list": (train_on("good.csv", "--config", "{bad}/list.yaml"), "holds no configuration"),
    "train-config-no-yaml": (train_on("good.csv", "--config", "{bad}/no.yaml"), "not a YAML file"),
    "train-config-missing": (train_on("good.csv", "--config", "{bad}/absent.yaml"), "cannot read the configuration"),
    "train-unwritable": (["train", "--dataset", "{bad}/good.csv", "-o", "{bad}/bad.csv"], "cannot write"),
    "train-below-a-file": (["train", "--dataset", "{bad}/good.csv", "-o", "{bad}/bad.csv/run"], "cannot write"),
    "train-resume": (["train", "--resume", "{bad}/folder"], "no run to continue"),
    "command": (["predikt", "x"], "unknown command 'predikt' .did you mean 'predict'"),
    "no-command": ([], "command"),
    "option": (["--verison"], "did you mean '--version'"),
    "predict-option": (predict_of("good.csv", "--devise", "cpu"), "did you mean '--device'"),
    "predict-no-molecules": (["predict", "{run}"], "molecules"),
    "predict-missing-file": (predict_of("absent.csv"), "no file at"),
    "predict-missing-column": (predict_of("no-column.csv"), "--smiles-column"),
    "predict-given-column": (predict_of("good.csv", "--smiles-column", "smles"), "did you mean 'smiles'"),
    "predict-empty": (predict_of("empty.csv"), "is empty"),
    "predict-header-only": (predict_of("header.csv"), "has no rows"),
    "predict-ragged": (predict_of("ragged.csv"), "line 2: 4 fields where the header has 2"),
    "predict-parquet": (predict_of("broken.parquet"), "cannot read"),
    "predict-gzip": (predict_of("broken.csv.gz"), "cannot read"),
    "predict-suffix": (predict_of("table.xlsx"), "GraphSlice reads .csv"),
    "predict-out-suffix": (["predict", "{run}", "{bad}/good.csv", "-o", "{tmp}/new.xlsx"], "must end in .csv"),
    "predict-out-folder": (["predict", "{run}", "{bad}/good.csv", "-o", "{bad}/folder"], "cannot write"),
    "predict-below-a-file": (["predict", "{run}", "{bad}/good.csv", "-o", "{bad}/bad.csv/a.csv"], "cannot write"),
    "predict-onto-itself": (["predict", "{run}", "{bad}/good.csv", "-o", "{bad}/good.csv"], "is the input itself"),
    "predict-device": (predict_of("good.csv", "--device", "gpu"), "no device 'gpu'"),
    "predict-absent-device": (predict_of("good.csv", "--device", "cuda:77"), "no device 'cuda:77'"),
    "model-missing": (["predict", "{bad}/absent", "CCO"], "no model at"),
    "model-no-run": (["predict", "{bad}/folder", "CCO"], "is no run folder"),
    "model-truncated": (["predict", "{bad}/truncated.ckpt", "CCO"], "truncated, damaged"),
    "model-text": (["predict", "{bad}/text.ckpt", "CCO"], "cannot read"),
    "model-empty": (["predict", "{bad}/empty.ckpt", "CCO"], "cannot read"),
    "model-foreign": (["predict", "{bad}/foreign.ckpt", "CCO"], "not a GraphSlice checkpoint.*import-checkpoint"),
    "model-list": (["predict", "{bad}/list.ckpt", "CCO"], "cannot read"),
    "model-malicious": (["predict", "{bad}/malicious.ckpt", "CCO"], "not safe"),
    "model-unfit": (["predict", "{bad}/unfit.ckpt", "CCO"], "do not fit"),
    "model-newer": (["predict", "{bad}/newer.ckpt", "CCO"], "another version"),
    "model-partial": (["predict", "{bad}/partial.ckpt", "CCO"], "not a whole GraphSlice checkpoint"),
    "evaluate-model": (["evaluate", "{bad}/absent"], "no model at"),
    "evaluate-part": (["evaluate", "{run}", "--split", "tset"], "no split 'tset'"),
    "evaluate-missing-file": (["evaluate", "{run}", "--dataset", "{bad}/absent.csv"], "no file at"),
    "evaluate-target": (["evaluate", "{run}", "--dataset", "{bad}/good.csv"], "no column 'gap_ev'"),
    "evaluate-column": (
        ["evaluate", "{run}", "--dataset", "{bad}/good.csv", "--targets", "y", "--smiles-column", "smile"],
        "did you mean 'smiles'",
    ),
    "evaluate-targets": (["evaluate", "{run}", "--dataset", "{bad}/good.csv", "--targets", "y,y"], "twice"),
    "evaluate-device": (["evaluate", "{run}", "--device", "tpu"], "no device 'tpu'"),
    "submit-dataset": (["submit", "{run}", "--dataset", "pcqm"], "did you mean 'pcqm4m'"),
    "submit-no-dataset": (["submit", "{run}"], "dataset"),
    "featurize-no-out": (["featurize", "{bad}/good.csv"], "out"),
    "featurize-suffix": (["featurize", "{bad}/good.csv", "-o", "{tmp}/new.csv"], r"must end in \.arrow"),
    "featurize-missing-file": (featurize_of("absent.csv"), "no file at"),
    "featurize-unknown": (["featurize", "dmeo", "-o", "{tmp}/new.arrow"], "did you mean 'demo'"),
    "featurize-table-suffix": (featurize_of("table.xlsx"), "GraphSlice reads .csv"),
    "featurize-empty-folder": (featurize_of("folder"), "the folder .* has no"),
    "featurize-already": (featurize_of("text.arrow"), "is featurized already"),
    "featurize-empty": (featurize_of("empty.csv"), "is empty"),
    "featurize-missing-column": (featurize_of("no-column.csv"), "--smiles-column"),
    "featurize-target": (featurize_of("good.csv", "--targets", "yy"), "did you mean 'y'"),
    "featurize-split": (featurize_of("good.csv", "--split", "splat"), "no column 'splat'"),
    "featurize-random": (featurize_of("good.csv", "--split", "random"), "give --split random when you train"),
    "featurize-option": (featurize_of("good.csv", "--tragets", "y"), "did you mean '--targets'"),
    "featurize-order": (featurize_of("good.csv", "--graph.atom_order", "sorted"), "canonical or input"),
    "featurize-limit": (featurize_of("good.csv", "--graph.max_atoms", "70000"), "from 1 to 65535"),
    "train-no-store": (train_on("text.arrow"), "is no Arrow file, so no GraphStore"),
    "train-absent-store": (train_on("absent.arrow"), "cannot read"),
    "evaluate-no-store": (["evaluate", "{run}", "--dataset", "{bad}/text.arrow"], "is no Arrow file"),
    "import-missing": (["import-checkpoint", "{bad}/absent.pt", "-o", "{tmp}/new"], "no checkpoint at"),
    "import-foreign": (["import-checkpoint", "{bad}/foreign.ckpt", "-o", "{tmp}/new"], "no Graphormer or Sliceformer"),
    "import-text": (["import-checkpoint", "{bad}/text.ckpt", "-o", "{tmp}/new"], "cannot read"),
    "import-malicious": (["import-checkpoint", "{bad}/malicious.ckpt", "-o", "{tmp}/new"], "Graphormer|not safe"),
    "import-no-out": (["import-checkpoint", "{bad}/foreign.ckpt"], "out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, cli, run_folder, bad_inputs, tmp_path, monkeypatch):
    """Exit code 2, one sentence on stderr, and nothing written."""
    monkeypatch.chdir(tmp_path)
    arguments, reason = REFUSED[case]
    before = listing(bad_inputs), listing(run_folder)
    code, out, err = cli(*(text.format(run=run_folder, bad=bad_inputs, tmp=tmp_path) for text in arguments))
    lines = [line for line in err.splitlines() if line.startswith("graphslice: ")]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert re.search(reason, lines[0]), lines[0]
    assert "Traceback" not in err and (listing(bad_inputs), listing(run_folder)) == before
    assert listing(tmp_path) == {}
    if "molecules" not in err:  # nothing but the sentence, until the data are read
        assert err.splitlines() == lines


def test_no_row_could_be_predicted(cli, run_folder, bad_inputs, tmp_path):
    for molecules in ([bad_inputs / "bad.csv"], ["oops"]):
        code, _, err = cli("predict", run_folder, *molecules, "-o", tmp_path / "out.csv")
        assert code == 2 and len(err.splitlines()) == 1
        assert re.search(r"none of the \d rows could be predicted; the first: not a possible", err)


def test_an_option_is_never_guessed(cli, demo_csv, tiny_flags, tmp_path):
    """Half an option that is taken for another would train a model that nobody asked for."""
    code, _, err = cli("train", "--dataset", demo_csv, *tiny_flags, "--pres", "pcqm4m-slice", "-o", tmp_path / "run")
    assert code == 2 and "--preset" in err and not (tmp_path / "run").exists()


def test_the_last_of_two_presets(cli, demo_csv, tiny_flags, tmp_path):
    presets = ["--preset", "small", "--preset", "pcqm4m-graphormer"]
    flags = [flag for flag in tiny_flags if "mixer" not in flag]
    code, _, err = cli("train", "--dataset", demo_csv, *presets, *flags, "-o", tmp_path / "run")
    assert code == 2 or read_checkpoint(tmp_path / "run").config.model.mixer == "softmax", err


def test_featurize_replaces_nothing_unasked(cli, demo_csv, tmp_path):
    (tmp_path / "precious.arrow").write_text("my notes")
    code, _, err = cli("featurize", demo_csv, "-o", tmp_path / "precious.arrow")
    assert code == 2 and "exists already" in err and (tmp_path / "precious.arrow").read_text() == "my notes"
    code, _, _ = cli("featurize", demo_csv, "-o", tmp_path / "precious.arrow", "--overwrite")
    assert code == 0 and len(GraphStore.open(tmp_path / "precious.arrow")) == 60


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_end_with_the_one_that_began_them(start, end_of, demo_smiles, tmp_path):
    (tmp_path / "in.smi").write_text("\n".join(demo_smiles * 20))
    process = start("featurize", tmp_path / "in.smi", "-o", tmp_path / "out.arrow", "--workers", 2)

    def children() -> int:
        found = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
                found += int(parent) == process.pid and state != "Z"
        return found

    while children() < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.kill()
    assert end_of(process)[0] == -signal.SIGKILL  # which waits for the others too

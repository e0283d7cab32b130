"""Input that cannot be used: one clear sentence, exit code 2, nothing lost and nothing half-written."""

import re
from pathlib import Path

import pytest
import torch
from exploit import Exploit

from graphslice.runs.checkpoint_file import read_values, write_values


def listing(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def bad_inputs(run_directory, tmp_path_factory):
    """A folder of things that do not work."""
    folder = tmp_path_factory.mktemp("bad inputs")
    files = {
        "good.csv": "smiles,y\nCCO,1\nCCN,2\nCCC,3\n",
        "bad.csv": "smiles,y\noops,1\n,2\nC[,3\n",
        "no-column.csv": "molecule_name,y\nCCO,1\n",
        "fold.csv": "smiles,y,split\nCCO,1,train\nCCN,2,somewhere\n",
        "ragged.csv": "smiles,y\nCCO,1,2,3\n",
        "broken.parquet": "PAR1",
        "key.yaml": "model:\n  mixr: softmax\n",
        "type.yaml": "trainer:\n  max_epochs: many\n",
        "text.arrow": "no store",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    best = (run_directory / "model.safetensors").read_bytes()
    (folder / "truncated.safetensors").write_bytes(best[: len(best) // 2])
    weights = {"state_dict": {"layer.weight": torch.ones(3)}}
    torch.save(weights, folder / "foreign.ckpt")
    torch.save({**weights, "callbacks": Exploit(folder / "code was run")}, folder / "malicious.ckpt")
    contents = read_values(run_directory / "model.safetensors", dict)
    contents["config"]["model"]["dim"] = 32
    write_values(folder / "unfit.safetensors", contents)
    (folder / "folder").mkdir()
    return folder


def train_on(file: str, *flags: str) -> list[str]:
    return ["train", "--dataset", f"{{bad}}/{file}", "-o", "{tmp}/new", *flags]


def featurize_of(file: str, *flags: str) -> list[str]:
    return ["featurize", f"{{bad}}/{file}", "-o", "{tmp}/new.arrow", *flags]


def predict_of(file: str, *flags: str) -> list[str]:
    return ["predict", "{run}", f"{{bad}}/{file}", "-o", "{tmp}/new.csv", *flags]


REJECTED = {
    "train-missing-file": (train_on("absent.csv"), "no file at"),
    "train-unknown-dataset": (["train", "--dataset", "pcqm4", "-o", "{tmp}/new"], "did you mean 'pcqm4m'"),
    "train-missing-column": (train_on("no-column.csv"), "data.smiles_column"),
    "train-missing-target": (train_on("good.csv", "--targets", "yy"), "did you mean 'y'"),
    "train-all-rows-bad": (train_on("bad.csv"), "none of its 3 rows can be used; row 1: not a valid molecule"),
    "train-split-word": (train_on("fold.csv"), "row 2: 'split' is 'somewhere'"),
    "train-unknown-split": (train_on("good.csv", "--split", "scafold"), "did you mean 'scaffold'"),
    "train-task": (train_on("good.csv", "--task", "classes"), "data.task cannot be 'classes'"),
    "train-metric": (train_on("good.csv", "--metric", "auroc"), "trainer.metric auroc is for binary"),
    "train-baselines": (train_on("good.csv", "--baselines", "yes"), "trainer.baselines must be auto, on or off"),
    "train-log": (train_on("good.csv", "--transform", "log", "--targets", "x"), "no column 'x'"),
    "train-test-file": (train_on("good.csv", "--test-file", "{bad}/absent.csv"), "no file at"),
    "train-seed": (train_on("good.csv", "--seed", "-1"), "data.seed must be at least 0"),
    "train-too-few": (train_on("good.csv", "--graph.max_atoms", "2"), "none of its 3 rows"),
    "train-ragged": (train_on("ragged.csv"), "no row can be read; the first: 4 fields where"),
    "train-parquet": (train_on("broken.parquet"), "cannot read"),
    "train-mixer": (train_on("good.csv", "--model.mixer", "slice-mx"), "did you mean 'slice-max'"),
    "train-readout": (train_on("good.csv", "--model.readout", "tokn"), "did you mean 'token'"),
    "train-option": (train_on("good.csv", "--tragets", "y"), "did you mean '--targets'"),
    "train-nested-option": (train_on("good.csv", "--model.mixr", "csp"), "did you mean '--model.mixer'"),
    "train-preset": (train_on("good.csv", "--preset", "pcqm4m-slise"), "did you mean 'pcqm4m-slice'"),
    "train-zero-batch": (train_on("good.csv", "--batch_size", "0"), "trainer.batch_size must be at least 1, not 0"),
    "train-zero-epochs": (train_on("good.csv", "--trainer.max_epochs", "0"), "trainer.max_epochs must be at least 1"),
    "train-accelerator": (train_on("good.csv", "--trainer.accelerator", "abacus"), "cannot train with"),
    "train-config-key": (train_on("good.csv", "--config", "{bad}/key.yaml"), "'model.mixr' .did you mean 'mixer'"),
    "train-config-type": (train_on("good.csv", "--config", "{bad}/type.yaml"), "trainer.max_epochs must be int"),
    "train-config-missing": (train_on("good.csv", "--config", "{bad}/absent.yaml"), "cannot read"),
    "train-unwritable": (["train", "--dataset", "{bad}/good.csv", "-o", "{bad}/bad.csv"], "cannot write"),
    "train-below-a-file": (["train", "--dataset", "{bad}/good.csv", "-o", "{bad}/bad.csv/run"], "cannot write"),
    "train-resume": (["train", "--resume", "{bad}/folder"], "no run to continue"),
    "command": (["predikt", "x"], "invalid choice: 'predikt'.*did you mean 'predict'"),
    "option": (["--verison"], "did you mean '--version'"),
    "predict-option": (predict_of("good.csv", "--devise", "cpu"), "did you mean '--device'"),
    "train-whole": (["train", "--dataset", "demo", "--seed", "abc"], "--seed must be int, not 'abc'"),
    "train-rate": (["train", "--dataset", "demo", "--optimizer.peak_lr", "x"], "peak_lr must be float, not 'x'"),
    "train-epochs": (["train", "--dataset", "demo", "--trainer.max_epochs", "1.5"], "must be int, not '1.5'"),
    "train-flag": (["train", "--dataset", "demo", "--model.bond_messages", "maybe"], "must be bool, not 'maybe'"),
    "predict-missing-file": (predict_of("absent.csv"), "no file at"),
    "predict-files": (["predict", "{run}", "{bad}/good.csv", "CCO"], "good.csv is given together with other arguments"),
    "predict-missing-column": (predict_of("no-column.csv"), "data.smiles_column"),
    "predict-start": (["predict", "small", "CCO"], "use gap or adme"),
    "predict-column-of-smiles": (["predict", "{run}", "CCO", "--smiles-column", "y"], "the input is SMILES"),
    "predict-column-of-store": (
        predict_of("text.arrow", "--smiles-column", "y"),
        "is a preprocessed dataset, which has no columns",
    ),
    "predict-parquet": (predict_of("broken.parquet"), "cannot read"),
    "fingerprint-out-suffix": (["fingerprint", "{run}", "{bad}/good.csv", "-o", "{tmp}/new.npz"], "end in .npy, .csv"),
    "predict-out-suffix": (["predict", "{run}", "{bad}/good.csv", "-o", "{tmp}/new.xls"], "must end in .csv"),
    "predict-out-folder": (["predict", "{run}", "{bad}/good.csv", "-o", "{bad}/folder"], "cannot write"),
    "predict-below-a-file": (["predict", "{run}", "{bad}/good.csv", "-o", "{bad}/bad.csv/a.csv"], "cannot write"),
    "predict-device": (predict_of("good.csv", "--device", "gpu"), "no device 'gpu'"),
    "predict-meta-device": (predict_of("good.csv", "--device", "meta"), "no device 'meta'"),
    "predict-absent-device": (predict_of("good.csv", "--device", "cuda:77"), "no device 'cuda:77'"),
    "model-missing": (["predict", "{bad}/absent", "CCO"], "no model at"),
    "model-no-run": (["predict", "{bad}/folder", "CCO"], "is not a run directory"),
    "model-truncated": (["predict", "{bad}/truncated.safetensors", "CCO"], "truncated, damaged"),
    "model-foreign": (["predict", "{bad}/foreign.ckpt", "CCO"], "not a model of GraphSlice.*import-checkpoint"),
    "model-malicious": (["predict", "{bad}/malicious.ckpt", "CCO"], "not a model of GraphSlice"),
    "model-unfit": (["predict", "{bad}/unfit.safetensors", "CCO"], "do not fit"),
    "evaluate-model": (["evaluate", "{bad}/absent"], "no model at"),
    "evaluate-shipped": (["evaluate", "gap"], "training data of gap is not there.*data.dataset"),
    "evaluate-missing-file": (["evaluate", "{run}", "--dataset", "{bad}/absent.csv"], "no file at"),
    "evaluate-target": (["evaluate", "{run}", "--dataset", "{bad}/good.csv"], "no column 'gap_ev'"),
    "evaluate-targets": (["evaluate", "{run}", "--dataset", "{bad}/good.csv", "--targets", "y,y"], "twice"),
    "submit-dataset": (["submit", "{run}", "--dataset", "pcqm"], "did you mean 'pcqm4m'"),
    "submit-no-dataset": (["submit", "{run}"], "required: submit.dataset"),
    "featurize-no-out": (["featurize", "{bad}/good.csv"], "required: featurize.out"),
    "featurize-missing-file": (featurize_of("absent.csv"), "no file at"),
    "featurize-unknown": (["featurize", "dmeo", "-o", "{tmp}/new.arrow"], "did you mean 'demo'"),
    "featurize-empty-folder": (featurize_of("folder"), "the folder .* has no"),
    "featurize-missing-column": (featurize_of("no-column.csv"), "data.smiles_column"),
    "featurize-limit": (featurize_of("good.csv", "--graph.max_atoms", "70000"), "from 1 to 65535"),
    "featurize-random": (featurize_of("good.csv", "--split", "random"), "use data.split random when training"),
    "train-no-store": (train_on("text.arrow"), "is not a preprocessed dataset"),
    "train-absent-store": (train_on("absent.arrow"), "cannot read"),
    "evaluate-no-store": (["evaluate", "{run}", "--dataset", "{bad}/text.arrow"], "is not a preprocessed dataset"),
    "import-missing": (["import-checkpoint", "{bad}/absent.pt", "-o", "{tmp}/new"], "no checkpoint at"),
    "import-foreign": (["import-checkpoint", "{bad}/foreign.ckpt", "-o", "{tmp}/new"], "is not a Graphormer"),
    "import-malicious": (["import-checkpoint", "{bad}/malicious.ckpt", "-o", "{tmp}/new"], "is not a Graphormer"),
    "import-no-out": (["import-checkpoint", "{bad}/foreign.ckpt"], "required: import-checkpoint.out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_bad_input_is_rejected(case, cli, run_directory, bad_inputs, tmp_path, monkeypatch):
    """Exit code 2, one sentence on stderr, and nothing written."""
    monkeypatch.chdir(tmp_path)
    arguments, reason = REJECTED[case]
    before = listing(bad_inputs), listing(run_directory)
    code, out, err = cli(*(text.format(run=run_directory, bad=bad_inputs, tmp=tmp_path) for text in arguments))
    lines = [line for line in err.splitlines() if line.startswith("graphslice: ")]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert re.search(reason, lines[0]), lines[0]
    assert "Traceback" not in err and (listing(bad_inputs), listing(run_directory)) == before
    assert listing(tmp_path) == {}
    if "molecules" not in err:  # nothing but the sentence, until the data are read
        assert err.splitlines() == lines


def test_no_row_could_be_predicted(cli, run_directory, bad_inputs, tmp_path):
    not_possible = "not a valid molecule"
    for molecules, reason in (
        ([bad_inputs / "bad.csv"], not_possible),
        (["oops"], not_possible),
        ([bad_inputs / "ragged.csv"], r"4 fields where the header has 2 \(line 2 of ragged\.csv\)"),
    ):
        code, _, err = cli("predict", run_directory, *molecules, "-o", tmp_path / "out.csv", "--overwrite")
        assert code == 2 and len(err.splitlines()) == 1
        assert re.search(rf"no row can be used; the first: {reason}", err)

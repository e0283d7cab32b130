"""Input that cannot be used: one clear sentence, exit code 2, nothing lost and nothing half-written."""

import re
from pathlib import Path

import pytest
import torch
from exploit import Exploit


def listing(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def bad_inputs(run_directory, tmp_path_factory):
    """A folder of things that do not work."""
    folder = tmp_path_factory.mktemp("bad inputs")
    files = {
        "good.csv": "smiles,y\nCCO,1\nCCN,2\nCCC,3\n",
        "bad.csv": "smiles,y\noops,1\n,2\nC[,3\n",
        "fold.csv": "smiles,y,split\nCCO,1,train\nCCN,2,somewhere\n",
        "ragged.csv": "smiles,y\nCCO,1,2,3\n",
        "names.csv": "drug,y\naspirin,1\ncaffeine,2\n",
        "text.arrow": "no store",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    best = (run_directory / "model.safetensors").read_bytes()
    (folder / "truncated.safetensors").write_bytes(best[: len(best) // 2])
    weights = {"state_dict": {"layer.weight": torch.ones(3)}}
    torch.save(weights, folder / "foreign.ckpt")
    torch.save({**weights, "callbacks": Exploit(folder / "code was run")}, folder / "malicious.ckpt")
    (folder / "folder").mkdir()
    return folder


def train_on(file: str, *flags: str) -> list[str]:
    return ["train", "--dataset", f"{{bad}}/{file}", "-o", "{tmp}/new", *flags]


def featurize_of(file: str, *flags: str) -> list[str]:
    return ["featurize", f"{{bad}}/{file}", "-o", "{tmp}/new.arrow", *flags]


def predict_of(file: str, *flags: str) -> list[str]:
    return ["predict", "{run}", f"{{bad}}/{file}", "-o", "{tmp}/new.csv", *flags]


REJECTED = {
    "train-unknown-dataset": (["train", "--dataset", "pcqm4", "-o", "{tmp}/new"], "did you mean 'pcqm4m'"),
    "train-all-rows-bad": (train_on("bad.csv"), "no row can be used; the first: not a valid molecule"),
    "train-split-word": (train_on("fold.csv"), "row 2: 'split' is 'somewhere'"),
    "train-ragged": (train_on("ragged.csv"), "no row can be read; the first: 4 fields where"),
    "train-nested-option": (train_on("good.csv", "--model.mixr", "csp"), "did you mean '--model.mixer'"),
    "train-unwritable": (["train", "--dataset", "{bad}/good.csv", "-o", "{bad}/bad.csv"], "cannot write"),
    "train-whole": (["train", "--dataset", "demo", "--seed", "abc"], "--seed must be int, not 'abc'"),
    "train-misspelt-file": (train_on("god.csv"), r"no file at .* \(did you mean .*good\.csv\?\)"),
    "train-names": (train_on("names.csv"), "column 'drug' was read as SMILES.*; the first: .*, but a name"),
    "interval-fraction": (predict_of("good.csv", "--interval", "0.9"), r"not 0\.9 \(did you mean 90\?\)"),
    "interval-alone": (predict_of("good.csv", "--interval"), "--interval: expected one argument"),
    "model-folder-of-runs": (["predict", "{run}/..", "CCO"], r"not a run directory .* \(did you mean .*tiny\?\)"),
    "model-other-name": (["predict", "{run}/../nope", "CCO"], r"no model at .*nope \(did you mean .*tiny\?\)"),
    "predict-files": (["predict", "{run}", "{bad}/good.csv", "CCO"], "good.csv is given together with other arguments"),
    "predict-start": (["predict", "small", "CCO"], "use gap or adme"),
    "predict-column-of-smiles": (["predict", "{run}", "CCO", "--smiles-column", "y"], "list of SMILES has no column"),
    "predict-out-folder": (["predict", "{run}", "CCO", "-o", "{bad}/folder"], "cannot write"),
    "predict-absent-device": (predict_of("good.csv", "--device", "cuda:77"), "cannot use the device 'cuda:77'"),
    "model-missing": (["predict", "{bad}/absent", "CCO"], "no model at"),
    "model-truncated": (["predict", "{bad}/truncated.safetensors", "CCO"], "truncated, damaged"),
    "model-foreign": (["predict", "{bad}/foreign.ckpt", "CCO"], "not a model of GraphSlice.*import-checkpoint"),
    "model-malicious": (["predict", "{bad}/malicious.ckpt", "CCO"], "not a model of GraphSlice"),
    "featurize-no-out": (["featurize", "{bad}/good.csv"], "required: featurize.out"),
    "featurize-empty-folder": (featurize_of("folder"), "the folder .* has no"),
    "import-malicious": (["import-checkpoint", "{bad}/malicious.ckpt", "-o", "{tmp}/new"], "unknown names"),
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


@pytest.mark.parametrize("molecules", ["{bad}/bad.csv", "oops", "{bad}/ragged.csv"])
def test_no_row_could_be_predicted(molecules, cli, run_directory, bad_inputs, tmp_path):
    code, _, err = cli("predict", run_directory, molecules.format(bad=bad_inputs), "-o", tmp_path / "out.csv")
    assert code == 2
    assert re.fullmatch(".*no row can be used; the first: (not a valid molecule|4 fields .*line 2 of ragged).*\n", err)

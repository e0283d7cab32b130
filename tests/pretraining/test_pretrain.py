"""``graphslice pretrain``, and fine-tuning from its models."""

import io
import json
import re
from contextlib import redirect_stdout

import numpy as np
import pandas as pd
import pytest
from json_documents import document_of
from rdkit import Chem

from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import CORPUS


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, demo_smiles, tiny_flags, cache):
    from graphslice.cli.main import main

    folder = tmp_path_factory.mktemp("pretrained")
    charges = [str([0.1] * Chem.MolFromSmiles(text).GetNumAtoms()) for text in demo_smiles[:150]]
    table = pd.DataFrame({"smiles": demo_smiles[:150], "gap, eV": range(150), "charge": charges})
    table.to_csv(folder / "molecules.csv", index=False)
    out = folder / "run"
    flags = ["--targets", '"gap, eV",charge', "-o", str(out), *tiny_flags]
    with redirect_stdout(io.StringIO()) as text:
        assert main(["pretrain", str(folder / "molecules.csv"), *flags, "--json"]) == 0
    assert document_of("pretrain", text.getvalue())["folder"] == str(out)
    return out


def test_pretraining_on_many_targets(pretrained):
    checkpoint = read_checkpoint(pretrained)
    assert checkpoint.tasks[0].name == "gap, eV" and len(checkpoint.tasks) > 100
    assert {task.kind for task in checkpoint.tasks} == {"regression", "binary"}
    assert checkpoint.config.trainer.metric == "loss" and checkpoint.config.trainer.baselines == "off"
    weights = checkpoint.config.trainer.target_weights
    assert weights == f'"gap, eV={len(checkpoint.tasks) - 1}"'
    assert checkpoint.config.data.dataset == str((pretrained / CORPUS).resolve())
    assert json.loads((pretrained / "training.json").read_text())["auxiliary_mae"].keys() == {"charge"}
    assert json.loads((pretrained / "metrics.json").read_text())["test"]["targets"].keys() >= {"gap, eV", "MolWt"}


def test_evaluation_on_the_corpus(pretrained, cli):
    """Auxiliary labels are part of the corpus, but are not evaluated."""
    code, out, _ = cli("evaluate", pretrained)
    assert code == 0 and "test" in out and "valid" in out


def test_fine_tuning_from_a_pretrained_model(pretrained, demo_csv, cli, tiny_flags, tmp_path):
    flags = [flag for flag in tiny_flags if flag.startswith("--trainer")]
    code, _, err = cli("train", "--dataset", demo_csv, "--init-from", pretrained, "-o", tmp_path / "run", *flags)
    assert code == 0 and "all weights copied except the output layer (newly initialised for gap_ev)" in err
    origin, made = (read_checkpoint(folder).weights for folder in (pretrained, tmp_path / "run"))
    name = "blocks.0.mixer.value.weight"
    moved = np.abs(origin[name] - made[name]).max()
    assert 0 < moved < 0.1 * np.abs(origin[name]).max() + np.finfo(np.float32).eps


def test_pretraining_is_resumed_and_kept_on_failed_overwrite(pretrained, cli, tmp_path):
    code, _, err = cli("pretrain", pretrained.parent / "molecules.csv", "-o", pretrained)
    assert code == 2 and "holds a run already" in err and f"graphslice train --resume {pretrained}" in err
    code, _, err = cli("pretrain", pretrained.parent / "absent.csv", "-o", pretrained, "--overwrite")
    assert code == 2 and "absent.csv" in err and read_checkpoint(pretrained).tasks
    before = {path: path.read_bytes() for path in pretrained.rglob("*") if path.is_file()}
    code, _, err = cli("pretrain", pretrained.parent / "molecules.csv", "-o", pretrained, "--trainer.devices", "99")
    assert code == 2 and {path: path.read_bytes() for path in pretrained.rglob("*") if path.is_file()} == before
    learned = json.loads((pretrained / "training.json").read_text())["auxiliary_mae"]
    code, _, err = cli("train", "--resume", pretrained)
    assert code == 0 and json.loads((pretrained / "training.json").read_text())["auxiliary_mae"] == learned


def test_distributed_overwrite_never_uses_the_old_corpus(pretrained, cli, monkeypatch):
    """All processes start at once, and all but the first wait for a corpus."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        code, _, err = cli("pretrain", pretrained.parent / "molecules.csv", "-o", pretrained, "--overwrite")
        assert code == 2 and "several processes were launched at once: remove" in err


def test_invalid_arguments_are_rejected(cli, tmp_path, demo_csv):
    table = demo_csv
    for arguments, reason in (
        ((tmp_path / "none.csv", "-o", tmp_path / "run"), "none.csv"),
        ((), "tables"),
        ((table, "-o", tmp_path / "run", "--trainer.metric", "nope"), "nope"),
        ((table, "-o", tmp_path / "run", "--trainer.target_weights", "a=2"), "target_weights cannot be used with"),
        ((table, "-o", tmp_path / "run", "--trainer.loss", "cross-entropy"), "cross-entropy is for multiclass"),
        ((table, "-o", tmp_path / "run", "--targets", "absent"), "no column 'absent'|has a column 'absent'"),
    ):
        code, _, err = cli("pretrain", *arguments)
        assert code == 2 and re.search(reason, err) and len(err.splitlines()) == 1, err
        assert not (tmp_path / "run").exists()

"""Export of models to the original formats, and their import."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from graphslice import GraphTransformer, InputError, ModelConfig, RunConfig
from graphslice.checkpoint import Checkpoint, write_run_directory
from graphslice.config import GraphConfig
from graphslice.inference import Predictor
from graphslice.originals import import_checkpoint
from graphslice.originals.export import FORMATS, export_checkpoint
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import fit_base_models
from graphslice.tasks import Task, regression_tasks

SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "C", "[Na+].[Cl-]", "C1CC2CCC1C2", "CCCCCCCCCCCCCCCC", "F/C=C/F"]


def trained(head: str = "mlp", tasks: int = 1, **settings) -> Checkpoint:
    """Create a model with random weights everywhere, also where the initialisation has zeros."""
    config = ModelConfig(mixer="softmax", layers=2, dim=16, heads=4, ffn_dim=24, tasks=tasks, head=head)
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = GraphTransformer(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    if head == "mlp":
        model.head.output.bias.data[:] = model.head.output.bias[0].item()
    run = RunConfig(model=config, graph=GraphConfig(atom_order="input", path_ties="floyd-warshall"))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return Checkpoint(run, regression_tasks(f"t{i}" for i in range(tasks)), weights)


SETTINGS = [
    {"norm": "post", "embedding_norm": True}, {"norm": "pre", "embedding_norm": True}, {"norm": "post", "tasks": 3},
    {"embedding_layout": "graphormer", "num_degrees": 512, "num_distances": 512, "num_path_positions": 128},
    {"head": "linear"}, {"head": "linear", "tasks": 2, "embedding_layout": "graphormer"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
def test_predictions_are_equal_after_export_and_import(settings, tmp_path):
    checkpoint = trained(**settings)
    layout = "graphormer-v1" if settings.get("head") == "linear" else "huggingface"
    files = export_checkpoint(checkpoint, tmp_path / "out", layout)
    assert {path.name for path in files} == {FORMATS[layout]} | ({"config.json"} if layout == "huggingface" else set())
    source = tmp_path / "out" if layout == "huggingface" else files[0]
    again = import_checkpoint(source, target=",".join(checkpoint.targets))
    before, after = Predictor(checkpoint).predict(SMILES), Predictor(again).predict(SMILES)
    assert np.isfinite(before).all() and np.ptp(before) > 0.01
    assert (before == after).all()


def test_standardisation_of_targets_is_folded_in(tmp_path):
    checkpoint = trained(norm="post")
    checkpoint.weights["target_mean"][:], checkpoint.weights["target_std"][:] = 5.0, 2.0
    export_checkpoint(checkpoint, tmp_path / "out", "huggingface")
    after = Predictor(import_checkpoint(tmp_path / "out", target="t0")).predict(SMILES)
    assert np.abs(Predictor(checkpoint).predict(SMILES) - after).max() < 1e-5


def test_atom_rows_match_the_hugging_face_collator(tmp_path):
    checkpoint = trained(norm="post")
    export_checkpoint(checkpoint, tmp_path / "out", "huggingface")
    table = load_file(tmp_path / "out" / "model.safetensors")[
        "encoder.graph_encoder.graph_node_feature.atom_encoder.weight"
    ]
    assert table.shape == (4609, 16)
    carbon, second_feature = checkpoint.weights["atoms.atom.weight"][5], checkpoint.weights["atoms.atom.weight"][119]
    assert (table[3 + 5] == carbon).all() and (table[3 + 512] == second_feature).all()
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["num_attention_heads"] == 4 and settings["pre_layernorm"] is False


@pytest.mark.parametrize(
    ("settings", "layout", "words"),
    [
        ({"mixer": "slice-max"}, "huggingface", "model.mixer must be softmax, not slice-max"),
        ({"mixer": "slice-max", "head": "linear"}, "graphormer-v1", "model.mixer must be softmax or .*, not slice-max"),
        ({"readout": "mean"}, "huggingface", "model.readout must be token, not mean"),
        ({"head": "linear"}, "huggingface", "model.head must be mlp, not linear"),
        ({"head": "mlp"}, "graphormer-v1", "model.head must be linear, not mlp"),
        ({"head": "linear", "max_path": 3}, "graphormer-v1", "model.max_path must be 5, not 3"),
        ({"head": "linear", "norm": "post"}, "graphormer-v1", "model.norm must be pre, not post"),
        ({"head": "linear", "embedding_norm": True}, "graphormer-v1", "model.embedding_norm must be False, not True"),
        ({"num_distances": 1024}, "huggingface", "model.num_distances must be at most 512, not 1024"),
        ({"bond_messages": True}, "huggingface", "model.bond_messages must be False, not True"),
        ({}, "onnx", "unknown format 'onnx'"),
    ],
)
def test_unsupported_settings_are_rejected(settings, layout, words, tmp_path):
    checkpoint = trained(settings.get("head", "mlp"))
    for name, value in settings.items():
        setattr(checkpoint.config.model, name, value)
    with pytest.raises(InputError, match=words):
        export_checkpoint(checkpoint, tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()


def test_path_ties_biases_and_existing_files_are_checked(tmp_path):
    checkpoint = trained(norm="post", tasks=2)
    checkpoint.weights["head.output.bias"][1] += 1
    with pytest.raises(InputError, match="different biases"):
        export_checkpoint(checkpoint, tmp_path / "out", "huggingface")
    checkpoint = trained(norm="post")
    export_checkpoint(checkpoint, tmp_path / "out", "huggingface")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    checkpoint.weights["head.output.bias"] += 1
    with pytest.raises(InputError, match="already exists: choose another --out, or give --overwrite"):
        export_checkpoint(checkpoint, tmp_path / "out", "huggingface")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    export_checkpoint(checkpoint, tmp_path / "out", "huggingface", overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before
    checkpoint.config.graph.path_ties = "mean"
    with pytest.raises(InputError, match="path_ties must be floyd-warshall, not mean"):
        export_checkpoint(checkpoint, tmp_path / "other", "huggingface")
    checkpoint.config.graph.path_ties, checkpoint.config.graph.standardize = "floyd-warshall", "parent"
    with pytest.raises(InputError, match="standardize must be none, not parent"):
        export_checkpoint(checkpoint, tmp_path / "other", "huggingface")


@pytest.mark.parametrize(("layout", "head"), [("huggingface", "mlp"), ("graphormer-v1", "linear")])
def test_full_disk_leaves_no_files(layout, head, tmp_path, full_disk):
    checkpoint = trained(head=head)
    with full_disk(), pytest.raises(InputError, match=r"cannot write .*File too large"):
        export_checkpoint(checkpoint, tmp_path / "out", layout)
    with full_disk(), pytest.raises(InputError, match=r"cannot write .*File too large"):
        write_run_directory(checkpoint, tmp_path / "run")
    assert [*(tmp_path / "out").iterdir(), *(tmp_path / "run").iterdir()] == []
    assert export_checkpoint(checkpoint, tmp_path / "out", layout)
    write_run_directory(checkpoint, tmp_path / "run")


def test_transformed_targets_are_rejected_and_logits_reported(tmp_path, cli):
    checkpoint = trained(head="linear")
    for task, words in ((Task("t0", transform="log"), "target t0 must not have the transform log"), (Task("t0"), "")):
        checkpoint.tasks = [task]
        folder = tmp_path / task.transform
        write_run_directory(checkpoint, folder)
        code, _, err = cli("export", folder, "-o", folder / "v1", "--format", "graphormer-v1")
        assert (code, words in err, (folder / "v1").exists()) == ((2, True, False) if words else (0, True, True))
    checkpoint.tasks = [Task("t0", "binary", ("no", "yes"))]
    write_run_directory(checkpoint, tmp_path / "classes")
    flags = ("-o", tmp_path / "v1", "--format", "graphormer-v1")
    assert "returns logits of t0" in cli("export", tmp_path / "classes", *flags)[2]


def test_sort_that_the_file_does_not_name_is_reported(tmp_path, cli):
    checkpoint = trained(head="linear", mixer="slice-ascend")
    write_run_directory(checkpoint, tmp_path / "run")
    code, out, err = cli("export", tmp_path / "run", "-o", tmp_path / "v1", "--format", "graphormer-v1")
    assert code == 0 and err == "note: the file does not name the sort: give --mixer slice-ascend to import it again\n"
    expected = Predictor(checkpoint).predict(SMILES)
    for mixer, is_same in ((None, False), ("slice-ascend", True)):
        again = import_checkpoint(out.strip(), mixer=mixer, target="t0")
        assert np.array_equal(Predictor(again).predict(SMILES), expected) == is_same


def test_hyperparameters_of_graphormer_v1_are_read(tmp_path):
    (tmp_path / "config.json").write_text("a file that this format does not write")
    path = export_checkpoint(trained(head="linear"), tmp_path, "graphormer-v1")[0]
    assert import_checkpoint(path).config.model.max_path == 5
    theirs = {"multi_hop_max_dist": 20, "dropout_rate": 0.2, "intput_dropout_rate": 0.0, "attention_dropout_rate": 0.3}
    torch.save({**torch.load(path), "hyper_parameters": theirs}, tmp_path / "with.pt")
    found = import_checkpoint(tmp_path / "with.pt").config.model
    rates = (found.dropout, found.input_dropout, found.attention_dropout)
    assert (found.max_path, rates) == (20, (0.2, 0.0, 0.3))


def test_import_does_not_replace_a_run(tmp_path):
    for file in ("config.yaml", "last.ckpt", "member-1/config.yaml"):
        folder = tmp_path / file.replace("/", "-")
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("mine")
        with pytest.raises(InputError, match="holds a run already"):
            write_run_directory(trained(), folder)
        assert [path.read_text() for path in folder.rglob("*") if path.is_file()] == ["mine"]


def test_evaluating_an_imported_model_needs_a_dataset(tmp_path, cli):
    write_run_directory(trained(), tmp_path / "own")
    export_checkpoint(trained(), tmp_path / "out", "huggingface")
    assert cli("import-checkpoint", tmp_path / "out", "-o", tmp_path / "run", "--target", "toxicity")[0] == 0
    code, _, err = cli("evaluate", tmp_path / "run")
    assert code == 2 and "was imported without its training data: give labelled molecules with --dataset" in err


def test_omitted_base_models_are_reported(tmp_path, cli):
    x, y = np.random.default_rng(0).normal(size=(2, 30, 1)).astype(np.float32)
    checkpoint = trained(head="linear")
    models = fit_base_models(np.tile(x, 2400), y, checkpoint.tasks, seed=0)
    checkpoint.stacking = Stacking(models, np.array([[0.4], [0.3], [0.2], [0.1]]))
    write_run_directory(checkpoint, tmp_path / "run")
    code, out, err = cli("export", tmp_path / "run", "-o", tmp_path / "v1", "--format", "graphormer-v1")
    assert code == 0 and out.split()[-1].endswith("graphormer_v1.pt")
    assert "only the network is exported, which has the weight 0.40" in err


def test_export_command(tmp_path, cli):
    write_run_directory(trained(norm="post"), tmp_path / "run")
    code, out, err = cli("export", tmp_path / "run", "-o", tmp_path / "out", "--format", "huggingface")
    assert (code, err) == (0, "") and [Path(line).name for line in out.split()] == ["config.json", "model.safetensors"]
    code, _, err = cli("export", tmp_path / "run", "-o", tmp_path / "v1", "--format", "graphormer-v1")
    assert code == 2 and "model.head must be linear, not mlp" in err

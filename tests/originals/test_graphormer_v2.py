"""Import of Graphormer v2: outputs equal those of Hugging Face's implementation, for all formats of the weights."""

import argparse
import enum
import json
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import graphslice as gs
from graphslice import InputError
from graphslice.inference import Predictor
from graphslice.originals import ATOM_ROWS, import_checkpoint
from graphslice.runs.checkpoint import write_run_directory

FIXTURE = np.load(Path(__file__).parent.parent / "fixtures" / "graphormer_v2.npz")
MODELS = ["post_norm", "pre_norm", "plain"]
SMILES = [str(smiles) for smiles in FIXTURE["smiles"]]
TARGETS = {"post_norm": "gap", "pre_norm": "gap", "plain": "a,b,c"}


def weights_of(model: str) -> dict[str, torch.Tensor]:
    head = f"{model}/state/"
    return {k.removeprefix(head): torch.from_numpy(FIXTURE[k]) for k in FIXTURE.files if k.startswith(head)}


def settings_of(model: str) -> dict:
    return json.loads(str(FIXTURE[f"{model}/config"]))


def hugging_face_folder(folder: Path, model: str, *, safe: bool = True, **settings) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings_of(model) | settings))
    if safe:
        save_file(weights_of(model), folder / "model.safetensors")
    else:
        torch.save(weights_of(model), folder / "pytorch_model.bin")
    return folder


def fairseq_state(model: str) -> dict[str, torch.Tensor]:
    state = weights_of(model)
    state["encoder.embed_out.weight"] = state.pop("classifier.classifier.weight")
    state["encoder.lm_output_learned_bias"] = state.pop("classifier.lm_output_learned_bias")
    state["encoder.masked_lm_pooler.weight"] = torch.zeros(48, 48)
    return state


def test_rows_of_distances_that_the_original_does_not_read_are_left_out(tmp_path):
    folder = hugging_face_folder(tmp_path / "hf", MODELS[0])
    state = weights_of(MODELS[0])
    (name,) = (name for name in state if "spatial" in name)
    assert len(state[name]) == 512
    save_file(state | {name: torch.cat([state[name], torch.randn_like(state[name])])}, folder / "model.safetensors")
    predictor = Predictor(import_checkpoint(folder, atom_rows="huggingface", target=TARGETS[MODELS[0]]))
    assert np.abs(predictor.predict(SMILES) - FIXTURE[f"{MODELS[0]}/output_huggingface"]).max() < 1e-4


@pytest.mark.parametrize("rows", ATOM_ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_outputs_match_the_original(model, rows, tmp_path):
    folder = hugging_face_folder(tmp_path / "hf", model)
    checkpoint = import_checkpoint(folder, atom_rows=rows, target=TARGETS[model])
    predictor, notes = Predictor(checkpoint), checkpoint.extra["notes"]
    batched = predictor.predict(SMILES)
    single = np.concatenate([predictor.predict(smiles) for smiles in SMILES])
    assert np.abs(batched - FIXTURE[f"{model}/output_{rows}"]).max() < 1e-4
    assert np.abs(batched - single).max() < 1e-5
    assert notes[0].startswith("Hugging Face checkpoint") and len(notes) == 2 + (model == "pre_norm")


class Kind(enum.Enum):
    ONE = 1


def foreign_args(model: str) -> argparse.Namespace:
    """Return settings as fairseq stores them with the weights: nested objects of its own classes."""
    settings = settings_of(model)
    inner = types.SimpleNamespace(pre_layernorm=settings["pre_layernorm"], kind=Kind.ONE)
    return argparse.Namespace(encoder_layers=3, multi_hop_max_dist=5, model=inner, dropout=0.0, act_dropout=0.2)


@pytest.mark.parametrize("model", MODELS)
def test_fairseq_files_are_read_without_running_code(model, tmp_path):
    contents = {"model": fairseq_state(model), "args": foreign_args(model), "optimizer_history": [{"num": Kind.ONE}]}
    path = tmp_path / "checkpoint_best.pt"
    torch.save(contents, path)
    checkpoint = import_checkpoint(path, target=TARGETS[model])
    found = Predictor(checkpoint).predict(SMILES)
    assert np.abs(found - FIXTURE[f"{model}/output_fairseq"]).max() < 1e-4
    config = checkpoint.config.model
    assert (config.dropout, config.activation_dropout, config.attention_dropout) == (0.0, 0.2, 0.1)
    assert checkpoint.extra["notes"][0].startswith("fairseq checkpoint")


def test_data_parallel_names_and_bin_files_are_read(tmp_path):
    state = {f"module.{name}": value for name, value in fairseq_state("post_norm").items()}
    torch.save({"model": state}, tmp_path / "parallel.pt")
    folder = hugging_face_folder(tmp_path / "hf", "post_norm", safe=False)
    files = tmp_path / "parallel.pt", folder, folder / "pytorch_model.bin"
    first, *others = (Predictor(import_checkpoint(file)).predict(SMILES) for file in files)
    assert all((first == other).all() for other in others)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_attention_heads": 8}, "num_attention_heads 8, but its weights have 4"),
        ({"pre_layernorm": True}, "pre_layernorm True, but its weights have False"),
        ({"edge_type": "single"}, "edge_type 'single' is not supported"),
        ({"spatial_pos_max": 20}, "distance of 20"),
    ],
)
def test_contradicting_configuration_is_rejected(settings, words, tmp_path):
    with pytest.raises(InputError, match=words):
        import_checkpoint(hugging_face_folder(tmp_path / "hf", "post_norm", **settings))


def without(state: dict, part: str) -> dict:
    return {name: value for name, value in state.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: without(state, "layers.1"), r"blocks\.1\.\S* is missing"),
        (lambda state: without(state, "layers.1.fc1"), r"blocks\.1\.ffn\.expand\.weight is missing"),
        (lambda state: {"bert.embeddings.word": torch.ones(3, 3)}, "unknown names"),
        (
            lambda state: state | {"encoder.layer_norm.bias": torch.full((48,), torch.nan)},
            r"head\.norm\.bias .*not finite",
        ),
    ],
)
def test_incomplete_weights_are_rejected(change, message, tmp_path):
    folder = hugging_face_folder(tmp_path / "hf", "post_norm")
    (folder / "config.json").write_text("{}")
    save_file(change(weights_of("post_norm")), folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        import_checkpoint(folder)


def test_unsuitable_folders_and_options_are_rejected(tmp_path, run_directory):
    folder = hugging_face_folder(tmp_path / "hf", "post_norm")
    for options, message in (
        ({"target": ""}, "predicts 1 targets: --target must name as many"),
        ({"mixer": "csp"}, "mixer of Graphormer v2 is softmax, not csp"),
        ({"atom_rows": "hf"}, "--atom-rows must be fairseq or huggingface"),
    ):
        with pytest.raises(InputError, match=message):
            import_checkpoint(folder / "config.json", **options)
    with pytest.raises(InputError, match="not a model of GraphSlice"):
        gs.load(folder)
    with pytest.raises(InputError, match="unknown names"):
        import_checkpoint(run_directory)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors or pytorch_model\.bin"):
        import_checkpoint(folder)


@pytest.mark.parametrize("model", MODELS[:2])
def test_imported_model_is_a_run(model, tmp_path, cli):
    write_run_directory(import_checkpoint(hugging_face_folder(tmp_path / "hf", model)), tmp_path / "run")
    expected = FIXTURE[f"{model}/output_fairseq"][:, 0]
    assert np.abs(gs.load(tmp_path / "run").predict(SMILES)[:, 0] - expected).max() < 1e-4
    code, out, _ = cli("inspect", tmp_path / "run", "CCO", "-o", tmp_path / "inspect")
    assert code == 0 and "homolumogap: " in out

"""Files of models, of this program and of the originals: changed bytes, and changed contents."""

from __future__ import annotations

import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fuzzing.mutations import mutated_bytes, odd_value
from graphslice.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from graphslice.config import GraphConfig, ModelConfig, RunConfig
from graphslice.nn import GraphTransformer
from graphslice.originals import import_checkpoint
from graphslice.originals.export import export_checkpoint
from graphslice.tasks import regression_tasks

_TINY = {"layers": 1, "dim": 8, "heads": 2, "ffn_dim": 8}


def target(folder: Path) -> Callable[[random.Random], None]:
    warnings.simplefilter("ignore")  # of what torch makes of complex weights
    contents = [_own(folder), {"state_dict": _original()}, _later(folder / "later")]
    path, hub = folder / "changed.ckpt", folder / "hub"
    hub.mkdir()
    weights, settings = ((folder / "later" / name).read_bytes() for name in ("model.safetensors", "config.json"))

    def run(draw: random.Random) -> None:
        number = draw.randrange(3)
        if number == 2 and draw.random() < 0.4:
            (hub / "model.safetensors").write_bytes(mutated_bytes(draw, weights) if draw.random() < 0.6 else weights)
            (hub / "config.json").write_bytes(mutated_bytes(draw, settings) if draw.random() < 0.6 else settings)
            import_checkpoint(hub).model()
            return
        changed = _changed(draw, contents[number]) if draw.random() < 0.6 else contents[number]
        data = io.BytesIO()
        torch.save(changed, data, _use_new_zipfile_serialization=draw.random() < 0.8)
        if changed is not contents[number]:
            path.write_bytes(data.getvalue())
        elif zipfile.is_zipfile(data) and draw.random() < 0.7:
            path.write_bytes(_with_changed_pickle(draw, data))
        else:
            path.write_bytes(mutated_bytes(draw, data.getvalue()))
        reader = read_checkpoint if (number == 0) == (draw.random() < 0.9) else import_checkpoint
        reader(path).model()

    return run


def _with_changed_pickle(draw: random.Random, file: io.BytesIO) -> bytes:
    """The same archive with changed bytes in its pickle, and the checksums of these."""
    changed = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(changed, "w") as copy:
        for name in archive.namelist():
            part = archive.read(name)
            copy.writestr(name, mutated_bytes(draw, part) if name.endswith("/data.pkl") else part)
    return changed.getvalue()


def _own(folder: Path) -> dict[str, Any]:
    config = RunConfig(model=ModelConfig(**_TINY))
    model = GraphTransformer(config.model)
    save_checkpoint(Checkpoint(config, regression_tasks(["y"]), model.state_dict()), folder / "own.ckpt")
    return torch.load(folder / "own.ckpt", weights_only=True)


def _later(folder: Path) -> dict[str, Any]:
    """A file of fairseq's Graphormer; the folder gets the same as Hugging Face's."""
    model = ModelConfig(**_TINY, mixer="softmax", norm="post", embedding_norm=True, head="mlp")
    config = RunConfig(model=model, graph=GraphConfig(atom_order="input", path_ties="floyd-warshall"))
    checkpoint = Checkpoint(config, regression_tasks(["y"]), GraphTransformer(model).state_dict())
    settings, weights = export_checkpoint(checkpoint, folder, "huggingface")
    return {"model": load_file(weights), "args": json.loads(settings.read_text())}


def _original() -> dict[str, torch.Tensor]:
    """A state dict with the names of Graphormer v1."""
    sizes = {
        "atom_encoder.weight": (9 * 512 + 1, 8),
        "in_degree_encoder.weight": (64, 8),
        "out_degree_encoder.weight": (64, 8),
        "graph_token.weight": (1, 8),
        "edge_encoder.weight": (3 * 512 + 1, 2),
        "edge_dis_encoder.weight": (20 * 2 * 2, 1),
        "spatial_pos_encoder.weight": (512, 2),
        "graph_token_virtual_distance.weight": (1, 2),
        "out_proj.weight": (1, 8),
        "out_proj.bias": (1,),
        "final_ln.weight": (8,),
        "final_ln.bias": (8,),
    }
    layer = ("self_attention_norm", "ffn_norm", "ffn.layer1", "ffn.layer2")
    layer += tuple(f"self_attention.{name}" for name in ("linear_q", "linear_k", "linear_v", "output_layer"))
    for name in layer:
        sizes[f"layers.0.{name}.weight"] = (8,) if name.endswith("norm") else (8, 8)
        sizes[f"layers.0.{name}.bias"] = (8,)
    return {name: torch.zeros(size) for name, size in sizes.items()}


def _changed(draw: random.Random, contents: dict[str, Any]) -> Any:
    """The same nested contents with one to three of its values, or keys, changed."""
    found = _copied(contents)
    for _ in range(draw.choice((1, 1, 2, 3))):
        inside, key = found, draw.choice(list(found)) if found else None
        while key is not None and isinstance(inside[key], dict) and inside[key]:
            if inside is not found and draw.random() >= 0.9:
                break
            inside = inside[key]
            key = draw.choice(list(inside))
        if key is None:
            continue
        kind = draw.randrange(5)
        if kind == 0:
            del inside[key]
        elif kind == 1:
            inside[odd_key(draw)] = inside.pop(key)
        elif isinstance(inside[key], torch.Tensor) and kind < 4:
            inside[key] = _changed_tensor(draw, inside[key])
        else:
            inside[key] = odd_value(draw)
    return odd_value(draw) if draw.random() < 0.01 else found


def odd_key(draw: random.Random) -> Any:
    return draw.choice(("", "x", 1, None, "blocks.x.mixer", "layers.999999999999.ffn.layer1.bias", "model", ("a",)))


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _changed_tensor(draw: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    changes: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: torch.empty(0, *tensor.shape[1:]),
        lambda: tensor[None],
        lambda: tensor.reshape(-1),
        lambda: tensor.to(draw.choice((torch.int64, torch.float64, torch.bool, torch.complex64, torch.bfloat16))),
        lambda: torch.cat([tensor, tensor]),
        lambda: torch.zeros(()),
        lambda: tensor.to_sparse(),
        lambda: torch.zeros(1).expand(2**40),
        lambda: torch.zeros(draw.randrange(5), draw.randrange(5)),
        lambda: torch.full_like(tensor, float("nan")),
        lambda: tensor.to("meta"),
    )
    return draw.choice(changes)()

"""Import of checkpoints of the original implementations: Graphormer v1, Sliceformer and Graphormer v2."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from graphslice.config import GraphConfig, ModelConfig, OptimizerConfig, RunConfig, split_words
from graphslice.errors import InputError, check_choice, first_line
from graphslice.nn import GraphTransformer
from graphslice.originals.graphormer import ATOM_ROWS, convert
from graphslice.originals.reading import read_external_checkpoint
from graphslice.runs.checkpoint import Checkpoint
from graphslice.tasks import regression_tasks


def import_checkpoint(
    path: str | Path,  # Lightning or fairseq file, plain state dict, or Hugging Face folder
    *,
    mixer: str | None = None,  # where the weights do not determine it (query weights: softmax)
    target: str = "homolumogap",  # name of the predicted column, or several, separated by commas
    atom_rows: str | None = None,  # one of ATOM_ROWS, for Graphormer v2 only; the default is "fairseq"
) -> Checkpoint:
    """Convert a checkpoint of Graphormer v1, Sliceformer, or Graphormer v2 (fairseq and Hugging Face).

    The model keeps the original's atom order (as in the SMILES) and its choice among tied shortest paths, so that its
    predictions equal the original's; ``extra["notes"]`` describes the conversion. The default mixer for Sliceformer is
    ``slice-released``, which its published code uses. Raises :class:`InputError` if the file is not such a checkpoint.
    """
    path = Path(path)
    check_choice("--atom-rows", atom_rows, (None, *ATOM_ROWS))
    try:
        weights, config, notes = convert(*read_external_checkpoint(path), mixer, atom_rows)
        weights |= {"target_mean": torch.zeros(config.tasks), "target_std": torch.ones(config.tasks)}
        reason = _difference(weights, config)
    except InputError:
        raise
    except KeyError as missing:
        reason = f"it lacks {missing}"
    except (IndexError, RuntimeError, ArithmeticError, ValueError, TypeError, SafetensorError) as error:
        reason = first_line(error)
    if reason is not None:
        raise InputError(f"cannot import {path} as a model of Graphormer or Sliceformer: {reason}")
    names = split_words(target)
    if len(names) != config.tasks or len({*names}) != config.tasks:
        raise InputError(f"{path} predicts {config.tasks} targets: --target must name as many columns, not {target!r}")
    graph = GraphConfig(atom_order="input", path_ties="floyd-warshall")
    # The peak learning rate of the papers, from which that of fine-tuning is derived.
    run = RunConfig(model=config, graph=graph, optimizer=OptimizerConfig(peak_lr=2e-4))
    run.data.dataset = ""  # unknown: the file does not name it
    arrays = {name: value.detach().numpy() for name, value in weights.items()}
    return Checkpoint(run, regression_tasks(names), arrays, {"imported_from": path.name, "notes": notes})


def _difference(weights: dict[str, Tensor], config: ModelConfig) -> str | None:
    """Describe the first weight, by GraphSlice's names, that is not as the model needs it; None if all are."""
    with torch.device("meta"):
        expected = {name: [*value.shape] for name, value in GraphTransformer(config).state_dict().items()}
    found = {name: [*value.shape] for name, value in weights.items()}
    for name in expected | found:
        if name not in found:
            return f"{name} is missing"
        if found[name] != expected.get(name):
            return f"{name} has the shape {found[name]}, not {expected.get(name)}"
        if not bool(weights[name].isfinite().all()):
            return f"{name} holds values that are not finite"
    return None

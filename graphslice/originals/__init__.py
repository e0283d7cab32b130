"""Import of checkpoints of the original implementations: Graphormer v1, Sliceformer and Graphormer v2."""

from __future__ import annotations

from pathlib import Path

import torch

from graphslice.config import GraphConfig, OptimizerConfig, RunConfig, split_words
from graphslice.errors import InputError, shown
from graphslice.nn import GraphTransformer
from graphslice.originals import graphormer_v1, graphormer_v2
from graphslice.originals.graphormer_v2 import ATOM_ROWS as ATOM_ROWS
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
    if atom_rows not in (None, *ATOM_ROWS):
        raise InputError(f"--atom-rows must be {' or '.join(ATOM_ROWS)}, not {shown(atom_rows)}")
    state, settings = read_external_checkpoint(path)
    try:
        if any(name.endswith(graphormer_v2.ANCHOR) for name in state):
            if mixer not in (None, "softmax"):
                raise InputError(
                    f"{path} is a Graphormer of fairseq or Hugging Face, whose mixer is softmax, not {mixer}"
                )
            weights, config, notes = graphormer_v2.convert(state, settings, atom_rows)
        elif any(name.endswith(graphormer_v1.ANCHOR) for name in state):
            if atom_rows is not None:
                raise InputError(
                    f"{path} is a Graphormer v1 or Sliceformer checkpoint: leave out --atom-rows, which is for "
                    "Graphormer v2"
                )
            weights, config, notes = graphormer_v1.convert(state, settings, mixer)
        else:
            raise InputError(f"{path} is not a Graphormer or Sliceformer checkpoint: {_describe_weights(state)}")
        graphormer_v1.fold_padding_bond(weights, config)
    except InputError:
        raise
    except KeyError as missing:
        raise InputError(f"{path} is an incomplete Graphormer or Sliceformer checkpoint: it lacks {missing}") from None
    except (IndexError, RuntimeError, ArithmeticError, ValueError, TypeError):
        raise InputError(f"{path} is an incomplete Graphormer or Sliceformer checkpoint") from None
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"{path} is not a trained model: it holds values that are not finite, in {name} as GraphSlice names it"
            )
    names = split_words(target)
    if not names:
        raise InputError(f"--target is empty: give a column name for each of {config.tasks} outputs, with commas")
    if len({*names}) < len(names):
        raise InputError(f"--target names one column twice: {target}")
    if len(names) != config.tasks:
        raise InputError(f"{path} predicts {config.tasks} targets, but --target names {len(names)}")
    weights["target_mean"], weights["target_std"] = torch.zeros(config.tasks), torch.ones(config.tasks)
    graph = GraphConfig(atom_order="input", path_ties="floyd-warshall")
    # The peak learning rate of the papers, from which that of fine-tuning is derived.
    run = RunConfig(model=config, graph=graph, optimizer=OptimizerConfig(peak_lr=2e-4))
    run.data.dataset = ""  # unknown: the file does not name it
    arrays = {name: value.detach().numpy() for name, value in weights.items()}
    checkpoint = Checkpoint(run, regression_tasks(names), arrays, {"imported_from": path.name, "notes": notes})
    if difference := _difference(checkpoint):
        guessed = mixer is None and config.mixer != "softmax"
        hint = "; if another mixer was trained, name it with --mixer" if guessed else ""
        raise InputError(f"the weights of {path} are not those of a complete {config.mixer} model: {difference}{hint}")
    return checkpoint


def _difference(checkpoint: Checkpoint) -> str | None:
    """Describe the first weight, by GraphSlice's names, that is missing, unexpected or of the wrong shape; or None."""
    config, named = checkpoint.config.model, {name.split(".")[1] for name in checkpoint.weights if "blocks." in name}
    if len(named) != config.layers:  # checked before building as many blocks as the largest number in a name
        return f"it names block {config.layers - 1} but has {len(named)} blocks"
    with torch.device("meta"):
        expected = {name: value.shape for name, value in GraphTransformer(config).state_dict().items()}
    for name, shape in expected.items():
        if name not in checkpoint.weights:
            return f"{name} is missing"
        if checkpoint.weights[name].shape != shape:
            return f"{name} has the shape {list(checkpoint.weights[name].shape)}, not {list(shape)}"
    extra = [name for name in checkpoint.weights if name not in expected]
    return f"{extra[0]} is not one of its weights" if extra else None


def _describe_weights(state: dict) -> str:
    if not state:
        return "it holds no weights"
    if any(name.startswith(("network.atoms.", "model.atoms.")) for name in state):
        return "it is a model of GraphSlice, which needs no import"
    return f"its {len(state):,} weights have unknown names, such as {next(iter(state))}"

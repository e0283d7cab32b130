"""Checkpoints of the original systems, taken in: Graphormer v1 and Sliceformer, and the later Graphormer."""

from __future__ import annotations

from pathlib import Path

import torch

from graphslice.checkpoint import Checkpoint
from graphslice.config import GraphConfig, OptimizerConfig, RunConfig, split_words
from graphslice.errors import InputError, shown
from graphslice.nn import GraphTransformer
from graphslice.originals import graphormer_v1, graphormer_v2
from graphslice.originals.graphormer_v2 import ATOM_ROWS as ATOM_ROWS
from graphslice.originals.reading import read_external_checkpoint
from graphslice.tasks import regression_tasks


def import_checkpoint(
    path: str | Path, *, mixer: str | None = None, target: str = "homolumogap", atom_rows: str | None = None
) -> Checkpoint:
    """Take in a checkpoint of Graphormer v1, Sliceformer, or the later Graphormer of fairseq and Hugging Face.

    The model keeps the original's atom order (as written) and its choice among tied shortest paths, so that it
    predicts what the original predicts.

    Args:
        path: a Lightning or fairseq file, a plain state dict, or a Hugging Face folder.
        mixer: needed where the weights do not tell: ``softmax`` is recognised by its queries; for Sliceformer the
            default is ``slice-released``, what its published code runs.
        target: name of the predicted column (several: separated by commas).
        atom_rows: one of :data:`ATOM_ROWS`, for the later Graphormer; when not given, what the file says, else fairseq.

    Returns:
        The model; ``extra["notes"]`` says what was taken, and why.

    Raises:
        InputError: if it cannot be read or is no such checkpoint.
    """
    path = Path(path)
    if atom_rows not in (None, *ATOM_ROWS):
        raise InputError(f"--atom-rows is {' or '.join(ATOM_ROWS)}, not {shown(atom_rows)}")
    state, settings = read_external_checkpoint(path)
    try:
        if graphormer_v2.is_graphormer_v2(state):
            if mixer not in (None, "softmax"):
                raise InputError(
                    f"{path} is a Graphormer of fairseq or Hugging Face: its mixer is softmax, not {mixer}"
                )
            weights, config, notes = graphormer_v2.convert(state, settings, atom_rows)
        elif graphormer_v1.is_graphormer_v1(state):
            if atom_rows is not None:
                raise InputError(f"{path} is a Graphormer v1 or Sliceformer checkpoint: --atom-rows is not for it")
            weights, config, notes = graphormer_v1.convert(state, settings, mixer)
        else:
            raise InputError(f"{path} is no Graphormer or Sliceformer checkpoint: {_describe_weights(state)}")
        graphormer_v1.fold_padding_bond(weights, config)
    except InputError:
        raise
    except KeyError as missing:
        raise InputError(f"{path} is no whole Graphormer or Sliceformer checkpoint: it lacks {missing}") from None
    except (IndexError, RuntimeError, ArithmeticError, ValueError, TypeError):
        raise InputError(f"{path} is no whole Graphormer or Sliceformer checkpoint: parts of it are missing") from None
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"{path} holds numbers that are not finite, in {name} by our names: it is no trained model"
            )
    names = split_words(target)
    if not names:
        raise InputError(f"--target names a column for each of the {config.tasks} outputs, separated by commas")
    if len({*names}) < len(names):
        raise InputError(f"--target names one column twice: {target}")
    if len(names) != config.tasks:
        raise InputError(f"{path} predicts {config.tasks} targets, and --target names {len(names)}")
    weights["target_mean"], weights["target_std"] = torch.zeros(config.tasks), torch.ones(config.tasks)
    graph = GraphConfig(atom_order="input", path_ties="floyd-warshall")
    # The peak learning rate of the papers, from which fine-tuning takes its own.
    run = RunConfig(model=config, graph=graph, optimizer=OptimizerConfig(peak_lr=2e-4))
    run.data.dataset = ""  # of which its file says nothing
    checkpoint = Checkpoint(run, regression_tasks(names), weights, {"imported_from": path.name, "notes": notes})
    if difference := _difference(checkpoint):
        guessed = mixer is None and config.mixer != "softmax"
        hint = "; if another mixer was trained, name it with --mixer" if guessed else ""
        raise InputError(f"the weights of {path} are not those of a whole {config.mixer} model: {difference}{hint}")
    return checkpoint


def _difference(checkpoint: Checkpoint) -> str | None:
    """The first weight that is missing, too many, or of another shape than the configuration makes it; by our names."""
    config, named = checkpoint.config.model, {name.split(".")[1] for name in checkpoint.weights if "blocks." in name}
    if len(named) != config.layers:  # asked first: the largest number in a name says how many are built
        return f"it names block {config.layers - 1} and has {len(named)}"
    with torch.device("meta"):
        expected = {name: value.shape for name, value in GraphTransformer(config).state_dict().items()}
    for name, shape in expected.items():
        if name not in checkpoint.weights:
            return f"{name} is missing"
        if checkpoint.weights[name].shape != shape:
            return f"{name} is {list(checkpoint.weights[name].shape)}, not {list(shape)}"
    extra = [name for name in checkpoint.weights if name not in expected]
    return f"{extra[0]} is not of it" if extra else None


def _describe_weights(state: dict) -> str:
    if not state:
        return "it holds no weights"
    if any(name.startswith("model.atoms.") for name in state):
        return "it is one of GraphSlice's own, which needs no import"
    return f"its {len(state):,} weights have other names, such as {next(iter(state))}"

"""A forest and boosted trees beside the network: trained on the same molecules, compared with it, and blended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.checkpoint import BEST, add_blend, read_checkpoint
from graphslice.data.datamodule import MoleculeData
from graphslice.evaluation.metrics import METRICS, is_better, score
from graphslice.inference.predictor import Predictor
from graphslice.tasks import output_slices
from graphslice.trees import Blend, compare_errors
from graphslice.trees.beside import KINDS, fit_trees, predict_trees, weigh

_NETWORK, _BLEND = "network", "blend"
# With such a weight for every target the network answers alone: descriptors take longer than its whole answer.
_NETWORK_ALONE = 0.8


def train_baselines(folder: Path, data: MoleculeData, metric: str, device: torch.device, console: Console) -> dict:
    """Fit trees to the training molecules, weigh all that answers on validation, and add them to the best checkpoint.

    Args:
        folder: of the run, whose network is trained.
        data: with the descriptors that trees read.
        metric: of the run.
        device: of the network.
        console: where to report.

    Returns:
        For each split its metric by the name of what answers: network, forest, boosting, blend.
    """
    source, rows = data.source, data.splits["train"]
    console.print(f"forest and boosting on {' and '.join(KINDS)} of {len(rows):,} molecules", highlight=False)
    seed, threads = data.config.trainer.seed, torch.get_num_threads()
    with console.status("fitting trees"):
        trees = fit_trees(data.store.descriptors(rows, KINDS), source.targets[rows], source.tasks, seed, threads)
    network = Predictor(replace(read_checkpoint(folder), blend=None), device)  # of a run that goes on it may have some
    answers = {
        split: _answers(network, trees, data, split) for split in ("valid", "test") if len(data.splits.get(split, ()))
    }
    weights = weigh(list(answers["valid"].values()), source.targets[data.splits["valid"]], source.tasks)
    if alone := bool((weights[0] >= _NETWORK_ALONE).all()):
        weights = np.zeros_like(weights)
        weights[0] = 1
    blend = Blend(KINDS, trees, weights)
    if not alone:
        add_blend(folder / BEST, blend)
    found: dict[str, dict[str, float]] = {}
    for split, each in answers.items():
        labels = source.targets[data.splits[split]]
        x = data.store.descriptors(data.splits[split], KINDS)
        each[_BLEND] = blend.answers(each[_NETWORK], x, source.tasks)
        found[split] = {name: score(metric, source.name, source.tasks, labels, values) for name, values in each.items()}
    shares = ", ".join(
        f"{100 * share:.0f}% {name}" for name, share in zip([_NETWORK, *trees], weights.mean(axis=1), strict=True)
    )
    said = "the network alone, to which the trees add little" if alone else f"{shares}, weights by validation"
    console.print(f"blend: {said}", highlight=False)
    split = "test" if "test" in answers and not np.isnan(source.targets[data.splits["test"]]).all() else "valid"
    for line in describe_baselines(split, answers[split], data, metric, found[split]):
        console.print(line, highlight=False, soft_wrap=True)
    return found


def _answers(network: Predictor, trees: dict, data: MoleculeData, split: str) -> dict[str, np.ndarray]:
    """``float32 [R, W]`` of the network and of each kind of trees, for the molecules of a split."""
    rows = data.splits[split]
    x = data.store.descriptors(rows, KINDS)
    found = {_NETWORK: network.predict_store(data.store, rows)}
    return found | {name: predict_trees(of_targets, x) for name, of_targets in trees.items()}


def describe_baselines(
    split: str, answers: dict[str, np.ndarray], data: MoleculeData, metric: str, values: dict[str, float]
) -> list[str]:
    """Which of network, forest and boosting is best, and whether by more than chance among the molecules of the split.

    Args:
        split: its name.
        answers: ``float32 [R, W]`` by the name of what answers.
        data: with the labels.
        metric: of the run.
        values: the metric by the same names.
    """
    lines = [f"{split} {METRICS[metric].label}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items())]
    alone = [name for name in values if name != _BLEND and np.isfinite(values[name])]
    if not alone:
        return lines
    best = alone[0]
    for name in alone[1:]:
        best = name if is_better(metric, values[name], values[best]) else best
    rivals = [name for name in alone if name != best and (best == _NETWORK or name == _NETWORK)]
    if not rivals:
        return lines
    rival = rivals[0] if len(rivals) == 1 or not is_better(metric, values[rivals[1]], values[rivals[0]]) else rivals[1]
    task, labels = data.source.tasks[0], data.source.targets[data.splits[split]][:, 0]
    where = output_slices(data.source.tasks)[0]
    found = compare_errors(labels, answers[best][:, where], answers[rival][:, where], task.kind)
    if not np.isfinite(found.low):  # of one molecule, or of one class, nothing can be said
        return lines
    of_target = f" of {task.name}" if len(data.source.tasks) > 1 else ""
    certain = "more than chance among these molecules" if found.low > 0 else "within the chance of these molecules"
    lines.append(
        f"alone the {best} is best; {found.metric}{of_target} is {found.difference:.3g} better than the {rival}'s "
        f"(95%: {found.low:.3g} to {found.high:.3g}), {certain}; --ensemble shows how much of it is the seed's"
    )
    return lines


def describe_seeds(split: str, found: Sequence[dict[str, float]], metric: str) -> list[str]:
    """Network, forest, boosting and blend over several seeds, and whether they differ by more than the seeds.

    Args:
        split: its name.
        found: of every seed the metric by the name of what answers, as :func:`train_baselines` returns it of a split.
        metric: of the run.
    """
    values = {name: np.array([each[name] for each in found]) for name in found[0]}
    means = {name: float(each.mean()) for name, each in values.items() if np.isfinite(each).all()}
    if len(found) < 2 or _NETWORK not in means:
        return []
    spread = {name: float(values[name].std(ddof=1)) for name in means}
    said = ", ".join(f"{name} {mean:.4f} ± {spread[name]:.4f}" for name, mean in means.items())
    lines = [f"{split} {METRICS[metric].label} of {len(found)} models alone: {said}"]
    rivals = [name for name in means if name not in (_NETWORK, _BLEND)]
    if rivals:
        sign = 1 if METRICS[metric].higher else -1
        rival = max(rivals, key=lambda name: sign * means[name])
        gain = sign * (means[_NETWORK] - means[rival])
        winner, loser = (_NETWORK, rival) if gain > 0 else (rival, _NETWORK)
        more = "more" if abs(gain) > np.hypot(spread[_NETWORK], spread[rival]) else "less"
        lines.append(f"the {winner} beats the {loser} by {abs(gain):.3g}, {more} than what the seeds change")
    return lines

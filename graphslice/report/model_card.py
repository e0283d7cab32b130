"""Model cards: README.md of a model in the layout of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from graphslice._version import __version__
from graphslice.errors import pluralize
from graphslice.evaluation.format_scores import PRINTED_METRICS, markdown_table, plain
from graphslice.evaluation.metrics import prediction_count
from graphslice.inference.predictor import Predictor
from graphslice.runs.run_files import find_members, read_splits
from graphslice.tasks import Task

_COVERAGE = "coverage_90"
# Targets in the table of targets.
_MAX_TARGETS = 40


def model_card(model: Predictor, metrics: dict[str, Any], repository: str, license: str) -> str:
    """Write the card of a model from its run: Markdown with YAML front matter. ``metrics``: as in ``metrics.json``;
    ``repository``: ``user/name`` on the Hub, or the name of a packaged model; ``license``: an identifier of the Hub,
    such as ``mit``."""
    split = next((name for name in ("test", "valid") if name in metrics), None)
    targets = metrics[split]["targets"] if split else {}
    on_hub = "/" in repository
    matter: dict[str, Any] = {
        "license": license,
        "library_name": "graphslice",
        "pipeline_tag": "graph-ml",
        "tags": ["chemistry", "molecules", "smiles", "graphslice"],
    }
    if targets:
        results = [
            _result(name, one, model.config.without_paths().data.dataset, str(split)) for name, one in targets.items()
        ]
        matter["model-index"] = [{"name": repository.rpartition("/")[2], "results": results}]
    lines = [
        f"# {repository.rpartition('/')[2]}",
        "",
        f"A model of molecular properties from SMILES, trained with GraphSlice {__version__}.",
        "",
        *_targets(model.tasks),
        "",
        "## Use",
        "",
        "```python",
        "import graphslice as gs" + "  # pip install 'graphslice[hub]'" * on_hub,
        "",
        f'model = gs.load("{"hf://" * on_hub}{repository}")',
        'model.predict(["CCO", "c1ccccc1O"])',
        "```",
        "",
        "## Training data",
        "",
        *_data(model),
        "",
        "## Scores",
        "",
        *_scores("out-of-fold" if model.is_cross_validation else split, targets),
        "",
        "## Limits",
        "",
        *_limits(model),
        "",
        "## Architecture",
        "",
        _architecture(model),
    ]
    return f"---\n{yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)}---\n\n" + "\n".join(lines) + "\n"


def _targets(tasks: Sequence[Task]) -> Iterator[str]:
    head = ["target", "type", "unit", "classes, or scale of training"]
    shown = tasks[:_MAX_TARGETS]
    yield from markdown_table(
        head, ((task.name, task.kind, task.unit, ", ".join(task.classes) or task.transform) for task in shown)
    )
    if (more := len(tasks) - _MAX_TARGETS) > 0:
        yield from ("", f"and {pluralize(more, 'further target')}.")


def _result(name: str, scores: dict[str, Any], dataset: str, split: str) -> dict[str, Any]:
    known = [metric for metric in PRINTED_METRICS[scores["kind"]] if scores.get(metric) is not None]
    kind = "tabular-regression" if scores["kind"] == "regression" else "tabular-classification"
    return {
        "task": {"type": kind, "name": name},
        "dataset": {"type": dataset, "name": dataset, "split": split},
        "metrics": [{"type": metric, "value": scores[metric]} for metric in known],
    }


def _data(model: Predictor) -> Iterator[str]:
    data = model.config.without_paths().data
    yield f"- dataset: `{data.dataset}`, {data.level}-level targets"
    split = data.split or ("random" if data.folds else "given in the dataset, else random")
    yield f"- split: {split}" + (f", {data.folds} folds" if data.folds else "")
    if model.folder is not None and not model.is_cross_validation:
        members = find_members(model.folder)
        splits = read_splits(members[0] if members else model.folder) or {}
        if splits:
            yield "- rows: " + ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items())
    if data.descriptors:
        yield f"- inputs in addition to the graph: {', '.join(data.descriptors)}"


def _scores(split: str | None, targets: dict[str, dict[str, Any]]) -> Iterator[str]:
    if split is None:
        yield "The run has no scores."
        return
    kinds = {one["kind"] for one in targets.values()}
    names = list(dict.fromkeys(name for kind in PRINTED_METRICS if kind in kinds for name in PRINTED_METRICS[kind]))
    names += [_COVERAGE] if any(one.get(_COVERAGE) is not None for one in targets.values()) else []
    sets = {"test": "On the test set:", "valid": "On held-out molecules of the training:"}
    yield sets.get(split, "Of out-of-fold predictions:")
    yield ""
    yield from markdown_table(
        ["target", "labels", *names],
        ([name, prediction_count(one)[0], *(_cell(one.get(key)) for key in names)] for name, one in targets.items()),
    )


def _cell(value: float | None) -> str:
    return "" if value is None else plain(value)


def _limits(model: Predictor) -> Iterator[str]:
    yield "- The scores hold for molecules like those of the split; other chemistry is predicted worse."
    if model.calibration is None:
        yield "- The model has no calibration: no prediction intervals and no applicability domain."
        return
    domain = model.calibration.domain
    yield (
        "- `predict(..., interval=90)` gives conformal intervals or prediction sets, and `in_domain`: whether a "
        "molecule is as similar to a training molecule as these are to one another."
    )
    if domain.max_training_atoms:
        yield f"- The largest training molecule has {domain.max_training_atoms} atoms without hydrogens."
    if any(stacking is not None for stacking in model.stackings):
        yield "- The base models hold descriptors and fingerprints of training molecules."
    yield (
        f"- The files hold Morgan fingerprints of {len(domain.rows):,} training molecules, from which a known molecule "
        "can be recognised, but no SMILES."
    )


def _architecture(model: Predictor) -> str:
    config, trees = model.config.model, any(stacking is not None for stacking in model.stackings)
    members = f"{model.num_models} networks, each with " if model.num_models > 1 else "A network with "
    base = ", stacked with base models" if trees else ""
    return (
        f"{members}{pluralize(config.layers, 'layer')} of the mixer `{config.mixer}`, {config.dim} channels and "
        f"{model.networks.num_parameters:,} parameters{base}."
    )
